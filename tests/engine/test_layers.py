"""Several patches on one target, and wrappers that other code put on top of ours."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import unittest.mock
from typing import Any, Callable

import pytest

from optax_dtypefix import OptaxDtypeFixWarning, original
from support.fakepackage import NAME, FakePackage, add_hundred, engine_of, negate, on, patch


@pytest.mark.parametrize(("off", "value"), [(["a"], 110), (["b"], -10), (["b", "a"], 10)])
def test_each_patch_of_a_shared_target_can_be_disabled_alone(
    package: FakePackage, off: list[str], value: int
) -> None:
    # The first id is the outermost layer, whatever the order of applying.
    engine = engine_of(patch("a", on("scale", negate)), patch("b", on("scale", add_hundred)))
    pkg = package.load()
    engine.apply("b")
    engine.apply("a")
    with engine.disabled(*off):
        assert pkg.scale(5) == value
    assert pkg.scale(5) == -110
    for patch_id in off:
        engine.revert(patch_id)
    assert pkg.scale(5) == value


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def layer(*args: Any) -> Any:
        return function(*args) + 0.5

    return layer


def test_revert_names_a_foreign_wrapper_and_leaves_it(package: FakePackage) -> None:
    pkg = package.load()
    stock = pkg.scale
    engine = engine_of(patch("a", on("scale")))
    engine.apply()
    ours = pkg.core.scale
    theirs = pkg.core.scale = wrapped(ours)
    with engine.disabled():
        assert pkg.core.scale(5) == 10.5
    engine.apply()  # Ours is still below theirs and must not act twice.
    assert pkg.core.scale(5) == -9.5
    for _ in range(2):
        match = rf"Cannot fully.*{NAME}.core.scale, now <func"
        with pytest.warns(OptaxDtypeFixWarning, match=match):
            engine.revert()
        assert pkg.core.scale is theirs
        assert pkg.core.scale(5) == 10.5
        assert pkg.scale is stock  # This alias has no foreign wrapper.
        engine.apply()
        assert (pkg.core.scale(5), pkg.scale(5)) == (-9.5, -10)
    with pytest.warns(OptaxDtypeFixWarning):
        engine.revert()
    pkg.core.scale = ours  # They removed their wrapper, as the warning asks.
    engine.revert()
    assert pkg.core.scale is stock
    engine.apply()
    assert pkg.core.scale(5) == pkg.scale(5) == -10


def test_a_foreign_wrapper_that_hides_ours_follows_revert_and_apply(package: FakePackage) -> None:
    pkg = package.load()
    stock = pkg.scale
    engine = engine_of(patch("a", on("scale")))
    engine.apply()
    ours = pkg.core.scale
    theirs = pkg.core.scale = lambda *args: ours(*args) + 0.5
    for _ in range(2):
        engine.apply()
        assert (pkg.core.scale(5), pkg.scale(5)) == (-9.5, -10)
        engine.revert()
        assert pkg.core.scale is theirs
        assert (pkg.core.scale(5), pkg.scale) == (10.5, stock)


def test_a_mock_and_its_removal_are_respected(package: FakePackage) -> None:
    pkg = package.load()
    engine = engine_of(patch("a", on("scale")))
    engine.apply()
    with unittest.mock.patch(f"{NAME}.core.scale", return_value=7):
        with engine.disabled():
            assert pkg.core.scale(5) == 7
        engine.apply()
        assert pkg.core.scale(5) == 7
    assert pkg.core.scale(5) == -10
    with engine.disabled():
        assert pkg.core.scale(5) == 10


def test_what_a_mock_that_came_first_puts_back_is_noticed(
    package: FakePackage,
) -> None:
    pkg = package.load()
    engine = engine_of(patch("a", on("scale")))
    with unittest.mock.patch(f"{NAME}.scale"):
        engine.apply()
    assert not engine.is_applied("a")
    engine.apply()
    assert engine.is_applied("a")
    assert pkg.scale(5) == -10


def test_a_stock_function_restored_by_hand_is_noticed(package: FakePackage) -> None:
    pkg = package.load()
    stock = pkg.scale
    engine = engine_of(patch("a", on("scale")))
    engine.apply()
    pkg.core.scale = stock
    assert not engine.is_applied("a")
    engine.apply()
    assert engine.is_applied("a")
    assert pkg.core.scale(5) == -10


def test_a_public_name_that_is_set_back_to_stock_is_noticed(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pkg = package.load()
    stock = pkg.scale
    user = types.ModuleType("user_code")
    monkeypatch.setitem(sys.modules, "user_code", user)
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    pkg.scale = len
    engine.apply()
    assert engine.is_applied("a")
    pkg.scale = user.scale = stock  # type: ignore[attr-defined]
    assert (pkg.scale, pkg.core.scale(5)) == (stock, -10)
    assert not engine.is_applied("a")
    assert engine.is_applied("b")
    reason = engine.status()["a"].reason
    assert reason.startswith(f"{NAME}.scale was set back to the stock function; call")

    engine.apply()
    assert engine.is_applied("a")
    assert (pkg.scale(5), user.scale(5)) == (-10, -10)  # type: ignore[attr-defined]
    engine.revert()
    assert pkg.scale is user.scale is stock  # type: ignore[attr-defined]


def test_a_layer_sees_the_stock_signature(package: FakePackage) -> None:
    seen: list[str] = []

    def look(stock: Callable[..., Any], *args: Any) -> Any:
        seen.append(f"{stock.__name__}{inspect.signature(stock)}")
        return stock(*args)

    engine = engine_of(patch("a", on("scale", look)), patch("b", on("scale", look)))
    pkg = package.load()
    engine.apply()
    pkg.scale(5)
    assert seen == [f"scale{inspect.signature(original(pkg.scale))}"] * 2
