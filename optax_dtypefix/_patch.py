"""What a patch is: faults, targets and replacements, declared as data.

A patch file in ``patches/`` builds one :class:`Patch`. It knows optax's mathematics and nothing of
how it is applied; the engine knows how to apply it and nothing of the mathematics.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

from optax_dtypefix._release import TESTED, Release

Replacement = Callable[..., Any]
"""``replacement(stock, *args, **kwargs)``: called in place of ``stock(*args, **kwargs)``.

``stock`` is what would have been called otherwise; for a method, ``args[0]`` is the instance.
"""

Demonstration = Callable[[], Optional[str]]
"""Runs public optax; returns None if the contract holds, else what went wrong. May raise."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One way in which stock optax breaks the contract.

    Attributes:
      id: short name, unique within the patch.
      summary: what a user sees, in one line.
      releases: PEP 440 specifiers of the affected releases, over the tested ones.
      show: demonstrates the fault on whatever functions optax holds when it is called.
      upstream: link of the upstream issue or pull request; empty if none was found.
      abstract: whether ``show`` only evaluates shapes and dtypes, so that it can serve as the probe
        on a release that is not in the table: no FLOPs, no backend.
      probe: an abstract demonstration on stock functions, where ``show`` has to compute.
    """

    id: str
    summary: str
    releases: str
    show: Demonstration
    upstream: str = ""
    abstract: bool = True
    probe: Demonstration | None = None


@dataclasses.dataclass(frozen=True)
class Target:
    """A function or method to wrap.

    Attributes:
      modules: where it is defined, newest layout first; the first module that defines it counts.
      qualname: its name there, as in ``MultiSteps.update``.
      replacement: what to call instead.
      releases: PEP 440 specifiers of the releases that this variant serves.
      knows: if given, the parameters that the replacement understands. A function with others, on
        a release outside the table, is left alone.
    """

    modules: tuple[str, ...]
    qualname: str
    replacement: Replacement
    releases: str = ""
    knows: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]


@dataclasses.dataclass(frozen=True)
class Patch:
    """Everything about one patch.

    Attributes:
      id: what users type; it never changes.
      summary: what stock optax does wrong, in a sentence of Markdown, for the README's table.
      faults: what stock optax does wrong, release by release. They are the table that selects, the
        probe on unknown releases, the rows of ``doctor`` and the cases of the tests.
      targets: what is wrapped.
      opt_in: True for a patch that only acts when it is asked for by name.
      independent: whether each target stands for itself. Those that an optax outside the table has
        not are left out then; else half a patch would be worse than none.
    """

    id: str
    summary: str
    faults: tuple[Fault, ...]
    targets: tuple[Target, ...]
    opt_in: bool = False
    independent: bool = False

    @property
    def upstream(self) -> tuple[str, ...]:
        """Links of the upstream issues, each once, in the order of the faults."""
        return tuple(dict.fromkeys(fault.upstream for fault in self.faults if fault.upstream))

    @property
    def fixed_in(self) -> str:
        """The release from which on, among the tested ones, none of its faults is left.

        Empty if the newest tested release still has one.
        """
        last = max((TESTED.index(r) for r in TESTED if self.faults_on(Release(r))), default=-1)
        return "".join(TESTED[last + 1 : last + 2])

    def faults_on(self, release: Release) -> tuple[Fault, ...]:
        """The faults that a tested release has, by the table."""
        return tuple(fault for fault in self.faults if release.within(fault.releases))
