"""Check a transformation of the user's: an error of its code is a violation, with advice."""

from __future__ import annotations

import re
import sysconfig
import traceback
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from .._api import get_engine
from .._contract.dtypes import PyTree, is_number, leaves
from .._engine.built_before import builder_of, parts_of
from .._errors import summarize
from .._loaded_stock import builder_elsewhere
from .result import Check, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .._engine.engine import Engine

# Wherever they are installed: with ``pip install --user``, for example, not in ``purelib``.
_LIBRARIES = (__name__.partition(".")[0], "jax", "jaxlib", "optax")
_MISSING = re.compile(r"missing \d+ required (?:keyword-only |positional )?arguments?: (.+)")


def run_check(
    caller: str,
    tx: Any,
    params: PyTree,
    find: Callable[[], Iterable[Violation]],
    *,
    step: int | None = None,
) -> Check:
    """Return what is found, or what the user's code raises meanwhile, with its line and advice.

    Args:
      caller: the public function that was called, for the advice.
      tx: the transformation.
      params: those that the caller was given.
      find: returns the violations.
      step: the step of an error.
    """
    failure: Exception | None = None
    try:
        violations = tuple(find())
    except Exception as error:  # Reported, not swallowed: it is in the result, with its cause.
        # A generator of ours turns StopIteration into RuntimeError.
        failure = error.__cause__ if isinstance(error.__cause__, StopIteration) else error
        message = summarize(failure) + line_of(failure) + _advice_on(failure, caller, params)
        violations = (Violation("error", "", message, step),)
    return Check(violations, failure, list_built_before(tx, get_engine()))


def list_built_before(tx: Any, engine: Engine) -> tuple[str, ...]:
    """Name the functions that built parts of a transformation before or where they were stock."""
    functions = [f for f in parts_of(tx, engine.package) if type(f) in (FunctionType, MethodType)]
    known = engine.built_before or ()
    elsewhere = set(filter(None, map(builder_elsewhere, functions)))
    return tuple(sorted(elsewhere.union(builder_of(f) for f in functions if f in known)))


def line_of(error: BaseException) -> str:
    """Return the innermost line that is in no installed package, and not in this one."""
    installed = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<")
    lines = [
        f" ({frame.f_code.co_filename}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(installed)
        and str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES
    ]
    return lines[-1] if lines else ""


def _advice_on(error: BaseException, caller: str, params: PyTree) -> str:
    found = _MISSING.search(str(error)) if isinstance(error, TypeError) else None
    names = re.findall(r"'(\w+)'", found[1]) if found else []
    if names:
        given = ", ".join(f"{name}=..." for name in names)
        return f" The update needs {' and '.join(names)}: call {caller}(tx, params, {given})."
    if "batch dimension" in str(error):  # Of DP-SGD.
        return f" Call {caller}(tx, params, grads), with grads of the shapes (batch, *param.shape)."
    if not all(map(is_number, leaves(params))):
        return (
            " Some leaves of params are no arrays. Pass the arrays alone: of an Equinox model "
            "`eqx.filter(model, eqx.is_inexact_array)`."
        )
    return ""
