"""Ray's workers are processes of their own: docs/cluster.md says when they are patched."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support import processes
from support.processes import write_script

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("ray", reason="ray has no wheel for this Python")

SCRIPT = """
import sys
import optax_dtypefix
import jax.numpy as jnp, optax, ray

@ray.remote
def is_patched(tx):
    params = jnp.ones(3, jnp.bfloat16)
    updates, _ = tx.update(params, tx.init(params), params)
    return "optax_dtypefix" in sys.modules, bool(jnp.isfinite(updates).all())

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", runtime_env={environment})
tx = optax.inject_hyperparams(optax.adam)(0.1)
print(ray.get([is_patched.remote(tx) for _ in range(2)]))
"""
HOOK = {"worker_process_setup_hook": "optax_dtypefix.apply"}


@pytest.mark.skipif(sys.platform == "win32", reason="Ray is in beta there")
@pytest.mark.parametrize(("environment", "patched"), [({}, False), (HOOK, True)])
def test_a_worker_is_patched_if_it_imports(
    tmp_path: Path, environment: dict[str, str], patched: bool
) -> None:
    script = write_script(tmp_path, SCRIPT.replace("{environment}", repr(environment)))
    done = processes.run(script, folder=tmp_path)
    assert done.stdout.splitlines()[-1:] == [str([(patched, patched)] * 2)], done.stderr
