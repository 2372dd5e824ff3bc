"""The record of a run: what is written, and what is required of a later run."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning
from optax_dtypefix._engine import import_hook as _import_hook
from optax_dtypefix._engine.import_hook import after_import
from optax_dtypefix._record import Record, read_record
from optax_dtypefix._settings import Settings
from optax_dtypefix.patches.catalogue import REMOVED
from support.fakepackage import NAME, Engine, FakePackage, engine_of, on, patch, start

if TYPE_CHECKING:
    from pathlib import Path

    from optax_dtypefix._engine.patch import Patch

LATE = (f"{NAME}.extra.late",)


def patches() -> list[Patch]:
    return [
        patch("a", on("scale"), on("shift")),
        patch("b", on("twice")),
        patch("late", on("late", modules=LATE)),
        patch("option", on("scale"), opt_in=True),
    ]


def begin(*others: Patch, **settings: Any) -> tuple[Engine, Record]:
    """Return an engine, and the record that it writes or requires, as for optax."""
    asked = Settings(**settings)
    engine = engine_of(*(others or patches()), settings=asked)
    record = Record(asked, engine.status)
    start(engine)
    after_import(NAME, record.start)
    return engine, record


@pytest.fixture(autouse=True)
def _nothing_at_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del tmp_path  # First: older versions of pytest register the removal of the folder.
    monkeypatch.setattr(atexit, "register", lambda _: None)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_report_is_written_on_import_and_at_exit(package: FakePackage, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    engine, record = begin(report=str(path), disable=frozenset("b"), log_level="info")
    assert not path.exists()
    package.load()
    assert read(path)["finished"] is False
    end(record)
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


def end(record: Record) -> None:
    """Do what the end of a process does; the package counts as optax."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "optax", sys)
        record._end()


def test_the_digest_is_that_of_what_is_applied(package: FakePackage) -> None:
    engine = engine_of(*patches())
    package.load()
    engine.apply()
    report = engine.status()
    assert report.applied[3:] == ["a", "b", "late"]  # The last one waits for its module.
    counted = [dataclasses.replace(p, reached=7) for p in report]
    assert report.as_dict()["digest"] == report.digest
    package.load(*LATE)
    for same in (
        dataclasses.replace(report, patches=tuple(counted)),
        dataclasses.replace(report, optax_location="/elsewhere"),
        engine.status(),
    ):
        assert same.digest == report.digest
    engine.revert("a")
    for other in (
        dataclasses.replace(report, optax_version="0.2.7"),
        dataclasses.replace(report, jax_version="0.0"),
        engine.status(),
    ):
        assert other.digest != report.digest


def test_a_patch_that_fails_when_called_is_not_applied(
    package: FakePackage, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    engine, record = begin(report=str(path))
    package.load()
    at_import = read(path)
    with pytest.warns(OptaxDtypeFixWarning, match="Could not apply a"):
        engine.fail("a", ImportError("broken"))
    end(record)
    at_exit = read(path)
    assert at_exit["applied"] == [text for text in at_import["applied"] if text != "a"]
    assert at_exit["digest"] == engine.status().digest != at_import["digest"]


@pytest.fixture
def run_json(package: FakePackage, tmp_path: Path) -> Path:
    """The record of a run on fakepkg 0.2.5."""
    path = tmp_path / "run.json"
    engine, record = begin(report=str(path))
    package.load()
    engine.revert("b")  # What the program itself does does not count.
    end(record)
    engine.revert()
    package.forget()
    _import_hook._hooks.clear()  # What comes next is another process.
    return path


def test_the_same_run_is_accepted(package: FakePackage, run_json: Path, tmp_path: Path) -> None:
    engine, _ = begin(report=str(tmp_path / "again.json"), require=str(run_json))
    package.load()
    engine.apply("option")
    assert read(tmp_path / "again.json")["digest"] == read(run_json)["digest"]


def test_another_run_is_refused_and_the_record_survives(
    package: FakePackage, run_json: Path
) -> None:
    before = run_json.read_text()
    path = str(run_json)
    _, record = begin(report=path, require=path, disable=frozenset("b"))
    for _ in range(2):  # Trying again does not help.
        with pytest.raises(OptaxDtypeFixError) as caught:
            package.load()
    first, now, recorded, advice = str(caught.value).splitlines()
    assert first == f"The packages or patches differ from the record {run_json}:"
    assert (now, recorded) == ("  only now:      nothing", "  only recorded: b")
    assert "OPTAX_DTYPEFIX_REQUIRE" in advice
    end(record)
    assert run_json.read_text() == before


def test_another_release_is_refused(package: FakePackage, run_json: Path) -> None:
    package.release("0.2.3")
    begin(require=str(run_json))
    with pytest.raises(OptaxDtypeFixError, match=r"now: +optax 0.2.3\n.* optax 0.2.5\n"):
        package.load()


BAD, SHOWN = "\x1b[2J\x07\u202e\r\nall is well", r"\x1b[2J\x07\u202e\r\nall is well"


def test_the_error_prints_no_control_characters_of_a_record(
    package: FakePackage, run_json: Path
) -> None:
    run_json.write_text(json.dumps({"applied": [*read(run_json)["applied"], BAD]}))
    begin(require=str(run_json))
    with pytest.raises(OptaxDtypeFixError) as caught:
        package.load()
    assert f"  only recorded: {SHOWN}\n" in str(caught.value)
    assert str(caught.value).replace("\n", "").isprintable()


def test_the_log_prints_no_control_characters_of_a_record(
    package: FakePackage, run_json: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, *others = read(run_json)["applied"]
    run_json.write_text(json.dumps({"applied": [ours + BAD, *others]}))
    begin(require=str(run_json))
    package.load()
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.endswith(ours + SHOWN)
    caplog.clear()


def test_another_version_of_ours_with_the_same_patches_is_one_line(
    package: FakePackage, run_json: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, *others = read(run_json)["applied"]
    # What 1.0.0 wrote; it had the version in the digest, and compared digests.
    run_json.write_text(
        json.dumps({"digest": "0" * 64, "applied": ["optax-dtypefix 1.0.0", *others]})
    )
    begin(require=str(run_json), strict=True)
    package.load()
    (line,) = (record.getMessage() for record in caplog.records)
    assert line == (
        f"{ours} applies the same patches as the record {run_json} of optax-dtypefix 1.0.0"
    )
    caplog.clear()


def test_another_version_of_ours_with_other_patches_is_refused(
    package: FakePackage, run_json: Path
) -> None:
    begin(patch("new", on("twice")), *patches(), require=str(run_json))
    with pytest.raises(OptaxDtypeFixError, match=r"now: +new\n.* nothing\n"):
        package.load()


def test_a_record_with_a_patch_that_is_gone_says_what_to_do(
    package: FakePackage, run_json: Path
) -> None:
    applied = [*read(run_json)["applied"], "float32_averages"]
    run_json.write_text(json.dumps({"applied": applied}))
    begin(require=str(run_json))
    with pytest.raises(OptaxDtypeFixError, match="only recorded: float32_averages\n") as caught:
        package.load()
    _, _, _, gone, advice = str(caught.value).splitlines()
    assert gone == f"Patch 'float32_averages' {REMOVED['float32_averages']}"
    assert "record again" in advice


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        ("{", "is not a report of optax-dtypefix (JSONDecodeError: "),
        ("[]", "is not a report of optax-dtypefix (TypeError: "),
        ("{}", "is not a report of optax-dtypefix (KeyError: 'applied')"),
        ('{"applied": [7]}', "is not a list of texts"),
        ('{"applied": "a, b"}', "is not a report of optax-dtypefix (TypeError: "),
        ("[" * 200_000, "is not a report of optax-dtypefix (RecursionError: "),
        ("\udcff\udc80", "is not a report of optax-dtypefix (UnicodeDecodeError: "),
    ],
)
def test_an_unusable_record_is_refused_at_once(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content, errors="surrogateescape")
    with pytest.raises(OptaxDtypeFixError) as caught:
        read_record(str(path))
    assert str(caught.value).startswith(f"Cannot read the record {path} of OPTAX_DTYPEFIX_REQUIRE")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("none/run.json", ".*none is no folder that you can write to"),
        (".", "it is a link, or no regular file"),
        ("/dev/null", "it is a link, or no regular file"),
        ("/dev/stdout", "it is a link, or no regular file"),
    ],
)
def test_an_unwritable_path_is_one_early_warning(
    package: FakePackage, tmp_path: Path, path: str, problem: str
) -> None:
    path = os.path.abspath(tmp_path / path)
    with pytest.warns(OptaxDtypeFixWarning, match=f"Cannot write the report .*: {problem}"):
        _, record = begin(report=path)
    package.load()  # Warnings are errors here: there is no other one.
    end(record)
    with pytest.raises(OptaxDtypeFixError, match=problem):
        begin(report=path, strict=True)


def test_a_record_may_be_in_the_encodings_of_powershell(run_json: Path) -> None:
    content = read(run_json)
    for encoding in ("utf-16", "utf-8-sig"):
        run_json.write_text(json.dumps(content), encoding=encoding)
        assert read_record(str(run_json)) == content


@pytest.fixture
def _full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the disk full."""

    def full(*_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)


@pytest.mark.usefixtures("_full")
def test_strict_mode_stops_at_the_import_if_the_report_cannot_be_written(
    package: FakePackage, tmp_path: Path
) -> None:
    _, record = begin(report=str(tmp_path / "run.json"), strict=True)
    with pytest.raises(OptaxDtypeFixError, match=r"Cannot write the report .*: No space left"):
        package.load()
    end(record)


def test_a_path_that_the_system_refuses_is_an_early_warning(tmp_path: Path) -> None:
    name, problem = "a" * 300, "File name too long"
    with pytest.warns(OptaxDtypeFixWarning, match=f"Cannot write the report .*: {problem}"):
        begin(report=str(tmp_path / name))
    with pytest.raises(OptaxDtypeFixError, match=problem):
        begin(report=str(tmp_path / name), strict=True)


@pytest.mark.parametrize("later", [False, True])
def test_a_link_is_not_followed(package: FakePackage, tmp_path: Path, later: bool) -> None:
    """It may be of another user, who wants us to write a file of this one."""
    secret, path = tmp_path / "secret", tmp_path / "run.json"
    secret.write_text("secret")
    if later:
        _, record = begin(report=str(path))
        path.symlink_to(secret)
        with pytest.warns(OptaxDtypeFixWarning, match="it is a link, or no regular file"):
            package.load()
    else:
        path.symlink_to(secret)
        with pytest.warns(OptaxDtypeFixWarning, match="it is a link, or no regular file"):
            _, record = begin(report=str(path))
        package.load()
    end(record)
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o644])
def test_the_mode_of_a_report_is_kept(package: FakePackage, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "run.json"
    path.write_text("")
    path.chmod(mode)
    _, record = begin(report=str(path))
    package.load()
    end(record)
    assert path.stat().st_mode & 0o777 == mode
    assert read(path)["finished"] is True


def test_a_package_that_missed_the_hook_has_no_patches_in_its_record(
    package: FakePackage,
) -> None:
    package.load()
    engine = engine_of(*patches())
    report = engine.status()
    assert [patch.state for patch in report] == ["pending"] * 4
    assert report.applied == []
    engine.apply()
    assert engine.status().digest != report.digest
    off = engine_of(*patches(), settings=Settings(enabled=False)).status()
    assert off.digest == report.digest
    assert off.as_dict()["applied"][1] == "optax 0.2.5"


def test_a_report_is_replaced_as_a_whole(
    package: FakePackage, run_json: Path, request: pytest.FixtureRequest
) -> None:
    before = run_json.read_text()
    request.getfixturevalue("_full")
    begin(report=str(run_json))
    with pytest.warns(OptaxDtypeFixWarning, match="No space left on device"):
        package.load()
    assert run_json.read_text() == before
    assert [entry.name for entry in run_json.parent.iterdir()] == ["run.json"]


def test_a_bug_at_exit_is_a_warning(tmp_path: Path) -> None:
    def fail() -> Any:
        raise ZeroDivisionError

    record = Record(Settings(report=str(tmp_path / "a")), fail)
    with pytest.warns(OptaxDtypeFixWarning, match="was not written: ZeroDivisionError"):
        end(record)


def test_each_process_may_have_a_report_of_its_own(
    package: FakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [begin(report=str(tmp_path / name))[1] for name in ("one", "of-%p-on-%h")]
    monkeypatch.setattr(os, "getpid", lambda: 77)  # As in a fork of this process.
    package.load()
    for record in records:
        end(record)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"of-77-on-{os.uname().nodename}"]
