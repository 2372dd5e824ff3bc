"""The table of public functions: it agrees with the faults of the patches, and with optax."""

from __future__ import annotations

import inspect
import json
import random
import re
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
import pytest

from evidence.functions import depends
from evidence.functions.computed import computed
from evidence.functions.record import updated
from optax_dtypefix._commands.main import main
from optax_dtypefix._diagnosis.scan.functions import (
    KINDS,
    faults_of,
    measured as recorded,
    table,
)
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS, load
from optax_dtypefix.patches.releases import TESTED
from support.processes import json_of
from support.recorded import this_code
from support.thorough import one_of, thorough_but

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEFAULT = [patch_id for patch_id in IDS if not load(patch_id).opt_in]
INSTALLED = Release(optax.__version__, tested=True)
SOME = ("sgd", "scale", "tree_utils.tree_l2_norm")
"""Functions of many kinds. ``nox -s audit`` measures all."""


def named_on(release: Release) -> set[str]:
    return {patch for name in table() for patch in faults_of(f"optax.{name}", release)}


@pytest.mark.parametrize("version", thorough_but(TESTED[-1:], TESTED))
def test_a_patch_is_named_where_it_has_faults(version: str) -> None:
    release = Release(version, tested=True)
    assert named_on(release) == {i for i in DEFAULT if load(i).faults_on(release)}


def test_the_table_has_known_patches_and_kinds() -> None:
    assert {patch for patches in table().values() for patch in patches} == set(DEFAULT)
    kinds = {kind for patches in table().values() for of in patches.values() for kind in of}
    assert kinds == set(KINDS)


_LINE_SEARCHES = ["scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"]
_SCHEDULE_FREE = [f"schedule_free{name}" for name in ("", "_adamw", "_eval_params", "_sgd")]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "any dtype",
            {
                "zero_nans": ["MultiSteps"],
                "global_norm": ["normalize"],
                "distance_estimates": ["dadapt_adamw", "dog", "dowg"],
                "prodigy": ["prodigy"],
                "reduce_on_plateau": ["reduce_on_plateau"],
                "zoom_linesearch": ["lbfgs", *_LINE_SEARCHES, "value_and_grad_from_state"],
                # The state starts weakly typed.
                "promotion": [
                    *("novograd", "scale_by_novograd"),
                    *("scale_by_simplified_ademamix", "simplified_ademamix"),
                ],
                # Stock does not take a schedule, or does not follow it.
                "fromage": ["fromage"],
                "learning_rate": ["optimistic_adam"],
            },
        ),
        (
            "64-bit mode",
            {
                "multi_steps": ["MultiSteps"],
                "promotion": [
                    *("adafactor", "add_noise", "cocob", "muon", "noisy_sgd"),
                    *("radam", "rprop", "scale_by_cocob", "scale_by_distance_over_gradients"),
                    *("scale_by_factored_rms", "scale_by_muon"),
                    *("scale_by_radam", "scale_by_rprop", "scale_by_sm3", "sm3"),
                ],
                "distance_estimates": ["mechanize", "momo", "momo_adam"],
                "reduce_on_plateau": ["reduce_on_plateau"],
                "schedule_free": _SCHEDULE_FREE,
                "fromage": ["fromage"],
                "sums": ["hessian_diag", "hessian_diag"],
                "conditional": ["periodic_update"],
                "zoom_linesearch": ["scale_by_lbfgs"],
            },
        ),
        (
            "complex numbers",
            {
                "multi_steps": ["MultiSteps"],
                "promotion": ["cocob", "scale_by_cocob", "scale_by_distance_over_gradients"],
                "reduce_on_plateau": ["reduce_on_plateau"],
                "schedule_free": _SCHEDULE_FREE,
                "inject_hyperparams": ["inject_hyperparams", "inject_stateful_hyperparams"],
                "conditional": ["periodic_update"],
            },
        ),
    ],
)
def test_only_these_functions_are_changed(kind: str, expected: dict[str, list[str]]) -> None:
    """A patch that changed what is right would add one: ``nox -s audit`` relies on this list."""
    found: dict[str, list[str]] = {}
    for name, patches in table().items():
        for patch, kinds in patches.items():
            if kind in kinds:
                found.setdefault(patch, []).append(name.rpartition(".")[2])
    assert {patch: sorted(names) for patch, names in found.items()} == expected


def mentioned(function: Any, seen: set[Any]) -> Iterator[str]:
    """Yield the words in the code of a function, its closure, and the helpers of its module."""
    function = inspect.unwrap(function)
    if function in seen:
        return
    seen.add(function)
    for cell in function.__closure__ or ():
        if inspect.isfunction(cell.cell_contents):
            yield from mentioned(cell.cell_contents, seen)
        else:
            yield from re.findall(r"\w+", repr(cell.cell_contents))
    waiting = [function.__code__]
    for code in waiting:
        yield from code.co_names
        for constant in code.co_consts:
            if inspect.iscode(constant):
                waiting.append(constant)
            yield from re.findall(r"\w+", repr(constant))
        for name in code.co_names:
            value = function.__globals__.get(name)
            if getattr(value, "__module__", None) == function.__module__ and callable(value):
                yield from mentioned(value, seen)
            elif not inspect.ismodule(value):
                yield from re.findall(r"\w+", repr(value))


EITHER = {"promotion.integer_chain": "learning_rate"}
"""Faults that a second patch fixes as well, in the table of functions: there the special one is."""

FAULTS = {f"{i}.{fault.id}": (i, fault) for i in DEFAULT for fault in load(i).faults}


@pytest.mark.parametrize("name", one_of(40, FAULTS))
def test_each_fault_is_found_by_a_function_of_its_reproducer(name: str) -> None:
    patch_id, fault = FAULTS[name]
    patch_id = EITHER.get(name, patch_id)
    words = set(mentioned(fault.reproducer().run, set()))
    functions = [path for path in table() if path.rpartition(".")[2] in words]
    for version in TESTED:
        release = Release(version, tested=True)
        if release.within(fault.releases):
            assert any(patch_id in faults_of(f"optax.{path}", release) for path in functions), (
                version
            )


@pytest.mark.parametrize("version", thorough_but(["0.2.8"], ["0.1.9", "0.2.3", "0.2.8"]))
def test_a_script_is_named_for_each_patch(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    lines = [f"optax.{name}" for name in table()]
    script.write_text("\n".join(["import optax", *lines]), encoding="utf-8")
    main(["scan", "--json", "--optax", version, str(script)])
    uses = json.loads(capsys.readouterr().out)["uses"]
    found = {patch for use in uses for patch in use["faults"][version]}
    release = Release(version, tested=True)
    assert found == {patch_id for patch_id in DEFAULT if load(patch_id).faults_on(release)}


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (lambda x, y: (x + y, x - y), lambda x, y: (x - y, x + y)[::-1]),
        (jax.jit(jnp.add), lambda x, y: (x - y, jax.jit(jnp.add)(x, y))[1]),
    ],
)
def test_programs_are_equal_whatever_their_order(same: Any, other: Any) -> None:
    assert computed_by(same) == computed_by(other)


def test_a_cast_to_the_same_dtype_computes_nothing() -> None:
    cast, identity = (jax.make_jaxpr(function)(1.0) for function in (jnp.float32, lambda x: x))
    assert "convert_element_type" in str(cast)
    assert computed(cast) == computed(identity)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: y + x,
        lambda x, _: x + 1,
        lambda x, y: x.astype(jnp.bfloat16).astype(jnp.float32) + y,
        lambda x, y: jax.lax.cond(x[0] > 0, jnp.add, jnp.add, x, y),
    ],
)
def test_programs_differ_by_each_operand(other: Any) -> None:
    assert computed_by(jnp.add) != computed_by(other)


def computed_by(function: Any) -> Any:
    return computed(jax.make_jaxpr(function)(jnp.ones(3), jnp.ones(3)))


def sample() -> list[str]:
    """Draw a dozen functions, others for each version of the code, of those that it did not change.

    What it changed waits for ``nox -s functions``.
    """
    from evidence.functions.measure import functions

    digests, release = depends.recorded(), optax.__version__
    known = [
        name
        for name, function in functions().items()
        if digests.get(name, {}).get(release) == depends.digest_of(name, function)
    ]
    return random.Random(this_code()["code"]).sample(sorted(known), min(12, len(known)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Old names are measured too.
@pytest.mark.parametrize("names", thorough_but([SOME], [SOME, ()]), ids=["some", "a sample"])
def test_some_functions_are_as_measured_here(names: tuple[str, ...]) -> None:
    if not (names := names or tuple(sample())):
        pytest.skip("no function was measured on this code: run nox -s functions")
    measured = json_of("evidence.functions.measure", *names)
    assert names != SOME or "sgd(learning_rate, momentum=)" in measured
    for name, patches in measured.items():
        found = {
            patch: sorted(kind for kind, on in kinds.items() if any(map(INSTALLED.within, on)))
            for patch, kinds in recorded().get(name, {}).items()
        }
        assert {patch: kinds for patch, kinds in found.items() if kinds} == {
            patch: sorted(kinds) for patch, kinds in patches.items() if kinds
        }, name


@pytest.mark.parametrize(
    ("name", "changed", "same"),
    [
        ("adam", "float32_moments", "zoom_linesearch"),
        ("lbfgs", "zoom_linesearch", "schedule_free"),
        ("clip_by_global_norm", "global_norm", "schedule_free"),
    ],
)
def test_a_function_is_measured_again_if_the_file_of_its_patch_changed(
    name: str, changed: str, same: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(of: str = "") -> str:
        monkeypatch.setattr(depends, "_code", lambda file: f"{file.stem} {file.stem == of}")
        return depends.digest_of(name, getattr(optax, name))

    monkeypatch.setattr(depends, "_shared", str)
    assert digest(same) == digest() != digest(changed)


def test_what_is_not_measured_again_is_kept() -> None:
    known: Any = {"adam": {"sums": {"float16": [">=0.1.2"]}}, "adam(b1=)": {}, "sgd": {}}
    known["sgd"] = known["adam"]
    new = updated(known, TESTED[-1], {"sgd": {}}, {"adam"})
    assert new["adam"] == known["adam"]
    assert new["sgd"] == {"sums": {"float16": [f"<{TESTED[-1]}"]}}
