"""Print the dtypes that functions other than transformations return, as JSON.

``python -m support.functions`` calls each function abstractly, with trees and numbers of several
dtypes. It prints the dtypes of the results, or None where the function raises.
"""

from __future__ import annotations

import itertools
import json
import warnings
from typing import Any, Callable

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import numpy as np
import optax

from support.trees import leaves, tree_of

TREES: dict[str, tuple[Any, ...]] = {
    "bfloat16": (jnp.bfloat16,),
    "float16": (jnp.float16,),
    "float32": (jnp.float32,),
    "mixed": (jnp.bfloat16, jnp.float32),
    "halves": (jnp.bfloat16, jnp.float16),
    "integer": (jnp.bfloat16, jnp.int32),
    "complex": (jnp.bfloat16, jnp.complex64),
}
NUMBERS: dict[str, Callable[[float], Any]] = {
    "Python": float,
    "weak": jnp.asarray,
    "integer": jnp.int32,
    "numpy": np.float32,
    "float32": jnp.float32,
    "bfloat16": jnp.bfloat16,
    "float16": jnp.float16,
}
"""How to make a number; the last ones are strong."""
STRONG = {"numpy": "float32", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}


def _of_tree(function: Any, tree: Any, number: Any) -> Any:
    return function(tree, number)


def _of_array(function: Any, tree: Any, number: Any) -> Any:
    return function(tree["w"], number)


def _of_batch(function: Any, tree: Any, number: Any) -> Any:
    return function([tree["w"], tree["b"][:3]], number)[0]


def _of_two_trees(function: Any, tree: Any, number: Any) -> Any:
    return function(tree, tree, number)


def _with_a_leaf(function: Any, tree: Any, number: Any) -> Any:
    return function([tree, number])


def _similarity(function: Any, tree: Any, number: Any) -> Any:
    return function(tree["w"], tree["w"], number)


def _vectors(function: Any, tree: Any, number: Any) -> Any:
    other = {name: jnp.full(leaf.shape, number) for name, leaf in tree.items()}
    return function(tree, other)


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "projections.projection_l1_ball": _of_tree,
    "projections.projection_l1_sphere": _of_tree,
    "projections.projection_l2_ball": _of_tree,
    "projections.projection_l2_sphere": _of_tree,
    "projections.projection_simplex": _of_tree,
    "projections.projection_vector": _vectors,
    "projections.projection_hyperplane": _of_two_trees,
    "projections.projection_halfspace": _of_two_trees,
    "per_example_global_norm_clip": _of_batch,
    "per_example_layer_norm_clip": _of_batch,
    "cosine_similarity": _similarity,
    "safe_norm": _of_array,
    "safe_root_mean_squares": _of_array,
    "transforms.unitwise_norm": lambda function, tree, _: function(tree["w"]),
    "global_norm": _with_a_leaf,
    "tree_utils.tree_norm": _with_a_leaf,
    "tree_utils.tree_l1_norm": _with_a_leaf,
    "tree_utils.tree_l2_norm": _with_a_leaf,
    "tree_utils.tree_sum": _with_a_leaf,
    "tree_utils.tree_vdot": _vectors,
    "skip_large_updates": lambda function, tree, number: function(tree, 0, tree, number)[1],
}
"""How to call a function with a tree and a number, by its path."""


def find(path: str) -> Any:
    """Look up a function of the installed optax, or return None."""
    found: Any = optax
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def available() -> dict[str, Any]:
    """Return the functions that the installed optax has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Deprecated names.
        found = {path: find(path) for path in CALLS}
    return {path: function for path, function in found.items() if function is not None}


def main() -> None:
    warnings.simplefilter("ignore")
    dtypes: dict[str, list[str] | None] = {}
    for (path, function), tree, number in itertools.product(available().items(), TREES, NUMBERS):
        given = tree_of(*TREES[tree]), NUMBERS[number](0.7)
        try:
            result = jax.eval_shape(lambda *_: CALLS[path](function, *given))  # noqa: B023
            dtypes[f"{path} {tree} {number}"] = [str(leaf.dtype) for leaf in leaves(result)]
        except Exception:
            dtypes[f"{path} {tree} {number}"] = None
    print(json.dumps(dtypes))


if __name__ == "__main__":
    main()
