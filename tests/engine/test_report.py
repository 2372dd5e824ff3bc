"""The record, as objects, dict, JSON and table."""

from __future__ import annotations

import json
import sys

import pytest
from fakepackage import FakePackage, engine_of, on, patch

from optax_dtypefix import State


def test_the_states_are_a_closed_set() -> None:
    states = "pending applied not-needed disabled unsupported missing failed"
    assert [state.value for state in State] == states.split()
    assert [str(state) for state in State] == states.split()
    assert State.APPLIED == "applied"  # type: ignore[comparison-overlap]


def test_every_form_says_the_same(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale"), on("Box.get")), patch("lengthy_name", on("shift")))
    engine.start()
    package.load()
    engine.revert("lengthy_name")
    report = engine.status()
    assert [p.id for p in report] == ["a", "lengthy_name"]
    assert len(report) == 2
    assert report["a"].targets == ("fakepkg.core:scale", "fakepkg.core:Box.get")
    assert report["a"].upstream == ("https://example.org/1",)
    assert report["lengthy_name"].targets == ()
    with pytest.raises(KeyError, match="nothing"):
        report["nothing"]
    assert report.optax_version == "0.2.8"
    assert json.loads(report.as_json()) == report.as_dict()
    assert report.as_dict()["patches"][1] == {
        "id": "lengthy_name",
        "state": "disabled",
        "reason": "reverted by the program",
        "targets": [],
        "upstream": ["https://example.org/1"],
    }
    heading, blank, columns, rule, first, second = str(report).splitlines()
    assert heading == f"optax 0.2.8, jax {report.jax_version}"
    assert blank == ""
    assert columns.split() == ["patch", "state", "reason"]
    assert set(rule) == {"-", " "}
    assert first == "a             applied   optax 0.2.8 has: fault"
    assert second == "lengthy_name  disabled  reverted by the program"


def test_a_report_is_a_snapshot(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale")))
    package.load()
    engine.apply()
    report = engine.status()
    engine.revert()
    assert report["a"].state is State.APPLIED
    assert "jax" not in report.as_dict()["optax_location"]
    assert sys.modules["fakepkg"]
