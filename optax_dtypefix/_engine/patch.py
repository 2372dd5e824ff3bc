"""Define a patch: replacements and faults, each one a function that a decorator registers.

A file in ``patches/`` makes one :class:`Patch`. That file knows optax's mathematics, and does not
know how patches are applied. The engine applies patches, and does not know the mathematics.
"""

from __future__ import annotations

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

Reproducer = Callable[[Any], Optional[str]]
"""``reproduce(package)``: runs public functions of the package, as a user would.

Returns None if the contract holds, else a description of the fault. May raise instead. The package
is an argument, not a global, because a program may delete the package and import it again.
"""

_R = TypeVar("_R", bound=Replacement)
_F = TypeVar("_F", bound=Reproducer)
_ISSUES = "https://github.com/google-deepmind/optax/issues/"


class NotInReleaseError(LookupError):
    """The release lacks a function that the reproducer needs, so it does not have the fault."""


class Fault(NamedTuple):
    """One way in which stock optax breaks the contract.

    Attributes:
      id: short name, unique within the patch.
      summary: what a user sees, in one line.
      releases: PEP 440 specifiers of the affected releases, among the tested ones.
      reproducer: reproduces the fault on the current functions of the package, stock or patched.
      upstream: link of the upstream issue or pull request; empty if there is none.
      abstract: whether the reproducer only evaluates shapes and dtypes: no FLOPs, no backend.
        Then the reproducer is also the probe on untested releases.
      probe: an abstract reproducer for stock functions, if the reproducer must compute.
    """

    id: str
    summary: str
    releases: str
    reproducer: Reproducer
    upstream: str = ""
    abstract: bool = True
    probe: Reproducer | None = None

    def reproduce(self, package: Any) -> str | None:
        """Run the reproducer. A release without the function that it needs has no fault."""
        try:
            return self.reproducer(package)
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

    def fault(
        self,
        releases: str,
        *,
        issue: int | None = None,
        abstract: bool = True,
        probe: Reproducer | None = None,
    ) -> Callable[[_F], _F]:
        """Register a reproducer. Its name is the id; its docstring starts with the summary.

        Args:
          releases: PEP 440 specifiers of the affected releases, among the tested ones.
          issue: number of the upstream issue or pull request, if there is one.
          abstract: see :class:`Fault`.
          probe: see :class:`Fault`.
        """

        def register(reproduce: _F) -> _F:
            # ``python -OO`` removes docstrings. A trailing underscore avoids the name of a builtin.
            text = reproduce.__doc__ or reproduce.__name__
            summary = " ".join(text.partition("\n\n")[0].split())
            fault = Fault(
                reproduce.__name__.rstrip("_"),
                summary.removesuffix("."),
                releases,
                reproduce,
                f"{_ISSUES}{issue}" if issue else "",
                abstract,
                probe,
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
        """Return the first tested release after the last one that has a fault.

        Empty if the newest tested release still has one.
        """
        affected = [i for i, release in enumerate(tested) if self.faults_on(release)]
        after = tested[affected[-1] + 1 :] if affected else tested
        return str(after[0]) if after else ""
