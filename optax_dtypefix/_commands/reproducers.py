"""The worker process of ``doctor``: run every reproducer on the optax of this process.

``doctor`` starts two workers, one with stock optax. A worker writes one JSON line at a time, so
that a reproducer that kills the process loses no earlier outcome: first the report and the list of
faults, then one outcome a fault, then the report again.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from .._api import disabled, status
from .._engine.release import Release, installed
from .._engine.state import State
from ..patches import IDS, TESTED, load
from .import_optax import import_optax

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._engine.patch import Fault
    from .._engine.report import PatchStatus


def write_outcomes(path: str, *ids: str) -> None:
    """Reproduce the faults that the installed optax may have: of these patches, or of all."""
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
                outcome = _outcome(fault)
                fixed_by = [] if outcome is not None else _fixed_by(patch_id, fault)
                write(patch=patch_id, fault=fault.id, outcome=outcome, fixed_by=fixed_by)
        write(report=status().as_dict())  # A reproducer may have imported a pending module.


def _faults(patch_id: str) -> tuple[Fault, ...]:
    try:
        faults: tuple[Fault, ...] = load(patch_id).faults
    except Exception:  # The report says that the patch failed, and why.
        return ()
    return faults


def _may_have(release: Release, fault: Fault) -> bool:
    """Look the fault up in the table; a release newer than the table may have any fault."""
    newer = not release.tested and release.within(f">{TESTED[-1]}")
    return newer or release.within(fault.releases)


def _outcome(fault: Fault) -> str | None:
    try:
        return fault.reproduce(sys.modules["optax"])
    except Exception as error:  # Many faults show by raising.
        return f"{type(error).__name__}: {error}"


def _fixed_by(patch_id: str, fault: Fault) -> list[str]:
    """Return the patches that fix a fault: its own, or others if its own is not applied.

    Each of the others fixes it alone. If none does, it takes all that are returned.
    """
    before = {patch.id: patch for patch in status() if patch.state is State.APPLIED}
    if patch_id in before:
        return [patch_id]
    with disabled():
        if _outcome(fault) is None:  # Nothing to fix.
            return []
    _outcome(fault)
    reached = [patch.id for patch in status() if patch.id in before and _grew(patch, before)]
    candidates = reached or list(before)
    alone = [i for i in candidates if _outcome_without(fault, set(before) - {i}) is None]
    return alone or [i for i in candidates if _outcome_without(fault, {i}) is not None]


def _grew(patch: PatchStatus, before: Mapping[str, PatchStatus]) -> bool:
    return patch.reached > before[patch.id].reached


def _outcome_without(fault: Fault, ids: set[str]) -> str | None:
    with disabled(*ids) if ids else contextlib.nullcontext():  # ``disabled()`` disables all.
        return _outcome(fault)
