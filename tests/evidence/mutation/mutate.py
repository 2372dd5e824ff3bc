"""Change the code in one place at a time, and see whether a test fails.

In a clone that may be changed, in ``tests/``, run ``python -m evidence.mutation.mutate COUNT
[--seed SEED] [--record FILE] [FILE...]``. It takes ``COUNT`` mutants at random, of the engine and
the patches or of the named files, and runs the tests of the file that each changes, then all tests.
Without a seed, the digest of the code is the seed: each version has its own draw, and anyone can
repeat it. Exits with 1 if one survives: write a test, or delete what does nothing. Counted apart
are mutants in a function that the tests never call with the installed optax, which say nothing, and
those that a test fails for on another release, as a record beside ``FILE`` says: many a condition
is always true on one release.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import json
import os
import random
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple

from support.processes import environment
from support.recorded import this_code, write

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
LIMIT, LIMIT_OF_ALL = 600.0, 3600.0
"""Seconds after which a run of chosen tests, or of all, counts as failed: mutants may not end."""

EVERYTHING = ["-m", ""]
"""The arguments of pytest that run all tests, on all cores."""


class Mutant(NamedTuple):
    """One change: where, what, and the whole text of the file with it."""

    file: str
    line: int
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def files() -> list[str]:
    """List the files of the patches and the engine."""
    folders = (ROOT / "patches", ROOT / "optax_dtypefix" / "_engine")
    return sorted(str(path.relative_to(ROOT)) for f in folders for path in f.rglob("*.py"))


def mutants(file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    for index, node in enumerate(_running(tree)):
        for number in range(len(_changes(node))):
            changed = copy.deepcopy(tree)
            place = next(n for i, n in enumerate(_running(changed)) if i == index)
            before = ast.unparse(place).splitlines()[0]
            _changes(place)[number]()
            after = ast.unparse(place).splitlines()[0]
            yield Mutant(file, place.lineno, f"{before}  ->  {after}", ast.unparse(changed))


def _running(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that run: no annotations, no code for type checkers."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.expr, ast.stmt)):
            yield node
        if isinstance(node, ast.FunctionDef):
            pending += node.body
        elif isinstance(node, ast.AnnAssign):
            pending += [node.value] if node.value else []
        else:
            pending += ast.iter_child_nodes(node)


_COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_DTYPES = {"float32": "bfloat16", "bfloat16": "float32", "float16": "float32", "float64": "float32"}


def _changes(node: ast.expr | ast.stmt) -> list[Callable[[], None]]:
    """List the changes of one node; each makes its change in place."""
    found: list[Callable[[], None]] = []
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
        found.append(lambda: node.ops.__setitem__(0, _COMPARE[type(node.ops[0])]()))
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        found.append(lambda: setattr(node, "op", _ARITHMETIC[type(node.op)]()))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        found.append(lambda: setattr(node, "op", other()))
    elif isinstance(node, (ast.If, ast.IfExp)):
        found += [
            functools.partial(setattr, node, "test", ast.Constant(value)) for value in (True, False)
        ]
    elif isinstance(node, ast.Attribute) and node.attr in _DTYPES:
        found.append(lambda: setattr(node, "attr", _DTYPES[node.attr]))
    elif isinstance(node, ast.Call) and "cast" in _name(node.func) and node.args:
        found.append(lambda: setattr(node, "func", _FIRST))
    elif isinstance(node, ast.Call) and _name(node.func) == "astype":
        found.append(lambda: vars(node).update(func=_FIRST, args=[node.func.value, *node.args]))
    return found


_FIRST = ast.parse("lambda first, *_, **__: first", mode="eval").body


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def tests_of(file: str) -> list[list[str]]:
    """List the arguments of pytest that test a file, the quickest first."""
    path = Path(file)
    if path.parts[0] != "patches":
        return [["tests/engine"]]
    name = path.parts[1].removesuffix(".py")
    faults, *shared = (
        f"tests/patches/test_{name}.py" for name in ("faults", "programs", "reached", "properties")
    )
    own = _own_tests(name)
    if name == "functions":  # A table that ``scan`` reads.
        own.append("tests/diagnosis/test_scan.py")
    if own and len(path.parts) == 2:  # A patch. What is in door/ serves all.
        table = ["tests/patches/test_transformations.py"]
        return [[faults, "-k", name], own, [*shared, "-k", name], table]
    subjects = "transformations mixed_dtypes user_trees counts eager_steps"
    more = (f"tests/patches/test_{of}.py" for of in subjects.split())
    door = sorted(of.stem for of in (ROOT / "patches" / "door").glob("*.py"))
    names = dict.fromkeys((name, "bfloat16_moments", *door, *_importers(path.stem)))
    return [[faults, *shared, *more], *filter(None, map(_own_tests, names))]


def _own_tests(name: str) -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for p in ROOT.glob(f"tests/patches/test_{name}*.py"))


def _importers(module: str) -> list[str]:
    """Name the patches that import from a module with this name."""
    folder = ROOT / "patches"
    importers = (path for path in folder.rglob("*.py") if f".{module} import" in path.read_text())
    names = {path.relative_to(folder).parts[0].removesuffix(".py") for path in importers}
    return sorted(name for name in names if _own_tests(name))


def outcome_of(mutant: Mutant, elsewhere: set[str]) -> str:
    """Run the tests of the file that a mutant changes, and all tests before it is said to survive.

    Tests that fail without a change, as some may on an old release, kill nothing.
    """
    changed = {mutant.file: mutant.text}
    if not _pass_with(changed, tests_of(mutant.file)):
        return "killed"
    if str(mutant) in elsewhere:
        return "killed elsewhere"
    if not is_called(mutant):
        return "not called"
    if _pass_with(changed, [EVERYTHING]) or not _all_pass_without_a_change():
        return "SURVIVED"
    return "killed"


@functools.lru_cache(None)
def _all_pass_without_a_change() -> bool:
    """Run all tests on code without comments, as mutants have it."""
    texts = {file: ast.unparse(ast.parse((ROOT / file).read_text("utf-8"))) for file in files()}
    return _pass_with(texts, [EVERYTHING])


def _pass_with(texts: dict[str, str], tests: list[list[str]]) -> bool:
    with _changed(texts):
        return _all_pass(tests, LIMIT_OF_ALL if tests == [EVERYTHING] else LIMIT)


@contextlib.contextmanager
def _changed(texts: dict[str, str]) -> Iterator[None]:
    """Give files other texts, and put them back."""
    before = {file: (ROOT / file).read_text("utf-8") for file in texts}
    try:
        for file, text in texts.items():
            (ROOT / file).write_text(text, encoding="utf-8")
        yield
    finally:
        for file, text in before.items():
            (ROOT / file).write_text(text, encoding="utf-8")


def is_called(mutant: Mutant) -> bool:
    """Whether the tests call the function with the mutant, for the installed optax."""
    tree = ast.parse((ROOT / mutant.file).read_text("utf-8"))
    around = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.body[0].lineno <= mutant.line <= (node.end_lineno or 0)
    ]
    return not around or not _survives_an_error(mutant.file, max(around))


@functools.lru_cache(None)
def _survives_an_error(file: str, line: int) -> bool:
    """Run the tests with an error in place of what the function at the line does."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.lineno == line:
            node.body = ast.parse("raise AssertionError").body
    changed = {file: ast.unparse(tree)}
    return _pass_with(changed, tests_of(file)) and _pass_with(changed, [EVERYTHING])


def killed_elsewhere(folder: Path) -> set[str]:
    """Return the mutants of this code that were killed on other releases, by their records."""
    records = [json.loads(file.read_text("utf-8")) for file in folder.glob("*.json")]
    others = (record for record in records if record["optax"] != version("optax"))
    code = this_code()["code"]
    return {each for of in others if of["recorded_on"]["code"] == code for each in of["killed"]}


def _all_pass(groups: list[list[str]], limit: float) -> bool:
    """Run groups of tests, one on each core, until one fails."""
    pending, running, start = list(groups), list[subprocess.Popen[bytes]](), time.monotonic()
    try:
        while pending or running:
            while pending and len(running) < (os.cpu_count() or 1):
                running.append(_start(pending.pop(0)))
            time.sleep(0.1)
            codes = {process.poll() for process in running}
            # 0: passed. 5: this release has nothing to test.
            if codes - {None, 0, 5} or time.monotonic() > start + limit:
                return False
            running = [process for process in running if process.poll() is None]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return True


def _start(tests: list[str]) -> subprocess.Popen[bytes]:
    options = ["-x", "-q", "-p", "no:cacheprovider"]
    options += [] if tests == EVERYTHING else ["-n", "0", *EVERYTHING]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", default=this_code()["code"])
    parser.add_argument("--record", type=Path)
    parser.add_argument("files", nargs="*")
    asked = parser.parse_intermixed_args()
    found = [mutant for file in asked.files or files() for mutant in mutants(file)]
    chosen = random.Random(asked.seed).sample(found, min(asked.count, len(found)))
    outcomes: dict[str, list[Mutant]] = {
        outcome: [] for outcome in ("killed", "killed elsewhere", "not called", "SURVIVED")
    }
    elsewhere = killed_elsewhere(asked.record.parent) if asked.record else set[str]()
    for number, mutant in enumerate(chosen, 1):
        start = time.monotonic()
        outcome = outcome_of(mutant, elsewhere)
        outcomes[outcome].append(mutant)
        seconds = time.monotonic() - start
        print(f"{number}/{len(chosen)} {outcome} after {seconds:.0f} s: {mutant}", flush=True)
    if asked.record is not None:
        record = {name: version(name) for name in ("optax", "jax")} | {"recorded_on": this_code()}
        drawn = {outcome: [*map(str, of)] for outcome, of in outcomes.items()}
        write({**record, "changes": len(found), "seed": asked.seed, **drawn}, asked.record)
    counts = ", ".join(f"{len(of)} {outcome}" for outcome, of in outcomes.items())
    print(f"{len(found)} mutants, {len(chosen)} run: {counts}", *outcomes["SURVIVED"], sep="\n  ")
    return int(bool(outcomes["SURVIVED"]))


if __name__ == "__main__":
    sys.exit(main())
