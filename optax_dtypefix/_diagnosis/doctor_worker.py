"""The worker process of ``doctor``: run every reproducer on the optax of this process.

``doctor`` starts two workers, one with stock optax. A worker writes one JSON line at a time, so
that a reproducer that kills the process loses no earlier outcome: first the report and the list of
faults, then one outcome a fault, then the report again.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .._api import disabled, status
from .._engine.release import Release, installed
from .._engine.state import State
from ..patches import IDS, load
from ..patches.releases import TESTED
from .import_optax import import_optax
from .processes import counts_so_far, lines_to, patches_at_work

if TYPE_CHECKING:
    from .._engine.patch import Fault
    from .probes import Reproducer


def write_outcomes(path: str, *ids: str) -> None:
    """Reproduce the faults that the installed optax may have: of these patches, or of all.

    Args:
      path: file to write.
      *ids: patches, or faults such as ``multi_steps.inner_drift``.
    """
    import_optax()
    release = installed(sys.modules["optax"], TESTED)
    of = dict.fromkeys(name.partition(".")[0] for name in ids or IDS)
    faults = [
        (patch_id, fault)
        for patch_id in of
        for fault in load(patch_id).faults
        if not ids or {patch_id, f"{patch_id}.{fault.id}"} & {*ids}
    ]
    report = status()
    applied = {patch.id for patch in report if patch.state is State.APPLIED}
    with lines_to(path) as write:
        write(
            report=report.as_dict(),
            tested=release.tested,
            faults=[
                {
                    "patch": patch_id,
                    "fault": fault.id,
                    "summary": fault.reproducer().summary,
                    "upstream": fault.upstream,
                    "in_release": _may_have(release, fault),
                }
                for patch_id, fault in faults
            ],
        )
        for patch_id, fault in faults:
            if not _may_have(release, fault):
                continue
            before = counts_so_far()
            outcome, fixed_by = _outcome(fault), [patch_id]
            if outcome is None and applied and patch_id not in applied:
                fixed_by = _fixed_by(fault, patches_at_work(before))
            status_now = next(patch for patch in status() if patch.id == patch_id).as_dict()
            write(
                patch=patch_id,
                fault=fault.id,
                outcome=outcome,
                fixed_by=fixed_by,
                status=status_now,
            )
        write(report=status().as_dict())  # A reproducer may have imported a pending module.


def _may_have(release: Release, fault: Fault) -> bool:
    """Look the fault up in the table; a release newer than the table may have any fault."""
    newer = not release.tested and release.within(f">{TESTED[-1]}")
    return newer or release.within(fault.releases)


def _outcome(fault: Fault) -> str | None:
    reproducer: Reproducer = fault.reproducer()
    try:
        return reproducer.reproduce(sys.modules["optax"])
    except Exception as error:  # Many faults show by raising.
        return f"{type(error).__name__}: {error}"


def _fixed_by(fault: Fault, at_work: list[str]) -> list[str]:
    """Return the patches each of which the fix needs; if there are none, all that were at work."""
    needed = []
    for patch_id in at_work:
        with disabled(patch_id):
            if _outcome(fault) is not None:
                needed.append(patch_id)
    return needed or at_work
