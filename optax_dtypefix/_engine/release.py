"""Read which release of a package is installed, and compare the release with specifiers."""

from __future__ import annotations

import functools
import importlib.metadata
import operator
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from packaging.version import Version


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
        """Return whether PEP 440 ``specifiers`` admit it; unreadable versions count as newest."""
        return not specifiers or _admits(specifiers, self.counts_as or self.text)

    @property
    def as_later(self) -> Release:
        """An untested release as a later one, since its code may be newer than its version says.

        PEP 440 sorts 0.2.8.dev0 before 0.2.8, and a fork may have no version but 0+unknown.
        """
        version = _version(self.text)
        return self._replace(counts_as=version.base_version if version.is_prerelease else "9999")

    def __str__(self) -> str:
        return self.text or "unknown"


@functools.cache  # Hundreds of faults and targets share a few specifiers.
def _admits(specifiers: str, version: str) -> bool:
    """Compare a version with clauses such as ``>=0.2.3``, in the order of PEP 440.

    That admits 0.2.5.dev1 to ``<0.2.5``, and a ``SpecifierSet`` of packaging does not.
    """
    is_plain = all(map(str.isdecimal, version.split(".")))  # int() accepts signs and underscores.
    # To import packaging takes 2 % of the time of optax.
    parse: Callable[[str], Any] = _numbers if is_plain else _version
    return all(
        _COMPARE[(sign := clause.rstrip("0123456789."))](parse(version), parse(clause[len(sign) :]))
        for clause in specifiers.split(",")
    )


def _version(text: str) -> Version:
    """Read a version, without its local part; unreadable ones count as newest."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return Version("9999")


def _numbers(version: str) -> tuple[int, ...]:
    return (*map(int, version.split(".")), 0, 0, 0, 0)[:5]  # 0.2 is 0.2.0.


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
