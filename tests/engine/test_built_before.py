"""What stock functions built before they were patched is found, and reported once."""

from __future__ import annotations

import functools
import gc
import importlib
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning
from optax_dtypefix._settings import Settings
from support.fakepackage import NAME, FakePackage, engine_of, on, patch, start

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = """
import functools

def build(rate):
    def init(x):
        return rate

    def update(x):
        def step(y):
            return y * rate
        return step

    return init, update

def curried(rate):
    def outer(x):
        def inner(y):
            return x + y
        return inner
    return outer

def plain(x):
    return (lambda y: y)

def wrapped_in(built):
    def update(x):
        return built(x)
    return update

class Steps:
    def __init__(self, built):
        self.built = built

    def update(self, x):
        return self.built(x)

def with_default(built=build(1)):
    return built
"""


class Pair(NamedTuple):
    init: Any
    update: Any


def give(stock: Callable[..., Any], *args: Any) -> Any:
    return stock(*args)


@pytest.fixture
def core(package: FakePackage) -> Any:
    package.sources[f"{NAME}.core"] += SOURCE.replace("\n", "\n        ")
    return package.load().core


def engine(*names: str, **settings: Any) -> Any:
    targets = (on(name, give) for name in names)
    return engine_of(patch("a", *targets), settings=Settings(**settings))


def test_it_counts_calls_by_function_and_names_the_line(core: Any) -> None:
    first, second = Pair(*core.build(1)), Pair(*core.build(2))
    steps = [first.update(1) for _ in range(3)]  # Not counted: what was built makes these.
    inner = core.curried(1)(2)
    lam, untouched = core.plain(1), core.wrapped_in(second.update)
    with pytest.warns(OptaxDtypeFixWarning) as caught:
        engine("build", "curried", "plain").apply()
    (warning,) = caught
    assert str(warning.message).startswith(
        "Built before the patches were applied, and still stock: build (2), curried (1). Build"
    )
    assert warning.filename == __file__
    del first, second, steps, inner, lam, untouched


def test_a_patched_function_without_python_code_does_not_hide_the_others(core: Any) -> None:
    core.number_of = [1, 1].count
    built = core.build(1)
    found = engine("build", "number_of")
    with pytest.warns(OptaxDtypeFixWarning, match=r"build \(1\)"):
        found.apply()
    assert found.is_applied("a")
    assert found.built_before(built) == ["build"]


def test_what_a_partial_built_is_named_by_the_function_inside(core: Any) -> None:
    core.tenth = functools.partial(core.build, rate=0.1)
    built = core.tenth()
    found = engine("tenth", "curried")
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build \(1\). Build"):
        found.apply()
    assert found.built_before(built) == ["build"]


def test_a_patched_object_without_a_name_does_not_hide_the_others(core: Any) -> None:
    class Nameless:
        def __call__(self) -> None: ...

    core.nameless = Nameless()
    built = core.build(1)
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build \(1\). Build"):
        engine("build", "nameless").apply()
    del built


def test_it_finds_the_parts_of_a_value(core: Any) -> None:
    stock, inner = Pair(*core.build(1)), core.curried(1)(2)
    steps = core.Steps(stock.update)
    before = steps.update
    found = engine("build", "curried", "Steps.update")
    with pytest.warns(OptaxDtypeFixWarning, match=r"Steps.update \(1\)"):
        found.apply()
    core.kept = stock  # A global of what is built from now on.
    for value, names in (
        (stock, ["build"]),
        (core.wrapped_in(stock.update), ["build"]),
        (functools.partial(core.wrapped_in, stock.init), ["build"]),
        ({"a": [stock.update, inner]}, ["build", "curried"]),
        (SimpleNamespace(tx=stock), ["build"]),
        (core.Steps(stock.update), ["build"]),
        (core.Steps(stock.update).update, ["build"]),  # Looked up now: patched itself.
        (before, ["Steps.update", "build"]),
        (core.build(1), []),  # Stock's own, but the patch has built it.
        (core.Steps(core.build(1)[1]), []),
        (None, []),
    ):
        assert found.built_before(value) == names


def test_what_the_package_holds_or_nobody_holds_is_not_reported(core: Any) -> None:
    core.build(1)
    assert core.with_default()[0](0) == 1  # Built while the package was imported.
    engine("build", "with_default").apply()


def test_it_warns_once(core: Any) -> None:
    built = core.build(1)
    found = engine("build")
    with pytest.warns(OptaxDtypeFixWarning):
        found.apply()
    found.apply()
    found.revert()
    on_purpose = core.build(1)
    found.apply()
    assert found.built_before(built) == ["build"]
    assert found.built_before(on_purpose) == []


def test_a_reloaded_function_is_a_new_one(core: Any) -> None:
    found = engine("build")
    found.apply()
    importlib.reload(core)
    built = core.build(1)
    with pytest.warns(OptaxDtypeFixWarning, match=r"build \(1\)"):
        found.apply()
    assert found.built_before(built) == ["build"]


def test_in_strict_mode_it_is_an_error_and_the_patches_stay(core: Any) -> None:
    built = core.build(1)
    found = engine("build", strict=True)
    with pytest.raises(OptaxDtypeFixError, match=r"build \(1\)"):
        found.apply()
    assert found.is_applied("a")
    assert found.built_before(built) == ["build"]


def test_a_search_that_fails_costs_the_warning_and_no_patch(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise RuntimeError("no objects")

    monkeypatch.setattr(gc, "get_objects", fail)
    found = engine("build")
    found.apply()
    assert found.is_applied("a")
    assert found.built_before(core.build(1)) == []


def test_a_shim_that_comes_first_searches_nothing(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    package.sources[f"{NAME}.core"] += SOURCE.replace("\n", "\n        ")
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("searched"))
    found = engine("build", "with_default")
    start(found)
    core = package.load().core
    built = core.build(1)
    found.apply()
    found.revert()
    found.apply()
    assert found.built_before(built) == []


def test_it_keeps_nothing_alive(core: Any) -> None:
    found = engine("build")
    built = Pair(*core.build(1))
    with pytest.warns(OptaxDtypeFixWarning):
        found.apply()
    assert len(found._still_stock._builders) == 2
    del built
    assert len(found._still_stock._builders) == 0


def test_a_switched_off_patch_reports_nothing(core: Any) -> None:
    built = core.build(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = engine("build", enabled=False)
        found.apply()
    assert found.built_before(built) == []
