"""Run the reproducer of each fault: stock fails on the releases in the table, patched optax never.

``-k ID`` runs the reproducers of one patch, and no others, and ``-m ""`` also each of them with its
patch alone.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from typing import Any

import optax
import pytest

from optax_dtypefix import patches
from optax_dtypefix._diagnosis.report import upstream_of
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches.catalogue import ABOUT
from optax_dtypefix.patches.releases import TESTED
from support.opt_ins import OPT_INS
from support.outcomes import faults
from support.patch_cases import FuzzCase, Program, declared_in

RELEASE = Release(optax.__version__)
FAULTS = faults()


@pytest.fixture(scope="module")
def stock(outcome_of: Any, selected: Any) -> Any:
    return outcome_of("support.outcomes", "all", *selected("name"), OPTAX_DTYPEFIX="off")["all"]


@pytest.fixture(scope="module")
def patched(request: pytest.FixtureRequest, outcome_of: Any, selected: Any) -> Any:
    here = [item for item in request.session.items if item.path == request.path]
    alone = any(item.get_closest_marker("thorough") for item in here)
    ways = "all,alone" if alone else "all"
    return outcome_of("support.outcomes", ways, *selected("name"), OPTAX_DTYPEFIX_ENABLE=OPT_INS)


@pytest.mark.parametrize("name", FAULTS)
def test_stock_has_the_fault_on_exactly_the_releases_in_the_table(name: str, stock: Any) -> None:
    outcome, _ = stock[name]
    if RELEASE.within(FAULTS[name].releases):
        assert outcome is not None, f"stock optax {RELEASE} has no such fault: the table is wrong"
    else:
        assert outcome is None, f"stock optax {RELEASE} has it too: the table is too narrow"


@pytest.mark.rule("C4")
@pytest.mark.thorough
@pytest.mark.parametrize("name", FAULTS)
def test_the_patch_alone_fixes_the_fault(name: str, patched: Any) -> None:
    assert patched["alone"][name][0] is None


@pytest.mark.rule("C1", "C2", "C3", "C4")
@pytest.mark.parametrize("name", FAULTS)
def test_all_patches_together_fix_the_fault(name: str, patched: Any) -> None:
    assert patched["all"][name][0] is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", [n for n, f in FAULTS.items() if RELEASE.within(f.releases)])
def test_the_patch_says_that_it_was_reached(name: str, patched: Any) -> None:
    assert patched["alone"][name][1] > 0


@pytest.mark.parametrize("patch_id", patches.IDS)
def test_the_patch_describes_itself(patch_id: str) -> None:
    patch = patches.load(patch_id)
    assert patch.id == patch_id
    assert patch.summary
    text = ABOUT.get(patch_id) or inspect.getdoc(
        importlib.import_module(f"{patches.__name__}.{patch_id}")
    )
    assert upstream_of(patch) or "upstream issue was found" in " ".join(str(text).split()), (
        "give a fault its issue, or write in the docstring: No upstream issue was found."
    )
    assert all(fault.reproducer().summary and fault.releases for fault in patch.faults)
    # Without a probe the patch could never act on a release outside the table.
    assert any(fault.reproducer().probe for fault in patch.faults)


@pytest.mark.parametrize("patch_id", patches.IDS)
def test_each_fault_is_declared_and_reproduced(patch_id: str) -> None:
    reproduced = importlib.import_module(f"optax_dtypefix._diagnosis.faults.{patch_id}").FAULTS
    declared = [fault.id for fault in patches.load(patch_id).faults]
    assert sorted(declared) == sorted(reproduced)


@pytest.mark.parametrize("patch_id", patches.IDS)
def test_a_release_has_one_replacement_for_each_function(patch_id: str) -> None:
    targets = patches.load(patch_id).targets
    for release in map(Release, TESTED):
        served = [target for target in targets if release.within(target.releases)]
        twice = [
            (str(release), first.qualname)
            for first, second in itertools.combinations(served, 2)
            if first.qualname == second.qualname and {*first.modules} & {*second.modules}
        ]
        assert twice == [], "the release ranges of these replacements overlap"


@pytest.mark.parametrize("patch_id", patches.IDS)
def test_the_test_file_declares_a_fuzz_case_and_programs(patch_id: str) -> None:
    declared = declared_in(patch_id, "PROGRAMS").values()
    assert isinstance(declared_in(patch_id, "FUZZ"), FuzzCase)
    assert any(case.same in ("program", "compiled", "bits") for case in declared)
    assert all(isinstance(case, Program) for case in declared)
