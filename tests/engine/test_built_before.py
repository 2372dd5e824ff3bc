"""What was built before the patches were applied is named once."""

from __future__ import annotations

import functools
import sys
import threading
import time
import warnings
from concurrent import futures
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning
from optax_dtypefix._diagnosis.check import list_built_before
from optax_dtypefix._engine.built_before import find_built
from optax_dtypefix._settings import Settings
from support.fakepackage import NAME, FakePackage, engine_of, on, patch, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = """
import typing

class Transformation(typing.NamedTuple):
    init: typing.Any
    update: typing.Any

def build(rate):
    def init(x):
        return rate

    def update(x):
        return x * rate

    return Transformation(init, update)

def around(tx):
    updates = [tx.update]

    def init(x):
        return tx.init(x)

    def update(x):
        return updates[0](x)

    return Transformation(init, update)

def of_a_user(init, update):
    return Transformation(init, update)

class Steps:
    def __init__(self, tx):
        self.tx = tx

    def init(self, x):
        return self.tx.init(x)

    def update(self, x):
        return self.tx.update(x)

    def transformation(self):
        return Transformation(self.init, self.update)

default = build(1)

def with_default(tx=build(1), *, other=build(1)):
    return around(tx)
"""


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
    return [*list_built_before(value, found)]


def warned(text: str) -> Any:
    before = "Built before the patches were applied, and still stock: "
    after = r"\. Build these optimizers again, or import optax_dtypefix first\."
    return pytest.warns(OptaxDtypeFixWarning, match=f"^{before}{text}{after}$")


def test_it_names_the_builders_and_the_line(core: Any) -> None:
    first, second = core.build(1), core.around(core.build(2))
    both = core.around(first)
    with warned("around, build") as caught:
        engine("build", "around").apply()
    (warning,) = caught
    assert warning.filename == __file__
    del first, second, both


def test_a_builder_may_be_one_whose_objects_a_class_changes(core: Any) -> None:
    tx = core.build(1)
    target = on("Transformation.__new__", give, builds=("build",))
    with warned("build"):
        engine_of(patch("a", target)).apply()
    del tx


def test_it_finds_the_parts_of_a_transformation(core: Any) -> None:
    stock = core.build(1)
    bound = core.Steps(core.of_a_user(len, len)).transformation()
    found = engine("build", "Steps.update")
    with warned("Steps, build"):
        found.apply()
    core.kept = stock  # A global of what is built from now on.
    for value, names in (
        (stock, ["build"]),
        (core.around(stock), ["build"]),
        (functools.partial(core.around, stock), ["build"]),
        ({"a": [stock.update]}, ["build"]),
        (core.Steps(stock), ["build"]),
        (core.Steps(stock).update, ["build"]),  # Looked up now: patched itself.
        (bound, ["Steps"]),
        (core.build(1), []),  # Stock's own, but the patch has built it.
        (core.Steps(core.build(1)), []),
        (lambda x: stock.update(x) + 1, ["build"]),
        (None, []),
    ):
        assert built_before(found, value) == names


def test_what_the_package_holds_or_nobody_holds_is_not_counted(core: Any) -> None:
    core.build(1)
    assert core.with_default().init(0) == 1
    found = engine("build", "with_default")
    found.apply()
    tx = core.with_default()
    assert built_before(found, tx) == []


def test_what_is_the_users_is_not_counted(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    user: Any = ModuleType("user")
    monkeypatch.setitem(sys.modules, "user", user)
    exec(SOURCE, vars(user))
    user.mine = user.build(1)  # Names of the package, in a module of the user's.
    user.ours = core.of_a_user(user.mine.init, user.mine.update)
    found = engine("build", "around", "of_a_user")
    found.apply()
    assert built_before(found, user.ours) == []


def test_it_warns_once(core: Any) -> None:
    built = core.build(1)
    found = engine("build")
    with warned("build"):
        found.apply()
    found.apply()
    found.revert()
    on_purpose = core.build(1)
    found.apply()
    assert built_before(found, built) == ["build"]
    assert built_before(found, on_purpose) == []


def test_in_strict_mode_it_stays_an_error_until_they_are_gone(core: Any) -> None:
    built = core.build(1)
    found = engine("build", strict=True)
    for _ in range(2):  # As in a notebook, where the cell runs again.
        with pytest.raises(OptaxDtypeFixError, match=r"stock: build\. Build"):
            found.apply()
        assert found.is_applied("a")
    assert built_before(found, built) == ["build"]
    del built
    after = core.build(1)
    found.apply()
    assert built_before(found, after) == []


@pytest.mark.parametrize("strict", [False, True])
def test_a_shim_that_comes_first_finds_nothing(package: FakePackage, *, strict: bool) -> None:
    package.sources[f"{NAME}.core"] += SOURCE.replace("\n", "\n        ")
    found = engine("build", strict=strict)
    start(found)
    core = package.load().core
    built = core.build(1)
    found.apply()
    found.revert()
    stock = core.build(1)
    found.apply()
    assert built_before(found, built) == built_before(found, stock) == []


@pytest.mark.thorough
def test_other_threads_may_build_tuples_meanwhile(core: Any) -> None:
    """Who holds a tuple that grows makes CPython raise SystemError in the thread that builds it."""
    held, done = core.build(2), threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(12):  # CPython starts with room for ten.
            time.sleep(1e-4)
            yield number

    def build_tuples() -> None:
        while not done.is_set():
            assert len(tuple(numbers())) == 12

    with futures.ThreadPoolExecutor() as pool:
        other = pool.submit(build_tuples)
        try:
            found = [find_built(NAME, {"build"}) for _ in range(30)]
        finally:
            done.set()
        other.result()
    assert held
    assert {len(functions) for functions in found} == {2}


def test_it_keeps_nothing_alive(core: Any) -> None:
    found = engine("build")
    built = core.build(1)
    with pytest.warns(OptaxDtypeFixWarning):
        found.apply()
    assert len(found.built_before or ()) == 2
    del built
    assert len(found.built_before or ()) == 0


def test_a_switched_off_patch_reports_nothing(core: Any) -> None:
    built = core.build(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = engine("build", enabled=False)
        found.apply()
    assert built_before(found, built) == []
