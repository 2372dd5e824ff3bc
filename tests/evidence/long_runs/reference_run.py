"""A reference on its own: the digits, learned in float64 numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from evidence.long_runs import digits
from evidence.long_runs.references import exactly

if TYPE_CHECKING:
    from evidence.long_runs.cases import Case

WINDOW = 60  # Steps that one point of a curve stands for.


def curve(losses: Any) -> list[float]:
    """Means of some steps each."""
    return [float(part.mean()) for part in np.split(np.asarray(losses), len(losses) // WINDOW)]


def losses_in(dtype: str | None, case: Case) -> list[float]:
    """The curve of a case.

    Args:
      dtype: to which params, gradients, updates and, if it is bfloat16, arrays of the state are
        rounded. With None nothing is.
      case: what is trained with.
    """

    def rounded(array: Any) -> Any:
        if dtype is None:
            return array
        return array.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)

    images, labels = digits.images()
    images, params = rounded(images), rounded(digits.start())
    keeps = dtype == "bfloat16" and not case.opt_in  # In float16 they would be 0, or infinite.
    step = case.reference(params, (lambda _, array: rounded(array)) if keeps else exactly)
    losses = []
    for batch in digits.batches():
        loss, gradient = digits.loss_and_gradient(params, images[batch], labels[batch])
        update, _ = step(params, rounded(gradient * case.scale), loss * case.scale)
        params = rounded(params + rounded(update))
        losses.append(loss)
    return curve(losses)
