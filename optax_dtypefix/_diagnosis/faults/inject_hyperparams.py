"""Reproduce the faults of ``inject_hyperparams``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.x64 import x64
from . import _reproduce as demo

if TYPE_CHECKING:
    pass
from ..._engine.patch import Reproducers

FAULTS = Reproducers()


def _inject(optax: Any, factory: str, *args: Any, **options: Any) -> Any:
    return optax.inject_hyperparams(getattr(optax, factory), **options)(*args)


@FAULTS.computed()
def not_a_number(optax: Any) -> str | None:
    """inject_hyperparams(adam) on bfloat16 params gives NaN from the first update on.

    0.999 in bfloat16 is 1, and adam divides by 1 - b2^t = 0.
    """
    updates = demo.first_updates(_inject(optax, "adam", 1e-2), demo.ones(jnp.bfloat16))
    return demo.wrong("the first update of adam", updates["b"], -1e-2)


@FAULTS.computed()
def narrow_hyperparams(optax: Any) -> str | None:
    """Hyperparameters are rounded to the half precision of the params.

    0.999 in bfloat16 is 1, and so are all its powers.
    """
    tx = optax.inject_hyperparams(lambda decay: optax.scale(decay**1000))(0.999)
    updates = demo.first_updates(tx, demo.ones(jnp.bfloat16))
    return demo.wrong("0.999 to the power of 1000", updates["b"], 0.999**1000)


@FAULTS.traced
def integer_leaf(optax: Any) -> str | None:
    """If the first leaf is an integer, hyperparameters become integers: a learning rate is 0.

    0.1 in int32 is 0: nothing is trained, and there is no warning.
    """
    state = demo.initial(_inject(optax, "sgd", 0.1), jnp.float32, jnp.int32)
    rate = state.hyperparams["learning_rate"]
    return demo.wrong_dtype("the learning rate is kept in {}", rate)


@FAULTS.traced
def hyperparam_dtype(optax: Any) -> str | None:
    """hyperparam_dtype=float32 changes state and updates of bfloat16 params to float32."""
    demo.public(optax, "inject_hyperparams", parameter="hyperparam_dtype")
    tx = _inject(optax, "adam", 1e-2, hyperparam_dtype=jnp.float32)
    return demo.one_step(tx, jnp.bfloat16)


@FAULTS.traced
def strong_array(optax: Any) -> str | None:
    """Schedules that return a float32 array give float32 updates for bfloat16 params.

    A strong float32 scalar promotes the bfloat16 update.
    """
    return demo.one_step(_inject(optax, "sgd", demo.warm_up), jnp.bfloat16)


@FAULTS.traced
@x64()
def float64_schedule(optax: Any) -> str | None:
    """In 64-bit mode, a float64 schedule gives float64 updates for float32 params."""
    tx = _inject(optax, "sgd", lambda count: jnp.asarray(0.1, jnp.float64) / (count + 1))
    return demo.one_step(tx, jnp.float32)


@FAULTS.traced
def numpy_scalar(optax: Any) -> str | None:
    """NumPy float32 as learning rate: float32 updates for bfloat16 params."""
    return demo.one_step(_inject(optax, "sgd", np.float32(0.1)), jnp.bfloat16)


@FAULTS.traced
def wide_gradients(optax: Any) -> str | None:
    """float32 gradients of bfloat16 params: the hyperparameters change dtype in a step.

    ``init`` takes the dtype from the params, ``update`` from the gradients.
    """
    return demo.one_step(_inject(optax, "sgd", 0.1), jnp.bfloat16, grads=jnp.float32)


@FAULTS.traced
def mixed_tree(optax: Any) -> str | None:
    """bfloat16 and float32 leaves in one tree: float32 updates for bfloat16."""
    return demo.one_step(_inject(optax, "sgd", 0.1), jnp.bfloat16, jnp.float32)


@FAULTS.traced
def mixed_halves(optax: Any) -> str | None:
    """bfloat16 and float16 leaves in one tree: float32 updates, or ValueError."""
    return demo.one_step(_inject(optax, "sgd", 0.1), jnp.bfloat16, jnp.float16)


@FAULTS.traced
def complex_leaf(optax: Any) -> str | None:
    """Complex leaves make the updates of real leaves complex.

    The learning rate takes the complex dtype: complex * float is complex.
    """
    tx, params = _inject(optax, "sgd", 0.1), demo.shapes(jnp.float32, jnp.complex64)
    updates, _ = jax.eval_shape(lambda p: tx.update(p, tx.init(p), p), params)
    return demo.wrong_dtype("the update of a float32 param is {}", updates["w"])
