"""The record of a run: what is written, and what a later run is held to."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning, _record
from optax_dtypefix._engine.selection import NOT_OPTED_IN
from optax_dtypefix._settings import Settings
from support.fakepackage import NAME, FakePackage, engine_of, on, patch, start

if TYPE_CHECKING:
    from pathlib import Path

    from optax_dtypefix._engine.engine import Engine
    from optax_dtypefix._engine.patch import Patch

LATE = (f"{NAME}.extra.late",)


def patches() -> list[Patch]:
    return [
        patch("a", on("scale"), on("shift")),
        patch("b", on("twice")),
        patch("late", on("late", modules=LATE)),
        patch("option", on("scale"), opt_in=True),
    ]


def recorded(path: Path, *others: Patch, **settings: Any) -> Engine:
    """Return an engine that writes its report, or requires one, as that of optax does."""
    asked = Settings(**{"report": str(path), **settings})
    engine = engine_of(*(others or patches()), settings=asked)
    record = _record._Record(asked)
    engine.after_applying = lambda status: record.after_applying(status())
    return engine


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_report_is_written_on_import_and_at_exit(package: FakePackage, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    settings = Settings(report=str(path), disable=frozenset("b"), log_level="INFO")
    record = _record._Record(settings)
    engine = engine_of(*patches(), settings=settings)
    engine.after_applying = lambda status: record.after_applying(status())
    start(engine)
    assert not path.exists()
    package.load()
    assert read(path)["finished"] is False
    record.write(engine.status(), finished=True)
    content = read(path)
    assert content.pop("finished") is True
    assert content.pop("settings") == {
        "OPTAX_DTYPEFIX_DISABLE": "b",
        "OPTAX_DTYPEFIX_LOG": "info",
        "OPTAX_DTYPEFIX_REPORT": str(path),
    }
    assert re.match(r"3\.\d+\.\d+$", content.pop("python_version"))
    assert content.pop("jaxlib_version")
    assert content == json.loads(json.dumps(engine.status().as_dict()))
    assert [p["state"] for p in content["patches"]] == [
        "applied",
        "disabled",
        "pending",
        "disabled",
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_the_digest_is_that_of_what_is_applied(package: FakePackage) -> None:
    engine = engine_of(*patches())
    package.load()
    engine.apply()
    report = engine.status()
    counted = [dataclasses.replace(p, reached=7, changed={"state": 3}) for p in report]
    assert report.as_dict()["digest"] == report.digest
    for same in (
        dataclasses.replace(report, patches=tuple(counted)),
        dataclasses.replace(report, optax_location="/elsewhere"),
        engine.status(),
    ):
        assert same.digest == report.digest
    elsewhere = [dataclasses.replace(p, targets=("m:f",)) for p in report]
    engine.revert("a")
    for other in (
        dataclasses.replace(report, patches=tuple(elsewhere)),
        dataclasses.replace(report, optax_version="0.2.7"),
        dataclasses.replace(report, jax_version="0.0"),
        engine.status(),
    ):
        assert other.digest != report.digest


@pytest.fixture
def run_json(package: FakePackage, tmp_path: Path) -> Path:
    """The record of a run on fakepkg 0.2.8, in which ``late`` stayed pending."""
    path = tmp_path / "run.json"
    package.load()
    end(recorded(path))
    return path


def end(engine: Engine) -> None:
    """Apply, and leave what the process of a run leaves: its record."""
    engine.apply()
    engine.after_applying = None
    engine.revert()


def test_the_same_run_is_accepted(run_json: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "again.json", require=str(run_json)).apply()
    assert read(tmp_path / "again.json")["digest"] == read(run_json)["digest"]


def test_other_settings_are_refused_and_the_record_survives(run_json: Path) -> None:
    before = run_json.read_text()
    settings = Settings(report=str(run_json), require=str(run_json), only=frozenset({"late"}))
    record = _record._Record(settings)
    engine = engine_of(*patches(), settings=settings)
    engine.after_applying = lambda status: record.after_applying(status())
    for _ in range(2):  # Trying again does not help.
        with pytest.raises(OptaxDtypeFixError) as caught:
            engine.apply()
        first, difference, advice = str(caught.value).splitlines()
        assert first == f"What is applied is not what {run_json} records:"
        reason = "disabled (not in OPTAX_DTYPEFIX_ONLY), recorded"
        assert difference == f"  patches a, b: {reason} applied"
        assert "OPTAX_DTYPEFIX_REQUIRE" in advice
    record.write(engine.status(), finished=True)
    assert run_json.read_text() == before


def differences(run_json: Path, engine: Engine) -> list[str]:
    engine.apply()
    return list(_record._differences(engine.status().as_dict(), read(run_json)))


def test_versions_and_unknown_patches_are_named(package: FakePackage, run_json: Path) -> None:
    package.release("0.2.3")
    package.forget()
    package.load()
    content = read(run_json)
    content["optax_dtypefix_version"] = "9.0"
    run_json.write_text(json.dumps(content))
    engine = engine_of(patch("a", on("scale")), patch("new", on("shift")))
    ours = engine.status().as_dict()["optax_dtypefix_version"]
    assert differences(run_json, engine) == [
        f"optax-dtypefix {ours}, recorded 9.0",
        "optax 0.2.3, recorded 0.2.8",
        "patch new: not recorded",
        "patches b, late, option: recorded, and unknown now",
    ]


def test_other_targets_are_named(package: FakePackage, run_json: Path) -> None:
    del package
    engine = engine_of(patch("a", on("scale")), *patches()[1:])
    wraps = f"wraps {NAME}.core:scale, recorded {NAME}.core:scale, {NAME}.core:shift"
    assert differences(run_json, engine) == [f"patch a: {wraps}"]


def test_a_patch_that_was_pending_may_be_applied_later(
    package: FakePackage, run_json: Path
) -> None:
    package.load(*LATE)
    assert differences(run_json, engine_of(*patches())) == []
    off = engine_of(*patches(), settings=Settings(disable=frozenset({"late"})))
    switched_off = "disabled (switched off by OPTAX_DTYPEFIX_DISABLE), recorded pending"
    (difference,) = differences(run_json, off)
    assert difference.startswith(f"patch late: {switched_off}")


def test_a_late_patch_is_compared_when_it_is_decided(package: FakePackage, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    package.load()
    package.load(*LATE)
    end(recorded(path))
    package.forget()
    package.sources[LATE[0]] = ""  # This release lost the function of the patch.
    start(recorded(tmp_path / "other.json", require=str(path)))
    package.load()  # ``late`` is pending, which is no difference yet.
    with (
        pytest.raises(OptaxDtypeFixError, match=r"patch late: missing .*, recorded applied"),
        pytest.warns(OptaxDtypeFixWarning, match="Could not apply late"),
    ):
        package.load(*LATE)


def test_what_the_program_itself_does_is_no_difference(
    package: FakePackage, run_json: Path
) -> None:
    engine = engine_of(*patches())
    engine.apply()
    engine.revert("b")
    with engine.disabled("a"):
        assert differences_now(run_json, engine) == []
    run_json.write_text(json.dumps({**engine.status().as_dict(), "settings": {}}))
    engine.apply()
    assert differences_now(run_json, engine) == []
    engine.apply("option")
    run_json.write_text(json.dumps({**engine.status().as_dict(), "settings": {}}))
    engine.revert()
    again = engine_of(*patches())
    assert differences(run_json, again) == []
    # But if a variable named it, the variable is missing now.
    named = {"OPTAX_DTYPEFIX_ENABLE": "option"}
    run_json.write_text(json.dumps({**read(run_json), "settings": named}))
    assert differences(run_json, again) == [
        f"patch option: disabled ({NOT_OPTED_IN}), recorded applied"
    ]
    del package


def differences_now(run_json: Path, engine: Engine) -> list[str]:
    return list(_record._differences(engine.status().as_dict(), read(run_json)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        ("{", "is not a report of optax-dtypefix (JSONDecodeError: "),
        ("[]", "is not a report of optax-dtypefix (TypeError: "),
        ("{}", "is not a report of optax-dtypefix (KeyError: 'optax_dtypefix_version')"),
    ],
)
def test_an_unusable_record_is_refused_at_once(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OptaxDtypeFixError) as caught:
        _record._Record(Settings(require=str(path)))
    assert str(caught.value).startswith(f"OPTAX_DTYPEFIX_REQUIRE (--require) is {path}, which")
    assert problem in str(caught.value)


def test_a_record_with_wrong_types_is_refused(run_json: Path) -> None:
    content = read(run_json)
    content["patches"][0]["state"] = 7
    run_json.write_text(json.dumps(content))
    with pytest.raises(OptaxDtypeFixError, match="is not a string"):
        _record._Record(Settings(require=str(run_json)))


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("none/run.json", "there is no folder"),
        (".", "it is not a regular file"),
        ("/dev/null", "it is not a regular file"),
        ("/dev/stdout", "it is not a regular file"),
    ],
)
def test_an_unwritable_path_is_one_early_warning(
    package: FakePackage, tmp_path: Path, path: str, problem: str
) -> None:
    package.load()
    report = engine_of(*patches()).status()
    settings = Settings(report=os.path.abspath(tmp_path / path))
    with pytest.warns(OptaxDtypeFixWarning, match=f"Cannot write the report .*: {problem}"):
        record = _record._Record(settings)
    record.write(report, finished=False)  # Warnings are errors here: there is no other one.
    record.write(report, finished=True)
    with pytest.raises(OptaxDtypeFixError, match=problem):
        _record._Record(settings._replace(strict=True))


def test_a_folder_that_the_program_makes_later_is_used(
    package: FakePackage, tmp_path: Path
) -> None:
    package.load()
    with pytest.warns(OptaxDtypeFixWarning, match="there is no folder"):
        record = _record._Record(Settings(report=str(tmp_path / "later" / "run.json")))
    (tmp_path / "later").mkdir()
    record.write(engine_of(*patches()).status(), finished=True)
    assert (tmp_path / "later" / "run.json").exists()


def test_a_report_is_replaced_as_a_whole(run_json: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_json.read_text()

    def full(*_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    record = _record._Record(Settings(report=str(run_json)))
    with pytest.warns(OptaxDtypeFixWarning, match="No space left on device"):
        record.write(engine_of(*patches()).status(), finished=True)
    assert run_json.read_text() == before
    assert [entry.name for entry in run_json.parent.iterdir()] == ["run.json"]


def test_a_bug_at_exit_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(sys.modules, "optax", sys)
    monkeypatch.setattr(_record, "_kept", _record._Record(Settings(report=str(tmp_path / "a"))))
    monkeypatch.setattr(_record, "_status", fail)
    with pytest.warns(OptaxDtypeFixWarning, match="was not written: ZeroDivisionError"):
        _record._write_at_exit()


def test_each_process_may_have_a_report_of_its_own(
    package: FakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package.load()
    report = engine_of(*patches()).status()
    one, each = (
        _record._Record(Settings(report=str(tmp_path / name))) for name in ("one", "of-%p-on-%h")
    )
    monkeypatch.setattr(os, "getpid", lambda: 77)  # As in a fork of this process.
    one.write(report, finished=True)
    each.write(report, finished=True)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"of-77-on-{os.uname().nodename}"]


def test_a_link_is_followed(run_json: Path) -> None:
    link = run_json.parent / "latest.json"
    link.symlink_to(run_json)
    run_json.write_text("")
    _record._Record(Settings(report=str(link))).write(engine_of().status(), finished=True)
    assert link.is_symlink()
    assert read(run_json)["finished"] is True
