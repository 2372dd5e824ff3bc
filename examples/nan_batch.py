"""Train with Adam and gradient accumulation, with one corrupt batch in the stream.

``zero_nans`` should survive the batch. Stock optax 0.1.8 and 0.1.9 raise a TypeError in the first
step. From 0.2.0 on, the NaN stays in the accumulator: every later update is zero, without a
warning.
"""

import optax_dtypefix  # noqa: F401  # One line; the rest of the script does not change.

import jax
import jax.numpy as jnp
import optax
from _digits import accuracy, batches, finish, init, load, loss

EPOCHS = 20

train, test = load(jnp.float32)
params = init(jnp.float32)
tx = optax.MultiSteps(optax.chain(optax.zero_nans(), optax.adam(2e-3)), every_k_schedule=2)
state = tx.init(params)


@jax.jit
def step(params, state, images, labels):
    value, grads = jax.value_and_grad(loss)(params, images, labels)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


for epoch in range(EPOCHS):
    for number, (images, labels) in enumerate(zip(*batches(train, 32, seed=epoch))):
        corrupt = epoch == 0 and number == 5
        given = jnp.full_like(images, jnp.nan) if corrupt else images
        params, state, value = step(params, state, given, labels)
    if epoch % 5 == 0 or epoch == EPOCHS - 1:
        print(f"epoch {epoch + 1}: loss {value:.4f}, accuracy {accuracy(params, *test):.3f}")

finish(params, test, at_least=0.95)
