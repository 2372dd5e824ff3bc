"""The public functions of optax that the patches change: which, on which releases, in what.

``functions.json`` is measured, by ``nox -s functions``: for each function and patch, the problems
in which the patch changes something, and the releases. This module imports neither jax nor optax.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._engine.release import Release

FILE = Path(__file__).with_name("functions.json")

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

Table = dict[str, dict[str, dict[str, list[str]]]]
"""By the path of a function below ``optax.``, patch and kind of problem: PEP 440 specifiers."""


@functools.cache
def table() -> Table:
    """Read the table."""
    resource = importlib.resources.files("optax_dtypefix.patches") / FILE.name  # Or in an archive.
    found: Table = json.loads(resource.read_text(encoding="utf-8"))
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


def faults_of(path: str, release: Release) -> dict[str, list[str]]:
    """Return the patches that a function needs on a release, and for which kinds of problems.

    Args:
      path: of a public function, such as ``optax.contrib.prodigy``.
      release: of optax.
    """
    found = {
        patch: [kind for kind, ranges in kinds.items() if any(map(release.within, ranges))]
        for patch, kinds in table().get(_known_as(path), {}).items()
    }
    return {patch: kinds for patch, kinds in found.items() if kinds}
