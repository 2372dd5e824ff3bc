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

VERSION = re.compile(
    r"(\d+(?:\.\d+)*)((?:(?:a|b|rc|\.?dev)\d*)*)(?:\.?post\d*)?(?:\+\w+(?:[.-]\w+)*)?", re.ASCII
)
"""A release, as in 0.2.3, 0.2.8.dev0 or 0.2.8+fork: its numbers, and whether it comes before."""


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
        """Return whether specifiers such as ``>=0.2.3,<0.2.8`` admit it.

        Unreadable versions count as newest. 0.2.5.dev1 comes before 0.2.5, and 0.2.5.post1 is as
        0.2.5.
        """
        return not specifiers or _admits(specifiers, self.counts_as or self.text)

    @property
    def as_later(self) -> Release:
        """An untested release as a later one, since its code may be newer than its version says.

        0.2.8.dev0 comes before 0.2.8, and a fork may have no version but 0+unknown.
        """
        found = VERSION.fullmatch(self.text)
        return self._replace(counts_as=found[1] if found and found[2] else "9999")

    def __str__(self) -> str:
        return self.text or "unknown"


@functools.cache  # Hundreds of faults and targets share a few specifiers.
def _admits(specifiers: str, version: str) -> bool:
    return all(_holds(clause, _order(version)) for clause in specifiers.split(","))


def _holds(clause: str, found: tuple[list[int], bool]) -> bool:
    sign = clause.rstrip("0123456789.")
    return _COMPARE[sign](found, _order(clause[len(sign) :]))


def _order(version: str) -> tuple[list[int], bool]:
    """Return what sorts versions. 0.2 is 0.2.0."""
    found = VERSION.fullmatch(version)
    numbers = [*map(int, found[1].split("."))] if found else [9999]
    return (numbers + [0] * 4)[:5], not (found and found[2])


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


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
