"""Check the values of any transformation: some steps in the user's dtypes beside exact ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .._api import built_before
from .._errors import OptaxDtypeFixError
from .._text import cut, html_table, summarize
from .arguments import advice_on, refuse_traced, refuse_wrong
from .compare import ValueProblem, find_problems
from .modes import no_debugging
from .trial import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .dtypes import PyTree


@dataclasses.dataclass(frozen=True, repr=False)
class ValueCheck:
    """Result of ``check_values``. Iterates over the problems.

    Attributes:
      problems: the first of each kind and leaf.
      notes: what was not compared, and why; functions that built ``tx`` before they were patched.
      error: the exception that the transformation raised, if it did.
    """

    problems: tuple[ValueProblem, ...]
    notes: tuple[str, ...] = ()
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def __iter__(self) -> Iterator[ValueProblem]:
        return iter(self.problems)

    def __str__(self) -> str:
        lines = [*map(str, self.problems)] or ["values: ok"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        count = len(self.problems)
        first = f"{count} problem{'' if count == 1 else 's'}, first " if count else ""
        return cut(f"<ValueCheck: {first}{str(self).splitlines()[0]}>", 100)

    def _repr_html_(self) -> str:
        rows = [(p.kind, p.where, str(p.step), p.message, p.gradients) for p in self]
        rows += [("note", "", "", note, "") for note in self.notes]
        if self.ok:
            rows.insert(0, ("ok", "", "", "", ""))
        return html_table([("values", "where", "step", "message", "gradients"), *rows])

    def raise_if_broken(self) -> None:
        """Raise if a problem was found.

        Raises:
          OptaxDtypeFixError: one line a problem. Its cause is the exception that the transformation
            raised, if it did.
        """
        if not self.ok:
            raise OptaxDtypeFixError(f"the values are wrong:\n{self}") from self.error


def check_values(
    tx: Any, params: PyTree, grads: PyTree = None, *, steps: int = 320, **extra_args: Any
) -> ValueCheck:
    """Check the values that a transformation computes, stock or patched.

    The transformation runs on small random problems in the dtypes of ``params`` and ``grads``, and
    on the same problems exactly: in float32, or in float64 if a leaf is float32 or wider.

    Args:
      tx: anything with ``init`` and ``update``.
      params: tree of arrays or ``jax.ShapeDtypeStruct``; numbers are drawn in their dtypes. Large
        shapes are shrunk. Equal dimensions stay equal, a longer one stays longer, and the state and
        the operations are alike: adafactor still factors what it factored.
      grads: likewise; like the params if not given.
      steps: steps of the longest run, which is only needed if the state has scalars that may be
        sums. In bfloat16 a sum of ones stalls after 256.
      **extra_args: passed to ``update``. A scalar, such as ``value``, is replaced by a loss that
        falls slowly; ``grad`` by the gradients. A function is passed unchanged; then no shape is
        shrunk, and arrays among ``params`` are used as they are.

    Returns:
      The problems. Use ``.ok``, ``.raise_if_broken()`` or ``str()``. A problem is an update that is
      not finite; one that is off by more than the rounding of the updates and of the stored state
      explains; a scalar of the state that is off by more than 1 %; a sum or an update that stalls.
      An exception of the transformation is a problem, too; its cause is in ``.error``.

    Raises:
      ValueError: ``steps`` is less than 1.
      TypeError: ``tx`` or ``params`` is something else; the message says what was probably meant.
    """
    refuse_wrong("check_values", tx, params)
    refuse_traced(params)
    if steps < 1:
        raise ValueError(f"steps={steps!r}: it must be at least 1.")
    grads = params if grads is None else grads
    found: dict[tuple[str, str], ValueProblem] = {}
    stale = ", ".join(built_before(tx))
    note = f"built before the patches were applied, so still stock: {stale}"
    notes = dict.fromkeys([note] if stale else [])
    try:
        with no_debugging():
            for one in find_problems(Problem(tx, params, grads, extra_args), steps, notes):
                found.setdefault((one.kind, one.where), one)
    except Exception as error:  # Reported, not swallowed: it is in the result, with its cause.
        message = summarize(error) + advice_on(error, "check_values", params)
        return ValueCheck((ValueProblem("error", "", 1, message),), tuple(notes), error)
    return ValueCheck(tuple(found.values()), tuple(notes))
