"""Train a float32 network with prodigy, in a program that needs 64-bit mode for something else.

Stock optax 0.1.8 to 0.2.3 changes state and updates to float64: ``lax.scan`` raises a TypeError.
"""

import optax_dtypefix  # noqa: F401  # One line; the rest of the script does not change.

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from _digits import accuracy, batches, finish, init, load, loss
from tqdm import trange

jax.config.update("jax_enable_x64", True)

EPOCHS = 30

train, test = load(jnp.float32)
params = init(jnp.float32)
tx = optax.contrib.prodigy(learning_rate=1.0)
state = tx.init(params)


def step(carry, batch):
    params, state = carry
    value, grads = jax.value_and_grad(loss)(params, *batch)
    updates, state = tx.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), value


@jax.jit
def epoch_of(carry, images, labels):
    return jax.lax.scan(step, carry, (images, labels))


for epoch in trange(EPOCHS, desc="epochs"):
    (params, state), values = epoch_of((params, state), *batches(train, 32, seed=epoch))
    if epoch % 5 == 4:
        print(
            f"epoch {epoch + 1}: loss {values.mean():.4f}, "
            f"accuracy {accuracy(params, *test):.3f}, estimated rate {state.estim_lr:.2e}"
        )

finish(params, test, at_least=0.95)
