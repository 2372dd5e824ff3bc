"""What a patch is: faults and replacements, each a function, registered where it stands.

A patch file in ``patches/`` makes one :class:`Patch`. The file knows optax's mathematics and
nothing of how a patch is applied. The engine applies patches and knows no mathematics.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .release import Release

Replacement = Callable[..., Any]
"""``replacement(stock, *args, **kwargs)``: called in place of ``stock(*args, **kwargs)``.

``stock`` is what would have been called otherwise; for a method, ``args[0]`` is the instance.
"""

Reproducer = Callable[[Any], Optional[str]]
"""Runs the public functions of the package that it is given, as a user would.

Returns None if the contract holds, else what went wrong. May raise. The package is an argument
because a program may import it again, and then a module has two lives.
"""

_R = TypeVar("_R", bound=Replacement)
_F = TypeVar("_F", bound=Reproducer)
_ISSUES = "https://github.com/google-deepmind/optax/issues/"


class NotInReleaseError(LookupError):
    """Raised by a reproducer if the release lacks the function, and so has not the fault."""


class Fault(NamedTuple):
    """One way in which stock optax breaks the contract.

    Attributes:
      id: short name, unique within the patch.
      summary: what a user sees, in one line.
      releases: PEP 440 specifiers of the affected releases, over the tested ones.
      reproduce: shows the fault on the functions that the package has when it is called.
      upstream: link of the upstream issue or pull request; empty if none was found.
      abstract: whether ``reproduce`` only evaluates shapes and dtypes, so that it can serve as the
        probe on a release that is not in the table: no FLOPs, no backend.
      probe: an abstract reproducer on stock functions, where ``reproduce`` has to compute.
    """

    id: str
    summary: str
    releases: str
    reproduce: Reproducer
    upstream: str = ""
    abstract: bool = True
    probe: Reproducer | None = None


class Target(NamedTuple):
    """A function or method to wrap.

    Attributes:
      modules: where it is defined, newest layout first; the first module that defines it counts.
      qualname: its name there, as in ``MultiSteps.update``.
      replacement: what to call instead.
      releases: PEP 440 specifiers of the releases that this replacement serves.
      known_parameters: if given, the parameters that the replacement understands. A function with
        others, on a release outside the table, is left alone.
    """

    modules: tuple[str, ...]
    qualname: str
    replacement: Replacement
    releases: str = ""
    known_parameters: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]


class Patch:
    """Everything about one patch.

    Attributes:
      id: what users type; it never changes.
      summary: what stock optax does wrong, in a sentence of Markdown, for the table of patches.
      faults: what stock optax does wrong, release by release. They are the table that selects, the
        probe on unknown releases, the rows of ``doctor`` and the cases of the tests.
      targets: what is wrapped.
      opt_in: True for a patch that only acts when it is asked for by name.
      allow_missing_targets: whether the patch may act on some of its targets where an optax outside
        the table lacks the others. Else half a patch would be worse than none.
    """

    def __init__(
        self,
        id: str,  # noqa: A002  # The word that users read in every message.
        summary: str,
        *,
        opt_in: bool = False,
        allow_missing_targets: bool = False,
    ) -> None:
        self.id = id
        self.summary = summary
        self.opt_in = opt_in
        self.allow_missing_targets = allow_missing_targets
        self.faults: tuple[Fault, ...] = ()
        self.targets: tuple[Target, ...] = ()

    def wraps(
        self,
        qualname: str,
        modules: tuple[str, ...],
        releases: str = "",
        *,
        known_parameters: frozenset[str] | None = None,
    ) -> Callable[[_R], _R]:
        """Register a replacement. See :class:`Target` for the arguments."""

        def register(replacement: _R) -> _R:
            self.targets += (Target(modules, qualname, replacement, releases, known_parameters),)
            return replacement

        return register

    def fault(
        self,
        releases: str,
        *,
        issue: int | None = None,
        abstract: bool = True,
        probe: Reproducer | None = None,
    ) -> Callable[[_F], _F]:
        """Register a reproducer. Its name is the id, its docstring starts with the summary.

        Args:
          releases: PEP 440 specifiers of the affected releases, over the tested ones.
          issue: number of the upstream issue or pull request, if one was found.
          abstract: see :class:`Fault`.
          probe: see :class:`Fault`.
        """

        def register(reproduce: _F) -> _F:
            # ``python -OO`` has no docstrings. A trailing underscore keeps clear of builtins.
            text = inspect.getdoc(reproduce) or reproduce.__name__
            summary = " ".join(text.partition("\n\n")[0].split())
            fault = Fault(
                reproduce.__name__.rstrip("_"),
                summary[:-1] if summary.endswith(".") else summary,
                releases,
                _none_if_not_in_release(reproduce),
                f"{_ISSUES}{issue}" if issue else "",
                abstract,
                _none_if_not_in_release(probe) if probe else None,
            )
            self.faults += (fault,)
            return reproduce

        return register

    @property
    def upstream(self) -> tuple[str, ...]:
        """Links of the upstream issues, each once, in the order of the faults."""
        return tuple(dict.fromkeys(fault.upstream for fault in self.faults if fault.upstream))

    def faults_on(self, release: Release) -> tuple[Fault, ...]:
        """Return the faults that a tested release has, by the table."""
        return tuple(fault for fault in self.faults if release.within(fault.releases))

    def fixed_in(self, tested: Sequence[Release]) -> str:
        """Return the first of the tested releases after the last one that has a fault.

        Empty if the newest tested release still has one.
        """
        affected = [i for i, release in enumerate(tested) if self.faults_on(release)]
        after = tested[affected[-1] + 1 :] if affected else tested
        return str(after[0]) if after else ""


def _none_if_not_in_release(reproduce: Reproducer) -> Reproducer:
    @functools.wraps(reproduce)
    def run(package: Any) -> str | None:
        try:
            return reproduce(package)
        except NotInReleaseError:
            return None

    return run
