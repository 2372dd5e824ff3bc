"""Make the branches of ``lax.cond`` agree on the dtypes of the updates.

One branch returns the updates of the inner transformation, the other returns zeros or gradients. So
the other branch needs the dtypes of the first, which are known only once the inner transformation
has been traced. Stock runs with the most likely dtypes. If the inner transformation gives wider
ones, stock runs again with those.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from .._contract.dtypes import cast, dtype_of
from .._contract.widths import promoted

Result = TypeVar("Result")


class _TooWideError(Exception):
    """An update does not fit into the dtype that the other branch gives."""

    def __init__(self, dtypes: list[Any]) -> None:
        super().__init__()
        self.dtypes = dtypes


def copy_of(multi_steps: Any) -> Any:
    """Copy a MultiSteps for one call; a subclass may say that it is copied in another way."""
    copied = object.__new__(type(multi_steps))
    vars(copied).update(vars(multi_steps))
    return copied


def run_in_agreement(run: Callable[[list[Any]], Result], dtypes: list[Any]) -> Result:
    """Call ``run`` with the dtypes of the other branch, and again if :func:`fit` finds wider ones.

    Args:
      run: runs stock. In it, the inner transformation's updates go through :func:`fit`.
      dtypes: of the leaves of the other branch, as far as they are known before.
    """
    try:
        return run(dtypes)
    except _TooWideError as error:
        needed = error.dtypes
    return run(needed)


def fit(updates: list[Any], dtypes: list[Any]) -> list[Any]:
    """Cast updates to the dtypes of the other branch, if that loses nothing."""
    if len(updates) != len(dtypes):
        return updates  # cond reports it.
    needed = [promoted(dtype_of(u), dtype) for u, dtype in zip(updates, dtypes)]
    if needed != dtypes:
        raise _TooWideError(needed)
    return list(map(cast, updates, dtypes))
