"""Runs optax's own tests, which its wheels carry, on stock and with the shim, and compares.

Run as ``compare.py [--json FILE] [TEST_FILE...]``; the files are relative to the package, all if
none is given. Exits with 1 if a test that passes on stock fails with the shim and is not in
``known.py``, or if an entry there no longer fails.
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
from xml.etree import ElementTree

from known import KNOWN

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


def package() -> Path:
    """Where optax is, found without importing it."""
    spec = importlib.util.find_spec("optax")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def start(report: Path, files: list[str], **variables: str) -> subprocess.Popen[bytes]:
    """The tests in a process of their own, the shim in it before them."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
    # Nothing of this project's configuration; and no files beside those of the package.
    options = ["-p", "optax_dtypefix", "-p", "no:cacheprovider", "-c", os.devnull, "-q"]
    options += [
        "--continue-on-collection-errors",
        "-W",
        "ignore",
        f"--rootdir={package()}",
        f"--junitxml={report}",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *files],
        env={**inherited, **variables, "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=report.parent,
        stdout=subprocess.DEVNULL,
    )


def outcomes(report: Path) -> dict[str, str]:
    """What became of each test; a file that cannot be imported is one that failed."""
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
    files = [str(package() / file) for file in asked.files]
    files = files or sorted(map(str, package().rglob("*_test.py")))
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / name for name in ("stock.xml", "patched.xml")]
        running = [
            start(reports[0], files, OPTAX_DTYPEFIX="off"),
            start(reports[1], files),
        ]
        codes = [process.wait() for process in running]
        assert set(codes) <= {0, 1, 2}, codes  # All passed, some failed, some cannot be imported.
        stock, patched = map(outcomes, reports)

    release = importlib.metadata.version("optax")
    worse = {n for n, o in stock.items() if o == PASSED and patched.get(n) != PASSED}
    known = {n for n in stock for entry in KNOWN if entry.covers(n, release)}
    better = {n for n, o in stock.items() if o == FAILED and patched.get(n) == PASSED}
    record = {
        "optax": release,
        "jax": importlib.metadata.version("jax"),
        "tests": len(stock),
        "failed on stock": sum(outcome == FAILED for outcome in stock.values()),
        "failed with the shim": sum(outcome == FAILED for outcome in patched.values()),
        "known": sorted(worse & known),
        "mended": sorted(better),
        "only with the shim": sorted(worse - known),
        "known, but not failing": sorted(known - worse),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n", encoding="utf-8")
    stale = not asked.files and bool(known - worse)
    return int(bool(worse - known) or stale)


if __name__ == "__main__":
    sys.exit(main())
