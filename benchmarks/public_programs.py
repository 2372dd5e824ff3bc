"""Train public programs: the record of docs/public-programs.md.

- ``python benchmarks/public_programs.py --list`` prints the programs, and commands that clone them.
- ``python benchmarks/public_programs.py [NAME...] --clones FOLDER [--record FILE]`` trains these
  programs, or all, and prints each loss. A record keeps its other programs if they
  are of the same code and versions. Where only our code changed, it keeps the losses without the
  import. Delete a program in it to train that in all ways: on another computer, or if its row
  changed.

The programs run in copies, with the changes that ``published/`` lists, on the data of
``stand_ins/``. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent / "stand_ins"))
sys.path.append(str(Path(__file__).parents[1] / "tests"))

import characters
from published import CLONES, LIBRARIES, PROGRAMS, WAYS, Program, code_of

from support.recorded import this_code, write

STAND_INS = Path(__file__).parent / "stand_ins"
AS_WRITTEN = "--xla_allow_excess_precision=false"
"""Round where a program computes in bfloat16. Else XLA computes in float32 on a CPU."""

COUNTED = 6
"""Digits of a loss in the record."""


def main() -> None:
    """List the programs, or train them."""
    asked = parsed()
    if asked.list:
        print("\n".join(listed()))
        return
    record = started(asked.record)
    with tempfile.TemporaryDirectory() as compiled:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled)  # For the other seeds.
        train_all(record, asked)


def train_all(record: dict[str, Any], asked: argparse.Namespace) -> None:
    """Train, and write the record after each program."""
    for name in asked.names or PROGRAMS:
        known = without_import(record["programs"].get(name, {}))
        record["programs"][name] = trained(PROGRAMS[name], asked.clones, known)
        if asked.record:
            order = [name for name in PROGRAMS if name in record["programs"]]
            record["programs"] = {name: record["programs"][name] for name in order}
            write(record, asked.record)


def parsed() -> argparse.Namespace:
    """Return what the command asks for."""
    parser = argparse.ArgumentParser(description="Train public programs.")
    parser.add_argument("names", nargs="*", choices=[[], *PROGRAMS], metavar="NAME")
    parser.add_argument("--clones", type=Path, help="the folder in which the clones are")
    parser.add_argument("--record", type=Path, help="a JSON file to write, or to add to")
    parser.add_argument("--list", action="store_true", help="print programs and how to clone them")
    asked = parser.parse_args()
    if not asked.list and not asked.clones:
        parser.error("name the folder of the clones with --clones; --list says how to make it")
    return asked


def listed() -> list[str]:
    """Return a line for each program and for each command."""
    lines = [f"# {name}: {of.clone}/{of.file}" for name, of in PROGRAMS.items()]
    for folder, (repository, revision) in CLONES.items():
        lines += [
            f"git clone https://github.com/{repository} {folder}",
            f"git -C {folder} checkout {revision}",
        ]
    return lines


def started(file: Path | None) -> dict[str, Any]:
    """Return the record so far: of other code, the losses without the import; no other versions."""
    versions = {
        "optax": importlib.metadata.version("optax"),
        "jax": importlib.metadata.version("jax"),
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }
    code = this_code()
    before = json.loads(file.read_text("utf-8")) if file and file.exists() else {}
    programs = before["programs"] if versions.items() <= before.items() else {}
    if before.get("recorded_on", {}).get("code") != code["code"]:
        programs = {name: without_import(runs) for name, runs in programs.items()}
    return {**versions, "recorded_on": code, "programs": programs}


def without_import(runs: dict[str, Any]) -> dict[str, Any]:
    """Return the losses of a program that do not depend on our code."""
    return {way: losses for way, losses in runs.items() if WAYS[way][2] == "off"}


def trained(program: Program, clones: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Return the loss of each run by way, and print each that was not known as it is done."""
    losses: dict[str, Any] = {way: known.get(way, [])[: program.seeds] for way in program.ways}
    for index in range(program.seeds):
        for way in program.ways:
            if index < len(losses[way]):
                continue
            before = time.monotonic()
            losses[way].append(loss_of(program, clones / program.clone, way, index))
            took = f"{time.monotonic() - before:.0f} s"
            print(program.name, f"seed {index}", way, losses[way][-1], took, flush=True)
    return losses


def loss_of(program: Program, clone: Path, way: str, index: int) -> float | None:
    """Run a program once, and return the mean of its last losses; None if that is not finite."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        file = copied(program, clone, copy, index)
        dtype, compute, patched = WAYS[way]
        settings = {
            "PYTHONPATH": os.pathsep.join(map(str, (copy, STAND_INS))),
            "PARAM_DTYPE": dtype,
            "COMPUTE_DTYPE": compute,
            "OPTAX_DTYPEFIX": patched,
            "JAX_PLATFORMS": "cpu",
            "MPLBACKEND": "agg",
            "XLA_FLAGS": AS_WRITTEN if program.computes else "",
        }
        arguments = [program.reseeded(argument, index) for argument in program.arguments]
        done = subprocess.run(
            (sys.executable, "-m", "optax_dtypefix", "run", file, *arguments),
            cwd=copy,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    losses = [float(loss) for loss in re.findall(program.loss, done.stdout)]
    if done.returncode or len(losses) < program.last:
        sys.exit(
            f"{program.name} failed ({way}, seed {index}) with {len(losses)} losses:\n"
            f"{done.stdout[-5000:]}"
        )
    loss = statistics.mean(losses[-program.last :])
    return float(f"{loss:.{COUNTED}g}") if math.isfinite(loss) else None


def copied(program: Program, clone: Path, copy: Path, index: int) -> str:
    """Copy a program with its changes and the seed of a run, and return the file that runs."""
    top = Path(program.file).parts[0]
    shutil.copytree(clone / top, copy / top)
    originals = {name: code_of(name, (copy / name).read_text("utf-8")) for name in program.changes}
    for name, text in program.copies(originals, index):
        (copy / name).with_suffix(".py").write_text(text, "utf-8")
    every = [text for split in ("train", "test") for text in characters.texts(split)]
    (copy / "text").write_text("".join(every), "utf-8")
    return str(Path(program.file).with_suffix(".py"))


if __name__ == "__main__":
    main()
