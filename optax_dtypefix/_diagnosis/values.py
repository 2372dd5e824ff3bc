"""Check the values of any transformation: some steps in the user's dtypes beside exact ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .._contract.modes import no_debugging
from .._contract.wrong_arguments import refuse_traced, refuse_wrong
from .compare import find_violations
from .random_problem import RandomProblem
from .run_check import run_check
from .steady import LEAST, find_stalls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._contract.dtypes import PyTree
    from .result import Check, Violation


_STEPS = 320
"""Steps of the longest run that is not steady, unless the user says otherwise."""


def check_values(
    tx: Any, params: PyTree, grads: PyTree = None, *, steps: int = _STEPS, **extra_args: Any
) -> Check:
    """Check the values that a transformation computes, stock or patched.

    The transformation runs on small random problems in the dtypes of ``params`` and ``grads``, and
    on the same problems exactly: in float32, or in float64 if a leaf is float32 or wider.

    Args:
      tx: anything with ``init`` and ``update``.
      params: tree of arrays or ``jax.ShapeDtypeStruct``; numbers are drawn in their dtypes. Large
        shapes are shrunk. Equal dimensions stay equal, a longer one stays longer, and the state and
        the operations are alike: adafactor still factors what it factored.
      grads: tree of arrays or ``jax.ShapeDtypeStruct``; like the params if not given.
      steps: steps of the longest run, which is only needed if the state has scalars that may be
        sums. In bfloat16 a sum of ones stalls after 256. With less than 320 there is no run with
        steady gradients, which takes some seconds in half precision.
      **extra_args: passed to ``update``. A scalar, such as ``value``, is replaced by a loss that
        falls slowly; ``grad`` by the gradients. A function is passed unchanged; then no shape is
        shrunk, and arrays among ``params`` are used as they are.

    Returns:
      The problems. Use ``.ok``, ``.raise_if_broken()`` or ``str()``. These are problems:

      - An update is not finite.
      - An update is off by more than the rounding of the updates and of the stored state explains.
      - A scalar of the state is off by more than 1 %.
      - A sum or an update stalls.
      - In half precision, after 2,000 steps with steady gradients: an update is off by more than
        10 %, or ``optax.apply_updates`` moves params by less than 75 % of their updates.
      - The transformation raises an exception, which is in ``.error``.

    Raises:
      ValueError: ``steps`` is less than 1.
      TypeError: ``tx`` or ``params`` is something else; the message says what was probably meant.
    """
    import optax

    refuse_wrong("check_values", tx, params)
    refuse_traced("check_values", params)
    if steps < 1:
        raise ValueError(f"steps is {steps!r}. Give at least 1.")
    grads = params if grads is None else grads
    notes: dict[str, None] = {}

    def find() -> Iterable[Violation]:
        first: dict[tuple[str, str], Violation] = {}
        with no_debugging():
            problem = RandomProblem(tx, params, grads, extra_args)
            found = [*find_violations(problem, steps, notes)]
            if steps >= _STEPS and problem.half:
                larger = RandomProblem(tx, params, grads, extra_args, least=LEAST)
                found += find_stalls(larger, optax.apply_updates, notes)
            for one in found:
                first.setdefault((one.kind, one.where), one)
        return first.values()

    found = run_check("check_values", tx, params, find, step=1)
    return dataclasses.replace(found, notes=tuple(notes), if_ok="values: ok")
