"""Refuse wrong arguments of the functions that take a transformation, with advice."""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from typing import Any

import jax

from .dtypes import PyTree, is_number, leaves

# Wherever they are installed: with ``pip install --user``, for example, not in ``purelib``.
_LIBRARIES = (__name__.partition(".")[0], "jax", "jaxlib", "optax")
_MISSING = re.compile(r"missing \d+ required (?:keyword-only |positional )?arguments?: (.+)")


def refuse_wrong(caller: str, tx: Any, params: PyTree) -> None:
    """Raise if the arguments cannot be a transformation and its params.

    Args:
      caller: the public function that was called, for the message.
      tx: should have ``init`` and ``update``.
      params: should have at least one array or ``jax.ShapeDtypeStruct`` among its leaves.

    Raises:
      TypeError: what is wrong, and what was probably meant.
    """
    if not _is_transformation(tx) and _is_transformation(params):
        raise TypeError(f"The arguments are swapped. Call {caller}(tx, params).")
    refuse_no_transformation(f"{caller}({{}}, params)", tx)
    if params is None:
        raise TypeError(f"params is None. Call {caller}(tx, params) with the params of your model.")
    if not any(map(is_number, leaves(params))):
        raise TypeError(
            f"params has no arrays: {params!r:.200}. Pass a tree of arrays or of "
            f"jax.ShapeDtypeStruct."
        )


def refuse_no_transformation(call: str, tx: Any) -> None:
    """Raise if an argument cannot be a transformation.

    Args:
      call: the call of the public function, for the message, with ``{}`` for the argument.
      tx: should have ``init`` and ``update``.

    Raises:
      TypeError: what is wrong, and what was probably meant.
    """
    if not _is_transformation(tx):
        advice = "Pass an object that has `init` and `update`, such as optax.adam(1e-3)."
        name = _public_name(tx) if callable(tx) else ""
        if name and "<" not in name:  # No lambda: a schedule, for example.
            advice = f"It is a function. Did you mean {call.format(f'{name}(...)')}?"
        raise TypeError(f"{tx!r:.200} is not a gradient transformation. {advice}")
    if inspect.isclass(tx):
        name = _public_name(tx)
        raise TypeError(f"{name} is a class. Did you mean {call.format(f'{name}(...)')}?")


def refuse_wrong_key(name: str, key: Any) -> None:
    """Raise if an argument is given and no key of ``jax.random``.

    Raises:
      TypeError: it is something else, such as a seed.
    """
    if key is None:
        return
    try:
        jax.eval_shape(jax.random.split, key)
    except Exception as error:  # JAX raises errors of several types.
        advice = f"Pass {name}=jax.random.PRNGKey(0)."
        raise TypeError(f"{name} is {key!r:.200}, which is no random key. {advice}") from error


def refuse_traced(caller: str, tree: PyTree) -> None:
    """Raise inside ``jit`` and its kin, where there is nothing to compute with.

    Raises:
      TypeError: a leaf is traced.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves(tree)):
        raise TypeError(f"{caller} needs numbers. Call it outside of jax.jit.")


def raised_by_user(error: Exception) -> Exception:
    """Return the user's StopIteration, which a generator of ours turns into RuntimeError."""
    return error.__cause__ if isinstance(error.__cause__, StopIteration) else error


def advice_on(error: BaseException, caller: str, params: PyTree) -> str:
    """Return the line of the user's code that raised, if any, and advice, if there is some."""
    return line_of(error) + _advice_on(error, caller, params)


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


def _is_transformation(value: Any) -> bool:
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def _public_name(function: Any) -> str:
    name = getattr(getattr(function, "func", function), "__name__", "factory")
    module = str(getattr(function, "__module__", ""))
    return f"optax.{name}" if module.startswith("optax.") else str(name)
