"""Modules that are reloaded or removed after they were patched."""

from __future__ import annotations

import importlib

from optax_dtypefix import State
from support.fakepackage import NAME, FakePackage, engine_of, on, patch, start


def test_reloading_the_package_keeps_the_patch(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    pkg = importlib.reload(package.load())
    assert pkg.scale(5) == -10
    assert engine.is_applied("a")


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


def test_a_package_that_is_imported_again_can_be_patched_again(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    old = package.load()
    package.forget()
    assert engine.status()["a"].state is State.FAILED
    engine.apply()  # Without the package this does nothing.
    new = package.load()
    engine.apply()
    assert (old.scale(5), new.scale(5)) == (-10, -10)
    engine.revert()
    assert (old.scale(5), new.scale(5)) == (10, 10)


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
