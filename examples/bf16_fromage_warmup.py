"""Train a bfloat16 network with fromage and a warm-up; skip steps that are not finite.

Stock optax up to 0.2.5 cannot square a schedule: TypeError. From 0.2.6 on, stock returns
float32 updates for bfloat16 params, and ``apply_if_finite`` raises the TypeError.
"""

import optax_dtypefix  # noqa: F401  # One line; the rest of the script does not change.

import jax
import jax.numpy as jnp
import optax
from _digits import accuracy, batches, finish, init, load, loss

EPOCHS = 20

train, test = load(jnp.bfloat16)
params = init(jnp.bfloat16)
schedule = optax.warmup_cosine_decay_schedule(
    init_value=0.0, peak_value=0.03, warmup_steps=100, decay_steps=44 * EPOCHS, end_value=0.001
)
tx = optax.apply_if_finite(optax.fromage(schedule), max_consecutive_errors=3)
state = tx.init(params)


@jax.jit
def step(params, state, images, labels):
    value, grads = jax.value_and_grad(loss)(params, images, labels)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


for epoch in range(EPOCHS):
    for images, labels in zip(*batches(train, 32, seed=epoch)):
        params, state, value = step(params, state, images, labels)
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1}: loss {value:.4f}, accuracy {accuracy(params, *test):.3f}")

finish(params, test, at_least=0.95)
