"""Programs that model neither text nor images."""

from __future__ import annotations

from published.program import CAST, NUMBER, Program

OTHERS = (
    Program(
        "purejaxrl-ppo",
        "PPO on CartPole, 8 agents: clip, linear schedule, adam",
        "purejaxrl",
        "purejaxrl/ppo.py",
        {
            "purejaxrl/ppo.py": {
                # Else batched QR waits forever in jaxlib on a computer with two cores.
                "import jax.numpy as jnp": (
                    'import os\nos.environ["NPROC"] = "8"\nimport jax.numpy as jnp'
                ),
                "network_params = network.init(_rng, init_x)": (
                    f"network_params = {CAST}(network.init(_rng, init_x))"
                ),
                '"TOTAL_TIMESTEPS": 5e5': '"TOTAL_TIMESTEPS": 1.5e5',
                '"DEBUG": True': '"DEBUG": False',
                "jax.jit(make_train(config))": "jax.jit(jax.vmap(make_train(config)))",
                "out = train_jit(rng)": (
                    "out = train_jit(jax.random.split(rng, 8))\n"
                    '    every = out["metrics"]["returned_episode_returns"]\n'
                    "    for update in every[:, -50:].mean((0, 2, 3)):\n"
                    '        print(f"episodic return={update}")'
                ),
            },
            "purejaxrl/wrappers.py": {
                "from brax import envs\nfrom brax…AutoResetWrapper\nimport navix as nx\n": "",
            },
        },
        "PRNGKey(30)",
        rf"episodic return={NUMBER}",
        50,
        best=-1,
    ),
    Program(
        "numpyro-vae",
        "SVI of a VAE: adam",
        "numpyro",
        "examples/vae.py",
        {
            "examples/vae.py": {
                'assert numpyro.__version__.startswith("0.21.0")': "pass",
                "from numpyro.examples.datasets import": (
                    '__import__("numpy").random.seed(0)\n'  # It shuffles the data.
                    "import numpyro.examples.datasets\n"
                    'numpyro.examples.datasets._load = __import__("digits").mnist\n'
                    "from numpyro.examples.datasets import"
                ),
                "adam = optim.Adam(": 'adam = __import__("optax").adam(',  # SVI takes both.
                "    svi_state = svi.init(rng_key_init, sample_batch)\n": (
                    "    svi_state = svi.init(rng_key_init, sample_batch)\n"
                    f"    initial = {CAST}(svi.get_params(svi_state))\n"
                    "    svi_state = svi_state._replace(optim_state=svi.optim.init(initial))\n"
                ),
            },
        },
        "rng_key = key(0)",
        rf"Epoch \d+: loss = {NUMBER}",
        2,
        ("--num-epochs=10",),
    ),
    Program(
        "diffrax-ode",
        "neural ODE: adabelief",
        "diffrax",
        "docs/examples/neural_ode.ipynb",
        {
            "docs/examples/neural_ode.ipynb": {
                "    optim = optax.adabelief(lr)": (
                    f"    model = {CAST}(model)\n    optim = optax.adabelief(lr)"
                ),
                "print_every=100,": "print_every=1,",
                "plot=True": "plot=False",
            },
        },
        "seed=5678",
        rf"Loss: {NUMBER}",
        100,
    ),
    Program(
        "flax-lora",
        "low-rank adaptation: adam",
        "flax",
        "docs_nnx/guides/optimization_cookbook.ipynb",
        {
            "docs_nnx/guides/optimization_cookbook.ipynb": {
                "jax.config.update('jax_num_cpu_devices', 8)": "",
                'model = make_model(rngs)\n…final eval loss: {loss}")': "",
                "nnx.display(model)": "",
                "optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.LoRAParam)": (
                    f"nnx.update(model, {CAST}(nnx.state(model, nnx.Param)))\n"
                    "optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.LoRAParam)"
                ),
                "for _ in range(50):\n  loss = train_step…typeof(model.layers[0].kernel[...])": (
                    'for _ in range(3000):\n  print("loss", train_step(model, optimizer, x, y))'
                ),
            },
        },
        "nnx.Rngs(0)",
        rf"loss {NUMBER}",
        200,
    ),
)
