"""Programs that model text."""

from __future__ import annotations

from published.program import CAST, COMPUTE, NUMBER, Program

TEXT = (
    Program(
        "haiku-transformer",
        "transformer: clip and adam",
        "dm-haiku",
        "examples/transformer/train.py",
        {
            # It shuffles the data, by a seed of its own in each run.
            "examples/transformer/dataset.py": {
                "import random\n": "import random\n\nrandom = random.Random(0)\n",
            },
            "examples/transformer/train.py": {
                "loss_fn.init(init_rng, data)": f"{CAST}(loss_fn.init(init_rng, data))",
                "value_and_grad(loss_fn.apply)": (
                    f"value_and_grad(lambda params, *more: loss_fn.apply({COMPUTE}(params), *more))"
                ),
                "MAX_STEPS = 10**6": "MAX_STEPS = 1000",
                "LOG_EVERY = 50": "LOG_EVERY = 5",
            },
        },
        "SEED = 0",
        rf"'loss': {NUMBER}",
        40,
        ("--dataset_path=text", "--alsologtostderr"),
        computes=True,
    ),
    Program(
        "haiku-rnn",
        "LSTM: adam",
        "dm-haiku",
        "examples/rnn/train.py",
        {
            "examples/rnn/train.py": {
                "from examples.rnn import dataset": "import characters as dataset",
                "= params_init(next(rng), next(train_data))": (
                    f"= {CAST}(params_init(next(rng), next(train_data)))"
                ),
            },
        },
        "--seed=42",
        rf"'loss': {NUMBER}, 'split': 'test'",
        40,
        (
            "--seed=42",
            "--training_steps=800",
            "--hidden_size=64",
            "--sequence_length=32",
            "--evaluation_interval=5",
            "--eval_batch_size=32",
            "--sampling_interval=100000",
        ),
    ),
    Program(
        "nanodo",
        "GPT: clip, warm-up and cosine, adamw, `MultiSteps`",
        "nanodo",
        "nanodo/main.py",
        {
            "nanodo/train.py": {
                'params=params["params"],': f'params={CAST}(params["params"]),',
            },
            "nanodo/evaluate.py": {
                "mask=weights_BxL": "mask=weights_BxL > 0",  # Newer versions of jax want bools.
            },
            "nanodo/configs/default.py": {
                "clip_by_global_norm=None": "clip_by_global_norm=1.0",
                'dtype="bfloat16"': 'dtype=__import__("param_dtype").COMPUTE',
            },
        },
        "--config.seed=42",
        rf"step \d+ train_loss {NUMBER}",
        200,
        (
            "--config=nanodo/configs/default.py",
            "--config.seed=42",
            "--config.workdir=work",
            "--config.checkpoint=False",
            "--config.pygrain_worker_count=0",
            "--config.eval_every_steps=100000",
            "--config.eval_steps=1",
            "--config.batch_size=8",
            "--config.model.D=64",
            "--config.model.H=4",
            "--config.model.N=2",
            "--config.model.F=256",
            "--config.model.L=32",
            "--config.eval_max_target_length=32",
            "--config.opt.num_train_steps=600",
            "--config.opt.warmup_steps=100",
        ),
        computes=True,
    ),
)
