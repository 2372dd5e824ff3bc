"""Which optax is installed, and whether it is one of the releases the table was tested on."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

TESTED = (
    *("0.1.2", "0.1.3", "0.1.4", "0.1.5", "0.1.7", "0.1.8", "0.1.9"),
    *("0.2.0", "0.2.1", "0.2.2", "0.2.3", "0.2.4", "0.2.5", "0.2.6", "0.2.7", "0.2.8"),
)
"""Releases for which the table of each patch was verified, fault by fault."""


@dataclasses.dataclass(frozen=True)
class Release:
    """A release of optax, as its version string; empty if it could not be told."""

    text: str

    @property
    def tested(self) -> bool:
        """True for exactly the tested releases: no dev build, no fork with a local version."""
        return self.text in TESTED

    def within(self, specifiers: str) -> bool:
        """Whether PEP 440 ``specifiers`` admit it. An unreadable version counts as the newest."""
        return not specifiers or _admits(specifiers, self.text)

    def __str__(self) -> str:
        return self.text or "unknown"


@functools.cache  # The same few specifiers stand in hundreds of places.
def _admits(specifiers: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        found = Version(version)
    except InvalidVersion:
        found = Version("9999")
    return SpecifierSet(specifiers).contains(found, prereleases=True)


def installed(package: ModuleType | str) -> Release:
    """The release of an imported package; of one not imported yet if given by name.

    The package's own ``__version__`` counts more than the metadata: with two copies on the path,
    the metadata may describe the other one.
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
    return Release(version if isinstance(version, str) else "")


def version_of(package: str) -> str:
    """Version of an installed distribution in words, for reports."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def location_of(module: ModuleType) -> str:
    """The folder a package was imported from, for reports; empty if it has no file."""
    file = getattr(module, "__file__", None)
    return os.path.dirname(file) if isinstance(file, str) else ""
