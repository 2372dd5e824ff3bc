"""Run optax's own tests, which its wheels contain, on stock and with the shim, and compare.

In ``tests/``, run ``python -m evidence.upstream.compare [--json FILE] [TEST_FILE...]``. The test
files are relative to the package; without any, all are run. That takes long: results that FILE
already has for the same versions are kept. Exits with 1 if a test passes on stock, fails with the
shim and is not in ``known.py``, or if a test in there no longer fails.
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
from typing import Any
from xml.etree import ElementTree

from evidence.upstream.known import KNOWN
from support.processes import environment

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


def package() -> Path:
    """Find the folder of optax without importing it."""
    spec = importlib.util.find_spec("optax")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def run(file: str, folder: Path) -> dict[str, Any]:
    """Run one test file on stock and on patched optax at the same time."""
    reports = {name: folder / f"{name}.xml" for name in ("stock", "patched")}
    running = [
        start(reports["stock"], file, OPTAX_DTYPEFIX="off"),
        start(reports["patched"], file),
    ]
    codes = [process.wait() for process in running]
    assert set(codes) <= {0, 1, 2, 5}, codes  # Passed, failed, not imported, no tests.
    stock, patched = (outcomes(report) for report in reports.values())
    return {
        "tests": len(stock),
        "failed on stock": sum(outcome == FAILED for outcome in stock.values()),
        "failed with the shim": sum(outcome == FAILED for outcome in patched.values()),
        "only with the shim": sorted(
            n for n, o in stock.items() if o == PASSED and patched.get(n) != PASSED
        ),
        "fixed": sorted(n for n, o in stock.items() if o == FAILED and patched.get(n) == PASSED),
    }


def start(report: Path, file: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start the tests in a new process, which imports the shim first."""
    # Without the configuration of this project, and without files beside those of optax.
    options = ["-p", "optax_dtypefix", "-p", "no:cacheprovider", "-c", os.devnull, "-q"]
    options += ["-W", "ignore", f"--rootdir={package()}", f"--junitxml={report}"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, str(package() / file)],
        env=environment(PYTHONDONTWRITEBYTECODE="1", **variables),
        cwd=report.parent,
        stdout=subprocess.DEVNULL,
    )


def outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test; a file that cannot be imported has failed."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        failed = kinds & {"failure", "error"}
        found[name] = FAILED if failed else SKIPPED if "skipped" in kinds else PASSED
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("files", nargs="*")
    asked = parser.parse_args()
    every = sorted(str(path.relative_to(package())) for path in package().rglob("*_test.py"))

    record: dict[str, Any] = {name: importlib.metadata.version(name) for name in ("optax", "jax")}
    record["files"] = {}
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
                asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    worse = {name for file in record["files"].values() for name in file["only with the shim"]}
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
