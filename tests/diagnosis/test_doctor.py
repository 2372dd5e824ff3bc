from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
from typing import Any

import pytest

import optax_dtypefix
from optax_dtypefix._diagnosis import doctor as _doctor
from optax_dtypefix._diagnosis.doctor import FaultResult
from optax_dtypefix._diagnosis.processes import Written
from optax_dtypefix.patches import load
from support.processes import Python

# All reproducers would take too long here; tests/patches/test_faults.py runs them.
FEW = """
    import wrapt

    changed = {}

    @wrapt.when_imported("optax_dtypefix.patches")
    def leave_out_the_others(patches):
        patches.IDS = ("multi_steps", "fromage")
        read = patches.load

        def load(patch_id):
            patch = read(patch_id)
            if patch_id == "multi_steps":
                patch = patch._replace(faults=(patch.faults[0],))  # inner_drift
            return changed.get(patch_id, lambda patch: patch)(patch)

        patches.load = load
"""
OPTAX = importlib.metadata.version("optax")


def test_faults_are_shown_on_stock_and_fixed_when_patched(command: Python) -> None:
    # In these modes of JAX the reproducers would show something else.
    run = command(
        "doctor",
        "--verbose",
        PYTHONPATH=command.at_start(FEW),
        OPTAX_DTYPEFIX_ONLY="multi_steps",
        OPTAX_DTYPEFIX_REPORT="run.json",
        JAX_ENABLE_X64="1",
        JAX_NUMPY_DTYPE_PROMOTION="strict",
        PYTHONWARNINGS="error",
        COLUMNS="90",
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[0] == f"optax {OPTAX}, jax {importlib.metadata.version('jax')}"
    assert lines[1].startswith("in /")
    assert not (command.folder / "run.json").exists()  # It was no run of the user.
    assert lines[3].split() == ["patch", "fault", "verdict", "messages"]
    (drift,) = [line.split() for line in lines if "inner_drift" in line]
    assert drift[:4] == ["multi_steps", "inner_drift", "fixed", "stock:"]
    table = lines[3 : lines.index("", 3)]
    assert "…" not in run.stdout
    switched_off = [line.split() for line in table[2:] if not line.startswith("multi_steps")]
    assert switched_off
    assert {(patch, verdict) for patch, _, verdict, *_ in switched_off} == {("fromage", "disabled")}
    assert lines[-3].startswith(f"optax {OPTAX}: ")
    assert "Your settings disable these patches: fromage." in lines[-2]
    assert re.fullmatch(r"\d+ faults in \d+ s", lines[-1])


# A patch of the real optax whose faults fail in every way.
TAMPERED = f"""
{FEW}
    import os

    def tamper(patch):
        (inner_drift,) = patch.faults

        def does_nothing(stock, *args, **kwargs):
            return stock(*args, **kwargs)

        def die(optax):
            if os.environ.get("OPTAX_DTYPEFIX") != "off":
                os._exit(3)
            return "shown"

        def fault(name, reproduce, releases=""):
            from optax_dtypefix._diagnosis.probes import Reproducer

            found = Reproducer(name, reproduce)
            return inner_drift._replace(id=name, reproducer=lambda: found, releases=releases)

        faults = (
            inner_drift,
            fault("of_another_release", die, "<0.1"),
            fault("never_there", lambda optax: None),
            fault("deadly", die),
        )
        targets = tuple(target._replace(replacement=does_nothing) for target in patch.targets)
        return patch._replace(faults=faults, targets=targets)

    changed["multi_steps"] = tamper
"""


def test_it_exits_with_1_when_a_patch_does_not_work(command: Python) -> None:
    run = command(
        "doctor", "--json", PYTHONPATH=command.at_start(TAMPERED), OPTAX_DTYPEFIX_ONLY="multi_steps"
    )
    assert run.returncode == 1
    record = json.loads(run.stdout)
    assert record["optax_version"] == OPTAX
    assert record["tested_release"] is True
    assert record["ok"] is False
    rows = {row["fault"]: row for row in record["faults"] if row["patch"] == "multi_steps"}
    assert {fault: row["verdict"] for fault, row in rows.items()} == {
        "inner_drift": "still fails",
        "of_another_release": "not in this release",
        "never_there": "not shown",
        "deadly": "still fails",
    }
    assert rows["inner_drift"]["stock"] == rows["inner_drift"]["patched"]
    assert rows["inner_drift"]["state"] == "applied"
    assert rows["deadly"]["patched"] == "no outcome: the process ended with code 3"
    assert "these faults: multi_steps.inner_drift, multi_steps.deadly." in record["conclusion"]
    assert "does not have these faults: multi_steps.never_there." in record["conclusion"]


UNTESTED = """
    import wrapt

    @wrapt.when_imported("optax_dtypefix.patches")
    def leave_out_the_others(patches):
        patches.IDS = ("fromage",)

    @wrapt.when_imported("optax")
    def from_the_future(optax):
        optax.__version__ = "9.0.0.dev1"
"""


@pytest.mark.thorough
def test_on_an_untested_release_every_fault_is_tried(command: Python) -> None:
    run = command("doctor", "--json", PYTHONPATH=command.at_start(UNTESTED), OPTAX_DTYPEFIX="off")
    assert (run.returncode, run.stderr) == (0, "")
    record = json.loads(run.stdout)
    assert record["optax_version"] == "9.0.0.dev1"
    assert record["tested_release"] is False
    rows = {row["fault"]: row for row in record["faults"]}
    assert set(rows) == {fault.id for fault in load("fromage").faults}
    assert {row["verdict"] for row in rows.values()} <= {"disabled", "not shown"}
    assert {row["reason"] for row in rows.values()} == {"switched off by OPTAX_DTYPEFIX=off"}


FAULT = {"patch": "p", "fault": "f", "summary": "s", "upstream": "", "in_release": True}


def judged(
    stock: str | None, patched: str | None, state: str, reason: str = "so", *, tested: bool = True
) -> FaultResult:
    status = {"state": state, "reason": reason}
    messages = ({"outcome": message, "fixed_by": ["p"]} for message in (stock, patched))
    return _doctor._result(FAULT, *messages, status, tested=tested)


def diagnosis(*rows: FaultResult, tested: bool = True) -> _doctor.Diagnosis:
    versions = {"optax_version": "1.2.3", "jax_version": "4.5.6"}
    report = {**versions, "optax_location": "/there", "installation": ""}
    return _doctor.Diagnosis(report, tested, rows)


def text_of(found: _doctor.Diagnosis, width: int, **how: Any) -> str:
    return "\n".join([*found.rows_as_text(width, **how), found.conclusion])


@pytest.mark.parametrize(
    ("state", "tested", "messages", "verdict", "ok"),
    [
        ("applied", True, ("wrong", None), "fixed", True),
        ("applied", True, ("wrong", "wrong"), "still fails", False),
        ("applied", True, (None, "wrong"), "still fails", False),
        ("applied", True, (None, None), "not shown", False),
        ("applied", False, (None, None), "not shown", True),
        ("disabled", True, ("wrong", "wrong"), "disabled", True),
        ("disabled", True, ("wrong", None), "fixed by others", True),
        ("disabled", True, (None, None), "not shown", False),
        ("not-needed", False, (None, None), "not shown", True),
        ("not-needed", False, ("wrong", "wrong"), "still fails", False),
        ("unsupported", False, ("wrong", "wrong"), "still fails", False),
        ("missing", True, ("wrong", "wrong"), "still fails", False),
        ("missing", False, ("wrong", "wrong"), "not in this release", True),
        ("failed", True, ("wrong", "wrong"), "still fails", False),
    ],
)
def test_verdicts(
    state: str, tested: bool, messages: tuple[str | None, str | None], verdict: str, ok: bool
) -> None:
    row = judged(*messages, state, tested=tested)
    assert row.verdict == verdict
    assert diagnosis(row, tested=tested).ok is ok


def test_an_opt_in_patch_that_is_off_is_no_failure() -> None:
    row = judged("wrong", "wrong", "disabled", _doctor.NOT_OPTED_IN)
    assert row.verdict == "opt-in"
    assert diagnosis(row).ok


def test_a_crashed_process_does_not_count_as_fixed() -> None:
    died = _doctor._outcome(Written([{"faults": [FAULT]}], 3), FAULT)
    row = _doctor._result(
        FAULT, {"outcome": "wrong"}, died, {"state": "applied", "reason": "so"}, tested=True
    )
    assert row.patched == "no outcome: the process ended with code 3"
    assert row.verdict == "still fails"


def written(*outcomes: tuple[str, str | None]) -> Written:
    faults = [{**FAULT, "patch": patch, "fault": f"{patch}1"} for patch in ("a", "b", "long_name")]
    faults[1]["in_release"] = False
    status = {"reason": "so", "state": "applied"}
    patches = [{"id": fault["patch"], **status} for fault in faults]
    versions = {"optax_version": "1.2.3", "jax_version": "4.5.6", "installation": ""}
    header = {"report": {**versions, "patches": patches}, "tested": True, "faults": faults}
    entries = (
        {"patch": patch, "fault": f"{patch}1", "outcome": text, "fixed_by": [], "status": status}
        for patch, text in outcomes
    )
    return Written([header, *entries], 0)


def test_the_rows_come_one_by_one_and_do_not_change() -> None:
    stock, patched = [("a", "wrong"), ("long_name", "x" * 99)], [("a", None), ("long_name", "z")]
    seen = []
    for on_stock, on_patched in ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2)):
        both = written(*stock[:on_stock]), written(*patched[:on_patched])
        seen.append(_doctor._read(*both, asked=False, complete=False))
    assert [[row.patch for row in found.rows] for found in seen] == [
        [],
        [],
        ["a", "b"],  # The release cannot have that of b.
        ["a", "b"],
        ["a", "b", "long_name"],
    ]
    whole = _doctor._read(written(*stock), written(*patched), asked=False, complete=True)
    lines = text_of(whole, 60).splitlines()
    for found in seen:
        some = found.rows_as_text(60)
        assert lines[: len(some)] == some
    assert whole.count == 2


def test_a_process_that_ends_early_leaves_no_row_out() -> None:
    both = written(("a", "wrong")), written()
    found = _doctor._read(*both, asked=False, complete=True)
    assert [row.patch for row in found.rows] == ["a", "b", "long_name"]


def row(verdict: str, stock: str | None = "wrong", patched: str | None = None) -> FaultResult:
    named = _doctor.Verdict(verdict)
    return FaultResult("patch_id", "fault_id", "", "", stock, patched, named, "applied", "why")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row("fixed")], ["optax 1.2.3: 1 fixed."]),
        (
            [row("disabled"), row("disabled")],
            [
                "optax 1.2.3: 2 disabled.",
                "Your settings disable these patches: patch_id. Unset the OPTAX_DTYPEFIX* variable "
                "to fix their faults.",
            ],
        ),
        ([row("fixed by others"), row("fixed")], ["optax 1.2.3: 1 fixed, 1 fixed by others."]),
        (
            [row("fixed"), row("opt-in"), row("opt-in")],
            [
                "optax 1.2.3: 1 fixed, 2 opt-in.",
                "To fix the opt-in faults too, set OPTAX_DTYPEFIX_ENABLE=patch_id.",
            ],
        ),
        (
            [row("not shown"), row("still fails")],
            [
                "optax 1.2.3: 1 still fails, 1 not shown.",
                "Patched optax still has these faults: patch_id.fault_id. Please report them with "
                "the output of `optax-dtypefix doctor --json`.",
                "Stock optax does not have these faults: patch_id.fault_id. The table of the patch "
                "is wrong; please report it.",
            ],
        ),
        ([], ["optax 1.2.3 does not have any of the known faults."]),
        ([row("not in this release")], ["optax 1.2.3 does not have any of the known faults."]),
    ],
)
def test_the_conclusion_says_what_to_do_next(rows: list[FaultResult], words: list[str]) -> None:
    assert diagnosis(*rows).conclusion.splitlines() == words
    assert text_of(diagnosis(*rows), 80).endswith("\n".join(words))


@pytest.mark.parametrize(
    ("state", "patched", "verdict"),
    [
        ("applied", None, "fixed"),
        ("applied", "wrong", "still fails"),
        ("unsupported", None, "fixed by others"),
        ("failed", None, "fixed by others"),
        ("failed", "wrong", "still fails"),
    ],
)
def test_only_an_applied_patch_counts_as_the_fix(
    state: str, patched: str | None, verdict: str
) -> None:
    found = judged("wrong", patched, state, "why")
    assert found.verdict == verdict
    text = text_of(dataclasses.replace(diagnosis(found), asked=True), 80)
    assert ("\n  why\n" in text) == (state != "applied")


@pytest.mark.parametrize(
    ("rows", "summary"),
    [
        ([row("fixed"), row("fixed")], "2/2 fixed"),
        ([row("disabled", patched="wrong")] * 2, "0/2 fixed; disabled"),
        ([row("fixed"), row("still fails")], "1/2 fixed; still fails: fault_id"),
        (
            [
                row("disabled"),
                dataclasses.replace(row("fixed by others"), fixed_by=("a", "b")),
                row("fixed by others"),
                row("still fails"),
                row("not in this release"),
            ],
            "2/4 fixed; still fails: fault_id; fixed by a, b: fault_id; fixed by others: fault_id; "
            "disabled: fault_id",
        ),
    ],
)
def test_a_patch_has_one_line(rows: list[FaultResult], summary: str) -> None:
    lines = text_of(diagnosis(*rows), 200).splitlines()
    assert lines[0] == "optax 1.2.3, jax 4.5.6"
    assert lines[2].split() == ["patch", "state", "faults"]
    assert lines[4:6] == [f"patch_id  applied  {summary}", ""]
    assert max(map(len, text_of(diagnosis(*rows), 50).splitlines()[:5])) <= 50


OTHERS = f"""
{FEW}
    def tamper(patch):
        import optax
        from optax_dtypefix._diagnosis.probes import Reproducer
        from optax_dtypefix._engine.release import Release
        from optax_dtypefix.patches import load

        of_fromage = load("fromage").faults_on(Release(optax.__version__))[0].reproducer()

        def fault(name, reproduce):
            found = Reproducer(name, reproduce)
            return patch.faults[0]._replace(id=name, reproducer=lambda: found, releases="")

        faults = fault("of_fromage", of_fromage.reproduce), fault("of_none", lambda optax: "wrong")
        return patch._replace(faults=faults)

    changed["multi_steps"] = tamper
"""


@pytest.mark.thorough
def test_it_says_which_other_patch_fixes_a_fault(command: Python) -> None:
    run = command(
        *("doctor", "multi_steps", "--json"),
        PYTHONPATH=command.at_start(OTHERS),
        OPTAX_DTYPEFIX_ONLY="fromage,learning_rate",
    )
    by_fromage, by_none = json.loads(run.stdout)["faults"]
    assert (by_fromage["verdict"], by_fromage["fixed_by"]) == ("fixed by others", ["fromage"])
    assert (by_none["verdict"], by_none["fixed_by"]) == ("disabled", [])


@pytest.mark.thorough
def test_one_patch_in_detail(command: Python) -> None:
    run = command("doctor", "fromage", PYTHONPATH=command.at_start(FEW))
    assert (run.returncode, run.stderr) == (0, "")
    assert "multi_steps" not in run.stdout
    count, _, first = run.stdout.splitlines()[:3]
    assert re.fullmatch(r"fromage: applied, (\d)/\1 fixed", count)
    assert re.fullmatch(r"fromage\.\w+: fixed", first)
    assert "    https://github.com/google-deepmind/optax/issues/1323" in run.stdout.splitlines()


@pytest.mark.thorough
def test_one_fault_in_detail(command: Python) -> None:
    run = command("doctor", "--json", "multi_steps.inner_drift", "fromage.schedule")
    found = [(row["patch"], row["fault"]) for row in json.loads(run.stdout)["faults"]]
    assert found == [("multi_steps", "inner_drift"), ("fromage", "schedule")]


BROKEN = f"""
{FEW}
    @wrapt.when_imported("optax_dtypefix.patches.multi_steps")
    def break_it(module):
        raise ImportError("broken")
"""


@pytest.mark.thorough
def test_a_patch_whose_file_cannot_be_imported_is_a_failure(command: Python) -> None:
    run = command("doctor", "multi_steps", PYTHONPATH=command.at_start(BROKEN))
    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith(
        "multi_steps: failed, 0/1 fixed; still fails\n  ImportError: broken"
    )
    assert "\nmulti_steps.inner_drift: still fails\n" in run.stdout
    *_, count, installation, advice, time = run.stdout.splitlines()
    assert re.fullmatch(r"1 fault in \d+ s", time)
    assert count == f"optax {OPTAX}: 1 still fails."
    assert installation.startswith("multi_steps failed (ImportError: broken) in /")
    assert installation.endswith(f" Install optax-dtypefix {optax_dtypefix.__version__} again.")
    assert "If they stay after that, please report them" in advice


def test_a_mixed_installation_comes_before_a_bug_report() -> None:
    found = diagnosis(row("still fails"))
    found = dataclasses.replace(found, report={**found.report, "installation": "Mixed."})
    assert found.conclusion.splitlines()[1:] == [
        "Mixed.",
        "Patched optax still has these faults: patch_id.fault_id. If they stay after that, please "
        "report them with the output of `optax-dtypefix doctor --json`.",
    ]
    assert not dataclasses.replace(found, rows=(row("fixed"),)).ok


@pytest.mark.parametrize("width", [60, 300])
def test_messages_and_names_are_not_cut(width: int) -> None:
    long = "one\n two " + "three " * 60
    found = diagnosis(row("still fails", long, long), row("fixed", long, None))
    line = " ".join(long.split())
    assert text_of(found, width, verbose=True).splitlines()[5:7] == [
        f"patch_id  fault_id  still fails  stock: {line}; patched: {line}",
        f"patch_id  fault_id  fixed        stock: {line}",
    ]
    assert diagnosis(row("fixed", long)).as_dict()["faults"][0]["stock"] == long


def test_the_details_have_a_count_and_colour() -> None:
    found = dataclasses.replace(diagnosis(row("fixed"), row("still fails", "a", "b")), asked=True)
    lines = text_of(found, 80, paint=lambda cell: f"<{cell}>").splitlines()
    assert lines[0] == "patch_id: <applied>, <1/2 fixed; still fails: fault_id>"
    assert [line for line in lines if line.startswith("patch_id.")] == [
        "patch_id.fault_id: <fixed>",
        "patch_id.fault_id: <still fails>",
    ]


def test_what_was_asked_for_and_is_not_there_is_named() -> None:
    found = dataclasses.replace(diagnosis(row("not in this release")), asked=True)
    assert text_of(found, 80) == "optax 1.2.3 does not have patch_id.fault_id."
