"""The ``check`` command: the user's own optimizer, stock and patched, and the patches it needs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
import pytest

import optax_dtypefix
from optax_dtypefix._commands.main import main
from optax_dtypefix._diagnosis.check_command.optimizer import (
    OptimizerError,
    OptimizerName,
    parse_name,
)
from optax_dtypefix._diagnosis.check_command.params import (
    default_params,
    parse_dtypes,
)
from optax_dtypefix._diagnosis.check_command.results import (
    OptimizerCheck,
    ParamsCheck,
    Verdict,
    compare,
    refuse_unfit,
)
from optax_dtypefix._diagnosis.check_command.worker import checked, findings
from optax_dtypefix.patches.releases import TESTED
from support.check_script import SCRIPT
from support.processes import Python, finish, start, write_script
from support.trees import tree_map

if TYPE_CHECKING:
    from collections.abc import Sequence

HALF = default_params("bfloat16")


@pytest.fixture(scope="module")
def affected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The record of an optimizer that is affected in one of two dtypes."""
    folder = tmp_path_factory.mktemp("affected")
    write_script(folder, SCRIPT, "train.py")
    command = Python(folder, ("-m", "optax_dtypefix", "check"))
    done = command("train.py:inject", "--dtype", "float32,bfloat16", "--json")
    assert (done.returncode, done.stderr) == (Verdict.FIXED, "")
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_it_finds_the_patch_that_an_optimizer_needs(affected: Any) -> None:
    needed = {"bfloat16_moments", "inject_hyperparams"}
    assert affected["verdict"] == "fixed"
    assert set(affected["needs"]) >= needed
    single, half = affected["cases"]
    assert (single["name"], single["verdict"], single["stock"]) == ("float32", "fine", [])
    assert single["needs"] == []
    assert (half["name"], half["verdict"], half["patched"]) == ("bfloat16", "fixed", [])
    assert set(half["needs"]) >= needed
    found = half["stock"][0]
    assert (found["check"], found["kind"]) == ("values", "not finite")
    assert found["text"].startswith("nan at step 100 (updates[")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["built", "cached"])
def test_patches_that_act_while_it_is_built_are_needed(tmp_path: Path, name: str) -> None:
    """To follow the line, a user sets `OPTAX_DTYPEFIX_ONLY` to it."""
    path = write_script(
        tmp_path,
        """
        import functools, optax

        built = optax.inject_hyperparams(optax.adamw)(1e-3)

        @functools.cache
        def cached():
            return optax.inject_hyperparams(optax.adamw)(1e-3)
        """,
        "train.py",
    )
    shown: list[list[str]] = []
    found = compare(
        parse_name(f"{path}:{name}"),
        parse_dtypes("float32,bfloat16"),
        x64=False,
        show=lambda some: shown.append(some.rows()),
    )
    assert all(found.rows()[: len(some)] == some for some in shown)
    assert min(map(len, shown)) < max(map(len, shown))
    single, half = found.checks
    assert (single.verdict, half.verdict) == (Verdict.FINE, Verdict.FIXED)
    assert single.needs == []
    assert "inject_hyperparams" in half.needs


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "needs", "first"),
    [
        ("adamw", {"bfloat16_moments", "stochastic_rounding"}, "times too large at step 2000"),
        ("momentum", {"bfloat16_moments"}, "updates too small, 0.7"),
        ("small", {"stochastic_rounding"}, "apply_updates does not move params"),
    ],
)
def test_what_stalls_in_half_precision_is_affected(
    script: Path, name: str, needs: set[str], first: str
) -> None:
    found = compare(parse_name(f"{script}:{name}"), parse_dtypes("bfloat16"), x64=False)
    (check,) = found.checks
    assert found.verdict is Verdict.FIXED, found.rows(verbose=True)
    assert set(check.needs) >= needs
    assert first in check.stock["problems"][0]["text"]


@pytest.mark.thorough
def test_the_record_says_which_optax_it_is_about(affected: Any) -> None:
    assert affected["target"] == "train.py:inject"
    assert affected["optax_version"] == optax.__version__
    (patch,) = [p for p in affected["patches"] if p["id"] == "inject_hyperparams"]
    assert patch["state"] == "applied"


def test_a_dtype_that_changes_comes_before_values() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del state, params
        rate = jnp.float32(0.1 if updates["w"].dtype == jnp.float32 else 0.13)
        mean = tree_map(lambda u: rate * u, updates)
        return mean, mean

    found = findings(lambda: optax.GradientTransformation(lambda p: p, update), "w=bfloat16[3]")
    of = [problem["check"] for problem in found["problems"]]
    assert {*of} == {"dtypes", "values"}
    assert of == sorted(of)


@pytest.mark.thorough
def test_an_optimizer_may_be_fine(script: Path) -> None:
    found = compare(parse_name("train:tx"), parse_dtypes("float32"), x64=False)
    assert script.exists()
    assert found.verdict is Verdict.FINE
    assert found.rows()[:3] == ["tx, float32", "  stock    ok", "  patched  ok"]
    assert found.conclusion.endswith(": not affected.")


@pytest.mark.thorough
def test_what_the_settings_switch_off_stays(command: Python) -> None:
    write_script(command.folder, SCRIPT, "train.py")
    done = command(
        *("check", "train.py:inject", "--params", "w=bfloat16[3,4]"),
        OPTAX_DTYPEFIX_DISABLE="inject_hyperparams",
    )
    assert (done.returncode, done.stderr) == (Verdict.STAYS, "")
    heading, stock, patched, _, conclusion, left_out, advice, page, _ = done.stdout.splitlines()
    assert heading == "inject, w=bfloat16[3,4]"
    assert stock.startswith("  stock    nan at step 100 (updates['w'])")
    assert patched == stock.replace("stock  ", "patched")
    assert conclusion.endswith("affected; not fixed in w=bfloat16[3,4].")
    assert advice.endswith("variables switch these patches off: inject_hyperparams.")
    assert page == "What to do about each problem: `python -m optax_dtypefix check --help`."
    assert left_out.startswith("Not checked: half-precision params that your program adds up")


def test_what_no_patch_changes_is_not_blamed_on_optax() -> None:
    problem = {"check": "values", "kind": "update", "where": "w", "text": "off by 16%"}
    side = {"problems": [problem], "at_work": []}
    report = {"optax_version": "0.2.5", "jax_version": "0.6.2", "patches": []}

    def conclusion(*checks: ParamsCheck) -> list[str]:
        found = OptimizerCheck(OptimizerName("train.py", "soap"), report, checks)
        assert found.verdict is Verdict.STAYS
        return [*found.rows(), *found.conclusion.splitlines()]

    alike = ParamsCheck(default_params("float32"), side, side)
    assert conclusion(alike)[-3:] == [
        "optax 0.2.5, jax 0.6.2: problems; the same on stock and patched optax in float32.",
        "These may be in your own code, or in another library than optax.",
        "What to do about each problem: `python -m optax_dtypefix check --help`.",
    ]
    fixed = ParamsCheck(HALF, side, {"problems": [], "at_work": ["sgd"]})
    assert conclusion(alike, fixed)[-4].endswith(
        ": affected; the same on stock and patched optax in float32; fixed in bfloat16."
    )
    other = {"problems": [{**problem, "text": "off by 17%"}], "at_work": []}
    assert conclusion(ParamsCheck(HALF, side, other))[-3].endswith(
        "affected; not fixed in bfloat16."
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_not_compared_is_a_note(dtype: str) -> None:
    def make() -> Any:
        return optax.chain(optax.identity(), optax_dtypefix.master_weights(optax.sgd(1e-3)))

    found = findings(make, f"w={dtype}[2]")
    assert found["problems"] == []  # An update of 0.001 is 0 in bfloat16, or 0.0078 at last.
    note = "updates hold the rounding of the params: only checked for numbers that are not finite"
    notes = [] if dtype == "float32" else [note]
    assert list(found["notes"]) == notes
    check = ParamsCheck(HALF, found, {**found, "at_work": []})
    assert [*check.lines(verbose=False)][2:] == [f"  note     {note}" for note in notes]
    assert check.as_dict()["notes"] == notes


def test_gradients_of_single_examples_are_given_where_they_are_wanted() -> None:
    def make() -> Any:
        return optax.chain(optax.identity(), optax.GradientTransformation(optax.sgd(1).init, mean))

    def mean(updates: Any, state: Any, params: Any = None) -> Any:
        shapes = [jax.numpy.shape(leaf) for leaf in jax.tree_util.tree_leaves((updates, params))]
        if shapes[0][1:] != shapes[1]:
            raise ValueError("it expects `grads` to have a batch dimension in the 0th axis.")
        return jax.tree_util.tree_map(lambda g: g.mean(0), updates), state

    assert findings(make, "w=float32[2]")["problems"] == []
    found = optax_dtypefix.check(make(), {"w": jax.ShapeDtypeStruct((2,), "float32")})
    advice = " Call check(tx, params, grads), with grads of the shapes (batch, *param.shape)."
    assert advice in str(found)


def test_integers_that_32_bits_cannot_hold_are_no_matter_of_params() -> None:
    def make() -> Any:
        return optax.sgd(lambda count: jax.numpy.where(count < 3_000_000_000, 1e-3, 1e-4))

    found = findings(make, HALF.params)
    with pytest.raises(OptimizerError, match=r"write a float, or try --x64$"):
        refuse_unfit(OptimizerName("train.py", "make"), ParamsCheck(HALF, found, found))


HANGS = """
    import os, pathlib, time

    def make():
        pathlib.Path(f"{os.getpid()}.pid").touch()
        time.sleep(600)
    """


@pytest.mark.thorough
def test_a_factory_that_never_returns_ends(command: Python) -> None:
    write_script(command.folder, HANGS, "train.py")
    limit = """
        import wrapt

        @wrapt.when_imported("optax_dtypefix._diagnosis.check_command.worker")
        def limit(module):
            module._BUILD_LIMIT = 1.0
        """
    done = command("check", "train.py:make", PYTHONPATH=command.at_start(limit))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "optax-dtypefix: train.py:make cannot be built within 1 seconds\n"


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "kill"), reason="signals of POSIX")
def test_a_signal_ends_the_workers_and_removes_their_files(tmp_path: Path) -> None:
    write_script(tmp_path, HANGS, "train.py")
    (tmp_path / "temporary").mkdir()
    command = ("-m", "optax_dtypefix", "check", "train.py:make")
    running = start(*command, folder=tmp_path, TMPDIR=str(tmp_path / "temporary"))
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    running.send_signal(signal.SIGTERM)
    (done,) = finish([running], timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list((tmp_path / "temporary").iterdir())


def test_a_terminal_shows_that_it_runs(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_optimizer(*_: Any, **__: Any) -> Any:
        raise OptimizerError("none")

    assert script.exists()
    monkeypatch.setattr("optax_dtypefix._commands.main.compare", no_optimizer)
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=is_terminal: shown)
        assert main(["check", "train.py:tx"]) == 3
        line = "Checking train.py:tx on stock and on patched optax ...\n"
        assert capsys.readouterr().err == f"{line * is_terminal}optax-dtypefix: none\n"


def test_params_that_do_not_fit_are_no_verdict() -> None:
    def named() -> Any:
        return optax.multi_transform({"a": optax.sgd(0.1)}, lambda _: {"encoder": "a"})

    found = findings(named, HALF.params)
    assert (found["problems"][0]["kind"], found["unfit"]) == ("error", True)
    name = OptimizerName("train.py", "named")
    refuse_unfit(name, ParamsCheck(HALF, found, {**found, "unfit": False}))  # The patches fix it.
    with pytest.raises(OptimizerError) as error:
        refuse_unfit(name, ParamsCheck(HALF, found, found))
    assert "train.py:named does not run on w=bfloat16[256,128]," in str(error.value)
    assert "Give params like your own, such as --params" in str(error.value)


def test_a_factory_that_raises_is_no_matter_of_params() -> None:
    def boom() -> Any:
        raise ValueError("no config")

    found = findings(boom, HALF.params)
    with pytest.raises(OptimizerError) as error:
        refuse_unfit(OptimizerName("train.py", "boom"), ParamsCheck(HALF, found, found))
    line = f"({__file__}:{boom.__code__.co_firstlineno + 1})"
    assert str(error.value) == (
        f"train.py:boom cannot be built, stock or patched: ValueError: no config {line}"
    )


def _stop() -> Any:
    return next(iter(()))


def _exit() -> Any:
    raise SystemExit(7)


@pytest.mark.parametrize("fails", [_exit, lambda: 1 / 0])
def test_an_error_in_half_precision_alone_is_a_problem(fails: Any) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        if params["w"].dtype != "float32":
            fails()
        return updates, state

    tx = optax.GradientTransformation(optax.sgd(0.1).init, update)
    entry = findings(lambda: tx, "w=float16[2]")
    assert [p["kind"] for p in entry["problems"]] == ["error"]  # Once, not for dtypes and values.
    assert not entry["unfit"]


@pytest.mark.parametrize(
    ("fails", "method", "text"),
    [
        (_stop, "init", "error: StopIteration"),
        (_stop, "update", "error: StopIteration"),
        (_exit, "init", "exits with 7"),
        (_exit, "update", "exits with 7"),
        (_exit, "update later", "exits with 7"),
    ],
)
def test_what_stops_python_is_traced_to_its_line(fails: Any, method: str, text: str) -> None:
    calls = []

    def init(params: Any) -> Any:
        if method == "init":
            fails()
        return params

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        calls.append(None)
        if len(calls) > {"update": 0, "update later": 4}[method]:  # Not while dtypes are checked.
            fails()
        return updates, state

    tx = optax.GradientTransformation(init, update)
    (problem,) = findings(lambda: tx, "w=bfloat16[2]")["problems"]
    line = f"({__file__}:{fails.__code__.co_firstlineno + 1})"
    assert problem["text"].startswith(f"{text} {line}")


# Extra arguments.

needs_extra_args = pytest.mark.skipif(
    not hasattr(optax, "GradientTransformationExtraArgs"),
    reason="extra arguments came with optax 0.1.5",
)


@pytest.mark.parametrize(
    ("name", "arguments", "needed"),
    [
        ("sgd", (0.1,), set()),
        ("lbfgs", (), {"value", "grad", "value_fn"}),
        ("polyak_sgd", (), {"value"}),
        ("contrib.sophia", (0.1,), {"obj_fn"}),
    ],
)
def test_extra_arguments_are_found_by_trying(
    name: str, arguments: Sequence[Any], needed: set[str]
) -> None:
    module, _, function = f"optax.{name}".rpartition(".")
    factory = getattr(sys.modules.get(module), function, None)
    if factory is None:
        assert optax.__version__ != TESTED[-1], f"{name} is misspelt"
        pytest.skip(f"this optax has no {name}")
    params = {"w": jax.ShapeDtypeStruct((3, 4), "float32")}
    assert set(checked(factory(*arguments), params)[0]) == needed


@needs_extra_args
def test_an_extra_argument_that_is_refused_is_left_out() -> None:
    def update(updates: Any, state: Any, _: Any = None, *, value: Any = None) -> Any:
        if value is None:
            raise ValueError("the value of the loss is missing")
        return updates, state

    tx: Any = optax.GradientTransformationExtraArgs(optax.sgd(0.1).init, update)
    assert set(checked(tx, {"w": jax.ShapeDtypeStruct((3,), "float32")})[0]) == {"value"}


@needs_extra_args
def test_an_error_that_names_no_extra_argument_stays_as_it_is() -> None:
    def update(*_: Any, **extra_args: Any) -> Any:
        raise ValueError(f"no value is right, and {len(extra_args)} were given")

    tx = optax.GradientTransformationExtraArgs(optax.sgd(0.1).init, update)
    given, found = checked(tx, {"w": jax.ShapeDtypeStruct((3,), "float32")})
    assert given == {}
    assert "and 0 were given" in str(found.error)
