"""A late import replaces functions wherever they are held, and names the places where it cannot."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import sys
import types
import unittest.mock
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import jax
import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning
from optax_dtypefix._engine.wrapper import stock_of
from optax_dtypefix._settings import Settings
from support.fakepackage import NAME, FakePackage, engine_of, on, patch, start
from support.holders import HOLDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_what_holds_a_function_follows(package: FakePackage, holder: Callable[[Any], Any]) -> None:
    pkg = package.load()
    stock = pkg.scale
    read = holder(stock)
    assert read() is stock
    engine = engine_of(patch("a", on("scale")))
    for _ in range(2):
        engine.apply()
        assert read() is pkg.scale is not stock
        assert engine.status()["a"].held == ()
        engine.revert()
        assert read() is stock


@dataclasses.dataclass(frozen=True)
class Frozen:
    factory: Any


class Trainer:
    pass


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("train")
    monkeypatch.setitem(sys.modules, "train", module)
    monkeypatch.setattr(Trainer, "__module__", "train")
    return module


def test_what_cannot_be_changed_is_named(package: FakePackage, user: Any) -> None:
    pkg = package.load()
    scale, shift = pkg.scale, pkg.shift
    user.CHOICES = (scale, shift)
    user.REGISTRY = {"scale": (scale, {}), "list": [(scale,)]}
    user.NAMES = {scale: "scale"}
    user.CONFIG = Frozen(scale)
    user.SET = frozenset({scale})
    user.Trainer, user.trainer = Trainer, Trainer()
    Trainer.choices = (shift,)  # type: ignore[attr-defined]
    user.trainer.choices = (shift,)
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    with pytest.warns(OptaxDtypeFixWarning) as caught:
        engine.apply()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("Held where they cannot be replaced, and still stock: ")
    assert " and 3 more. Make these objects again, or import" in text
    assert warning.filename == __file__
    report = engine.status()
    assert set(report["a"].held) == {
        "scale in train.CHOICES (tuple)",
        "scale in train.REGISTRY['scale'] (tuple)",
        "scale in train.REGISTRY['list'] (tuple)",
        "scale in train.NAMES (dict)",
        "scale in train.CONFIG (Frozen)",
        "scale in train.SET (frozenset)",
    }
    assert {name for name in report["b"].held if "CHOICES" not in name} == {
        "shift in train.Trainer.choices (tuple)",
        "shift in <Trainer object>.choices (tuple)",
    }
    assert "  scale in train.NAMES (dict)" in str(report).splitlines()
    assert report.as_dict()["patches"][0]["held"] == list(report["a"].held)
    assert hash(user.CONFIG) == hash(Frozen(scale))
    assert user.NAMES[scale] == "scale"
    engine.apply()  # Warns once.
    engine.revert()
    assert engine.status()["a"].held == ()
    assert user.CHOICES[0] is scale
    del Trainer.choices  # type: ignore[attr-defined]


def in_list(value: Any) -> Any:
    loop = [value]
    loop.append(loop)
    return loop


def in_dict(value: Any) -> Any:
    loop = {"a": value}
    loop["loop"] = loop
    return loop


@pytest.mark.parametrize("build", [in_list, in_dict])
def test_what_holds_itself_is_named(
    package: FakePackage, build: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pkg = package.load()
    module = types.ModuleType("train")
    monkeypatch.setitem(sys.modules, "train", module)
    loop = module.LOOP = build((pkg.scale,))  # type: ignore[attr-defined]
    found = gc.get_referrers

    def loop_first(*held: Any) -> list[Any]:
        # In any order. Met first, a loop is followed before what ends the search.
        return sorted(found(*held), key=lambda owner: owner is not loop)

    monkeypatch.setattr(gc, "get_referrers", loop_first)
    with pytest.warns(OptaxDtypeFixWarning, match="scale in train.LOOP"):
        engine_of(patch("a", on("scale"))).apply()


def test_in_strict_mode_that_is_an_error_and_the_patches_stay(
    package: FakePackage, user: Any
) -> None:
    pkg = package.load()
    user.CHOICES = (pkg.scale,)
    engine = engine_of(patch("a", on("scale")), settings=Settings(strict=True))
    with pytest.raises(OptaxDtypeFixError, match=r"scale in train.CHOICES \(tuple\)"):
        engine.apply()
    assert engine.is_applied("a")


def test_what_runs_or_has_no_name_is_not_reported(package: FakePackage) -> None:
    pkg = package.load()
    unnamed = (pkg.scale,)

    def generate() -> Iterator[Any]:
        mine = pkg.core.scale
        yield 1
        yield mine

    running = generate()
    next(running)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine_of(patch("a", on("scale"))).apply()
    assert unnamed[0](1) == 2
    assert next(running)(1) == 2


def test_the_package_itself_is_left_to_the_search_by_name(package: FakePackage) -> None:
    pkg = package.load()
    pkg.core.registry = {"scale": pkg.core.scale}
    stock = pkg.scale
    engine_of(patch("a", on("scale"))).apply()
    assert pkg.core.registry["scale"] is stock  # As if the patch had come first.


def test_one_that_refuses_does_not_keep_the_others_stale(package: FakePackage) -> None:
    pkg = package.load()

    class Odd:
        __slots__ = ("factory",)

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise AssertionError("triggered")

    class Closed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise AssertionError("triggered")

    class Fixed(metaclass=Closed):
        factory = pkg.scale

    odd, held = Odd(), [pkg.scale]
    odd.factory = pkg.scale
    engine_of(patch("a", on("scale"))).apply()
    assert odd.factory is held[0] is Fixed.factory is pkg.scale


def test_a_search_that_fails_costs_no_patch(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pkg = package.load()

    def fail(*_: Any) -> Any:
        raise RuntimeError("no objects")

    monkeypatch.setattr(gc, "get_referrers", fail)
    engine = engine_of(patch("a", on("scale")))
    with caplog.at_level(logging.DEBUG):
        engine.apply()
    assert engine.is_applied("a")
    assert pkg.scale(5) == -10
    assert "no objects" in caplog.text
    engine.revert()
    assert pkg.scale(5) == 10


def test_a_shim_that_comes_first_searches_nothing(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "get_referrers", lambda *_: pytest.fail("searched"))
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    pkg = package.load()
    for _ in range(2):
        assert pkg.scale(5) == -10
        engine.revert()
        engine.apply()


class Value:
    """Compares by what it holds."""

    def __init__(self, factory: Any) -> None:
        self.items = {"a": [factory]}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.items == other.items

    def __hash__(self) -> int:
        return hash(self.items["a"][0])


class HashableDict(dict):  # type: ignore[type-arg]
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class TwoWays(dict):  # type: ignore[type-arg]
    """Keeps the keys by value too."""

    def __init__(self) -> None:
        self.key_of: dict[Any, Any] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.key_of[value] = key


def test_the_parts_of_a_value_stay(package: FakePackage, user: Any) -> None:
    pkg = package.load()
    stock = pkg.scale
    user.VALUE, user.DICT, user.WAYS = Value(stock), HashableDict(a=stock), TwoWays()
    user.WAYS["scale"] = stock
    found = {user.VALUE: 1, user.DICT: 2}
    engine = engine_of(patch("a", on("scale")))
    with pytest.warns(OptaxDtypeFixWarning, match="Held where"):
        engine.apply()
    assert (found[user.VALUE], found[user.DICT]) == (1, 2)
    assert user.WAYS.key_of[user.WAYS["scale"]] == "scale"
    held = " ".join(engine.status()["a"].held)
    assert "train.DICT (HashableDict)" in held
    assert "train.WAYS (TwoWays)" in held


def test_what_calls_a_function_out_of_reach_keeps_the_attribute(
    package: FakePackage, user: Any
) -> None:
    pkg = package.load()
    stock = pkg.scale
    user.cached = functools.lru_cache(stock)
    vars(user.cached)["mine"] = 1
    engine = engine_of(patch("a", on("scale")))
    with pytest.warns(OptaxDtypeFixWarning, match="scale in train.cached"):
        engine.apply()
    assert user.cached(5) == 10
    assert user.cached.__wrapped__ is stock


def test_what_jax_compiled_follows_or_is_reported(package: FakePackage, user: Any) -> None:
    pkg = package.load()
    user.compiled = jax.jit(pkg.scale)
    assert user.compiled(5) == 10
    engine = engine_of(patch("a", on("scale")))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OptaxDtypeFixWarning)
        engine.apply()
    assert user.compiled(5) == (10 if caught else -10)
    assert not caught or jax.__version_info__ < (0, 4, 31)
    engine.revert()
    assert user.compiled(5) == 10


def test_the_caches_of_jax_are_not_reported(package: FakePackage) -> None:
    class Key:
        __module__ = "jax._src.util"

    pkg = package.load()
    key = Key()
    key.value = (pkg.scale,)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine_of(patch("a", on("scale"))).apply()


def test_a_tuple_that_is_being_filled_is_left_alone(package: FakePackage) -> None:
    pkg = package.load()
    stock = pkg.scale
    engine = engine_of(patch("a", on("scale")))

    def fill() -> Iterator[Any]:
        yield stock
        engine.apply()  # The tuple exists, with empty places, which crash who reads them.
        yield 1

    filled = tuple(fill())
    assert filled[0](5) == 10
    assert filled[1:] == (1,)


def test_an_entry_that_goes_meanwhile_does_not_come_back(package: FakePackage) -> None:
    class Key:
        def __hash__(self) -> int:
            held.pop("b", None)
            return 1

    pkg = package.load()
    held: dict[Any, Any] = {}
    held.update({Key(): pkg.scale})
    held["b"] = pkg.scale
    engine_of(patch("a", on("scale"))).apply()
    assert list(held.values()) == [pkg.scale]


def test_nothing_of_a_mock_or_a_proxy_is_called(package: FakePackage, user: Any) -> None:
    class Proxy:
        @property
        def __class__(self) -> Any:
            return called.append("class")

    class NoAttributes:
        __slots__ = ("held",)

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            return called.append("dict")

    called: list[str] = []
    pkg = package.load()
    user.mock, user.proxy, user.other = unittest.mock.MagicMock(), Proxy(), NoAttributes()
    user.mock.held, user.proxy.held = (pkg.scale,), {"a": pkg.scale}
    user.other.held = (pkg.scale,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine_of(patch("a", on("scale"))).apply()
    assert user.proxy.held["a"] is pkg.scale
    assert called == user.mock.mock_calls == []
    assert "__hash__" not in vars(user.mock)


def test_many_holders_take_one_look_at_each_object(
    package: FakePackage, user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pkg = package.load()
    user.MANY = {i: (pkg.scale, i) for i in range(1000)}
    user.DICTS = [{"factory": pkg.scale} for _ in range(1000)]
    look = gc.get_referrers

    def few(*held: Any) -> list[Any]:
        assert len(held) < 1000  # Each object that exists is compared with all of these.
        return look(*held)

    monkeypatch.setattr(gc, "get_referrers", few)
    engine = engine_of(patch("a", on("scale")))
    with pytest.warns(OptaxDtypeFixWarning, match="and 994 more"):
        engine.apply()
    assert "scale in train.MANY[999] (tuple)" in engine.status()["a"].held
    assert all(held["factory"] is pkg.scale for held in user.DICTS)


def test_a_stock_function_kept_on_purpose_stays_when_another_patch_comes(
    package: FakePackage,
) -> None:
    pkg = package.load()
    kept: dict[str, Any] = {}
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift"), opt_in=True))
    engine.apply()
    kept["scale"] = stock_of(pkg.scale)
    engine.apply("b")
    assert kept["scale"](5) == 10
    engine.revert()
    engine.apply()  # What revert() gave back and what was kept are the same function.
    assert kept["scale"] is pkg.scale


def test_a_module_that_comes_later_leaves_what_was_late(package: FakePackage) -> None:
    pkg = package.load()
    stock = pkg.scale
    held = [stock]
    late = on("late", modules=(f"{NAME}.extra.late",))
    engine = engine_of(patch("a", on("scale")), patch("b", late))
    engine.apply()
    package.load(f"{NAME}.extra.late")
    assert engine.is_applied("b")
    engine.revert()
    assert held[0] is stock


def test_a_function_that_two_patches_share_is_listed_once(package: FakePackage, user: Any) -> None:
    pkg = package.load()
    user.CHOICES = (pkg.scale,)
    engine = engine_of(patch("a", on("scale")), patch("b", on("scale")))
    with pytest.warns(OptaxDtypeFixWarning, match="Held where"):
        engine.apply()
    assert str(engine.status()).count("train.CHOICES") == 1


def test_the_globals_of_a_function_are_no_variable(package: FakePackage) -> None:
    pkg = package.load()
    names = {"inner": {"made": (pkg.scale,)}}
    exec("def use(): ...", names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine_of(patch("a", on("scale"))).apply()
    assert names["inner"]["made"][0](5) == 10


def test_it_keeps_nothing_alive(package: FakePackage) -> None:
    pkg = package.load()

    class Holder:
        def __init__(self) -> None:
            self.factory, self.choices = pkg.scale, (pkg.scale,)

    holder = Holder()
    gone = weakref.ref(holder)
    engine = engine_of(patch("a", on("scale")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine.apply()
    del holder
    assert gone() is None
