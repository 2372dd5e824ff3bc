"""Between processes, functions are pickled by name, transformations by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import processes
from support.processes import stdout_of, write_script

WORKER = """
    import sys

    def look(function):
        return "optax_dtypefix" in sys.modules, type(function).__name__ != "function"
"""


def run(folder: Path, script: str) -> str:
    write_script(folder, WORKER, "worker.py")
    path = write_script(folder, script)
    return stdout_of(processes.run("-W", "ignore", path, folder=folder, timeout=120))


POOL = """
    {everywhere}
    import multiprocessing

    if __name__ == "__main__":
        {main}
        import optax
        from worker import look

        for method in {methods}:
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(method, pool.apply(look, [optax.fromage]))
"""
IMPORT = "import optax_dtypefix"


def test_a_worker_with_the_shim_gets_patched_functions(tmp_path: Path) -> None:
    script = POOL.format(everywhere=IMPORT, main="pass", methods=["fork", "spawn"])
    assert run(tmp_path, script) == "fork (True, True)\nspawn (True, True)\n"


@pytest.mark.thorough
def test_a_spawned_worker_without_the_shim_gets_stock_functions(tmp_path: Path) -> None:
    script = POOL.format(everywhere="", main=IMPORT, methods=["spawn"])
    assert run(tmp_path, script) == "spawn (False, False)\n"


@pytest.mark.thorough
def test_a_pickled_transformation_stays_patched(tmp_path: Path) -> None:
    """cloudpickle pickles closures by value, and loading them imports the shim."""
    script = """
        import optax_dtypefix
        import cloudpickle, optax, subprocess, sys, textwrap

        tx = optax.MultiSteps(optax.chain(optax.zero_nans(), optax.adafactor(0.1)), 2)
        with open("tx.pickle", "wb") as file:
            cloudpickle.dump(tx, file)
        other = '''
        import pickle, sys
        import jax, jax.numpy as jnp
        with open("tx.pickle", "rb") as file:
            tx = pickle.load(file)
        import optax_dtypefix
        params = {"w": jnp.ones((2, 3), jnp.bfloat16)}
        optax_dtypefix.check(tx, params).raise_if_broken()
        print("keeps the contract")
        '''
        subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(other)], check=True)
    """
    assert run(tmp_path, script) == "keeps the contract\n"
