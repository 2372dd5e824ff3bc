"""Programs that model images."""

from __future__ import annotations

from published.program import CAST, COMPUTE, NUMBER, Program

IMAGES = (
    Program(
        "haiku-vae",
        "VAE: adam",
        "dm-haiku",
        "examples/vae.py",
        {
            "examples/vae.py": {
                "initial_params = model.init(initial_rng_key, next(train_dataset).image)": (
                    f"initial_params = {CAST}(\n"
                    "      model.init(initial_rng_key, next(train_dataset).image))"
                ),
                "eval_every: int = 100": "eval_every: int = 5",
                "training_steps: int = 5000": "training_steps: int = 1500",
            },
        },
        "seed: int = 0",
        rf"'train', 'elbo': -{NUMBER}",
        100,
    ),
    Program(
        "flax-vae",
        "VAE of nnx: adam",
        "flax",
        "examples/nnx_toy_examples/05_vae.py",
        {
            "examples/nnx_toy_examples/05_vae.py": {
                "optimizer = nnx.Optimizer(": (
                    f"nnx.update(model, {CAST}(nnx.state(model, nnx.Param)))\n"
                    "optimizer = nnx.Optimizer("
                ),
                "epochs: int = 20": "epochs: int = 6",
                "# exit()": "raise SystemExit",
            },
        },
        "nnx.Rngs(0",
        rf"Epoch \d+ loss: {NUMBER}",
        1,
    ),
    Program(
        "haiku-gan",
        "GAN: adam twice",
        "dm-haiku",
        "examples/mnist_gan.ipynb",
        {
            "examples/mnist_gan.ipynb": {
                "import seaborn as sns\nimport tensorflow as tf\n": "",
                'mnist = tfds.load("mnist")…iter(tfds.as_numpy(ds))': (
                    'make_dataset = __import__("digits").batches'
                ),
                "    params = GANTuple(gen=self.gen_transform.init": (
                    f"    params = {CAST}(GANTuple(gen=self.gen_transform.init"
                ),
                "disc=self.disc_transform.init(rng_disc, batch))": (
                    "disc=self.disc_transform.init(rng_disc, batch)))"
                ),
                "gen_transform.apply(gen_params, latents)": (
                    f"gen_transform.apply(*{COMPUTE}((gen_params, latents)))"
                ),
                "disc_transform.apply(disc_params, fake_batch)": (
                    f"disc_transform.apply(*{COMPUTE}((disc_params, fake_batch)))"
                ),
                "disc_transform.apply(disc_params,\n…real_and_fake_batch)": (
                    f"disc_transform.apply(*{COMPUTE}((disc_params, real_and_fake_batch)))"
                ),
                "batch_size=64": "batch_size=16",
                "num_steps = 20001": "num_steps = 301",
                "num_steps // 100": "1",
                'sns.set_style("whitegrid")': "raise SystemExit",
            },
        },
        "PRNGKey(1729)",
        rf"disc_loss = {NUMBER}",
        150,
        computes=True,
    ),
    Program(
        "distrax-flow",
        "normalizing flow: adam",
        "distrax",
        "examples/flow.py",
        {
            "examples/flow.py": {
                "params = log_prob.init(next(prng_seq), np.zeros((1, *MNIST_IMAGE_SHAPE)))": (
                    f"params = {CAST}(log_prob.init(next(prng_seq), "
                    "np.zeros((1, *MNIST_IMAGE_SHAPE))))"
                ),
            },
        },
        "PRNGSequence(42)",
        rf"Validation loss: {NUMBER}",
        40,
        (
            "--alsologtostderr",
            "--flow_num_layers=2",
            "--hidden_size=64",
            "--batch_size=32",
            "--training_steps=1500",
            "--eval_frequency=5",
        ),
    ),
    Program(
        "equinox-diffusion",
        "score-based diffusion: adabelief",
        "equinox",
        "docs/examples/score_based_diffusion.ipynb",
        {
            "docs/examples/score_based_diffusion.ipynb": {
                "data = mnist()": (
                    'data = jnp.array(255 * __import__("digits").labelled("train")[0])[:, None]'
                ),
                "    int_beta = lambda t: t": (
                    f"    model = {CAST}(model)\n    int_beta = lambda t: t"
                ),
                "mix_patch_size=512,\n": "mix_patch_size=128,\n",
                "mix_hidden_size=512,\n": "mix_hidden_size=128,\n",
                "y = jnp.concatenate([y, t])": f"y = {COMPUTE}(jnp.concatenate([y, t]))",
                "pred = model(t, y)": f"pred = {COMPUTE}(model)(t, y)",
                "    hidden_size=64,\n": "    hidden_size=32,\n",
                "num_blocks=4": "num_blocks=2",
                "num_steps=1_000_000": "num_steps=1500",
                "batch_size=256": "batch_size=32",
                "print_every=10_000": "print_every=500",
                "    sample_key = jr.split(sample_key, sample_size**2)": "    raise SystemExit",
            },
        },
        "seed=5678",
        rf"Loss={NUMBER}",
        1,
        computes=True,
    ),
    Program(
        "equinox-vit",
        "vision transformer: adamw; float32 params, `mu_dtype`",
        "equinox",
        "docs/examples/vision_transformer.ipynb",
        {
            "docs/examples/vision_transformer.ipynb": {
                "import torch\n…transforms as transforms\n": "",
                "transform_train =…testloader =…drop_last=True\n)": (
                    'trainloader = __import__("digits").colored(batch_size)'
                ),
                "data_loader: torch.utils.data.DataLoader": "data_loader",
                "images = images.numpy()\n        labels = labels.numpy()": "",
                "    b2=beta2,\n": (
                    '    b2=beta2,\n    mu_dtype=__import__("param_dtype").PARAM,\n'
                ),
                "lr = 0.0001": "lr = 0.001",
                "batch_size = 64": "batch_size = 16",
                "embedding_dim = 512": "embedding_dim = 64",
                "hidden_dim = 256": "hidden_dim = 128",
                "patch_size = 4": "patch_size = 8",
                "num_patches = 64": "num_patches = 16",
                "num_layers = 6": "num_layers = 3",
                "num_steps = 100000": "num_steps = 1000",
                "print_every: int = 1000": "print_every: int = 1",
                "accuracies = []": "raise SystemExit",
            },
        },
        "PRNGKey(2003)",
        rf"Loss: {NUMBER}\.",
        200,
    ),
)
