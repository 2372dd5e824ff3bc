"""Test sessions: the newest versions, and every release of optax with two generations of jax.

``nox`` runs lint and the tests on the newest versions, ``nox -s "release(0.2.3)"`` one old release,
``nox -s release newest_jax`` all releases, one after the other. Arguments after ``--`` replace the
tests of a session.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.3.2"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = True

_BEFORE_NUMPY_2 = ("numpy<2", "scipy<1.13")

MATCHING_JAX = {
    "0.1.2": ("0.4.13", *_BEFORE_NUMPY_2),
    "0.1.3": ("0.4.13", *_BEFORE_NUMPY_2),
    "0.1.4": ("0.4.13", *_BEFORE_NUMPY_2),
    "0.1.5": ("0.4.13", *_BEFORE_NUMPY_2),
    "0.1.7": ("0.4.20", *_BEFORE_NUMPY_2),
    # 0.4.23, the matching jax, crashes on CPUs that compute in float16.
    "0.1.8": ("0.4.25", *_BEFORE_NUMPY_2),
    "0.1.9": ("0.4.25", *_BEFORE_NUMPY_2),
    "0.2.0": ("0.4.25", *_BEFORE_NUMPY_2),
    "0.2.1": ("0.4.25", *_BEFORE_NUMPY_2),
    "0.2.2": ("0.4.26", *_BEFORE_NUMPY_2),
    "0.2.3": ("0.4.31",),
    "0.2.4": ("0.4.35",),
    "0.2.5": ("0.6.2",),
    "0.2.6": ("0.7.2",),
    "0.2.7": ("0.9.0",),
    "0.2.8": ("0.10.2",),
}
"""For each tested release of optax: the version of jax and jaxlib, and other pins."""

NEWEST_JAX = "0.10.2"
DO_NOT_IMPORT_WITH_IT = ("0.1.2", "0.1.3", "0.1.4", "0.2.7")

ALL_PATCHES_ON = ("0.1.9", "0.2.3", "0.2.5")
"""Releases on which all tests of the patches run: one for each way in which stock optax fails.

All tests run in the session ``lowest``, on 0.1.2, and in ``tests``, on the newest release.
"""

OLD_ON_PYTHON = {"3.9": "0.1.9", "3.10": "0.1.9", "3.12": "0.2.2", "3.13": "0.2.4", "3.14": "0.2.6"}
"""For each Python besides that of the other sessions: an old release of optax that runs there."""

FAULTS = ("tests/patches/test_faults.py", "tests/patches/test_programs.py")
"""Tests whose result may depend on the release of optax or jax."""

AUDITED = ("0.1.9", "0.2.3", "0.2.8")
"""Releases for the whole audit, for fuzzing and for benchmarks."""

DOWNSTREAM = {
    "0.2.3": (
        *("flax<0.10", "equinox<0.11.9", "optimistix<0.0.9", "orbax-checkpoint<0.7"),
        *("dm-haiku<0.0.13", "numpyro<0.16"),
    ),
    "0.2.8": (),
}
"""Releases for the libraries that use optax, and the pins of these libraries."""

UPSTREAM = {
    "0.1.9": ("dm-haiku<0.0.13", "dm-tree", "flax<0.8.3"),
    "0.2.3": ("flax<0.10",),
    "0.2.4": ("flax",),
    "0.2.6": ("flax",),
    "0.2.7": ("flax",),
    "0.2.8": ("flax",),
}
"""Releases whose own tests run, and the packages that these tests import."""

LOWEST = ("wrapt==1.14.0", "packaging==20.0", "pytest<9")  # pytest 9 wants a newer packaging.

_RELEASES = [nox.param(optax, id=optax) for optax in MATCHING_JAX]
_ON_NEWEST_JAX = [
    nox.param(optax, id=optax)
    for optax, (jax, *_) in MATCHING_JAX.items()
    if jax != NEWEST_JAX and optax not in DO_NOT_IMPORT_WITH_IT
]


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and types."""
    session.install("-e", ".[test]", "mypy", "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    # mypy needs the package in one folder.
    together = Path(session.create_tmp()) / "together"
    shutil.rmtree(together, ignore_errors=True)
    shutil.copytree("optax_dtypefix", together / "optax_dtypefix")
    shutil.copytree("patches", together / "optax_dtypefix" / "patches")
    config = Path("pyproject.toml").resolve()
    with session.chdir(together):
        session.run("mypy", "--config-file", str(config), "-p", "optax_dtypefix")


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests on the newest optax and jax."""
    session.install("-e", ".[test]")
    _test(session)


@nox.session
def lowest(session: nox.Session) -> None:
    """Run all tests on the lower bounds of all dependencies."""
    optax, (jax, *held_back) = next(iter(MATCHING_JAX.items()))
    _install(session, optax, jax, *held_back, *LOWEST)
    _test(session)


@nox.session
def pages(session: nox.Session) -> None:
    """Run the examples and the code in the pages, on the newest and the lowest versions."""
    session.install("-e", ".[test]")
    _test(session, "tests/examples")
    optax, (jax, *held_back) = next(iter(MATCHING_JAX.items()))
    _install(session, optax, jax, *held_back, *LOWEST)
    _test(session, "tests/examples")


@nox.session
def long_runs(session: nox.Session) -> None:
    """Train 3,000 steps in half precision, and compare them with float64."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "tests/evidence/long_runs")


@nox.session
def evidence(session: nox.Session) -> None:
    """Compare all transformations with stock: random trees, eager steps, 100 float32 steps."""
    session.install("-e", ".[test]")
    steps = ("tests/evidence/differential", "tests/evidence/trajectories")
    _test(session, *steps, "tests/evidence/eager", "tests/evidence/memory")
    optax, (jax, *held_back) = next(iter(MATCHING_JAX.items()))
    _install(session, optax, jax, *held_back, *LOWEST)
    _test(session, *steps)


@nox.session
def rounding(session: nox.Session) -> None:
    """Compare 300 steps in half precision with stock and float64, for all sizes of gradients."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "tests/evidence/rounding")


@nox.session
@nox.parametrize("optax", _RELEASES)
def release(session: nox.Session, optax: str) -> None:
    """Test one release of optax with the matching jax."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    some = (*FAULTS, "tests/patches/test_properties.py")
    tests = ("tests/patches",) if optax in ALL_PATCHES_ON else some
    evidence = ("tests/evidence/memory", "tests/evidence/trajectories")
    _test(session, *tests, "tests/engine/test_import_order.py", *evidence)


@nox.session
@nox.parametrize("optax", _ON_NEWEST_JAX)
def newest_jax(session: nox.Session, optax: str) -> None:
    """Test one release of optax with the newest jax, for users who pin only optax."""
    _install(session, optax, NEWEST_JAX)
    _test(session, *FAULTS)


@nox.session(python=list(OLD_ON_PYTHON))
def python(session: nox.Session) -> None:
    """Test another Python, with the newest optax that it installs and with an old one."""
    session.install("-e", ".[test]")
    _test_python(session)
    optax = OLD_ON_PYTHON[str(session.python)]
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    _test_python(session)


@nox.session
def next_optax(session: nox.Session) -> None:
    """Test the next optax: a path or a requirement after ``--``, or the newest pre-release."""
    # This bound admits pre-releases of optax, and of no other package.
    session.install("-e", ".[test]", *(session.posargs or ("optax>=0.1.2.dev0",)))
    strict = {"OPTAX_DTYPEFIX_STRICT": "1"}
    session.run("python", "-m", "optax_dtypefix", "status", "-v", env=strict)
    session.run("python", "-m", "optax_dtypefix", "doctor", "-v")
    # The other tests of faults hold the tables against the release: they know tested releases only.
    files = ("tests/patches/test_faults.py", "tests/engine/test_untested_release.py")
    session.run("python", "-m", "pytest", *files, "-k", "fix or untested")


@nox.session
@nox.parametrize("optax", [nox.param(optax, id=optax) for optax in AUDITED])
def audit(session: nox.Session, optax: str) -> None:
    """Check the contract, and unchanged programs, on every transformation. Takes minutes."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    session.run("python", "-m", "pytest", "tests/evidence/audit")


@nox.session
@nox.parametrize("optax", [nox.param(optax, id=optax) for optax in DOWNSTREAM])
def downstream(session: nox.Session, optax: str) -> None:
    """Test with libraries that use optax: flax, equinox, optimistix, orbax and others."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back, *DOWNSTREAM[optax], extras="test,downstream")
    # Old libraries use deprecated parts of JAX, some of them on import.
    session.run("python", "-m", "pytest", "-W", "ignore", "tests/evidence/downstream")


@nox.session
@nox.parametrize("optax", [nox.param(optax, id=optax) for optax in UPSTREAM])
def upstream(session: nox.Session, optax: str) -> None:
    """Run optax's own tests with the shim: none may fail that passes on stock."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back, *UPSTREAM[optax])
    record = () if session.posargs else ("--json", f"../docs/upstream/{optax}.json")
    with session.chdir("tests"):
        session.run("python", "-m", "evidence.upstream.compare", *record, *session.posargs)
    session.run("python", "docs/write_upstream.py")


@nox.session
@nox.parametrize("optax", [nox.param(optax, id=optax) for optax in AUDITED])
def fuzz(session: nox.Session, optax: str) -> None:
    """Fuzz each patch with thousands of trees, alone and against stock."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    # By tests, not by files: each has many tests, and little else.
    many = ("--hypothesis-profile=many", "--dist=load", *session.posargs)
    # Separately: both start processes.
    for tests in ("tests/patches/test_properties.py", "tests/evidence/differential"):
        session.run("python", "-m", "pytest", *many, tests)


@nox.session
@nox.parametrize("optax", [nox.param(optax, id=optax) for optax in AUDITED])
def benchmarks(session: nox.Session, optax: str) -> None:
    """Measure steps, imports and calls for docs/benchmarks/. Run nothing else meanwhile."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    newest, (its_jax, *_) = list(MATCHING_JAX.items())[-1]
    upgraded = Path(session.create_tmp()).resolve() / "upgraded"
    python = str(upgraded / "bin" / "python")
    session.run("uv", "venv", "--clear", str(upgraded), external=True)
    pins = (f"optax=={newest}", f"jax=={its_jax}", f"jaxlib=={its_jax}")
    session.run("uv", "pip", "install", "--python", python, "-e", ".", *pins, external=True)
    record = f"docs/benchmarks/{optax}.json"
    session.run("python", "benchmarks", record, "--upgraded", python, *session.posargs)


@nox.session
def page_of_benchmarks(session: nox.Session) -> None:
    """Write docs/benchmarks.md and draw docs/benchmarks.svg."""
    session.install("-e", ".")
    session.run("python", "docs/write_benchmarks.py")


@nox.session
def record_trajectories(session: nox.Session) -> None:
    """Record the trajectories of stock optax for tests/evidence/trajectories."""
    optax, (jax, *held_back) = list(MATCHING_JAX.items())[-1]
    _install(session, optax, jax, *held_back)
    environment = {"OPTAX_DTYPEFIX": "off", "JAX_PLATFORMS": "cpu"}
    path = f"evidence/trajectories/stock-{optax}.jsonl"
    with session.chdir("tests"), open(path, "w", encoding="utf-8") as file:
        runs = ("python", "-m", "evidence.trajectories.runs")
        session.run(*runs, stdout=file, env=environment)


@nox.session
def page_of_long_runs(session: nox.Session) -> None:
    """Write docs/long-runs.json and .md, and draw docs/long-runs.svg and docs/gains.svg."""
    session.install("-e", ".[test]")
    with session.chdir("tests"):
        session.run("python", "-m", "evidence.long_runs.record", "../docs/long-runs.json")
    session.run("python", "docs/write_long_runs.py")


@nox.session
@nox.parametrize("optax", _RELEASES)
def record(session: nox.Session, optax: str) -> None:
    """Record the audit of one release in docs/audit/; ``picture`` draws all of them."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    with session.chdir("tests"), open(f"../docs/audit/{optax}.json", "w", encoding="utf-8") as file:
        session.run("python", "-m", "evidence.audit", "--json", stdout=file)


@nox.session
def picture(session: nox.Session) -> None:
    """Draw docs/audit.svg and write docs/audit.md from the records of ``record``."""
    session.install("-e", ".")
    records = [f"docs/audit/{optax}.json" for optax in MATCHING_JAX]
    session.run("python", "docs/write_audit.py", "docs", *records)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into site/. A broken link is an error."""
    session.install("zensical>=0.0.73", "mkdocstrings[python]")
    session.run("zensical", "build", "--strict", "--clean")


@nox.session
def package(session: nox.Session) -> None:
    """Build and check the wheel, and test it without the sources."""
    dist = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    epoch = {"SOURCE_DATE_EPOCH": "1700000000"}
    session.run("uv", "build", "--out-dir", str(dist), external=True, env=epoch)
    again = dist.parent / "again"
    session.run("uv", "build", "--wheel", "--out-dir", str(again), external=True, env=epoch)
    (wheel,), (same,) = dist.glob("*.whl"), again.glob("*.whl")
    assert wheel.read_bytes() == same.read_bytes(), "the wheel is not reproducible"
    session.install(*map(str, dist.glob("*.whl")), "twine", "check-wheel-contents")
    session.run("twine", "check", "--strict", *map(str, dist.glob("optax_dtypefix-*")))
    # W004: PyInstaller finds a hook by a file name that cannot be imported, hook-NAME.py.
    session.run("check-wheel-contents", "--ignore", "W004", *map(str, dist.glob("*.whl")))
    with session.chdir(dist):
        session.run("optax-dtypefix", "doctor")
        pairs = f"assert TESTED == {tuple(MATCHING_JAX)}"
        session.run("python", "-c", f"from optax_dtypefix.patches import TESTED; {pairs}")


def _install(session: nox.Session, optax: str, jax: str, *more: str, extras: str = "test") -> None:
    pins = (f"optax=={optax}", f"jax=={jax}", f"jaxlib=={jax}", *more)
    session.install("-e", f".[{extras}]", *pins)


def _test_python(session: nox.Session) -> None:
    tests = session.posargs or ("tests/engine", "tests/patches/test_faults.py")
    session.run("python", "-m", "pytest", *tests)
    session.run("python", "-m", "optax_dtypefix", "doctor")


def _test(session: nox.Session, *paths: str) -> None:
    session.run("python", "-m", "pytest", *(session.posargs or paths))
    if not (session.posargs or paths):  # The output for users, of what ``test_faults.py`` tests.
        session.run("python", "-m", "optax_dtypefix", "doctor")
