"""Measure only those functions again whose code or rows changed since the last time.

What is measured depends on rows of the tables, on the files of the patches in these rows, and on
the code that all share. ``digests.json`` keeps a digest of these, by function and release, from the
time when ``patches/functions.json`` was measured.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optax

from evidence.audit.cases import takes_another
from optax_dtypefix.patches import IDS
from optax_dtypefix.patches.wrapped import BUILDERS, WRAPPED
from support.recorded import ROOT, structure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FILE = Path(__file__).with_name("digests.json")
TABLES = ("catalogue.py", "functions.py", "releases.py", "wrapped.py")
"""Files of ``patches/`` whose rows count, or which no trace runs."""

Digests = dict[str, dict[str, str]]
"""By function, and by release."""


def recorded() -> Digests:
    """Read the digests of what was measured."""
    found: Digests = json.loads(FILE.read_text("utf-8"))
    return found


def write(digests: Mapping[str, Mapping[str, str]]) -> None:
    """Write the digests, one function a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(of)}" for name, of in sorted(digests.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def digest_of(name: str, function: Any) -> str:
    """Return a digest of what the measure of a public function depends on, on this release."""
    words = words_of(function)
    if takes_another(function):  # It is measured around this one.
        words |= words_of(optax.adam)
    rows = dict(_rows(words | {name.rpartition(".")[2]}))
    patches = {layer.partition(":")[0].split()[0] for of in rows.values() for layer in of}
    with_file = [patch for patch in IDS if _file_of(patch).exists()]
    patches |= {other for patch in with_file if patch in patches for other in _imported(patch)}
    # Of a function without code of its own, such as an old name, nothing is known.
    files = [_code(_file_of(patch)) for patch in with_file if patch in patches or not words]
    return hashlib.sha256(json.dumps([rows, files, _shared()]).encode()).hexdigest()[:8]


def _file_of(patch: str) -> Path:
    """Return where a patch has its code, if it is more than a row of ``LIFTS``."""
    return ROOT / "patches" / f"{patch}.py"


def _imported(patch: str) -> list[str]:
    """Name the modules that the file of a patch imports from beside it."""
    text = _file_of(patch).read_text("utf-8")
    return re.findall(r"^from \.(\w+) import", text, re.MULTILINE)


def _rows(words: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the rows of builders and of wrapped functions with these names."""
    named = set(words)
    tables = (*WRAPPED.values(), BUILDERS)
    for row, layers in sorted((row, of) for table in tables for row, of in table.items()):
        if re.split(r"[ .]", row)[0] in named:
            yield row, layers


@functools.cache
def _shared() -> str:
    """Return a digest of what each trace may run: the contract, the door, and what measures."""
    package, audit = ROOT / "optax_dtypefix", ROOT / "tests" / "evidence" / "audit"
    patches = [f for f in (ROOT / "patches").glob("*.py") if f.stem not in IDS]
    files = [
        *(package / "_contract").glob("*.py"),
        *(ROOT / "patches" / "door").glob("*.py"),
        *(file for file in patches if file.name not in TABLES),
        *(Path(__file__).with_name(f"{name}.py") for name in ("calls", "computed", "measure")),
        *(audit / f"{name}.py" for name in ("cases", "measure", "regimes")),
        package / "_diagnosis" / "check.py",
    ]
    return hashlib.sha256("".join(map(_code, sorted(files))).encode()).hexdigest()


@functools.cache
def _code(file: Path) -> str:
    """Return a digest of the code of a file: comments and docstrings do not count."""
    tree = structure(ast.parse(file.read_text("utf-8")))
    return hashlib.sha256(f"{file.name} {tree}".encode()).hexdigest()


def words_of(function: Any) -> set[str]:
    """Return the names of all functions of optax that run in a function, and what they name."""
    found, waiting, seen = set[str](), [function], set[int]()
    for each in waiting:
        stock = inspect.unwrap(each)
        module = str(getattr(stock, "__module__", ""))
        if id(stock) not in seen and module.startswith("optax."):
            seen.add(id(stock))
            found.add(getattr(stock, "__name__", ""))
            methods = vars(stock).values() if inspect.isclass(stock) else [stock]
            for method in filter(inspect.isfunction, methods):
                names = set(_names(method.__code__))
                found |= names
                waiting += _values(method, names)
    return found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in filter(inspect.iscode, code.co_consts):
        yield from _names(constant)


def _values(function: types.FunctionType, names: set[str]) -> Iterator[Any]:
    """Yield the functions and classes that have these names where a function is defined."""
    scope = function.__globals__
    modules = [vars(scope[n]) for n in names if inspect.ismodule(scope.get(n))]
    cells = {str(n): cell.cell_contents for n, cell in enumerate(function.__closure__ or ())}
    for place in (scope, *modules, cells):
        known = place if place is cells else names & place.keys()
        yield from (place[name] for name in known if callable(place[name]))
