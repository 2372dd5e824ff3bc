"""Train programs of dm-haiku and flax: the table of docs/public-programs.md.

Run as ``python benchmarks/public_programs.py DM_HAIKU FLAX``, with the folders of clones. Prints
the table in Markdown. The programs run in copies, with the changes below, on text of Python's own
documentation and on scikit-learn's digits. All nine runs take about ten minutes on two cores.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

STAND_INS = Path(__file__).with_name("stand_ins")

WAYS = {
    "float32": ("float32", "off"),
    "stock": ("bfloat16", "off"),
    "with the import": ("bfloat16", "on"),
}
"""The dtype of the params, and whether optax is patched."""

CAST = '__import__("param_dtype").cast'


class Program(NamedTuple):
    """A public program.

    Attributes:
      name: for the table.
      file: in its clone.
      changes: texts of the program, and what stands there in the copy.
      loss: matches each loss that the program prints.
      last: how many of them count.
      arguments: of its command line.
    """

    name: str
    file: str
    changes: dict[str, str]
    loss: str
    last: int
    arguments: tuple[str, ...] = ()


PROGRAMS = (
    Program(
        "dm-haiku, transformer: clip and adam",
        "examples/transformer/train.py",
        {
            "loss_fn.init(init_rng, data)": f"{CAST}(loss_fn.init(init_rng, data))",
            "MAX_STEPS = 10**6": "MAX_STEPS = 1000",
            "LOG_EVERY = 50": "LOG_EVERY = 5",
        },
        r"'loss': ([\d.]+)",
        40,
        ("--dataset_path=text", "--alsologtostderr"),
    ),
    Program(
        "dm-haiku, VAE: adam",
        "examples/vae.py",
        {
            "initial_params = model.init(initial_rng_key, next(train_dataset).image)": (
                "initial_params = model.init(initial_rng_key, next(train_dataset).image)\n"
                f"  initial_params = {CAST}(initial_params)"
            ),
            "eval_every: int = 100": "eval_every: int = 5",
        },
        r"'train', 'elbo': -([\d.]+)",
        100,
    ),
    Program(
        "flax nnx, VAE: adam",
        "examples/nnx_toy_examples/05_vae.py",
        {
            "import matplotlib.pyplot as plt": "",
            "optimizer = nnx.Optimizer(": (
                f"nnx.update(model, {CAST}(nnx.state(model, nnx.Param)))\n"
                "optimizer = nnx.Optimizer("
            ),
            "# exit()": "raise SystemExit",
        },
        r"Epoch \d+ loss: ([\d.]+)",
        1,
    ),
)


def train(program: Program, clone: Path, dtype: str, patched: str) -> float:
    """Return the mean of the last losses of a program."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        shutil.copytree(clone / "examples", copy / "examples")
        text = (copy / program.file).read_text("utf-8")
        for before, after in program.changes.items():
            if text.count(before) != 1:
                raise SystemExit(
                    f"{program.file} has not one {before!r}: see the page for the commit"
                )
            text = text.replace(before, after)
        (copy / program.file).write_text(text, "utf-8")
        (copy / "text").write_bytes("".join(topics.values()).encode("ascii", "replace"))
        command = (sys.executable, "-m", "optax_dtypefix", "run", program.file, *program.arguments)
        path = os.pathsep.join(map(str, (copy, STAND_INS)))
        settings = {"PYTHONPATH": path, "PARAM_DTYPE": dtype, "OPTAX_DTYPEFIX": patched}
        done = subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    losses = re.findall(program.loss, done.stdout)
    if done.returncode or len(losses) < program.last:
        raise SystemExit(f"{program.file} failed:\n{done.stdout[-5000:]}")
    return statistics.mean(map(float, losses[-program.last :]))


def main(dm_haiku: str, flax: str) -> None:
    """Train each program in each way, and print a row as it is done."""
    print("|", " | ".join(("program", *WAYS)), "|")
    print("|---" * (1 + len(WAYS)) + "|", flush=True)
    for program in PROGRAMS:
        clone = Path(dm_haiku if program.name.startswith("dm-haiku") else flax)
        losses = [train(program, clone, *way) for way in WAYS.values()]
        print("|", " | ".join((program.name, *(f"{loss:.4g}" for loss in losses))), "|", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
