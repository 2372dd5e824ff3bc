"""Print the dtypes of the scalars in new states of all transformations, for bfloat16 params."""

from __future__ import annotations

import json
import warnings
from typing import Any

import optax_dtypefix  # isort: skip  # noqa: F401  # First, as in a training script.

import jax
import jax.numpy as jnp

from evidence.audit import cases


def main() -> None:
    found: dict[str, dict[str, str]] = {}
    params = {"w": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.ones(3, jnp.bfloat16)}
    for name, function in cases.public_transformations().items():
        try:
            state = jax.eval_shape(function(**cases.required(function)).init, params)
        except Exception:  # It needs arguments that are not known, or other params.
            continue
        flat, _ = jax.tree_util.tree_flatten_with_path(state)
        found[name] = {field(path): str(leaf.dtype) for path, leaf in flat if not leaf.shape}
    print(json.dumps(found))


def field(path: tuple[Any, ...]) -> str:
    """Name the fields on a path, without places in tuples and keys of the params."""
    return ".".join(key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Stock optax warns of deprecations.
    main()
