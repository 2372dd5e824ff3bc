"""Each patch counts the calls that reach it, and the report says so."""

from __future__ import annotations

from typing import Any

import pytest

from optax_dtypefix._tally import paused
from support.fakepackage import (
    NAME,
    FakePackage,
    add_hundred,
    engine_of,
    negate,
    on,
    patch,
    start,
    traced,
)


def reached(engine: Any) -> dict[str, int]:
    return {found.id: found.reached for found in engine.status()}


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
    pkg.scale(5), pkg.twice(5)
    assert reached(engine) == {"a": 3, "b": 3, "c": 0}
    pkg.Box(3).get(), pkg.Box.get(pkg.Box(3))
    assert reached(engine) == {"a": 5, "b": 3, "c": 0}
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

    made = patch("a", on("scale", negate), faults=[traced(probe)])
    engine = engine_of(made)
    package.release("9.0")
    pkg = package.load()
    engine.apply()
    assert calls == [10, -10]  # The probe on stock, and the check of the patch.
    assert reached(engine) == {"a": 0}
    pkg.scale(5)
    assert reached(engine) == {"a": 1}


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


def test_nothing_is_counted_while_paused(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale", negate)))
    pkg = package.load()
    engine.apply()
    with paused():
        with paused():
            pkg.scale(5)
        pkg.scale(5)
    assert reached(engine) == {"a": 0}
    pkg.scale(5)
    assert reached(engine) == {"a": 1}


def test_the_report_is_a_snapshot_with_the_count(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale", negate)))
    pkg = package.load()
    engine.apply()
    pkg.scale(5)
    report = engine.status()
    pkg.scale(5)
    assert report["a"].reached == 1
    (row,) = report.as_dict()["patches"]
    assert row["reached"] == 1
    assert engine.status() == report  # Equal in state, whatever was called in between.
    assert len({engine.status()["a"], report["a"]}) == 1
    engine.revert()
    assert report["a"].state == "applied"
