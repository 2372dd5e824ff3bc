"""The result of a check."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .._errors import OptaxDtypeFixError
from .._text import cut, html_table

if TYPE_CHECKING:
    from collections.abc import Iterator

_OK = "dtypes: ok; values: not checked, see `optax-dtypefix check --help`"


@dataclasses.dataclass(frozen=True)
class Violation:
    """One way in which a transformation breaks the contract.

    Attributes:
      kind: ``state``, ``structure``, ``updates``, ``float64``, ``int64``, ``scan``, ``cond`` or
        ``error``.
      where: key path of the leaf, as in ``[0].mu['w']``. Empty if it is about the whole.
      message: what is wrong, such as ``changes from bfloat16[3] to float32[3]``.
    """

    kind: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}{self.where}: {self.message}"


@dataclasses.dataclass(frozen=True, repr=False)
class Check:
    """Result of ``check``. Iterates over the violations.

    Attributes:
      violations: how the transformation breaks the contract.
      error: the exception that the transformation raised, if it did.
      built_before: the functions that built parts of the transformation before they were patched,
        or in a process without patches that wrote a pickle. These parts are stock until they are
        built again. That alone breaks nothing.
    """

    violations: tuple[Violation, ...]
    error: Exception | None = None
    built_before: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the transformation keeps the contract."""
        return not self.violations

    def __iter__(self) -> Iterator[Violation]:
        return iter(self.violations)

    def __str__(self) -> str:
        lines = [*map(str, self.violations)] or [_OK]
        if self.built_before:
            stock = ", ".join(self.built_before)
            when = "before the patches were applied, or by a process without them"
            lines.insert(0, f"built {when}, so still stock: {stock}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        count = len(self.violations)
        first = f"{count} violation{'' if count == 1 else 's'}, first " if count else ""
        return cut(f"<Check: {first}{str(self).splitlines()[0]}>", 100)

    def _repr_html_(self) -> str:
        if self.ok:
            return html_table([("check",), (str(self),)])
        rows = ((found.kind, found.where, found.message) for found in self)
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
