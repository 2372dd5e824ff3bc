"""A run of the reference alone: digits, learned in float64 numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from evidence.long_runs import digits
from evidence.long_runs.references import exactly

if TYPE_CHECKING:
    from evidence.long_runs.cases import Case

WINDOW = 60  # The number of steps that one point of a curve averages.


def curve(losses: Any) -> list[float]:
    """Return the means of ``WINDOW`` steps each."""
    return [float(part.mean()) for part in np.split(np.asarray(losses), len(losses) // WINDOW)]


def losses_in(dtype: str | None, case: Case) -> list[float]:
    """Return the losses of a case.

    Args:
      dtype: the dtype to which params, gradients and updates are rounded. None rounds nothing.
      case: the optimizer.
    """

    def rounded(array: Any) -> Any:
        if dtype is None:
            return array
        return array.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)

    images, labels = digits.images()
    images, params = rounded(images), rounded(digits.start())
    step = case.reference(params, exactly)
    losses = []
    for batch in digits.batches():
        loss, gradient = digits.loss_and_gradient(params, images[batch], labels[batch])
        update, _ = step(params, rounded(gradient * case.scale), loss * case.scale)
        params = rounded(params + rounded(update))
        losses.append(loss)
    return curve(losses)
