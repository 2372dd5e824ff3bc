"""Apply and revert patches, before and after the package is imported."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from optax_dtypefix import OptaxDtypeFixWarning, State
from optax_dtypefix._settings import Settings
from support.fakepackage import NAME, FakePackage, engine_of, negate, on, patch, start


def test_started_first_it_patches_during_the_import(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    assert engine.status()["a"].state is State.PENDING
    assert NAME not in sys.modules
    pkg = package.load()
    assert engine.is_applied("a")
    assert pkg.scale(5) == -10
    assert pkg.scale is pkg.core.scale  # The alias in the package was rebound too.
    assert pkg.twice(1) == 4  # -(-(1 * 2) * 2): functions of the package call the patched one.


def test_started_last_it_patches_at_once(package: FakePackage) -> None:
    pkg = package.load()
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    assert engine.is_applied("a")
    assert pkg.scale(5) == pkg.core.scale(5) == -10


def test_revert_restores_the_same_objects(package: FakePackage) -> None:
    pkg = package.load()

    def names() -> list[tuple[str, int]]:
        owners = (vars(pkg), vars(pkg.core), vars(pkg.Box))
        return [(name, id(value)) for owner in owners for name, value in owner.items()]

    before = names()
    engine = engine_of(patch("a", on("scale"), on("Box.get")))
    engine.apply()
    assert pkg.Box(3).get(extra=1) == -4
    engine.revert()
    assert names() == before
    assert pkg.Box(3).get(extra=1) == 4


def test_apply_and_revert_are_idempotent(package: FakePackage) -> None:
    pkg = package.load()
    stock, wrappers = pkg.scale, set()
    engine = engine_of(patch("a", on("scale")))
    for _ in range(2):
        engine.apply()
        wrapper = pkg.scale
        wrappers.add(wrapper)
        engine.apply()
        engine.apply("a")
        assert pkg.scale is wrapper
        assert pkg.scale(5) == -10
        engine.revert()
        engine.revert("a")
        assert pkg.scale is stock
    assert len(wrappers) == 1
    assert not engine.is_applied("a")
    assert engine.status()["a"].reason == "reverted by the program"


def test_a_revert_before_the_import_lasts_until_apply(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    start(engine)
    engine.revert("a")
    pkg = package.load()
    assert (pkg.scale(5), pkg.shift(1)) == (10, -2)
    engine.apply("a")
    assert pkg.scale(5) == -10


def test_a_lazily_imported_submodule_is_patched_when_it_loads(package: FakePackage) -> None:
    lazy = patch("lazy", on("late", negate, modules=(f"{NAME}.extra.late",)))
    engine = engine_of(lazy, patch("a", on("scale")))
    start(engine)
    pkg = package.load()
    assert pkg.scale(5) == -10
    assert engine.status()["lazy"].state is State.PENDING
    assert f"{NAME}.extra is not imported yet" in engine.status()["lazy"].reason
    package.load(f"{NAME}.extra")
    assert f"{NAME}.extra.late is not imported yet" in engine.status()["lazy"].reason
    assert package.load(f"{NAME}.extra.late").late(5) == -5
    assert engine.is_applied("lazy")
    assert pkg.scale(5) == -10


def test_names_copied_before_a_lazy_import_are_patched_with_it(package: FakePackage) -> None:
    whole = patch("whole", on("scale"), on("late", modules=(f"{NAME}.extra.late",)))
    engine = engine_of(whole)
    start(engine)
    user = ModuleType("user")
    user.scale = package.load().scale  # type: ignore[attr-defined]
    sys.modules["user"] = user
    try:
        assert user.scale(5) == 10
        package.load(f"{NAME}.extra.late")
        assert user.scale(5) == -10
    finally:
        del sys.modules["user"]


def test_off_patches_nothing(package: FakePackage) -> None:
    finders = [*sys.meta_path]
    engine = engine_of(patch("a", on("scale")), settings=Settings(enabled=False))
    start(engine)
    assert sys.meta_path == finders
    pkg = package.load()
    engine.apply()
    assert pkg.scale(5) == 10
    assert engine.status()["a"].state is State.DISABLED
    with pytest.warns(UserWarning, match="'a' was not applied: switched off by OPTAX_DTYPEFIX=off"):
        engine.apply("a")
    assert pkg.scale(5) == 10


@pytest.mark.parametrize("settings", [Settings(strict=True), Settings(enabled=False, strict=True)])
def test_the_id_of_an_older_version_does_nothing_and_warns(
    package: FakePackage, settings: Settings
) -> None:
    pkg = package.load()
    engine = engine_of(
        patch("a", on("scale")), settings=settings, removed={"old": "is gone. Name a."}
    )
    engine.apply()
    before, patched = engine.status(), pkg.scale(5)
    message = r"^Patch 'old' is gone\. Name a\.$"
    for call in (engine.apply, engine.revert, engine.is_applied):
        with pytest.warns(OptaxDtypeFixWarning, match=message) as caught:
            assert not call("old")
        assert len(caught) == 1
        assert engine.status() == before
    with pytest.warns(OptaxDtypeFixWarning, match=message), engine.disabled("old"):
        assert pkg.scale(5) == patched
    with pytest.warns(OptaxDtypeFixWarning, match=message), engine.disabled("old", "a"):
        assert pkg.scale(5) == 10
    with pytest.warns(OptaxDtypeFixWarning, match=message):
        engine.revert("a", "old")
    assert pkg.scale(5) == 10


def test_an_unknown_id_raises_with_a_suggestion() -> None:
    engine = engine_of(patch("multi_steps"), patch("zero_nans"))
    for verb in (engine.apply, engine.revert, engine.is_applied):
        with pytest.raises(ValueError, match="Did you mean 'multi_steps'"):
            verb("multistep")
    with pytest.raises(ValueError, match="'multistep'"), engine.disabled("multistep"):
        pytest.fail("entered")
    with pytest.raises(ValueError, match="Valid: multi_steps, zero_nans"):
        engine.apply("x")
    with pytest.raises(ValueError, match="Give each name separately"):
        engine.apply("multi_steps,zero_nans")


@pytest.mark.parametrize("wrong", [None, 3, ("multi_steps",)])
def test_what_is_no_text_is_an_unknown_id(wrong: Any) -> None:
    engine = engine_of(patch("multi_steps"))
    for verb in (engine.apply, engine.revert, engine.is_applied):
        with pytest.raises(ValueError, match=r"Unknown patch .*'multi_steps'|Valid: multi_steps"):
            verb(wrong)
