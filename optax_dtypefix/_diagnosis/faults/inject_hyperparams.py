"""Reproduce the faults of ``inject_hyperparams``."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from . import _reproduce as demo


def _sgd(rate: Any = 0.1) -> Callable[[Any], Any]:
    """Return a function that builds sgd with the injected rate."""
    return lambda optax: optax.inject_hyperparams(optax.sgd)(rate)


def _adam(optax: Any, **options: Any) -> Any:
    return demo.public(optax, "inject_hyperparams", *options)(optax.adam, **options)(1e-2)


def _power(optax: Any) -> Any:
    return optax.inject_hyperparams(lambda decay: optax.scale(decay**1000))(0.999)


FAULTS = {
    # 0.999 in bfloat16 is 1, and adam divides by 1 - b2^t = 0.
    "not_a_number": demo.number(
        "inject_hyperparams(adam) on bfloat16 params gives NaN from the first update on",
        "the first update of adam",
        lambda optax: demo.first_updates(_adam(optax), demo.ones("bfloat16"))["b"],
        -1e-2,
    ),
    # 0.999 in bfloat16 is 1, and so are all its powers.
    "narrow_hyperparams": demo.number(
        "Hyperparameters are rounded to the half precision of the params",
        "0.999 to the power of 1000",
        lambda optax: demo.first_updates(_power(optax), demo.ones("bfloat16"))["b"],
        0.999**1000,
    ),
    # A strong float32 scalar promotes the bfloat16 update.
    "strong_array": demo.step(
        "Schedules that return a float32 array give float32 updates for bfloat16 params",
        _sgd(demo.warm_up),
        "bfloat16",
    ),
    "float64_schedule": demo.step(
        "In 64-bit mode, a float64 schedule gives float64 updates for float32 params",
        _sgd(lambda count: jnp.asarray(0.1, "float64") / (count + 1)),
        "float32",
        in_x64=True,
    ),
    "numpy_scalar": demo.step(
        "NumPy float32 as learning rate: float32 updates for bfloat16 params",
        _sgd(np.float32(0.1)),
        "bfloat16",
    ),
    # ``init`` takes the dtype from the params, ``update`` from the gradients.
    "wide_gradients": demo.step(
        "float32 gradients of bfloat16 params: the hyperparameters change dtype in a step",
        _sgd(),
        "bfloat16",
        grads="float32",
    ),
    "mixed_tree": demo.step(
        "bfloat16 and float32 leaves in one tree: float32 updates for bfloat16",
        _sgd(),
        *("bfloat16", "float32"),
    ),
    "mixed_halves": demo.step(
        "bfloat16 and float16 leaves in one tree: float32 updates, or ValueError",
        _sgd(),
        *("bfloat16", "float16"),
    ),
    # 0.1 in int32 is 0: nothing is trained, and there is no warning.
    "integer_leaf": demo.wrong_dtype(
        "If the first leaf is an integer, hyperparameters become integers: a learning rate is 0",
        "the learning rate is kept in {}",
        lambda optax: demo.initial(_sgd()(optax), "float32", "int32").hyperparams["learning_rate"],
    ),
    "hyperparam_dtype": demo.step(
        "hyperparam_dtype=float32 changes state and updates of bfloat16 params to float32",
        lambda optax: _adam(optax, hyperparam_dtype="float32"),
        "bfloat16",
    ),
    # The learning rate takes the complex dtype: complex * float is complex.
    "complex_leaf": demo.wrong_dtype(
        "Complex leaves make the updates of real leaves complex",
        "the update of a float32 param is {}",
        lambda optax: jax.eval_shape(
            demo.first_update(_sgd()(optax)), demo.shapes("float32", "complex64")
        )["w"],
    ),
}
