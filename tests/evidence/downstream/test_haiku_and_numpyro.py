"""dm-haiku's params and numpyro's variational inference."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, autoguide


def test_haiku_params_in_bfloat16() -> None:

    def forward(x: Any) -> Any:
        return hk.Linear(1)(x)  # haiku builds modules only inside a transformed function.

    net = hk.without_apply_rng(hk.transform(forward))
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(16, 3)), jnp.bfloat16)
    params = net.init(jax.random.PRNGKey(0), inputs)
    tx = optax.MultiSteps(optax.adafactor(0.05), 2)
    state = tx.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        def loss(params: Any) -> Any:
            error = net.apply(params, inputs)[:, 0] - inputs.sum(1)
            return jnp.mean(error.astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for _ in range(200):
        params, state, value = step(params, state)
        losses.append(float(value))
    assert losses[-1] < 0.2 * losses[0]
    assert {leaf.dtype for leaf in jax.tree_util.tree_leaves(params)} == {jnp.dtype(jnp.bfloat16)}


def test_numpyro_infers_a_mean() -> None:
    data = jnp.asarray(np.random.default_rng(0).normal(3.0, 1.0, size=200), jnp.float32)

    def model() -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        numpyro.sample("data", dist.Normal(mean, 1.0), obs=data)

    guide = autoguide.AutoNormal(model)
    rate = optax.linear_schedule(1.0, 0.0, 2000)  # A fixed rate leaves noise in the loss.
    tx = optax.chain(optax.zero_nans(), optax.contrib.prodigy(rate), optax.clip_by_global_norm(1.0))
    svi = SVI(model, guide, tx, Trace_ELBO())
    result = svi.run(jax.random.PRNGKey(0), 2000, progress_bar=False)
    assert abs(float(guide.median(result.params)["mean"]) - float(data.mean())) < 0.2
