"""``disabled()`` gives stock behaviour inside a block, in all threads, and rebinds no name."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import jax
import pytest

from optax_dtypefix import State
from support.fakepackage import NAME, Engine, FakePackage, engine_of, negate, on, patch, start

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pkg(package: FakePackage) -> Any:
    return package.load()


@pytest.fixture
def engine(pkg: Any) -> Engine:
    found = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    found.apply()
    assert pkg.scale(5) == -10
    return found


def test_names_keep_their_objects(pkg: Any, engine: Engine) -> None:
    names = dict(vars(pkg)), dict(vars(pkg.core))
    with engine.disabled("a"):
        assert (pkg.scale(5), pkg.shift(1)) == (10, -2)
        assert (dict(vars(pkg)), dict(vars(pkg.core))) == names
        assert not engine.is_applied("a")
        assert engine.is_applied("b")
        assert engine.status()["a"].state is State.DISABLED
        assert engine.status()["a"].reason == "inside a disabled() block"
    assert (pkg.scale(5), engine.is_applied("a")) == (-10, True)


def test_blocks_nest(pkg: Any, engine: Engine) -> None:
    with engine.disabled("a"):
        with engine.disabled():
            assert (pkg.scale(5), pkg.shift(1)) == (10, 2)
        assert (pkg.scale(5), pkg.shift(1)) == (10, -2)
    assert pkg.scale(5) == -10


def test_an_exception_ends_the_block(pkg: Any, engine: Engine) -> None:
    with pytest.raises(KeyError), engine.disabled():
        raise KeyError
    assert pkg.scale(5) == -10


def test_as_a_decorator_it_works_for_every_call(pkg: Any, engine: Engine) -> None:
    @engine.disabled()
    def stock_scale() -> Any:
        return pkg.scale(5)

    assert [stock_scale(), pkg.scale(5), stock_scale()] == [10, -10, 10]


def test_it_refuses_to_decorate_what_runs_after_the_call(pkg: Any, engine: Engine) -> None:
    """By Python's own context managers, the block would be over before the function runs."""

    def generator() -> Iterator[Any]:
        yield pkg.scale(5)

    async def coroutine() -> Any:
        return pkg.scale(5)

    async def both() -> Any:
        yield pkg.scale(5)

    for function in (generator, coroutine, both, functools.partial(coroutine)):
        with pytest.raises(TypeError, match=r"Write `with optax_dtypefix.disabled\(\):` inside it"):
            engine.disabled()(function)

    def inside() -> Iterator[Any]:
        with engine.disabled():
            yield pkg.scale(5)

    assert [*inside()] == [10]


def test_a_reverted_patch_stays_reverted(pkg: Any, engine: Engine) -> None:
    engine.revert("a")
    stock = pkg.scale
    with engine.disabled():
        assert pkg.scale is stock
    assert pkg.scale is stock
    assert engine.status()["a"].reason == "reverted by the program"


def test_apply_and_revert_inside_a_block(pkg: Any, engine: Engine) -> None:
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
    assert pkg.scale(5) == 10  # The block counts for every thread.
    with engine.disabled("a"):
        leave.set()
        thread.join(10)
        assert pkg.scale(5) == 10  # That block has ended; this one goes on.
    assert pkg.scale(5) == -10


def test_disabled_does_not_import(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale")))
    start(engine)
    with engine.disabled():
        assert engine.status()["a"].state is State.PENDING
    assert engine.status().optax_location == ""
    assert NAME in package.sources


@pytest.mark.parametrize("at", ["entry", "exit"])
def test_an_interrupt_at_entry_or_exit_ends_the_block(
    pkg: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    cleared: list[None] = []

    def clear_caches() -> None:
        cleared.append(None)
        if len(cleared) == (1 if at == "entry" else 2):
            raise KeyboardInterrupt

    monkeypatch.setattr(jax, "clear_caches", clear_caches)
    with pytest.raises(KeyboardInterrupt), engine.disabled():
        assert at == "exit"
    assert (pkg.scale(5), engine.is_applied("a")) == (-10, True)
    assert len(cleared) == 3  # The one that was interrupted, again.
    with engine.disabled():
        assert pkg.scale(5) == 10
