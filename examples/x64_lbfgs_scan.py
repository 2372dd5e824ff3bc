"""Solve logistic regression in float64 with L-BFGS, inside ``lax.scan``.

Each iteration is skipped once the gradient is small, so ``lax.cond`` needs one type from both
branches. Stock optax 0.2.3 and 0.2.4 count the steps of the line search in int64 first and in int32
later (upstream issue 1210): TypeError. On every release weak types change, so the step compiles
twice.
"""

import optax_dtypefix  # noqa: F401  # One line; the rest of the script does not change.

import collections

import jax
import jax.numpy as jnp
import optax
from _digits import accuracy, finish, init, load, loss
from tqdm import trange

jax.config.update("jax_enable_x64", True)

train, test = load(jnp.float64)
params = init(jnp.float64, sizes=(64, 10))
tx = optax.lbfgs(memory_size=10)
compiled = collections.Counter()


def objective(params):
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree_util.tree_leaves(params))
    return loss(params, *train) + 1e-3 * penalty


value_and_grad = optax.value_and_grad_from_state(objective)


def step(carry, _):
    params, state = carry
    value, grad = value_and_grad(params, state=state)
    size = optax.global_norm(grad)

    def move():
        extra = {"value": value, "grad": grad, "value_fn": objective}
        updates, new_state = tx.update(grad, state, params, **extra)
        return optax.apply_updates(params, updates), new_state

    return jax.lax.cond(size < 1e-6, lambda: carry, move), (value, size)


@jax.jit
def ten_steps(carry):
    compiled["step"] += 1  # Python runs this line only when the function is traced and compiled.
    return jax.lax.scan(step, carry, None, length=10)


carry = (params, tx.init(params))
for block in trange(12, desc="blocks of 10 iterations"):
    carry, (values, sizes) = ten_steps(carry)
    print(f"iteration {10 * block + 10}: loss {values[-1]:.10f}, gradient {sizes[-1]:.1e}")

print(f"train accuracy {accuracy(carry[0], *train):.3f}")
trouble = "" if compiled["step"] == 1 else f"the step was compiled {compiled['step']} times"
finish(carry[0], test, at_least=0.95, trouble=trouble)
