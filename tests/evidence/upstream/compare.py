"""Run optax's own tests, which its wheels contain, with the shim; on stock, those that fail.

XLA compiles quickly, which optimizes less. What fails then runs again, compiled as for users: only
that result counts.

In ``tests/``, run ``python -m evidence.upstream.compare [--json FILE] [--record FILE]
[TEST_FILE...]``. The test files are relative to the package; without any, all but ``LEFT_OUT`` are
run. That takes long: results that the JSON file already has for the same code are kept. The record
has what the page shows. Exits with 1 if a test passes on
stock, fails with the shim and is not in ``known.py``, or if a test in there no longer fails.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from evidence.upstream.known import KNOWN
from support.opt_ins import OPT_INS
from support.processes import CACHE, QUICKLY_ANYWHERE, environment
from support.recorded import this_code, write

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = {"patched": {}, "opt-ins": {"OPTAX_DTYPEFIX_ENABLE": OPT_INS}}

LEFT_OUT = ("assignment/", "losses/_segmentation_test.py", "perturbations/")
"""Tests of code that calls no patched function, but ``tree.sum`` in perturbations. They take as
long as all others."""


def package() -> Path:
    """Find the folder of optax without importing it."""
    spec = importlib.util.find_spec("optax")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def run(file: str, folder: Path) -> dict[str, Any]:
    """Run one test file with both settings at the same time, and its failing tests on stock."""
    quick = {name: {**CACHE, **QUICKLY_ANYWHERE, **SETTINGS[name]} for name in SETTINGS}
    codes = run_all(folder, [file], quick)
    assert codes <= {0, 1, 2, 5}, codes  # Passed, failed, not imported, no tests.
    tests = sum(1 for _ in ElementTree.parse(folder / "patched.xml").iter("testcase"))
    again = sorted({name for setting in SETTINGS for name in failed(folder / f"{setting}.xml")})
    ways = {**SETTINGS, "stock": {"OPTAX_DTYPEFIX": "off"}}
    if not again:
        return {"tests": tests, **{way: [] for way in ways}}
    # A file that cannot be imported has no tests to choose from.
    chosen = [file] if 2 in codes else [node(file, name) for name in again]
    codes = run_all(folder, chosen, ways)
    assert codes <= {0, 1, 2}, (codes, chosen)
    return {"tests": tests, **{way: failed(folder / f"{way}.xml") for way in ways}}


def run_all(folder: Path, tests: list[str], ways: Mapping[str, Mapping[str, str]]) -> set[int]:
    """Run tests in several ways at the same time; return the exit codes."""
    running = [start(folder / f"{way}.xml", tests, **ways[way]) for way in ways]
    return {process.wait() for process in running}


def node(file: str, name: str) -> str:
    """Build the argument of pytest for the name of a test in a report."""
    classname, _, test = name.partition("::")
    module = file.removesuffix(".py").replace("/", ".")
    return "::".join([file, *filter(None, [classname.removeprefix(module).strip(".")]), test])


def start(report: Path, tests: list[str], **variables: str) -> subprocess.Popen[bytes]:
    """Start the tests in a new process, which imports the shim first."""
    # Without the configuration of this project, and without files beside those of optax.
    options = ["-p", "optax_dtypefix", "-p", "no:cacheprovider", "-c", os.devnull, "-q"]
    options += ["-W", "ignore", f"--rootdir={package()}", f"--junitxml={report}"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *(str(package() / test) for test in tests)],
        env=environment(PYTHONDONTWRITEBYTECODE="1", **variables),
        cwd=report.parent,
        stdout=subprocess.DEVNULL,
    )


def failed(report: Path) -> list[str]:
    """Name the tests that failed; a file that cannot be imported has failed."""
    return sorted(
        f"{case.get('classname')}::{case.get('name')}"
        for case in ElementTree.parse(report).iter("testcase")
        if {child.tag for child in case} & {"failure", "error"}
    )


def only_with_the_shim(found: dict[str, Any]) -> set[str]:
    """Name the tests of a file that fail with one of the settings, and pass on stock."""
    return {name for setting in SETTINGS for name in found[setting]} - {*found["stock"]}


def summarize(found: dict[str, Any]) -> dict[str, Any]:
    """Count tests and failures of all files, and name the tests that fail only with the shim."""
    files = found["files"].values()
    worse = {name.partition("::")[2] for file in files for name in only_with_the_shim(file)}
    return {
        **{name: found[name] for name in ("optax", "jax", "recorded_on")},
        "tests": sum(file["tests"] for file in files),
        **{way: sum(len(file[way]) for file in files) for way in (*SETTINGS, "stock")},
        "only_with_the_shim": sorted(worse),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("files", nargs="*")
    asked = parser.parse_args()
    every = sorted(str(path.relative_to(package())) for path in package().rglob("*_test.py"))
    every = [file for file in every if not file.startswith(LEFT_OUT)]

    record: dict[str, Any] = {name: importlib.metadata.version(name) for name in ("optax", "jax")}
    record.update(recorded_on=this_code(), files={})
    if asked.json is not None and asked.json.exists():
        before = json.loads(asked.json.read_text("utf-8"))
        if {**before, "files": {}} == record:
            record = before
    for file in asked.files or every:
        if file not in record["files"]:
            with tempfile.TemporaryDirectory() as folder:
                record["files"][file] = found = run(file, Path(folder))
            counts = {k: len(v) if isinstance(v, list) else v for k, v in found.items()}
            print(file, *(f"{name}: {count}" for name, count in counts.items()), sep=", ")
            if asked.json is not None:
                asked.json.parent.mkdir(parents=True, exist_ok=True)
                asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if asked.record is not None:
        write(summarize(record), asked.record)

    worse = {name for found in record["files"].values() for name in only_with_the_shim(found)}
    entries = [entry for entry in KNOWN if entry.concerns(record["optax"])]
    new = sorted(name for name in worse if not any(entry.covers(name) for entry in entries))
    stale = [entry.test for entry in entries if not any(entry.covers(name) for name in worse)]
    print("only with the shim:", *new, sep="\n  ")
    if record["files"].keys() >= set(every):
        print("known, but not failing:", *stale, sep="\n  ")
        return int(bool(new or stale))
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
