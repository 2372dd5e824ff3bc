"""Define a patch: its replacements, which a decorator registers, and the table of its faults.

A file in ``patches/`` makes one :class:`Patch`. That file knows optax's mathematics, and does not
know how patches are applied. The engine applies patches, and does not know the mathematics. The
file of the same name in ``_diagnosis/faults/`` reproduces the faults. A program that trains on a
tested release does not load that file.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .release import Release

Stock = Callable[..., Any]
"""A function of the package, or the next patch of it: the first argument of a replacement."""

Replacement = Callable[..., Any]
"""``replacement(stock, *args, **kwargs)``: called in place of ``stock(*args, **kwargs)``.

``stock`` is the stock function, or the next patch of the same function. For a method, ``args[0]``
is the instance.

``status()`` says what a patch changed. So a replacement counts later calls too: of functions that
it returns, by ``rebuild`` of ``patches/_support/rebuild.py``, and of its callbacks for stock, by
``counting`` of ``_tally``. Casts count by themselves; ``count`` is for anything else that stock
does not do.
"""

Reproduce = Callable[[Any], Optional[str]]
"""``reproduce(package)``: runs public functions of the package, as a user would.

Returns None if the contract holds, else a description of the fault. May raise instead. The package
is an argument, not a global, because a program may delete the package and import it again.
"""

_R = TypeVar("_R", bound=Replacement)
_F = TypeVar("_F", bound=Reproduce)
_ISSUES = "https://github.com/google-deepmind/optax/issues/"
_FAULTS = f"{__name__.partition('.')[0]}._diagnosis.faults"


class NotInReleaseError(LookupError):
    """The release lacks a function that the reproducer needs, so it does not have the fault."""


class Reproducer(NamedTuple):
    """How to reproduce a fault.

    Attributes:
      summary: what a user sees, in one line.
      run: reproduces the fault on the current functions of the package, stock or patched.
      probe: a reproducer for untested releases and stock functions, which evaluates no more than
        shapes and dtypes: no FLOPs, no backend. None if there is no such reproducer.
    """

    summary: str
    run: Reproduce
    probe: Reproduce | None = None

    @property
    def traces_only(self) -> bool:
        """Whether the reproducer itself evaluates no more than shapes and dtypes."""
        return self.run is self.probe


class Reproducers(dict[str, Reproducer]):
    """The reproducers of one patch, by the ids of the faults.

    The name of a function is the id. Its docstring starts with the summary.
    """

    def traced(self, reproduce: _F) -> _F:
        """Register a reproducer that evaluates shapes and dtypes only: it is its own probe."""
        return self.computed(reproduce)(reproduce)

    def computed(self, probe: Reproduce | None = None) -> Callable[[_F], _F]:
        """Register a reproducer that computes values, and its probe if there is one."""

        def register(reproduce: _F) -> _F:
            # ``python -OO`` removes docstrings. A trailing underscore avoids the name of a builtin.
            text = reproduce.__doc__ or reproduce.__name__
            summary = " ".join(text.partition("\n\n")[0].split()).removesuffix(".")
            self[reproduce.__name__.rstrip("_")] = Reproducer(summary, reproduce, probe)
            return reproduce

        return register


class Fault(NamedTuple):
    """One way in which stock optax breaks the contract.

    Attributes:
      id: short name, unique within the patch.
      releases: PEP 440 specifiers of the affected releases, among the tested ones.
      upstream: link of the upstream issue or pull request; empty if there is none.
      reproducer: imports the reproducer.
    """

    id: str
    releases: str
    upstream: str
    reproducer: Callable[[], Reproducer]

    @property
    def summary(self) -> str:
        """What a user sees, in one line."""
        return self.reproducer().summary

    def reproduce(self, package: Any) -> str | None:
        """Run the reproducer. A release without the function that it needs has no fault."""
        try:
            return self.reproducer().run(package)
        except NotInReleaseError:
            return None


class Target(NamedTuple):
    """A function or method to wrap.

    Attributes:
      modules: modules that may define it, newest layout first; the first one that does counts.
      qualname: its name in the module, such as ``MultiSteps.update``.
      replacement: the function to call instead.
      releases: PEP 440 specifiers of the releases that this replacement is for; all if empty.
      known_parameters: if given, the parameters that the replacement reads. On an untested release,
        a function without one of them is left unpatched, and a call that gives another parameter
        goes to the stock function.
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
      id: the name that users type; it never changes.
      summary: what stock optax does wrong, in a sentence of Markdown, for the table of patches.
      faults: what stock optax does wrong, release by release. The faults are the table for tested
        releases, the probes for untested ones, the rows of ``doctor`` and the cases of the tests.
      targets: the functions to wrap.
      opt_in: whether the patch is only applied if the user names it.
      allow_missing_targets: whether the patch is applied on an untested release that lacks some of
        the targets. Not by default: half of a patch may be worse than none.
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

    def fault(self, id: str, releases: str, *, issue: int | None = None) -> None:  # noqa: A002
        """Declare a fault, which ``_diagnosis/faults/`` reproduces.

        Args:
          id: see :class:`Fault`.
          releases: see :class:`Fault`.
          issue: number of the upstream issue or pull request, if there is one.
        """
        upstream = f"{_ISSUES}{issue}" if issue else ""
        reproducer = functools.partial(_reproducer, self.id, id)
        self.faults += (Fault(id, releases, upstream, reproducer),)

    @property
    def upstream(self) -> tuple[str, ...]:
        """Links of the upstream issues, each once, in the order of the faults."""
        return tuple(dict.fromkeys(fault.upstream for fault in self.faults if fault.upstream))

    def faults_on(self, release: Release) -> tuple[Fault, ...]:
        """Return the faults that a tested release has, by the table."""
        return tuple(fault for fault in self.faults if release.within(fault.releases))

    def fixed_in(self, tested: Sequence[Release]) -> str:
        """Return the first tested release after the last one that has a fault.

        Empty if the newest tested release still has one.
        """
        affected = [i for i, release in enumerate(tested) if self.faults_on(release)]
        after = tested[affected[-1] + 1 :] if affected else tested
        return str(after[0]) if after else ""


def _reproducer(patch_id: str, fault_id: str) -> Reproducer:
    module = importlib.import_module(f"{_FAULTS}.{patch_id}")
    found: Reproducer = module.FAULTS[fault_id]
    return found
