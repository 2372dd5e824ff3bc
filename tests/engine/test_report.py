"""The report as objects, dict, JSON and table."""

from __future__ import annotations

import json
import sys

import pytest

from optax_dtypefix import State
from support.fakepackage import FakePackage, engine_of, fault, on, patch, start


def test_the_states_are_a_closed_set() -> None:
    states = "pending applied not-needed disabled unsupported missing failed"
    assert [state.value for state in State] == states.split()
    assert [str(state) for state in State] == states.split()
    assert State.APPLIED == "applied"  # type: ignore[comparison-overlap]


def test_every_form_says_the_same(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale"), on("Box.get")), patch("lengthy_name", on("shift")))
    start(engine)
    package.load()
    engine.revert("lengthy_name")
    report = engine.status()
    assert [p.id for p in report] == ["a", "lengthy_name"]
    assert len(report) == 2
    assert report["a"].targets == ("fakepkg.core:scale", "fakepkg.core:Box.get")
    assert report["a"].upstream == ("https://example.org/1",)
    assert report["lengthy_name"].targets == ()
    with pytest.raises(KeyError, match=r"'lengthyname'.* Did you mean 'lengthy_name'"):
        report["lengthyname"]
    assert report.optax_version == "0.2.8"
    assert json.loads(report.as_json()) == report.as_dict()
    assert report.as_dict()["patches"][1] == {
        "id": "lengthy_name",
        "state": "disabled",
        "reason": "reverted by the program",
        "targets": [],
        "upstream": ["https://example.org/1"],
        "fixed_in": "",
        "opt_in": False,
        "reached": 0,
        "changed": {},
    }
    heading, blank, columns, rule, first, second = str(report).splitlines()
    assert heading == f"optax 0.2.8, jax {report.jax_version}"
    assert blank == ""
    assert columns.split() == ["patch", "state", "fixed", "in", "reason"]
    assert set(rule) == {"-", " "}
    assert first == "a             applied   not yet   fakepkg 0.2.8 has: fault"
    assert second == "lengthy_name  disabled  not yet   reverted by the program"


def test_fixed_in_names_the_first_release_without_the_faults(package: FakePackage) -> None:
    early = patch("early", on("scale"), faults=[fault(releases="<0.2.4"), fault(releases="<0.2")])
    late = patch("late", on("scale"), faults=[fault()])
    engine = engine_of(early, late)
    package.load()
    engine.apply()
    assert [p.fixed_in for p in engine.status()] == ["0.2.4", ""]
    assert "needs no patches" not in str(engine.status())


def test_the_report_says_when_no_patch_is_needed(package: FakePackage) -> None:
    early = patch("early", on("scale"), faults=[fault(releases="<0.2.4")])
    gone = patch("gone", on("nowhere"), faults=[fault(releases="<0.2.4")])
    option = patch("option", on("scale"), opt_in=True)
    engine = engine_of(early, gone, option)
    assert "needs no patches" not in str(engine.status())  # Unknown before the import.
    package.load()
    engine.apply()
    assert str(engine.status()).endswith(
        "\nThis optax needs no patches; you can remove `import optax_dtypefix`."
    )
    with engine.disabled("early"):
        assert "needs no patches" in str(engine.status())
    engine.apply("option")
    assert "needs no patches" not in str(engine.status())


def test_reasons_are_wrapped_to_the_terminal(package: FakePackage) -> None:
    long = patch("long", on("scale"), faults=[fault(releases=">=0.1")] * 9)
    engine = engine_of(long, patch("b", on("scale")))
    package.load()
    engine.apply()
    lines = engine.status().as_text(60).splitlines()[4:]
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("long   applied  not yet   fakepkg 0.2.8 has: fault, fault,")
    assert lines[1].startswith(" " * 26 + "fault")
    assert lines[-1] == "b      applied  not yet   fakepkg 0.2.8 has: fault"
    assert len(engine.status().as_text().splitlines()) == 6


def test_a_report_is_a_snapshot(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("scale")))
    package.load()
    engine.apply()
    report = engine.status()
    engine.revert()
    assert report["a"].state is State.APPLIED
    assert "jax" not in report.as_dict()["optax_location"]
    assert sys.modules["fakepkg"]
