"""Read what the tables of ``patches/`` say: what each patch wraps, and which faults it fixes.

A file of a patch knows optax's mathematics, and does not know how patches are applied. The engine
applies patches, and does not know the mathematics. The file of the same name in
``_diagnosis/faults/`` reproduces the faults. A program that trains on a tested release does not
load that file.
"""

from __future__ import annotations

import functools
import importlib
import re
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .release import Release

Stock = Callable[..., Any]
"""A function of the package, or the next patch of it: the first argument of a replacement."""

Replacement = Callable[..., Any]
"""``replacement(stock, *args, **kwargs)``: called in place of ``stock(*args, **kwargs)``.

``stock`` is the stock function, or the next patch of the same function. For a method, ``args[0]``
is the instance.
"""

_ISSUES = "https://github.com/google-deepmind/optax/issues/"
_FAULTS = f"{__name__.partition('.')[0]}._diagnosis.faults"


class Fault(NamedTuple):
    """One way in which stock optax breaks the contract.

    Attributes:
      id: short name, unique within the patch.
      releases: PEP 440 specifiers of the affected releases, among the tested ones.
      upstream: link of the upstream issue or pull request; empty if there is none.
      reproducer: imports the reproducer, a ``Reproducer`` of ``_diagnosis/probes.py``.
    """

    id: str
    releases: str
    upstream: str
    reproducer: Callable[[], Any]


class Target(NamedTuple):
    """A function or method to wrap.

    Attributes:
      modules: modules that may define it, newest layout first; the first one that does counts.
      qualname: its name in the module, such as ``MultiSteps.update``.
      replacement: the function to call instead, or where it is, as ``module:name``: then it is
        imported at the first call.
      releases: PEP 440 specifiers of the releases that this replacement is for; all if empty.
      known_parameters: if there are any, the parameters that the replacement reads, such as
        ``momentum``, or ``momentum >=0.2.3`` on some releases. On an untested release, a function
        with other parameters is left unpatched.
      builds: where a class is wrapped, the functions whose objects the replacement changes.
    """

    modules: tuple[str, ...]
    qualname: str
    replacement: Replacement | str
    releases: str = ""
    known_parameters: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]

    @property
    def package(self) -> str:
        """The package that defines it. If it is not the patched one, a program may never load it.

        Then the patch is applied without it. It is wrapped when that package is imported.
        """
        return self.modules[0].partition(".")[0]


class Patch(NamedTuple):
    """Everything about one patch. ``patches/catalogue.py`` says what its options mean."""

    id: str
    summary: str
    faults: tuple[Fault, ...]
    targets: tuple[Target, ...]
    opt_in: bool = False
    allow_missing_targets: bool = False

    def faults_on(self, release: Release) -> tuple[Fault, ...]:
        """Return the faults that a tested release has, by the table."""
        return tuple(fault for fault in self.faults if release.within(fault.releases))


def read_patches(
    patches: Mapping[str, Mapping[str, Any]],
    wrapped: Mapping[str, Mapping[str, tuple[str, ...]]],
    modules: Mapping[str, tuple[str, ...]],
    builders: Mapping[str, tuple[str, ...]],
    *,
    folder: str,
) -> dict[str, Patch]:
    """Read the tables of ``patches/catalogue.py`` and ``patches/wrapped.py``.

    Args:
      patches: a row a patch.
      wrapped: a row a function, by the place of its definition.
      modules: the modules of each place.
      builders: a row a function whose objects ``door/`` changes.
      folder: the package with the files of the patches.
    """
    built: dict[str, dict[str, None]] = {}
    for name, layers in builders.items():
        for layer in layers:
            built.setdefault(re.split("[ :.]", layer)[0], {})[name] = None
    targets: dict[str, list[Target]] = {patch_id: [] for patch_id in patches}
    for place, functions in wrapped.items():
        group, _, name = place.partition(".")
        for function, layers in functions.items():
            qualname, _, exists_in = function.partition(" ")
            for layer in layers:
                replacement, _, acts_on = layer.partition(" ")
                file, _, attribute = replacement.partition(":")
                for patch_id in built if file == "door" else [file]:
                    target = Target(
                        tuple(module + name for module in modules[group]),
                        qualname,
                        f"{folder}.{file}:{attribute or 'replace'}",
                        ",".join(filter(None, (exists_in, acts_on))),
                        patches[patch_id].get("known_parameters", {}).get(qualname, ()),
                        tuple(built[patch_id]) if file == "door" else (),
                    )
                    targets[patch_id].append(target)
    return {
        patch_id: Patch(
            patch_id,
            row["summary"],
            tuple(_read_fault(patch_id, *fault) for fault in row["faults"].items()),
            tuple(targets[patch_id]),
            row.get("opt_in", False),
            row.get("allow_missing_targets", False),
        )
        for patch_id, row in patches.items()
    }


def _read_fault(patch_id: str, fault_id: str, text: str) -> Fault:
    releases, _, issue = text.partition(" #")
    reproducer = functools.partial(_reproducer, patch_id, fault_id)
    return Fault(fault_id, releases, f"{_ISSUES}{issue}" if issue else "", reproducer)


def _reproducer(patch_id: str, fault_id: str) -> Any:
    module = importlib.import_module(f"{_FAULTS}.{patch_id}")
    return module.FAULTS[fault_id]
