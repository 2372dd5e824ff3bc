"""Read which release of a package is installed, and compare the release with specifiers."""

from __future__ import annotations

import functools
import importlib.metadata
import operator
import os
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
    """

    text: str
    tested: bool = False

    def within(self, specifiers: str) -> bool:
        """Return whether PEP 440 ``specifiers`` admit it; unreadable versions count as newest."""
        return not specifiers or _admits(specifiers, self.text)

    def __str__(self) -> str:
        return self.text or "unknown"


@functools.cache  # Hundreds of faults and targets share a few specifiers.
def _admits(specifiers: str, version: str) -> bool:
    try:
        found = _numbers(version)
        return all(_holds(clause, found) for clause in specifiers.split(","))
    except ValueError:  # More than numbers. To import packaging takes 2 % of the time of optax.
        return _admits_any(specifiers, version)


def _holds(clause: str, found: tuple[int, ...]) -> bool:
    """Compare a release of numbers alone with a clause such as ``>=0.2.3``."""
    sign = clause.rstrip("0123456789.")
    if sign not in _COMPARE:
        raise ValueError(clause)
    return _COMPARE[sign](found, _numbers(clause[len(sign) :]))


def _numbers(version: str) -> tuple[int, ...]:
    if not version.replace(".", "").isdecimal():  # int() accepts signs and underscores.
        raise ValueError(version)
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:  # 0.2 is 0.2.0.
        numbers.pop()
    return tuple(numbers)


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def _admits_any(specifiers: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        found = Version(version)
    except InvalidVersion:
        found = Version("9999")
    return SpecifierSet(specifiers).contains(found, prereleases=True)


def installed(package: ModuleType | str, tested: Sequence[str]) -> Release:
    """Return the release of a package: a module, or a name if it is not imported yet.

    ``__version__`` comes before the metadata: with two copies on the path, the metadata may
    describe the other one.
    """
    name = package if isinstance(package, str) else package.__name__
    version = getattr(package, "__version__", None)
    text = version if isinstance(version, str) else _metadata_version(name)
    return Release(text, tested=text in tested)


def version_of(package: str) -> str:
    """Return the version of an installed distribution as text, for reports."""
    return _metadata_version(package) or "not installed"


def _metadata_version(package: str) -> str:
    try:
        return importlib.metadata.version(package) or ""  # Broken metadata has none.
    except importlib.metadata.PackageNotFoundError:
        return ""


def location_of(module: ModuleType) -> str:
    """Return the folder a package was imported from, for reports; empty if it has no file."""
    file = getattr(module, "__file__", None)
    return os.path.dirname(file) if isinstance(file, str) else ""
