"""Every alias is rebound, remembered and restored."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import pytest

from optax_dtypefix import original
from support.fakepackage import FakePackage, engine_of, on, patch, start


def module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> Any:
    made = types.ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_names_copied_into_user_modules_are_rebound(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pkg = package.load()
    user = module(monkeypatch, "user_code", scale=pkg.scale, renamed=pkg.scale, other=len)
    main = module(monkeypatch, "__main__", scale=pkg.scale)
    stock = pkg.scale
    engine = engine_of(patch("a", on("scale")))
    for _ in range(2):
        engine.apply()
        assert user.scale is user.renamed is main.scale is pkg.scale is not stock
        assert (user.scale(5), user.other) == (-10, len)
        engine.revert()
        assert user.scale is user.renamed is main.scale is pkg.scale is stock


class Closed(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise AssertionError("triggered")


def test_names_in_classes_are_rebound(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pkg = package.load()
    shift = pkg.shift
    trainer: Any = Closed("Trainer", (), {"plain": shift})
    module(monkeypatch, "user_code", Trainer=trainer, Again=trainer)
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    for _ in range(2):
        engine.apply()
        assert trainer.plain is pkg.shift is not shift
        engine.revert("a")
        assert trainer.plain is pkg.shift is not shift
        engine.revert()
        assert trainer.plain is shift


def test_all_else_is_left_alone(package: FakePackage, monkeypatch: pytest.MonkeyPatch) -> None:
    pkg = package.load()
    scale = pkg.scale
    nested = {"a": [scale], "b": {"c": (scale,)}}
    plain = {"a": scale}, [scale], (scale,)
    tripled = functools.partial(scale, factor=3)
    user = module(monkeypatch, "user_code", NESTED=nested, FROZEN=frozenset({scale}), T=tripled)
    user.A, user.B, user.C = plain
    user.closure = lambda x: scale(x) + 0

    def with_default(x: Any, function: Any = scale) -> Any:
        return function(x)

    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    engine.apply()
    assert nested == {"a": [scale], "b": {"c": (scale,)}}
    assert plain == ({"a": scale}, [scale], (scale,))
    assert (user.closure(5), with_default(5), user.T(5)) == (10, 10, 15)


def test_names_copied_after_apply_follow_revert_and_the_next_apply(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    pkg = package.load()
    user = module(monkeypatch, "user_code", scale=pkg.scale)
    held = [pkg.scale]  # A list: this reference cannot be rebound.
    engine.revert()
    assert user.scale is pkg.scale
    assert (user.scale(5), held[0](5)) == (10, 10)
    engine.apply()
    assert (user.scale(5), held[0](5)) == (-10, -10)


def test_a_stock_function_that_a_program_keeps_on_purpose_stays(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pkg = package.load()
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    engine.apply("a")
    user = module(monkeypatch, "user_code", stock=original(pkg.scale))
    engine.apply("a")
    with engine.disabled("a"):
        pass
    assert (user.stock(5), pkg.scale(5)) == (10, -10)


def test_a_name_that_its_owner_rebound_is_left_alone(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pkg = package.load()
    user = module(monkeypatch, "user_code", scale=pkg.scale, gone=pkg.scale, shift=pkg.scale)
    engine = engine_of(patch("a", on("scale"), on("shift")))
    engine.apply()
    user.scale = user.scale(3)  # ``adam = adam(1e-3)`` is what scripts do.
    user.shift = pkg.shift  # Another wrapper is no layer on this one.
    del user.gone
    engine.revert()
    assert user.scale == -6
    assert user.shift is pkg.shift
    assert not hasattr(user, "gone")


def test_a_module_that_refuses_assignment_is_skipped(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pkg = package.load()

    class Frozen(types.ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"frozen: {name} = {value}")

    frozen = Frozen("a_frozen_module")
    vars(frozen)["scale"] = pkg.scale
    monkeypatch.setitem(sys.modules, "a_frozen_module", frozen)
    user = module(monkeypatch, "user_code", scale=pkg.scale)
    engine = engine_of(patch("a", on("scale")))
    engine.apply()
    assert user.scale(5) == -10
    assert frozen.scale(5) == 10


def test_the_sweep_triggers_no_lazy_module_and_accepts_odd_entries(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"triggered by {name}")

    class LazyDict(types.ModuleType):
        @property
        def __dict__(self) -> Any:
            raise AssertionError("triggered by its dict")

    class Proxy:
        @property
        def __class__(self) -> Any:
            raise AssertionError("triggered by its class")

    package.load()
    monkeypatch.setitem(sys.modules, "a_lazy_module", Lazy("a_lazy_module"))
    monkeypatch.setitem(sys.modules, "a_lazy_dict", LazyDict("a_lazy_dict"))
    monkeypatch.setitem(sys.modules, "no_module", object())
    monkeypatch.setitem(sys.modules, "a_proxy", Proxy())
    engine = engine_of(patch("a", on("scale")))
    engine.apply()
    assert engine.is_applied("a")


def test_a_name_that_another_thread_moves_meanwhile_stays(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moves(types.ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            vars(self)["renamed"] = len

    pkg = package.load()
    user = Moves("user_code")
    vars(user).update(scale=pkg.scale, renamed=pkg.scale)
    monkeypatch.setitem(sys.modules, "user_code", user)
    engine_of(patch("a", on("scale"))).apply()
    assert (vars(user)["scale"], vars(user)["renamed"]) == (pkg.scale, len)
