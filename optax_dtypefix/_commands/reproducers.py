"""The process that ``doctor`` starts twice: every demonstration, on what optax holds there.

It writes one JSON line at a time, so that a demonstration that kills the process takes no earlier
outcome with it: the record and the list of faults first, then one outcome a fault, and the record
again.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

from .._api import status
from .._engine.release import Release, installed
from ..patches import IDS, TESTED, load

if TYPE_CHECKING:
    from .._engine.patch import Fault


def import_optax() -> None:
    """Imports optax, and ``optax.contrib``, which old releases leave to the user."""
    importlib.import_module("optax")
    with contextlib.suppress(ImportError):
        importlib.import_module("optax.contrib")


def write_outcomes(path: str, *ids: str) -> None:
    """Demonstrates the faults that the installed optax may have: of these patches, or of all."""
    import_optax()
    release = installed(sys.modules["optax"], TESTED)
    faults = [(patch_id, fault) for patch_id in ids or IDS for fault in _faults(patch_id)]
    with open(path, "w", encoding="utf-8") as file:

        def write(**fields: Any) -> None:
            print(json.dumps(fields), file=file, flush=True)

        write(
            report=status().as_dict(),
            tested=release.tested,
            faults=[
                {
                    "patch": patch_id,
                    "fault": fault.id,
                    "summary": fault.summary,
                    "upstream": fault.upstream,
                    "in_release": _may_have(release, fault),
                }
                for patch_id, fault in faults
            ],
        )
        for patch_id, fault in faults:
            if _may_have(release, fault):
                write(patch=patch_id, fault=fault.id, outcome=_outcome(fault))
        write(report=status().as_dict())  # A demonstration may have imported what was pending.


def _faults(patch_id: str) -> tuple[Fault, ...]:
    try:
        faults: tuple[Fault, ...] = load(patch_id).faults
    except Exception:  # The record says that it failed, and why.
        return ()
    return faults


def _may_have(release: Release, fault: Fault) -> bool:
    """By the table; a release newer than the table may have any fault."""
    newer = not release.tested and release.within(f">{TESTED[-1]}")
    return newer or release.within(fault.releases)


def _outcome(fault: Fault) -> str | None:
    try:
        return fault.reproduce(sys.modules["optax"])
    except Exception as error:  # Raising is how many of the faults show.
        return f"{type(error).__name__}: {error}"
