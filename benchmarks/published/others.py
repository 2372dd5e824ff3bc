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
        "numpyro-cvae",
        "SVI of a VAE: adam and `multi_transform`",
        "numpyro",
        "examples/cvae-flax/main.py",
        {
            "examples/cvae-flax/main.py": {
                'assert numpyro.__version__.startswith("0.21.0")': "pass",
            },
            "examples/cvae-flax/data.py": {
                "from numpyro.examples.datasets import _load": "from digits import mnist as _load",
            },
            "examples/cvae-flax/train_baseline.py": {
                "params = model.init(random.key(0), x)": (
                    f"params = {CAST}(model.init(random.key(0), x))"
                ),
            },
            "examples/cvae-flax/train_cvae.py": {
                '"baseline$params"] = baseline_params.unfreeze()': (
                    '"baseline$params"] = baseline_params'
                ),
                'p1 = baseline_params.unfreeze()["params"]': 'p1 = baseline_params["params"]',
                "    svi_params = state.optim_state[1][0]\n": (
                    f"    initial = {CAST}(svi.get_params(state))\n"
                    "    state = state._replace(optim_state=svi.optim.init(initial))\n"
                    "    svi_params = state.optim_state[1][0]\n"
                ),
            },
        },
        "random.key(23)",
        rf"validation loss: {NUMBER}",
        2,
        ("--num-epochs=4",),
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
