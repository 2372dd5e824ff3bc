"""The public functions of optax that the patches change: which, on which releases, in what.

``patches/functions.json`` is measured, by ``nox -s functions``: for each function and patch, the
problems in which the patch changes something, and the releases. A row such as
``sgd(learning_rate, momentum=)`` has what this argument adds to the row of the function: it turns a
part on that is off by default. This module imports neither jax nor optax.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from typing import TYPE_CHECKING, NamedTuple, Union

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..._engine.release import Release

FILE = importlib.resources.files("optax_dtypefix.patches") / "functions.json"  # Or in an archive.

KINDS = (
    "any dtype",
    "bfloat16",
    "float16",
    "mixed dtypes",
    "gradients wider than params",
    "64-bit mode",
    "integers",
    "complex numbers",
    "strict promotion",
    "array hyperparameters",
)
"""The kinds of problems: of params and gradients, of the mode of JAX, of the arguments."""

Row = dict[str, dict[str, list[str]]]
"""By patch and kind of problem: PEP 440 specifiers."""

Table = dict[str, Row]
"""By the path of a function below ``optax.``, or by such a call."""

Given = frozenset[Union[int, str]]
"""What a call passes: places of arguments, from 0, and names."""


class _Argument(NamedTuple):
    """An argument that adds faults. Without a place, it is passed by name alone."""

    name: str
    place: int | None
    row: Row


@functools.cache
def measured() -> Table:
    """Read all that was measured: the rows of functions, and those of calls."""
    found: Table = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@functools.cache
def table() -> Table:
    """Return the rows of functions."""
    return {name: row for name, row in measured().items() if "(" not in name}


@functools.cache
def _arguments() -> dict[str, list[_Argument]]:
    """Return by function the arguments that add faults."""
    found: dict[str, list[_Argument]] = {}
    for call, row in measured().items():
        name, parenthesis, inside = call.rstrip("=)").partition("(")
        if parenthesis:
            *before, last = inside.split(", ")
            place = None if before == ["*"] else len(before)
            found.setdefault(name, []).append(_Argument(last, place, row))
    return found


@functools.cache
def _known_as(path: str) -> str:
    """Return the name that a path has in the table, or nothing.

    A function moves between modules, and several export it: the last part of its path decides.
    """
    name, last = path.partition(".")[2], path.rpartition(".")[2]
    if name in table():
        return name
    return next((known for known in table() if known.rpartition(".")[2] == last), "")


def added_by(path: str, given: Given | None) -> list[str]:
    """Return the arguments of a call that may add faults, such as ``momentum`` of ``sgd``.

    Args:
      path: of a public function, such as ``optax.sgd``.
      given: what the call passes; None if that is not known, and then it may pass all.
    """
    known = _arguments().get(_known_as(path), ())
    names = (each.name for each in known if given is None or given & {each.name, each.place})
    return list(dict.fromkeys(names))


def faults_of(path: str, release: Release, arguments: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the patches that a function needs on a release, and for which kinds of problems.

    Args:
      path: of a public function, such as ``optax.contrib.prodigy``.
      release: of optax.
      arguments: of a call, that ``added_by`` returned.
    """
    name = _known_as(path)
    added = (each.row for each in _arguments().get(name, ()) if each.name in arguments)
    found: dict[str, dict[str, None]] = {}
    for row in (table().get(name, {}), *added):
        for patch, kinds in row.items():
            for kind, ranges in kinds.items():
                if any(map(release.within, ranges)):
                    found.setdefault(patch, {})[kind] = None
    return {patch: list(kinds) for patch, kinds in found.items()}
