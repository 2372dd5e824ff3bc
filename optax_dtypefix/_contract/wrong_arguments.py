"""Refuse wrong arguments of the functions that take a transformation, with advice."""

from __future__ import annotations

import inspect
from typing import Any

import jax

from .dtypes import PyTree, is_number, leaves


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


def refuse_traced(caller: str, tree: PyTree) -> None:
    """Raise inside ``jit`` and its kin, where there is nothing to compute with.

    Raises:
      TypeError: a leaf is traced.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves(tree)):
        raise TypeError(f"{caller} needs numbers. Call it outside of jax.jit.")


def _is_transformation(value: Any) -> bool:
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def _public_name(function: Any) -> str:
    name = getattr(getattr(function, "func", function), "__name__", "factory")
    module = str(getattr(function, "__module__", ""))
    return f"optax.{name}" if module.startswith("optax.") else str(name)
