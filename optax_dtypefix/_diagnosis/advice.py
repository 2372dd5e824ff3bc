"""Say where the user's code raised, and what to do about it."""

from __future__ import annotations

import re
import sysconfig
import traceback

from .._contract.dtypes import PyTree, is_number, leaves
from .._errors import summarize

# Wherever they are installed: with ``pip install --user``, for example, not in ``purelib``.
_LIBRARIES = (__name__.partition(".")[0], "jax", "jaxlib", "optax")
_MISSING = re.compile(r"missing \d+ required (?:keyword-only |positional )?arguments?: (.+)")


def explain(error: Exception, caller: str, params: PyTree) -> tuple[Exception, str]:
    """Return what the user's code raised; and its text, its line, and advice if there is some."""
    # A generator of ours turns StopIteration into RuntimeError.
    raised = error.__cause__ if isinstance(error.__cause__, StopIteration) else error
    return raised, summarize(raised) + line_of(raised) + _advice_on(raised, caller, params)


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
