"""Compile train steps for a TPU v5e and an H100 that are not there, and count what they cost.

XLA's compilers for both are packages. They need neither a driver nor a device. A program that they
give was compiled, and never run: bytes, kernels and messages are known, but not the time of a step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).with_name("accelerators_worker.py")
VARIABLES = {
    "JAX_PLATFORMS": "cpu",  # Of the process. The programs are for others.
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",  # As many as a program would see.
    "TPU_SKIP_MDS_QUERY": "1",  # There is no server that knows of a TPU.
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
SIDES = {"stock": "off", "patched": "on"}


class Compiler(NamedTuple):
    """What compiles for a machine.

    Attributes:
      packages: that must be installed.
      install: the arguments of ``pip install``, one line for each time that it must run.
    """

    packages: tuple[str, ...]
    install: tuple[str, ...]


COMPILERS = {
    "TPU v5e": Compiler(("libtpu",), (f'"jax[tpu]=={jax.__version__}"',)),
    "H100": Compiler(
        ("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"),
        (
            f"--no-deps jax-cuda12-plugin=={jax.__version__} jax-cuda12-pjrt=={jax.__version__}",
            "nvidia-cuda-nvcc-cu12",
        ),
    ),
}
"""By the machine."""


def installed(machine: str) -> str:
    """Return the packages that compile for a machine, and their versions; empty if one is missing.

    The reason is printed.
    """
    packages, install = COMPILERS[machine]
    try:
        return ", ".join(f"{package} {version(package)}" for package in packages)
    except PackageNotFoundError as error:
        commands = " && ".join(f"pip install {arguments}" for arguments in install)
        print(
            f"{machine} is left out, because the package {error.name} is not installed.\n"
            f"To compile for it, run: {commands}",
            file=sys.stderr,
        )
        return ""


def measure() -> dict[str, Any]:
    """Compile for each machine that has a compiler here.

    Returns:
      ``compilers``, and ``steps``: for each, its figures, stock and patched, None where it does not
      compile.
    """
    compilers = {machine: installed(machine) for machine in COMPILERS}
    found = {machine: packages for machine, packages in compilers.items() if packages}
    if not found:
        sys.exit("No compiler was found. Install one as above, or run: nox -s accelerators")
    steps = {name: figures for machine in found for name, figures in steps_of(machine)}
    return {"compilers": found, "steps": steps}


def steps_of(machine: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each step of a machine by name, with its figures."""
    processes = {
        side: subprocess.Popen(
            [sys.executable, str(WORKER), machine],
            env={**os.environ, **VARIABLES, "OPTAX_DTYPEFIX": switch},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for side, switch in SIDES.items()
    }
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for side, process in processes.items():
        output, _ = process.communicate()
        if process.returncode:
            command = f"OPTAX_DTYPEFIX={SIDES[side]} python {WORKER.name} '{machine}'"
            sys.exit(f"The {side} process failed. Its error: {command}")
        for line in output.splitlines():
            row = json.loads(line)
            rows.setdefault(row.pop("step"), {})[side] = row
    for step, sides in rows.items():
        names = dict.fromkeys(name for row in sides.values() for name in row)
        yield step, {name: [sides[side].get(name) for side in SIDES] for name in names}
