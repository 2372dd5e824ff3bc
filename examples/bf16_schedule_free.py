"""Train a bfloat16 network with schedule-free AdamW and gradient accumulation.

Stock optax 0.2.3 raises a TypeError in the first step. From 0.2.4 on, the network trains, but
the sum of the averaging weights stops growing: the averaged weights are those of the last few
hundred steps, not of all.
"""

import optax_dtypefix  # noqa: F401  # One line; the rest of the script does not change.

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from _digits import accuracy, batches, finish, init, load, loss
from tqdm import trange

LEARNING_RATE = 0.004
EPOCHS = 60

train, test = load(jnp.bfloat16)
params = init(jnp.bfloat16)
tx = optax.MultiSteps(
    optax.contrib.schedule_free(
        optax.adamw(LEARNING_RATE, b1=0.0, weight_decay=1e-3), LEARNING_RATE, b1=0.9
    ),
    every_k_schedule=2,
)
state = tx.init(params)


@jax.jit
def step(params, state, images, labels):
    value, grads = jax.value_and_grad(loss)(params, images, labels)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


for epoch in trange(EPOCHS, desc="epochs"):
    for images, labels in zip(*batches(train, 32, seed=epoch)):
        params, state, value = step(params, state, images, labels)
    if epoch % 10 == 9:
        averaged = optax.contrib.schedule_free_eval_params(state.inner_opt_state, params)
        print(f"epoch {epoch + 1}: loss {value:.4f}, accuracy {accuracy(averaged, *test):.3f}")

steps = int(state.gradient_step)
weighed = float(state.inner_opt_state.weight_sum) / LEARNING_RATE**2
print(f"the weights are averaged over {weighed:.0f} of {steps} steps")
averaged = optax.contrib.schedule_free_eval_params(state.inner_opt_state, params)
trouble = "" if abs(weighed / steps - 1) < 0.01 else "the average misses most of the steps"
finish(averaged, test, at_least=0.95, trouble=trouble)
