"""What stock functions built before they were patched is found, and reported once."""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import logging
import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning
from optax_dtypefix._diagnosis.run_check import list_built_before
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


def built_before(found: Any, value: Any) -> list[str]:
    return [*list_built_before(value, found.points)]


def test_it_names_the_functions_and_the_line(core: Any) -> None:
    first, second = Pair(*core.build(1)), Pair(*core.build(2))
    inner = core.curried(1)(2)
    lam, untouched = core.plain(1), core.wrapped_in(second.update)
    with pytest.warns(OptaxDtypeFixWarning) as caught:
        engine("build", "curried", "plain").apply()
    (warning,) = caught
    assert str(warning.message).startswith(
        "Built before the patches were applied, and still stock: build, curried. Build"
    )
    assert warning.filename == __file__
    del first, second, inner, lam, untouched


def test_a_patched_function_without_python_code_does_not_hide_the_others(core: Any) -> None:
    core.number_of = [1, 1].count
    built = core.build(1)
    found = engine("build", "number_of")
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build\. Build"):
        found.apply()
    assert found.is_applied("a")
    assert built_before(found, built) == ["build"]


def test_what_a_partial_built_is_named_by_the_function_inside(core: Any) -> None:
    core.tenth = functools.partial(core.build, rate=0.1)
    built = core.tenth()
    found = engine("tenth", "curried")
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build\. Build"):
        found.apply()
    assert built_before(found, built) == ["build"]


def test_a_patched_object_without_a_name_does_not_hide_the_others(core: Any) -> None:
    class Nameless:
        def __call__(self) -> None: ...

    core.nameless = Nameless()
    built = core.build(1)
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build\. Build"):
        engine("build", "nameless").apply()
    del built


def test_it_finds_the_parts_of_a_value(core: Any) -> None:
    stock, inner = Pair(*core.build(1)), core.curried(1)(2)
    steps = core.Steps(stock.update)
    before = steps.update
    found = engine("build", "curried", "Steps.update")
    with pytest.warns(OptaxDtypeFixWarning, match="Steps.update"):
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
        assert built_before(found, value) == names


def test_what_the_package_holds_or_nobody_holds_is_not_reported(core: Any) -> None:
    core.build(1)
    assert core.with_default()[0](0) == 1  # Built while the package was imported.
    engine("build", "with_default").apply()


class Shell:
    """Knows all names of a user, as the shells of IPython do."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def get(self) -> Shell:
        return self

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return self.names and function(*args)

        return wrapper


def test_what_builtins_lead_to_is_the_users(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"tx": core.build(1), "steps": [core.curried]}
    monkeypatch.setattr(builtins, "get_ipython", Shell(mine).get, raising=False)
    assert core.__builtins__["get_ipython"]  # The package is a few steps away from the user.
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build, curried in list. Build"):
        engine("build", "curried").apply()


def test_a_value_that_knows_the_shell_was_not_built_before(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = ModuleType("user")
    monkeypatch.setitem(sys.modules, "user", user)
    user.before = core.build(1)  # type: ignore[attr-defined]
    found = engine("build")
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build\. Build"):
        found.apply()
    assert built_before(found, core.wrapped_in(Shell(vars(user)).get)) == []


def test_what_lies_beside_a_name_that_is_rebound_is_the_users(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    user: Any = ModuleType("user")
    monkeypatch.setitem(sys.modules, "user", user)
    user.known = {"build": core.build, "tx": core.build(1)}
    user.listed = [core.build, core.build(2)]
    user.partial = functools.partial(core.build, rate=core.build(3))
    found = engine("build")
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build\. Build"):
        found.apply()
    for tx in (user.known["tx"], user.listed[1], user.partial.keywords["rate"]):
        assert built_before(found, tx) == ["build"]


def test_what_the_objects_of_others_in_the_package_know_is_the_users(core: Any) -> None:
    mine = {"tx": core.build(1)}
    core.logger = logging.Logger("a")
    core.logger.addHandler(handler := logging.NullHandler())
    handler.mine = mine  # type: ignore[attr-defined]
    core.__loader__ = Shell(mine)
    core.helper = Shell(mine).get
    core.plain = Shell(mine).traced(core.plain)
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build\. Build"):
        engine("build", "plain").apply()


def test_it_warns_once(core: Any) -> None:
    built = core.build(1)
    found = engine("build")
    with pytest.warns(OptaxDtypeFixWarning):
        found.apply()
    found.apply()
    found.revert()
    on_purpose = core.build(1)
    found.apply()
    assert built_before(found, built) == ["build"]
    assert built_before(found, on_purpose) == []


def test_a_reloaded_function_is_a_new_one(core: Any) -> None:
    found = engine("build")
    found.apply()
    importlib.reload(core)
    built = core.build(1)
    with pytest.warns(OptaxDtypeFixWarning, match=r"stock: build\. Build"):
        found.apply()
    assert built_before(found, built) == ["build"]


def test_in_strict_mode_it_is_an_error_and_the_patches_stay(core: Any) -> None:
    built = core.build(1)
    found = engine("build", strict=True)
    with pytest.raises(OptaxDtypeFixError, match=r"stock: build\. Build"):
        found.apply()
    assert found.is_applied("a")
    assert built_before(found, built) == ["build"]


def test_in_strict_mode_it_stays_an_error_until_the_objects_are_gone(core: Any) -> None:
    class Closed:
        __slots__ = ("build",)

    mine = Closed()
    mine.build = core.build
    built = core.build(1)
    found = engine("build", strict=True)
    for _ in range(2):  # As in a notebook, where the cell runs again.
        with pytest.raises(OptaxDtypeFixError, match=r"stock: build, build in Closed. Build"):
            found.apply()
    del built
    with pytest.raises(OptaxDtypeFixError, match=r"stock: build in Closed. Build"):
        found.apply()
    mine.build = core.build
    after = core.build(1)
    also = Closed()
    also.build = found.points.wrappers()[0].__wrapped__  # As a patched function may hold it.
    found.apply()
    assert built_before(found, after) == []


def test_a_search_that_fails_costs_the_warning_and_no_patch(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no objects")

    monkeypatch.setattr(gc, "get_referrers", fail)
    found = engine("build")
    found.apply()
    assert found.is_applied("a")
    assert built_before(found, core.build(1)) == []


def test_a_shim_that_comes_first_searches_nothing(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    package.sources[f"{NAME}.core"] += SOURCE.replace("\n", "\n        ")
    monkeypatch.setattr(gc, "get_referrers", lambda *_: pytest.fail("searched"))
    found = engine("build", "with_default")
    start(found)
    core = package.load().core
    built = core.build(1)
    found.apply()
    found.revert()
    found.apply()
    assert built_before(found, built) == []


def test_it_keeps_nothing_alive(core: Any) -> None:
    found = engine("build")
    built = Pair(*core.build(1))
    with pytest.warns(OptaxDtypeFixWarning):
        found.apply()
    (wrapper,) = found.points.wrappers()
    assert len(wrapper._self_built) == 2
    del built
    assert len(wrapper._self_built) == 0


def test_a_switched_off_patch_reports_nothing(core: Any) -> None:
    built = core.build(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = engine("build", enabled=False)
        found.apply()
    assert built_before(found, built) == []
