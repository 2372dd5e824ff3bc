"""Modules that are reloaded or removed after they were patched."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning, State
from optax_dtypefix._settings import Settings
from support.fakepackage import NAME, FakePackage, engine_of, fault, on, patch, start
from support.scripts import (
    run,
    start as start_script,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_a_reloaded_module_is_reported_and_apply_patches_it_again(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale"), on("Box.get")))
    start(engine)
    pkg = package.load()
    old_box = pkg.Box
    importlib.reload(pkg.core)
    assert (pkg.core.scale(5), pkg.core.Box(5).get()) == (10, 5)
    assert not engine.is_applied("a")
    assert engine.status()["a"].state is State.FAILED
    assert f"{NAME}.core:scale, {NAME}.core:Box.get was reloaded or" in engine.status()["a"].reason

    engine.apply()
    assert engine.is_applied("a")
    assert (pkg.core.scale(5), pkg.core.Box(5).get()) == (-10, -5)
    # The package still uses the functions from before the reload, which are still patched.
    assert (pkg.scale(5), old_box(5).get()) == (-10, -5)
    with engine.disabled():
        values = pkg.core.scale(5), pkg.core.Box(5).get(), pkg.scale(5), old_box(5).get()
        assert values == (10, 5, 10, 5)

    engine.revert()
    values = pkg.core.scale(5), pkg.core.Box(5).get(), pkg.scale(5), old_box(5).get()
    assert values == (10, 5, 10, 5)
    assert not hasattr(pkg.core.scale, "__wrapped__")
    assert not hasattr(old_box.get, "__wrapped__")


@pytest.mark.parametrize("strict", [False, True])
def test_a_package_that_is_imported_again_is_patched_again(
    package: FakePackage, *, strict: bool
) -> None:
    late = patch("late", on("late", modules=(f"{NAME}.extra.late",)))
    engine = engine_of(patch("a", on("scale")), late, settings=Settings(strict=strict))
    start(engine)
    old = package.load()
    assert package.load(f"{NAME}.extra.late").late(5) == -5
    package.forget()
    assert [row.state for row in engine.status()] == [State.FAILED] * 2
    engine.apply()  # Without the package this does nothing.
    with mock.patch.dict("sys.modules"):
        assert package.load().scale(5) == -10
        assert engine.is_applied("a")
    new = package.load()
    assert (old.scale(5), new.scale(5)) == (-10, -10)
    assert [row.state for row in engine.status()] == [State.APPLIED, State.PENDING]
    assert package.load(f"{NAME}.extra.late").late(5) == -5
    assert [row.state for row in engine.status()] == [State.APPLIED] * 2
    engine.revert()
    assert (old.scale(5), new.scale(5)) == (10, 10)


def test_what_comes_again_as_another_release_is_decided_again(package: FakePackage) -> None:
    old_only = fault(releases="<0.2.6")
    engine = engine_of(
        patch("a", on("scale"), faults=[old_only]), patch("b", on("shift")), patch("c", on("twice"))
    )
    start(engine)
    old = package.load()
    engine.revert("c")
    package.forget()
    package.release("0.2.6")
    new = package.load()
    states = [row.state for row in engine.status()]
    assert states == [State.NOT_NEEDED, State.APPLIED, State.DISABLED]
    assert (new.scale(5), new.shift(1), new.twice(1)) == (10, -2, 4)
    assert (old.scale(5), old.shift(1)) == (10, -2)


def test_in_strict_mode_an_import_that_cannot_be_patched_again_raises(
    package: FakePackage,
) -> None:
    engine = engine_of(patch("a", on("scale")), settings=Settings(strict=True))
    start(engine)
    package.load()
    package.forget()
    package.sources[NAME] += "del core.scale"
    with pytest.raises(OptaxDtypeFixError, match="no scale"):
        package.load()


@pytest.mark.parametrize("strict", [False, True])
def test_another_finder_that_loads_it_again_is_reported(
    package: FakePackage, *, strict: bool
) -> None:
    engine = engine_of(patch("a", on("scale")), settings=Settings(strict=strict))
    start(engine)
    package.load()
    package.forget()
    sys.meta_path.insert(0, package)  # Before ours.
    assert package.load(NAME).scale(5) == 10
    sys.meta_path.remove(package)
    assert engine.status()["a"].state is State.FAILED
    kind: Any = OptaxDtypeFixError if strict else OptaxDtypeFixWarning
    with pytest.raises(kind, match="another import hook") if strict else pytest.warns(kind):
        find_spec("that_is_not_there")
    assert find_spec("that_is_not_there_either") is None
    engine.apply()
    assert package.load().scale(5) == -10


def test_a_stub_in_place_of_the_package_is_no_import(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(patch("a", on("scale")), settings=Settings(strict=True))
    start(engine)
    package.load()
    with monkeypatch.context() as stubbed:
        stubbed.setitem(sys.modules, NAME, ModuleType(NAME))
        assert find_spec("that_is_not_there") is None
        engine.apply()
    assert find_spec("that_is_not_there") is None
    assert package.load().scale(5) == -10


def test_a_target_that_vanishes_is_not_applied(package: FakePackage) -> None:
    pkg = package.load()
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    engine.apply()
    del pkg.core.scale
    assert not engine.is_applied("a")
    engine.apply()
    assert engine.is_applied("b")
    engine.revert()
    assert not hasattr(pkg.core, "scale")
    assert pkg.shift(1) == 2


IN_A_BLOCK = """
    with mock.patch.dict("sys.modules"):
        import optax
        train()
    """
SHIM_TOO = "import optax_dtypefix as shim\n"
AS_IN_A_NOTEBOOK = """
    import optax
    train()
    for name in [name for name in sys.modules if name.startswith("optax")]:
        del sys.modules[name]
    """


@pytest.mark.thorough
@pytest.mark.parametrize("first", [IN_A_BLOCK, AS_IN_A_NOTEBOOK, AS_IN_A_NOTEBOOK + SHIM_TOO])
def test_a_second_import_of_the_real_optax_is_patched(tmp_path: Path, first: str) -> None:
    script = f"""
        import json, sys
        from unittest import mock
        import jax, jax.numpy as jnp
        import optax_dtypefix as shim

        def train():
            import optax
            params = {{"w": jnp.full(4, 300, jnp.float16)}}
            tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1))
            state = tx.init(params)
            for _ in range(2):
                updates, state = jax.jit(tx.update)(params, state, params)
            assert float(optax.global_norm(params)) == 600
            assert updates["w"].dtype == jnp.float16
            report = shim.status()
            assert report["global_norm"].state == "applied" and report["global_norm"].reached
            assert report["float16_eps"].reached
            applied.append(report.applied)
            with open("report") as file:
                assert json.load(file)["applied"] == report.applied

        applied = []
        {textwrap.indent(textwrap.dedent(first), " " * 8).strip()}
        import optax
        assert optax.__name__ in sys.modules
        train()
        import optax_dtypefix
        assert optax_dtypefix.status().applied == applied[0] == applied[1]
        shim.revert()
        print(optax.global_norm(jnp.full(4, 300, jnp.float16)))
        """
    variables = {"OPTAX_DTYPEFIX_REPORT": "report", "OPTAX_DTYPEFIX_STRICT": "1"}
    assert run(tmp_path, script, **variables) == "inf\n"


@pytest.mark.thorough
def test_the_report_of_a_second_import_that_was_missed_names_no_patches(tmp_path: Path) -> None:
    script = """
        import importlib.machinery, sys
        import optax_dtypefix, optax
        for name in [name for name in sys.modules if name.startswith("optax.")]:
            del sys.modules[name]
        del sys.modules["optax"]
        sys.meta_path.insert(0, importlib.machinery.PathFinder)
        import optax
        assert stock(optax.global_norm)
        """
    variables = {"OPTAX_DTYPEFIX_REPORT": "report"}
    done = start_script(tmp_path, script, **variables)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report").read_text())
    states = {row["state"] for row in report["patches"]}
    assert "failed" in states
    assert "applied" not in states
    assert [name.split()[0] for name in report["applied"]] == ["optax-dtypefix", "optax", "jax"]
