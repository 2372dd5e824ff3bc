"""``.ci/run`` tests the fewest releases that run every fault and every variant of a replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS, load
from optax_dtypefix.patches.releases import RELEASES
from optax_dtypefix.patches.wrapped import BUILDERS
from support.builders import layers

if TYPE_CHECKING:
    from collections.abc import Iterator

ON_NEWEST_JAX = {release for release, row in RELEASES.items() if "needs_its_jax" not in row}
ON_NEWEST_JAX |= {[*RELEASES][-1]}
IN_CI = {release for release, row in RELEASES.items() if "ci" in row}


def ranges() -> Iterator[tuple[str, str]]:
    """Yield the name and the releases of each fault, and of each variant of a replacement."""
    for patch in map(load, IDS):
        for fault in patch.faults:
            yield f"the fault {patch.id}.{fault.id}", fault.releases
        for target in patch.targets:
            yield f"{target.qualname} by {patch.id} ({target.releases})", target.releases
    for name in BUILDERS:
        for patch_id, releases in layers(name):
            yield f"{name} by {patch_id} ({releases})", releases


def run_by(tested: set[str]) -> dict[str, set[str]]:
    """Return by name what some of these releases run, and which ones."""
    found: dict[str, set[str]] = {}
    for name, specifiers in ranges():
        found.setdefault(name, set()).update(r for r in tested if Release(r).within(specifiers))
    return {name: releases for name, releases in found.items() if releases}


def test_ci_runs_each_fault_and_each_variant_with_the_jax_of_its_time() -> None:
    assert sorted({*run_by({*RELEASES})} - {*run_by(IN_CI)}) == []


def test_ci_runs_on_the_newest_jax_what_a_release_can_run_there() -> None:
    assert sorted({*run_by(ON_NEWEST_JAX)} - {*run_by(ON_NEWEST_JAX & IN_CI)}) == []


def test_ci_needs_each_of_its_releases() -> None:
    needed = {release for only in run_by(IN_CI).values() if len(only) == 1 for release in only}
    assert sorted(IN_CI - needed) == [], "take `ci` off these rows: the others run all they run"
