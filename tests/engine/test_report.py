"""The report as objects, dict, JSON and table."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import logging
import re
from typing import TYPE_CHECKING

import pytest

import optax_dtypefix
from optax_dtypefix import OptaxDtypeFixWarning, State
from optax_dtypefix.patches.releases import TESTED
from support.fakepackage import Engine, FakePackage, engine_of, fault, on, patch, start

if TYPE_CHECKING:
    from optax_dtypefix import Report


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
    assert report.optax_version == "0.2.5"
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
    }
    heading, blank, columns, rule, first, second = str(report).splitlines()
    assert heading == (
        f"optax-dtypefix {optax_dtypefix.__version__}: 1 patch on optax 0.2.5, "
        f"jax {report.jax_version} (digest {report.digest[:6]})"
    )
    assert blank == ""
    assert columns.split() == ["patch", "state", "effect"]
    assert set(rule) == {"-", " "}
    assert first == "a             applied   not reached"
    assert second == "lengthy_name  disabled  reverted by the program"


def test_one_line_is_logged_on_applying(
    package: FakePackage, caplog: pytest.LogCaptureFixture
) -> None:
    late = patch("late", on("late", modules=("fakepkg.extra.late",)))
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")), late)
    start(engine)
    with caplog.at_level(logging.INFO, logger="optax_dtypefix"):
        package.load()
        first = engine.status().headline
        package.load("fakepkg.extra.late")
        engine.apply()  # Nothing is left to apply.
    assert ": 2 patches on optax 0.2.5, " in first
    assert [r.getMessage() for r in caplog.records] == [first, engine.status().headline]
    engine.revert()
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="optax_dtypefix"):
        engine.apply()
    reasons = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert reasons[0] == "a: applied, fakepkg 0.2.5 has: fault"


def with_counts(engine: Engine, **reached: int) -> Report:
    report = engine.status()
    counted = [dataclasses.replace(p, reached=reached.get(p.id, 0)) for p in report]
    return dataclasses.replace(report, patches=tuple(counted))


def test_the_table_says_what_was_reached(package: FakePackage) -> None:
    engine = engine_of(*(patch(name, on("scale")) for name in "abc"), patch("d", on("gone")))
    start(engine)
    with pytest.warns(OptaxDtypeFixWarning):
        package.load()
    report = with_counts(engine, a=1, c=3)
    assert [re.split("  +", line)[2] for line in str(report).splitlines()[4:]] == [
        "reached once",
        "not reached",
        "reached 3 times",
        "this release has no gone",
    ]
    assert report.as_dict()["patches"][2]["reached"] == 3


class Cells(html.parser.HTMLParser):
    """The cells of an HTML table, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: object) -> None:
        del attributes
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data


def test_a_notebook_shows_tables_and_short_lines(package: FakePackage) -> None:
    wordy = "<b>" + "word " * 300
    engine = engine_of(patch("a", on("scale")), patch("b", on("shift")))
    package.load()
    engine.apply()
    report = with_counts(engine, a=2)
    failed = dataclasses.replace(report["b"], state=State.FAILED, reason=wordy)
    report = dataclasses.replace(report, patches=(report["a"], failed))
    assert repr(report) == f"<Report: {report.headline}>"
    assert repr(report["a"]) == "<PatchStatus a: applied, reached 2 times>"
    assert repr(report["b"]).startswith("<PatchStatus b: failed, <b>word word")
    assert len(repr(report["b"])) == 100
    assert Cells(report._repr_html_()).rows == [
        ["patch", "state", "effect"],
        ["a", "applied", "reached 2 times"],
        ["b", "failed", wordy],  # Escaped, else the parser would drop the tag.
    ]


def test_fixed_in_names_the_first_release_without_the_faults(package: FakePackage) -> None:
    early = patch("early", on("scale"), faults=[fault(releases="<0.2.4"), fault(releases="<0.2")])
    late = patch("late", on("scale"), faults=[fault()])
    never = patch("never", on("scale"), faults=[fault(releases=">=99")])
    engine = engine_of(early, late, never)
    package.load()
    engine.apply()
    assert [p.fixed_in for p in engine.status()] == ["0.2.4", "", TESTED[0]]
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


def test_reasons_are_cut_or_wrapped_to_the_terminal(package: FakePackage) -> None:
    long = patch("long", on("scale"), faults=[fault(releases=">=0.1")] * 9)
    engine = engine_of(long, patch("b", on("scale")))
    package.load()
    engine.apply()
    lines = engine.status().as_text(60, verbose=True).splitlines()[4:]
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("long   applied  not yet   fakepkg 0.2.5 has: fault, fault,")
    assert lines[1].startswith(" " * 26 + "fault")
    assert lines[-1] == "b      applied  not yet   fakepkg 0.2.5 has: fault"
    *lines, blank, hint = engine.status().as_text(60).splitlines()[4:]
    assert (blank, hint) == ("", "`status -v` shows each reason in full.")
    assert lines[0] == "long   applied  not yet   fakepkg 0.2.5 has: fault, fault, …"
    assert len(lines) == 2
    assert len(engine.status().as_text().splitlines()) == 6
    assert engine.status().as_text(1000) == engine.status().as_text()
