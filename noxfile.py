"""The only list of test sessions. Their tags say where they run.

- ``quick``: plain ``nox``: lint, and the tests on the newest versions.
- ``ci``: ``.ci/run``, after the commands of the README.
- ``full``: ``ci.yml``, and ``nox -t full`` before a version: all that must hold.
- ``figures``: record the figures of the pages. After a break, ``nox -t figures`` goes on: what is
  recorded on this code is skipped.

``nox -s "release(0.2.3)"`` runs one old release, ``nox -s release newest_jax`` all of them, one
after the other. Arguments after ``--`` replace the tests of a session.
"""

from __future__ import annotations

import email
import os
import random
import re
import runpy
import shutil
import tarfile
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv"
nox.options.tags = ["quick"]
nox.options.error_on_missing_interpreters = True

RELEASES = runpy.run_path("patches/releases.py")["RELEASES"]
RECORDED = runpy.run_path("tests/support/recorded.py")
MATCHING_JAX = {optax: row["jax"] for optax, row in RELEASES.items()}
"""For each tested release of optax: the version of jax and jaxlib, and other pins."""

NEWEST, (NEWEST_JAX, *_) = list(MATCHING_JAX.items())[-1]

FAULTS = ("tests/patches/test_faults.py", "tests/patches/test_programs.py")
"""Tests whose result may depend on the release of optax or jax."""

ENGINE = (
    *("tests/engine", "tests/commands"),
    *(
        f"tests/diagnosis/test_{name}.py"
        for name in ("check_command", "check_params", "check_target")
    ),
    *(f"tests/diagnosis/test_{name}.py" for name in ("doctor", "processes", "scan")),
    *("tests/contract/test_signatures.py", "tests/patches/test_tracebacks.py"),
    # In 0.4.30, which Python 3.9 installs, XLA skips rounding in comparisons.
    "tests/patches/test_reduce_on_plateau.py",
)
"""Tests whose result may depend on the version of Python, or on the newest jax that it installs."""

AUDITED = tuple(f"tests/evidence/{name}" for name in ("audit", "functions", "stalls"))
"""What looks at every transformation, which takes minutes."""

SETUP = runpy.run_path("setup.py")
REPOSITORY = os.environ.get("PACKAGE_REPOSITORY", "")
"""The address of the repository, which ``release.yml`` gives. The tree does not know it."""

RAW = Path("records").resolve()
"""All that the sessions measure. ``docs/`` keeps what pages show; attach this to a release."""

LOADS = re.compile(
    r"""<(?:script|img|iframe|link(?! rel="canonical"))\b[^>]*? (?:src|href)="(?:https?:)?//[^>]*"""
    r"""|[^<]*data-md-component="source"|[^<]*class="mermaid\""""
)
"""What makes a browser ask another host: addresses, and elements for which the theme's script does.

That script asks api.github.com about the repository, and unpkg.com for mermaid.
"""

LOWEST = ("wrapt==1.14.0", "packaging==20.0", "pytest<9")  # pytest 9 wants a newer packaging.


def _with(key: str) -> list[nox.param]:
    """Give the releases whose rows have this key."""
    return [nox.param(optax, id=optax) for optax, row in RELEASES.items() if key in row]


def _recorded(key: str, among: str = "jax") -> list[nox.param]:
    """Give releases to measure: those with this key for a page, the others only as a check."""
    return [
        nox.param(optax, id=optax, tags=["figures" if key in row else "full"])
        for optax, row in RELEASES.items()
        if among in row
    ]


def _skip_if_recorded(session: nox.Session) -> None:
    """Say what is left, and skip a session whose record is of this code. Delete it to repeat."""
    left = RECORDED["left"]()
    minutes = sum(step.minutes for step in left)
    session.log(f"{len(left)} records left, about {minutes} minutes on two idle cores")
    if session.name not in {step.session for step in left}:
        session.skip("its record is of this code")


def _all(*, on_newest_jax: bool = False) -> list[nox.param]:
    """Give all releases, or those that do not come with the newest jax, and run on it."""
    return [
        nox.param(optax, id=optax, tags=["ci"] if "ci" in row else [])
        for optax, row in RELEASES.items()
        if not on_newest_jax or (row["jax"][0] != NEWEST_JAX and "needs_its_jax" not in row)
    ]


_OLD_ON_PYTHON = sorted(
    ((python, optax) for optax, row in RELEASES.items() for python in row.get("python", ())),
    key=lambda pair: int(pair[0].partition(".")[2]),
)


@nox.session(tags=["quick", "ci", "full"])
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


@nox.session(tags=["quick", "full"])
def tests(session: nox.Session) -> None:
    """Run the README's tests on the newest optax and jax: all that are not marked as thorough."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)
    if not session.posargs:  # The output for users, of what ``test_faults.py`` tests.
        session.run("python", "-m", "optax_dtypefix", "doctor")


@nox.session(tags=["ci", "full"])
def thorough(session: nox.Session) -> None:
    """Run the tests that the README's command leaves out, on the newest optax and jax."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *(session.posargs or ("-m", "thorough")))


@nox.session(tags=["full"])
def lowest(session: nox.Session) -> None:
    """Run all tests on the lower bounds of all dependencies."""
    optax, (jax, *held_back) = next(iter(MATCHING_JAX.items()))
    _install(session, optax, jax, *held_back, *LOWEST)
    _test(session)


@nox.session(tags=["ci", "full"])
def pages(session: nox.Session) -> None:
    """Run the examples and the code in the pages, on the newest and the lowest versions."""
    session.install("-e", ".[test]")
    _test(session, "tests/examples")
    optax, (jax, *held_back) = next(iter(MATCHING_JAX.items()))
    _install(session, optax, jax, *held_back, *LOWEST)
    _test(session, "tests/examples")


@nox.session(tags=["full"])
def long_runs(session: nox.Session) -> None:
    """Train 3,000 steps in half precision, and compare them with float64."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "tests/evidence/long_runs")


@nox.session(tags=["full"])
def eager_steps(session: nox.Session) -> None:
    """Compare eager steps of all transformations with stock: bits, kernels and what stays alive."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "tests/evidence/eager")


@nox.session(tags=["full"])
@nox.parametrize("optax", _with("jax"))
def evidence(session: nox.Session, optax: str) -> None:
    """Compare all transformations with stock: memory, 100 float32 steps."""
    jax, *held_back = MATCHING_JAX[optax]
    lowest = LOWEST if optax == next(iter(MATCHING_JAX)) else ()
    _install(session, optax, jax, *held_back, *lowest)
    _test(session, "tests/evidence/memory", "tests/evidence/trajectories")


@nox.session(tags=["full"])
@nox.parametrize("optax", _all())
def release(session: nox.Session, optax: str) -> None:
    """Test one release of optax with the matching jax."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    engine = "tests/engine/test_import_order.py"
    _test(session, *FAULTS, "tests/patches/test_properties.py", engine)


@nox.session(tags=["full"])
@nox.parametrize("optax", _with("all_patches"))
def all_patches(session: nox.Session, optax: str) -> None:
    """Run all tests of the patches on one release between the oldest and the newest."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    _test(session, "tests/patches")


@nox.session(tags=["full"])
@nox.parametrize("optax", _all(on_newest_jax=True))
def newest_jax(session: nox.Session, optax: str) -> None:
    """Test one release of optax with the newest jax, for users who pin only optax."""
    _install(session, optax, NEWEST_JAX)
    # ``release`` runs each patch alone on this release, and ``thorough`` on this jax.
    faults, programs = FAULTS
    session.run("python", "-m", "pytest", *(session.posargs or (faults,)))
    if not session.posargs:
        _test(session, programs)


@nox.session(python=[python for python, _ in _OLD_ON_PYTHON], tags=["full"])
def python(session: nox.Session) -> None:
    """Run all tests on another Python, on the newest optax that it installs; some on an old one."""
    session.install("-e", ".[test]")
    _test(session)
    optax = dict(_OLD_ON_PYTHON)[str(session.python)]
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    _test(session, "tests/engine", "tests/patches/test_faults.py")
    session.run("python", "-m", "optax_dtypefix", "doctor")


@nox.session(python=[_OLD_ON_PYTHON[0][0], _OLD_ON_PYTHON[-1][0]], tags=["ci", "full"])
def engine(session: nox.Session) -> None:
    """Test the engine and the commands on the oldest and on the newest Python."""
    session.install("-e", ".[test]")
    _test(session, *ENGINE)


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
    session.run("python", "-m", "pytest", "-m", "", *files, "-k", "fix or untested")


@nox.session(tags=["full"])
@nox.parametrize("optax", _with("audit"))
def audit(session: nox.Session, optax: str) -> None:
    """Check the contract, unchanged programs and 1,200 steps of every transformation: minutes."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    session.run("python", "-m", "pytest", *AUDITED)


@nox.session(tags=["full"])
@nox.parametrize("optax", _with("downstream"))
def downstream(session: nox.Session, optax: str) -> None:
    """Test with libraries that use optax: flax, equinox, jaxopt, orbax and others."""
    jax, *held_back = MATCHING_JAX[optax]
    pins = RELEASES[optax]["downstream"]
    _install(session, optax, jax, *held_back, *pins, extras="test,downstream")
    # Old libraries use deprecated parts of JAX, some of them on import.
    tests = ("tests/evidence/downstream", "tests/patches/test_stochastic_rounding_jaxopt.py")
    session.run("python", "-m", "pytest", "-m", "", "-W", "ignore", *tests)


@nox.session
@nox.parametrize("optax", _with("audit"))
def fuzz(session: nox.Session, optax: str) -> None:
    """Fuzz each patch with thousands of trees, and the values of a thousand cells of the audit."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    # By tests, not by files: each has many tests, and little else.
    many = ("--hypothesis-profile=many", "--dist=load", *session.posargs)
    session.run("python", "-m", "pytest", *many, "tests/patches/test_properties.py")
    cells = {"OPTAX_VALUES": f"1000 {random.randrange(1000)}"}
    session.run("python", "-m", "pytest", "tests/evidence/audit/test_values.py", env=cells)


@nox.session
@nox.parametrize("optax", _with("jax"))
def functions(session: nox.Session, optax: str) -> None:
    """Measure which functions have faults on one release, for patches/functions.json."""
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    with session.chdir("tests"):
        session.run("python", "-m", "evidence.functions.record")


@nox.session
def record_trajectories(session: nox.Session) -> None:
    """Record the trajectories of stock optax for tests/evidence/trajectories."""
    _install(session, NEWEST, *MATCHING_JAX[NEWEST])
    environment = {"OPTAX_DTYPEFIX": "off", "JAX_PLATFORMS": "cpu"}
    folder = Path("tests/evidence/trajectories").resolve()
    for before in folder.glob("stock-*.jsonl"):
        before.unlink()
    path = folder / f"stock-{NEWEST}.jsonl"
    with session.chdir("tests"), open(path, "w", encoding="utf-8") as file:
        runs = ("python", "-m", "evidence.trajectories.runs")
        session.run(*runs, stdout=file, env=environment)


@nox.session
@nox.parametrize("optax", _recorded("audit"))
def record(session: nox.Session, optax: str) -> None:
    """Audit one release; three are recorded for docs/audit.md."""
    recorded = "audit" in RELEASES[optax]
    if recorded:
        _skip_if_recorded(session)
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back)
    audit = RAW / "audit" / f"{optax}.json"
    audit.parent.mkdir(parents=True, exist_ok=True)
    record = ("--record", f"../docs/audit/{optax}.json") if recorded else ()
    with session.chdir("tests"), open(audit, "w", encoding="utf-8") as file:
        session.run("python", "-m", "evidence.audit", "--json", *record, stdout=file)
    records = [Path(f"docs/audit/{optax}.json") for optax in MATCHING_JAX]
    existing = map(str, filter(Path.exists, records))
    session.run("python", "docs/write_audit.py", "docs", *existing)


@nox.session
@nox.parametrize("optax", _recorded("mutants", among="upstream"))
def upstream(session: nox.Session, optax: str) -> None:
    """Run optax's own tests with the shim: none may fail that passes on stock."""
    recorded = "mutants" in RELEASES[optax] and not session.posargs
    if recorded:
        _skip_if_recorded(session)
    jax, *held_back = MATCHING_JAX[optax]
    _install(session, optax, jax, *held_back, *RELEASES[optax]["upstream"])
    raw = () if session.posargs else ("--json", str(RAW / "upstream" / f"{optax}.json"))
    record = ("--record", f"../docs/upstream/{optax}.json") if recorded else ()
    with session.chdir("tests"):
        session.run("python", "-m", "evidence.upstream.compare", *raw, *record, *session.posargs)
    session.run("python", "docs/write_upstream.py")


@nox.session(tags=["figures"])
def record_long_runs(session: nox.Session) -> None:
    """Train 3,000 steps in each way, for docs/long-runs.md."""
    _skip_if_recorded(session)
    _install(session, NEWEST, *MATCHING_JAX[NEWEST])
    with session.chdir("tests"):
        session.run("python", "-m", "evidence.long_runs.record", "../docs/long-runs.json")
    session.run("python", "docs/write_long_runs.py")


@nox.session(tags=["figures"])
@nox.parametrize("optax", _with("mutants")[::-1])  # What was killed on the newest is not run twice.
def mutants(session: nox.Session, optax: str) -> None:
    """Change a copy of the code in one place at a time, and see whether a test fails."""
    _skip_if_recorded(session)
    record = str(Path("docs", "mutants", f"{optax}.json").resolve())
    arguments = session.posargs or ("12", "--record", record)
    copy = Path(session.create_tmp()).resolve() / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(".", copy, ignore=shutil.ignore_patterns(".*", "records", "site", "*.egg-info"))
    Path(".jax_cache").mkdir(exist_ok=True)
    (copy / ".jax_cache").symlink_to(Path(".jax_cache").resolve())
    jax, *held_back = MATCHING_JAX[optax]
    with session.chdir(copy):
        _install(session, optax, jax, *held_back)
    with session.chdir(copy / "tests"):
        session.run("python", "-m", "evidence.mutation.mutate", *arguments)


@nox.session(tags=["figures"])
def memory(session: nox.Session) -> None:
    """Count the bytes of compiled steps, for docs/benchmarks.md. Other load does not matter."""
    _skip_if_recorded(session)
    _install(session, NEWEST, *MATCHING_JAX[NEWEST])
    session.run("python", "-m", "benchmarks", "memory", "docs/benchmarks/memory.json")
    session.run("python", "docs/write_benchmarks.py")


@nox.session(tags=["figures"])
def accelerators(session: nox.Session) -> None:
    """Compile steps for a TPU v5e and an H100 that are not there, for docs/benchmarks.md."""
    _skip_if_recorded(session)
    compilers = (f"jax[tpu]=={NEWEST_JAX}", "nvidia-cuda-nvcc-cu12")
    _install(session, NEWEST, *MATCHING_JAX[NEWEST], *compilers)
    # What runs programs on a GPU, gigabytes of it, is not needed.
    plugin = (f"{name}=={NEWEST_JAX}" for name in ("jax-cuda12-plugin", "jax-cuda12-pjrt"))
    session.install("--no-deps", *plugin)
    record = "docs/benchmarks/accelerators.json"
    on_cpu = {"JAX_PLATFORMS": "cpu"}
    session.run("python", "-m", "benchmarks", "accelerators", record, env=on_cpu)
    session.run("python", "docs/write_benchmarks.py")


@nox.session(tags=["figures"])
def benchmarks(session: nox.Session) -> None:
    """Measure steps, imports and calls, for docs/benchmarks.md. Run nothing else meanwhile."""
    _skip_if_recorded(session)
    _install(session, NEWEST, *MATCHING_JAX[NEWEST])
    raw = str(RAW / "benchmarks" / f"{NEWEST}.json")
    record = (f"docs/benchmarks/{NEWEST}.json", "--raw", raw)
    session.run("python", "-m", "benchmarks", "release", *record, *session.posargs)
    session.run("python", "docs/write_benchmarks.py")


@nox.session
def public_programs(session: nox.Session) -> None:
    """Train programs of other people, for docs/public-programs.md; ``-- FOLDER`` has the clones."""
    _skip_if_recorded(session)
    libraries = ("-r", "benchmarks/published/requirements.txt")
    _install(session, NEWEST, *MATCHING_JAX[NEWEST], *libraries)
    record = ("--record", "docs/public-programs.json")
    script = ("python", "benchmarks/public_programs.py")
    session.run(*script, *record, "--clones", *session.posargs)
    session.run("python", "docs/write_public_programs.py")


@nox.session(python=False)
def figures(session: nox.Session) -> None:
    """Fail if figures are of other code; name what records them again, and how long it takes."""
    with session.chdir("tests"):
        session.run("python3", "-m", "support.recorded")


@nox.session(tags=["ci", "full"])
def docs(session: nox.Session) -> None:
    """Build the site into site/. A broken link is an error, and so is a load from another host."""
    session.install("zensical>=0.0.73", "mkdocstrings[python]")
    package = Path("optax_dtypefix/__init__.py").read_text("utf-8")
    (version,) = re.findall(r'^__version__ = "(.*)"$', package, re.MULTILINE)
    about = {
        "REPOSITORY": REPOSITORY,
        "SITE_URL": SETUP["site"](REPOSITORY) if REPOSITORY else "",
        "VERSION": f"optax-dtypefix {version}",
    }
    session.run("zensical", "build", "--strict", "--clean", env=about)
    for page in Path("site").rglob("*.html"):
        loads = LOADS.findall(page.read_text("utf-8"))
        assert not loads, f"{page} loads from other hosts: {loads}"


@nox.session(tags=["ci", "full"])
def package(session: nox.Session) -> None:
    """Build and check the wheel, test it without the sources, and upgrade an older version.

    With a tag after ``--``, check that the tag names this version, and leave the packages in dist/.
    With PACKAGE_REPOSITORY, as in ``release.yml``, they have addresses; without it, none.
    """
    dist = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    epoch = {"SOURCE_DATE_EPOCH": "1700000000"}
    session.run("uv", "build", "--out-dir", str(dist), external=True, env=epoch)
    again = dist.parent / "again"
    session.run("uv", "build", "--wheel", "--out-dir", str(again), external=True, env=epoch)
    (wheel,), (same,) = dist.glob("*.whl"), again.glob("*.whl")
    assert wheel.read_bytes() == same.read_bytes(), "the wheel is not reproducible"
    tools = ("twine", "check-wheel-contents", "pytest>=7", "pytest-xdist>=3.7")
    builders = ("pip", "uv", "build", "setuptools>=77")
    session.install(*map(str, dist.glob("*.whl")), *tools, *builders)
    session.run("twine", "check", "--strict", *map(str, dist.glob("optax_dtypefix-*")))
    with tarfile.open(*dist.glob("*.tar.gz")) as sources:
        packed = {
            Path(name).relative_to(wheel.stem.partition("-py3")[0]) for name in sources.getnames()
        }
    missing = {
        *map(Path, ("CHANGELOG.md", "docs/index.md", "tests/examples/test_docs.py"))
    } - packed
    assert not missing, f"the sdist lacks {missing}: see MANIFEST.in"
    # W004: PyInstaller finds a hook by a file name that cannot be imported, hook-NAME.py.
    session.run("check-wheel-contents", "--ignore", "W004", *map(str, dist.glob("*.whl")))
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        about = email.message_from_bytes(archive.read(metadata))
    wanted = SETUP["addresses"](REPOSITORY) if REPOSITORY else {}
    found = dict(url.split(", ") for url in about.get_all("Project-URL", []))
    assert found == wanted, f"the addresses in the wheel are {found}, not {wanted}"
    relative = re.findall(r"\]\((?!https?:|#).*?\)", str(about.get_payload()))
    assert not (REPOSITORY and relative), f"the description has relative links: {relative}"
    with session.chdir(dist):
        session.run("optax-dtypefix", "doctor")
    session.run("python", "-m", "pytest", "tests/evidence/packages")
    for tag in session.posargs:
        version = wheel.name.split("-")[1]
        assert tag == f"v{version}", (
            f"the tag {tag} is not v{version}: correct __version__ or the tag"
        )
        shutil.rmtree("dist", ignore_errors=True)
        shutil.copytree(dist, "dist")


def _install(session: nox.Session, optax: str, jax: str, *more: str, extras: str = "test") -> None:
    pins = (f"optax=={optax}", f"jax=={jax}", f"jaxlib=={jax}", *more)
    session.install("-e", f".[{extras}]", *pins)


def _test(session: nox.Session, *paths: str) -> None:
    """Run all tests in some files or in all, those marked as thorough too."""
    session.run("python", "-m", "pytest", "-m", "", *(session.posargs or paths))
