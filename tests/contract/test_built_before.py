"""Transformations of the real optax that were built before the import of the shim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import pytest
from packaging.version import Version

from support.scripts import start

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
    import builtins
    import jax, jax.numpy as jnp, optax

    class Shell:
        def __init__(self, names):
            self.names = names
        def get(self):
            return self

    builtins.get_ipython = Shell(globals()).get  # As IPython has it.
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}

    def train(tx):
        state = tx.init(params)
        step = jax.jit(lambda state: tx.update(params, state, params))
        for _ in range(2):
            _, state = tx.update(params, state, params)
            _, state = step(state)

    for used in (optax.rmsprop(0.1), optax.MultiSteps(optax.lamb(0.1), 2)):
        train(used)  # Neither they nor what JAX traced in them is alive later.
    del used
    adam = optax.adamw(0.1)
    train(adam)
    hyper = optax.inject_hyperparams(optax.sgd)(0.1)
    steps = optax.MultiSteps(adam, 2)

    import optax_dtypefix as shim  # The line of the warning.

    first, second, third = (str(shim.check(tx, params)) for tx in (adam, hyper, steps))
    assert first.splitlines()[0] == (
        "built before the patches were applied, or by a process without them, so still stock: "
        "add_decayed_weights, chain, scale, scale_by_adam"
    )
    assert shim.check(adam, params).ok and "dtypes: ok" in first
    assert "so still stock: inject_hyperparams" in second
    assert "scale_by_adam" in third and "MultiSteps" not in third  # Methods are looked up.
    for build in (optax.adamw, optax.inject_hyperparams(optax.sgd), optax.rmsprop, optax.lamb):
        assert not shim.check(build(0.1), params).built_before
    if hasattr(optax, "lbfgs"):  # Its default line search was built when optax was imported.
        from optax_dtypefix._diagnosis.check import list_built_before
        from optax_dtypefix._api import get_engine
        assert not list_built_before(optax.lbfgs(), get_engine())
    """


@pytest.mark.thorough
def test_check_and_the_import_name_what_stays_stock(tmp_path: Path) -> None:
    done = start(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    # Old releases of optax warn, too.
    lines = done.stderr.splitlines()
    ((number, warning),) = ((i, x) for i, x in enumerate(lines) if "OptaxDtypeFixWarning: " in x)
    line = lines[number + 1]
    assert "Built before the patches were applied, and still stock: " in warning
    found = warning.partition("still stock: ")[2]
    if Version(jax.__version__) < Version("0.4.31"):  # Its caches keep what was traced alive.
        assert "inject_hyperparams" in found
        assert "scale_by_adam" in found
    else:
        names = "add_decayed_weights, chain, inject_hyperparams, scale, scale_by_adam"
        assert found == (f"{names}. Build these optimizers again, or import optax_dtypefix first.")
    assert "# The line of the warning." in line
