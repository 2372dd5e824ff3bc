"""Each patch counts the calls that reach it, and what it changes, and the report says so."""

from __future__ import annotations

import threading
from typing import Any, Callable

import pytest

from optax_dtypefix._tally import count, counting, current, paused
from support.fakepackage import (
    NAME,
    PATIENCE,
    FakePackage,
    add_hundred,
    engine_of,
    negate,
    on,
    patch,
    start,
    traced,
)


def change(kind: str) -> Callable[..., Any]:
    """Return a replacement that counts a change and builds a function that counts another."""

    def replacement(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        count(kind)
        return counting(lambda: (stock(*args, **kwargs), count(f"later {kind}", 2)))

    return replacement


def reached(engine: Any) -> dict[str, int]:
    return {found.id: found.reached for found in engine.status()}


def changed(engine: Any) -> dict[str, dict[str, int]]:
    return {found.id: dict(found.changed) for found in engine.status()}


def test_calls_are_counted_for_each_layer_and_target(package: FakePackage) -> None:
    engine = engine_of(
        patch("a", on("scale", negate), on("Box.get", negate)),
        patch("b", on("scale", add_hundred)),
        patch("c", on("shift")),
    )
    start(engine)
    assert reached(engine) == {"a": 0, "b": 0, "c": 0}
    pkg = package.load()
    assert reached(engine) == {"a": 0, "b": 0, "c": 0}
    pkg.scale(5), pkg.triple(5), pkg.twice(5)
    assert reached(engine) == {"a": 4, "b": 4, "c": 0}
    pkg.Box(3).get(), pkg.Box.get(pkg.Box(3))
    assert reached(engine) == {"a": 6, "b": 4, "c": 0}
    with pytest.raises(TypeError):
        pkg.shift("x", "y")  # It reached the patch, and stock raised.
    assert reached(engine)["c"] == 1


def test_calls_that_do_not_reach_a_patch_do_not_count(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale", negate)), patch("b", on("scale", add_hundred)))
    pkg = package.load()
    engine.apply()
    with engine.disabled("a"):
        pkg.scale(5)
    assert reached(engine) == {"a": 0, "b": 1}
    engine.revert("b")
    pkg.scale(5)
    assert reached(engine) == {"a": 1, "b": 1}
    engine.apply("b")  # The record of the process goes on.
    pkg.scale(5)
    assert reached(engine) == {"a": 2, "b": 2}


def test_the_engines_own_calls_do_not_count(package: FakePackage) -> None:
    calls: list[float] = []

    def probe(package: Any) -> str | None:
        calls.append(package.scale(5))
        return "positive" if calls[-1] > 0 else None

    def replacement(stock: Callable[..., Any], *args: Any) -> Any:
        count("sign")
        return -stock(*args)

    made = patch("a", on("scale", replacement), faults=[traced(probe)])
    engine = engine_of(made)
    package.release("9.0")
    pkg = package.load()
    engine.apply()
    assert calls == [10, -10]  # The probe on stock, and the check of the patch.
    assert (reached(engine), changed(engine)) == ({"a": 0}, {"a": {}})
    pkg.scale(5)
    assert (reached(engine), changed(engine)) == ({"a": 1}, {"a": {"sign": 1}})


def test_reading_a_name_from_a_module_is_no_call(package: FakePackage) -> None:
    package.sources[f"{NAME}.core"] += """
        def __getattr__(name):
            raise AttributeError(name)
        """
    engine = engine_of(patch("a", on("__getattr__", lambda stock, name: stock(name) or 1)))
    pkg = package.load()
    engine.apply()
    assert engine.is_applied("a")
    assert not hasattr(pkg.core, "missing")
    assert reached(engine) == {"a": 0}


def test_changes_belong_to_the_patch_that_makes_them(package: FakePackage) -> None:
    engine = engine_of(
        patch("a", on("scale", change("outer"))), patch("b", on("scale", change("inner")))
    )
    pkg = package.load()
    engine.apply()
    count("nobody's")
    later = pkg.scale(5)
    assert changed(engine) == {"a": {"outer": 1}, "b": {}}
    below, _ = later()
    assert changed(engine) == {"a": {"outer": 1, "later outer": 2}, "b": {"inner": 1}}
    below(), below()
    assert changed(engine)["b"] == {"inner": 1, "later inner": 4}
    count("nobody's")
    assert changed(engine)["a"] == {"outer": 1, "later outer": 2}


def test_nothing_is_counted_while_paused(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale", change("sign"))))
    pkg = package.load()
    engine.apply()
    with paused():
        with paused():
            later = pkg.scale(5)
        later()
    assert (reached(engine), changed(engine)) == ({"a": 0}, {"a": {}})
    pkg.scale(5)()
    assert (reached(engine), changed(engine)) == ({"a": 1}, {"a": {"sign": 1, "later sign": 2}})


def test_a_replacement_that_raises_leaves_no_tally_open(package: FakePackage) -> None:
    def fail(_: Callable[..., Any], *args: Any) -> Any:
        raise ValueError(args)

    engine = engine_of(patch("a", on("scale", fail)))
    pkg = package.load()
    engine.apply()
    before = current()
    with pytest.raises(ValueError, match="5"):
        pkg.scale(5)
    assert current() is before
    count("nobody's")
    assert (reached(engine), changed(engine)) == ({"a": 1}, {"a": {}})


def test_the_report_is_a_snapshot_with_the_counts(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale", change("sign"))))
    pkg = package.load()
    engine.apply()
    pkg.scale(5)
    report = engine.status()
    pkg.scale(5)
    assert (report["a"].reached, report["a"].changed) == (1, {"sign": 1})
    (row,) = report.as_dict()["patches"]
    assert (row["reached"], row["changed"]) == (1, {"sign": 1})
    assert engine.status() == report  # Equal in state, whatever was called in between.
    assert len({engine.status()["a"], report["a"]}) == 1


def test_each_thread_counts_for_its_own_patch(package: FakePackage) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(stock: Callable[..., Any], *args: Any) -> Any:
        inside.set()
        assert go_on.wait(PATIENCE)
        count("waited")
        return stock(*args)

    def let_it_go_on(stock: Callable[..., Any], *args: Any) -> Any:
        go_on.set()
        thread.join(PATIENCE)
        count("joined")
        return stock(*args)

    engine = engine_of(patch("a", on("scale", wait)), patch("b", on("shift", let_it_go_on)))
    pkg = package.load()
    engine.apply()
    thread = threading.Thread(target=pkg.scale, args=(5,))
    thread.start()
    assert inside.wait(PATIENCE)
    pkg.shift(5)
    assert changed(engine) == {"a": {"waited": 1}, "b": {"joined": 1}}
