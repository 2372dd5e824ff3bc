"""Compile train steps for an accelerator that is not there; print a line of JSON for each.

Run as ``accelerators_worker.py MACHINE``, with ``OPTAX_DTYPEFIX=off`` for stock, and with the
variables of ``accelerators.py``. The state and the params are donated. Nothing is computed.
"""

from __future__ import annotations

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import json
import math
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from memory import cases
from programs import collectives_in, cost_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

H100 = """
platform_name: "CUDA" device_description_str: "NVIDIA H100 80GB HBM3"
runtime_version { major: 12 minor: 8 patch: 0 } dnn_version_info { major: 9 minor: 7 }
gpu_device_info {
  cuda_compute_capability { major: 9 } core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 registers_per_block_limit: 65536 registers_per_core_limit: 65536
  l2_cache_size: 52428800 memory_bandwidth: 3352320000000 device_memory_size: 84929347584
}
"""
"""How XLA describes one."""

SQUARES = [(8192, 8192)] * 8
WIDTH, LAYERS = 2048, 24
TRANSFORMER = [
    *((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)),
    *((WIDTH,), (WIDTH,)),
] * LAYERS

EVERY = (
    *("sgd", "adamw", "lion", "rmsprop", "adafactor", "prodigy", "dadapt_adamw"),
    *("schedule_free_adamw", "clip_by_global_norm, adamw", "MultiSteps(adamw)"),
    "apply_if_finite(adamw)",
)


class Setting(NamedTuple):
    """Arrays, and how they are placed."""

    devices: int
    shapes: Sequence[tuple[int, ...]]
    names: Sequence[str]
    """Of the optimizers."""
    axis: int = 0
    """The axis of a matrix that is sharded."""
    dtype: str = "bfloat16"


SETTINGS = {
    "1 device": Setting(1, SQUARES, EVERY),
    "1 device, float16": Setting(1, SQUARES, ["adamw"], dtype="float16"),
    "4 devices, rows": Setting(4, SQUARES, EVERY),
    "4 devices, columns": Setting(4, SQUARES, ["sgd", "adamw"], axis=1),
    f"4 devices, {LAYERS} layers": Setting(4, TRANSFORMER, ["adamw"]),
}


def devices_of(machine: str) -> Sequence[Any]:
    """Return the devices of a machine: what XLA's compilers know of them."""
    if machine == "H100":
        named = {"target_config": H100, "topology": "1x1x4"}
        return topologies.get_topology_desc("h100", "cuda", **named).devices
    return topologies.get_topology_desc("v5e:2x2x1", "tpu").devices


def place(setting: Setting, devices: Sequence[Any]) -> Callable[[Any], Any]:
    """Return a function that places an array, or what has its shape and dtype."""
    mesh = Mesh(np.array(devices[: setting.devices]), ("x",))
    axes = [None] * setting.axis + ["x"]

    def placed(leaf: Any) -> Any:
        sharding: Any = SingleDeviceSharding(devices[0])
        if setting.devices > 1:
            sharding = NamedSharding(mesh, PartitionSpec(*axes if leaf.ndim > 1 else ()))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return placed


def step_of(tx: Any) -> Any:
    """Return a step that donates the params and the state."""

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(0, 1))


def compile_step(machine: str, setting: Setting, placed: Callable[[Any], Any], tx: Any) -> Any:
    """Return figures of one step: bytes are for each param of a device, seconds of a CPU."""
    shapes = (jax.ShapeDtypeStruct(shape, jnp.dtype(setting.dtype)) for shape in setting.shapes)
    params = [placed(shape) for shape in shapes]
    state = jax.tree_util.tree_map(placed, jax.eval_shape(tx.init, params))
    start = time.process_time()
    lowered = step_of(tx).lower(params, state, params)
    traced = time.process_time()
    compiled = lowered.compile()
    ended = time.process_time()
    text, each = compiled.as_text(), sum(map(math.prod, setting.shapes)) / setting.devices
    cost = cost_of(text, numbers_are_free=machine.startswith("TPU"))
    return {
        "moved": round(cost.moved / each, 2),
        "temporaries": round(compiled.memory_analysis().temp_size_in_bytes / each, 2),
        "kernels": cost.kernels,
        "collectives": collectives_in(text),
        "trace_s": round(traced - start, 2),
        "compile_s": round(ended - traced, 2),
    }


def steps(machine: str) -> Iterator[dict[str, Any]]:
    """Yield the figures of each step, or the error."""
    devices, builders = devices_of(machine), cases()
    for about, setting in SETTINGS.items():
        placed = place(setting, devices)
        for name in setting.names:
            title = {"step": f"{machine}: {about}: {name}"}
            try:
                yield {**title, **compile_step(machine, setting, placed, builders[name]())}
            except Exception as error:  # Of XLA, which has many kinds.
                first = f"{type(error).__name__}: {error}".partition("\n")[0]
                yield {**title, "raises": first[:200]}


def main(machine: str) -> None:
    """Compile all steps."""
    jax.devices()  # As in a program that has begun to run.
    for found in steps(machine):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
