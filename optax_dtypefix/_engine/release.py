"""Read which release of a package is installed, and compare the release with specifiers."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


@dataclasses.dataclass(frozen=True)
class Release:
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
    version: object = None
    if not isinstance(package, str):
        version = getattr(package, "__version__", None)
        package = package.__name__
    if not isinstance(version, str):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = ""
    text = version if isinstance(version, str) else ""
    return Release(text, tested=text in tested)


def version_of(package: str) -> str:
    """Return the version of an installed distribution as text, for reports."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def location_of(module: ModuleType) -> str:
    """Return the folder a package was imported from, for reports; empty if it has no file."""
    file = getattr(module, "__file__", None)
    return os.path.dirname(file) if isinstance(file, str) else ""
