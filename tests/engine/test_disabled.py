"""Stock behaviour inside a block, in all threads, without touching a name."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from optax_dtypefix import State
from optax_dtypefix._engine.engine import Engine
from support.fakepackage import NAME, FakePackage, engine_of, negate, on, patch, start


@pytest.fixture
def pkg(package: FakePackage) -> Any:
    return package.load()


@pytest.fixture
def engine(pkg: Any) -> Engine:
    found = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    found.apply()
    assert pkg.scale(5) == -10
    return found


def test_names_stay_while_layers_rest(pkg: Any, engine: Engine) -> None:
    names = dict(vars(pkg)), dict(vars(pkg.core))
    with engine.disabled("a"):
        assert (pkg.scale(5), pkg.shift(1)) == (10, -2)
        assert (dict(vars(pkg)), dict(vars(pkg.core))) == names
        assert not engine.is_applied("a")
        assert engine.is_applied("b")
        assert engine.status()["a"].state is State.DISABLED
        assert engine.status()["a"].reason == "inside a disabled() block"
    assert (pkg.scale(5), engine.is_applied("a")) == (-10, True)


def test_all_when_none_is_named(pkg: Any, engine: Engine) -> None:
    with engine.disabled():
        assert (pkg.scale(5), pkg.shift(1)) == (10, 2)


def test_it_nests(pkg: Any, engine: Engine) -> None:
    with engine.disabled("a"):
        with engine.disabled():
            assert (pkg.scale(5), pkg.shift(1)) == (10, 2)
        assert (pkg.scale(5), pkg.shift(1)) == (10, -2)
    assert pkg.scale(5) == -10


def test_an_exception_leaves_the_block_and_ends_it(pkg: Any, engine: Engine) -> None:
    with pytest.raises(KeyError), engine.disabled():
        raise KeyError
    assert pkg.scale(5) == -10


def test_it_decorates_and_can_be_used_again(pkg: Any, engine: Engine) -> None:
    @engine.disabled()
    def stock_scale() -> Any:
        return pkg.scale(5)

    assert [stock_scale(), pkg.scale(5), stock_scale()] == [10, -10, 10]


def test_a_patch_that_was_not_applied_is_left_alone(pkg: Any, engine: Engine) -> None:
    engine.revert("a")
    stock = pkg.scale
    with engine.disabled():
        assert pkg.scale is stock
    assert pkg.scale is stock
    assert engine.status()["a"].reason == "reverted by the program"


def test_applying_and_reverting_inside(pkg: Any, engine: Engine) -> None:
    stock = engine.status()
    with engine.disabled("a"):
        engine.revert("a")
        assert pkg.scale(5) == 10
        engine.apply("a")
        assert pkg.scale(5) == 10  # The block promises stock.
    assert pkg.scale(5) == -10
    assert engine.status() == stock


def test_an_import_inside_is_patched_after_the_block(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale", negate)))
    start(engine)
    with engine.disabled():
        pkg = package.load()
        assert pkg.scale(5) == 10
    assert pkg.scale(5) == -10


def test_blocks_of_several_threads_overlap(pkg: Any, engine: Engine) -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with engine.disabled("a"):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    assert pkg.scale(5) == 10  # Its block holds here too.
    with engine.disabled("a"):
        leave.set()
        thread.join(10)
        assert pkg.scale(5) == 10  # It left; this block goes on.
    assert pkg.scale(5) == -10


def test_disabled_does_not_import(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    with engine.disabled():
        assert engine.status()["a"].state is State.PENDING
    assert engine.status().optax_location == ""
    assert NAME in package.sources
