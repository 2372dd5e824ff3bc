"""Find updates and params that stall, or are wrong, after many steps in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import PyTree, has_16_bits, leaves
from .._contract.modes import no_debugging
from .._errors import summarize
from .result import Violation
from .steady import BLOCK, STEPS, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .steady import Sums

_OFF = 0.1
"""An update may be off by this fraction after ``STEPS``."""

_LOST = 0.25
"""So much of the way may params lose, beyond the noise of rounding."""

_SIGMAS = 4.0
"""Noise of rounding that is no violation, in standard deviations."""

_ENDED = 1e-4
"""Updates below this fraction of the largest are the end of a schedule: the last may be no 0."""

_TINY = 2.0**-23
"""Twice the smallest float16 above zero."""

_LARGEST = 2.0**15
"""Updates are compared up to this size, which float16 has: an estimate may grow without end."""


def find_stalls(
    tx: Any, params: PyTree, extra_args: dict[str, Any], notes: dict[str, None]
) -> Iterator[Violation]:
    """Run a transformation with steady gradients, and yield which updates and params are wrong.

    Args:
      tx: the transformation.
      params: tree of ``jax.ShapeDtypeStruct``. Without half precision nothing stalls, and nothing
        is run.
      extra_args: of ``update``: functions, ``grad``, and losses. ``grads`` are the gradients, if
        they are not like the params. Those of ``value_fn`` are not steady: nothing is run.
      notes: gets what is not compared, and why.
    """
    others = {"grads": params, **extra_args}
    grads = others.pop("grads")
    if "value_fn" in others or not any(map(has_16_bits, leaves((params, grads)))):
        return
    try:
        with no_debugging():
            problem = Problem(tx, params, grads, others)
            why, blocks = problem.why_incomparable(), problem.run()
    except Exception as error:  # Its state may change, so that no loop takes it.
        notes[f"no run with steady gradients: {summarize(error)}"] = None
        return
    if why:
        notes[f"{why}: only checked for numbers that are not finite"] = None
    for i, path in enumerate(_paths(grads)):
        finite = [bool(np.all(np.isfinite(block.got[i]))) for block in blocks]
        count = _blocks_with_updates(blocks, i) if all(finite) else finite.index(False) + 1
        block, steps = blocks[count - 1], count * BLOCK
        if all(finite) and steps < STEPS:
            notes[f"no updates after step {steps}: compared up to there"] = None
        got, wanted = block.got[i] / BLOCK, block.wanted[i] / BLOCK
        kind, message = _wrong_update(got, wanted, only_finite=bool(why))
        if kind:
            yield _violation(kind, f"updates{path}", message, steps)
    for i, (path, param) in enumerate(zip(_paths(params), leaves(params))):
        if blocks[-1].moved and has_16_bits(param):
            moved, asked = (sum(b.moved[i] for b in blocks), sum(b.asked[i] for b in blocks))
            message = _wrong_param(moved, asked, float(jnp.finfo(param.dtype).eps))
            if message:
                yield _violation("params", f"params{path}", message, STEPS)


def _violation(kind: str, where: str, message: str, steps: int) -> Violation:
    return Violation(kind, where, f"{message} at step {steps} ({where}), after steady gradients")


def _blocks_with_updates(blocks: list[Sums], leaf: int) -> int:
    """Count the blocks up to the last one with updates: a schedule may end at 0 before."""
    sizes = [np.abs(block.wanted[leaf]) + np.abs(block.got[leaf]) for block in blocks]
    totals = [float(np.sum(size)) for size in sizes]
    ended = _ENDED * max(totals)
    return next((n for n in range(len(totals), 0, -1) if not totals[n - 1] <= ended), len(totals))


def _wrong_update(got: Any, wanted: Any, *, only_finite: bool) -> tuple[str, str]:
    """Return the kind of what is wrong, and a message; both empty if nothing is."""
    if not np.all(np.abs(wanted) < _LARGEST):
        return "", ""
    if not np.all(np.isfinite(got)):
        return "not finite", "nan" if np.any(np.isnan(got)) else "inf"
    error, size = (float(np.sum(np.abs(update))) for update in (got - wanted, wanted))
    if only_finite or error <= max(_OFF * size, _TINY * np.size(wanted)):
        return "", ""
    times = float(np.sum(got * wanted) / np.sum(wanted * wanted))
    if times == 0.0:
        return "stalls", f"zero instead of {size:.2g}"
    if times > 1.0 + _OFF / 2:
        return "update", f"updates {times:.2f} times too large"
    if times < 1.0 - _OFF / 2:
        return "update", f"updates too small, {times:.2f} of their size"
    return "update", f"updates off by {error / size:.0%}"


def _wrong_param(moved: Any, asked: Any, unit: float) -> str:
    """Compare how far params of sizes up to 2 moved with the sum of their updates.

    Args:
      moved: the way of each number.
      asked: its updates.
      unit: the distance of two params. Rounding up and down has a variance of this times the way.

    Returns:
      What is wrong; empty if nothing is.
    """
    if not (np.all(np.isfinite((moved, asked))) and np.any(asked)):
        return ""
    way = np.abs(asked)
    missing = way - moved * np.sign(asked)
    # Some numbers may stall and others not; and noise averages out over many.
    single = np.sum(np.maximum(0.0, missing - _SIGMAS * np.sqrt(unit * way)))
    together = np.sum(missing) - _SIGMAS * np.sqrt(unit * np.sum(way))
    if max(single, together) <= _LOST * np.sum(way):
        return ""
    share = 1.0 - np.sum(np.maximum(0.0, missing)) / np.sum(way)
    only = f"moves params only {share:.2f} of the way"
    return f"apply_updates {only if share > 0.01 else 'does not move params'}"


def _paths(tree: PyTree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
