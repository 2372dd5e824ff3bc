"""User-defined transformations, which change dtypes or depend on them, and pytree nodes."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import optax

from support.nodes import Converting, NoScalars

tree_map = jax.tree_util.tree_map

DTYPES: list[str] | None = None
"""The dtypes of the leaves before the reference widened them; else None."""


def _names(tree: Any) -> Any:
    """Return a tree with the names of the dtypes from before the reference widened them."""
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    if DTYPES is None:
        return treedef.unflatten([str(leaf.dtype) for leaf in leaves])
    if len(leaves) != len(DTYPES):
        # The comparison with float64 is left out then; kinds and widths are still compared.
        raise NotImplementedError("the reference does not know which leaves these are")
    return treedef.unflatten(DTYPES)


def _is_bfloat16(tree: Any) -> Any:
    return tree_map(lambda name: name == "bfloat16", _names(tree))


def _wide(leaf: Any) -> Any:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _averages(start: Callable[[Any], Any], end: Callable[[Any, Any], Any]) -> Any:
    def init(params: Any) -> Any:
        return tree_map(start, params)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        state = tree_map(lambda g, m: 0.9 * m + 0.1 * _wide(g), grads, state)
        return tree_map(end, grads, state), state

    return optax.GradientTransformation(init, update)


def drifts() -> Any:
    """Average in float32, from a state that starts in the dtype of the params."""

    def in_dtype_of_gradient(grad: Any, mean: Any) -> Any:
        inexact = jnp.issubdtype(grad.dtype, jnp.inexact)
        return mean.astype(grad.dtype) if inexact else mean

    return _averages(jnp.zeros_like, in_dtype_of_gradient)


def returns_float32() -> Any:
    """Keep the state in float32, and return it."""
    return _averages(lambda p: jnp.zeros_like(_wide(p)), lambda _, mean: mean)


def real_then_complex() -> Any:
    """Start with real numbers, whatever the params are."""
    return _averages(lambda p: jnp.zeros(p.shape, jnp.float32), lambda _, mean: mean)


def _scales_by_mean(start: Any) -> Any:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        size = sum(jnp.sum(jnp.abs(_wide(g))) for g in jax.tree_util.tree_leaves(grads))
        state = 0.5 * state + 0.5 * size
        return tree_map(lambda g: g / (1 + state), grads), state

    return optax.GradientTransformation(lambda _: start(), update)


def mean_from_int32() -> Any:
    """Keep a mean that starts as the array 0."""
    return _scales_by_mean(lambda: jnp.zeros((), jnp.int32))


def mean_from_python_zero() -> Any:
    """Keep a mean that starts as the number 0."""
    return _scales_by_mean(lambda: 0)


def decays_bfloat16() -> Any:
    """Decay the leaves that are bfloat16."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        decay = tree_map(
            lambda g, p, name: g + 0.1 * p if name == "bfloat16" else g,
            *(grads, params, _names(params)),
        )
        return decay, state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def decay_masked_by_dtype(weight_decay: float = 0.1) -> Any:
    """Decay the leaves that are bfloat16, with optax."""
    return optax.add_decayed_weights(weight_decay, _is_bfloat16)


def adam_masked_by_dtype(learning_rate: Any = 0.1) -> Any:
    """Run adam on the leaves that are bfloat16."""
    return optax.masked(optax.adam(learning_rate), _is_bfloat16)


def labelled_by_dtype(learning_rate: Any = 0.1) -> Any:
    """Run another optimizer for each dtype."""
    names = ("bfloat16", "float16", "float32", "float64", "complex64", "int32", "int8")
    optimizers = {name: optax.sgd(learning_rate * k, 0.9) for k, name in enumerate(names, 1)}
    return optax.multi_transform(optimizers, _names)


NODES: dict[str, Callable[[list[Any]], Any]] = {
    # The keys are sorted, as the leaves are.
    "dict": lambda children: dict(zip("bwz", children)),
    "converts": lambda children: Converting(*children),
    "validates": lambda children: NoScalars(*children),
}


ALL: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        drifts,
        returns_float32,
        real_then_complex,
        mean_from_int32,
        mean_from_python_zero,
        decays_bfloat16,
        decay_masked_by_dtype,
        adam_masked_by_dtype,
        labelled_by_dtype,
    )
}

LOOK_AT_GRADS_TOO = ("decay_masked_by_dtype", "adam_masked_by_dtype", "labelled_by_dtype")
"""They compute masks and labels from params first, and from gradients later."""
