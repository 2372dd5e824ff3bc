"""Read which release of a package is installed, and compare the release with specifiers."""

from __future__ import annotations

import functools
import importlib.metadata
import operator
import re
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class Release(NamedTuple):
    """A release of a package.

    Attributes:
      text: the version; empty if no version was found.
      tested: whether the tables of the patches were verified on exactly this release. Dev builds
        and forks with a local version are not tested.
      counts_as: the version that specifiers are compared with, if it is another one.
    """

    text: str
    tested: bool = False
    counts_as: str = ""

    def within(self, specifiers: str) -> bool:
        """Return whether PEP 440 ``specifiers`` admit it; unreadable versions count as newest.

        ``<0.2.5`` admits 0.2.5.dev1, and a ``SpecifierSet`` of packaging does not.
        """
        found = _order(self.counts_as or self.text)
        for clause in filter(None, specifiers.split(",")):
            sign = clause.rstrip("0123456789.")
            if not _COMPARE[sign](found, _order(clause[len(sign) :])):
                return False
        return True

    @property
    def as_later(self) -> Release:
        """An untested release as a later one, since its code may be newer than its version says.

        PEP 440 sorts 0.2.8.dev0 before 0.2.8, and a fork may have no version but 0+unknown.
        """
        numbers, kind = _order(self.text)
        return self._replace(counts_as=".".join(map(str, numbers)) if kind < 0 else "9999")

    def __str__(self) -> str:
        return self.text or "unknown"


_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)[-._]?((?:[-._]?[a-z]+\d*)*)(?:\+.*)?")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@functools.cache  # Hundreds of faults and targets share a few versions.
def _order(version: str) -> tuple[list[int], int]:
    """Return the numbers of a version, without zeros at the end, and -1 before a release.

    Importing packaging takes 2 % of the time of optax.
    """
    found = _VERSION.fullmatch(version.lower())
    if found is None:
        return [9999], 0
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and not numbers[-1]:  # 0.2 is 0.2.0.
        numbers.pop()
    is_post = found[2].startswith(("post", "rev", "r")) and not found[2].startswith("rc")
    return numbers, (1 if is_post else -1) if found[2] else 0


def installed(package: ModuleType | str, tested: Sequence[str]) -> Release:
    """Return the release of a package: a module, or a name if it is not imported yet.

    ``__version__`` comes before the metadata: with two copies on the path, the metadata may
    describe the other one.
    """
    name = package if isinstance(package, str) else package.__name__
    version = getattr(package, "__version__", None)
    text = version if isinstance(version, str) else version_of(name, missing="")
    return Release(text, tested=text in tested)


def version_of(package: str, *, missing: str = "not installed") -> str:
    """Return the version of an installed distribution as text, for reports."""
    try:
        return importlib.metadata.version(package) or missing  # Broken metadata has none.
    except importlib.metadata.PackageNotFoundError:
        return missing
