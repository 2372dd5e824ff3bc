"""The result of a check: of dtypes, or of values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .._errors import OptaxDtypeFixError
from .._text import cut, html_table

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Violation:
    """One way in which a transformation breaks the contract.

    Attributes:
      kind: ``state``, ``structure``, ``updates``, ``float64``, ``int64``, ``scan``, ``cond`` or
        ``error``; of values, ``not finite``, ``update``, ``statistic``, ``stalls``, ``params`` or
        ``error``.
      where: key path of the leaf, as in ``[0].mu['w']``; of values, as in ``updates['w']``,
        ``params['w']`` or ``state[0].weight_sum``. Empty if it is about the whole.
      message: what is wrong, such as ``changes from bfloat16[3] to float32[3]``.
      step: of values, the first step that shows it, counted from 1.
      gradients: of values, what is special about the gradients that show it, as text.
    """

    kind: str
    where: str
    message: str
    step: int | None = None
    gradients: str = ""

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.kind}{self.where}: {self.message}"
        where = f" ({self.where})" if self.where else ""
        gradients = f", {self.gradients}" if self.gradients else ""
        return f"{self.message} at step {self.step}{where}{gradients}"


@dataclasses.dataclass(frozen=True, repr=False)
class Check:
    """Result of ``check`` and of ``check_values``. Iterates over the violations.

    Attributes:
      violations: how the transformation breaks the contract; of values, the first of each kind and
        leaf.
      error: the exception that the transformation raised, if it did.
      built_before: the functions that built parts of the transformation before they were patched,
        or in a process without patches that wrote a pickle. These parts are stock until they are
        built again. That alone breaks nothing.
      notes: which values were not compared, and why.
      if_ok: the text of ``str()`` if there is no violation.
    """

    violations: tuple[Violation, ...]
    error: Exception | None = None
    built_before: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    if_ok: str = "dtypes: ok; values: not checked, see check_values"

    @property
    def problems(self) -> tuple[Violation, ...]:
        """The violations, as ``check_values`` calls them."""
        return self.violations

    @property
    def ok(self) -> bool:
        """Whether the transformation keeps the contract."""
        return not self.violations

    def __iter__(self) -> Iterator[Violation]:
        return iter(self.violations)

    def __str__(self) -> str:
        lines = [*map(str, self.violations)] or [self.if_ok]
        if self.built_before:
            stock = ", ".join(self.built_before)
            when = "before the patches were applied, or by a process without them"
            lines.insert(0, f"built {when}, so still stock: {stock}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        count = len(self.violations)
        first = f"{count} violation{'' if count == 1 else 's'}, first " if count else ""
        return cut(f"<Check: {first}{str(self).splitlines()[0]}>", 100)

    def _repr_html_(self) -> str:
        if self.ok:
            return html_table([("check",), (str(self),)])
        rows = [
            (found.kind, found.where, found.message if found.step is None else str(found))
            for found in self
        ]
        return html_table([("kind", "where", "message"), *rows])

    def raise_if_broken(self) -> None:
        """Raise if the contract is broken.

        Raises:
          OptaxDtypeFixError: the contract is broken; the message has one line a violation. Its
            cause is the exception that the transformation raised, if it did.
        """
        if not self.ok:
            raise OptaxDtypeFixError(
                f"the transformation breaks the contract:\n{self}"
            ) from self.error


ValueCheck = Check
ValueProblem = Violation
"""Names of both under which ``check_values`` returned them in earlier versions."""
