"""``jaxopt.OptaxSolver`` rounds as ``optax.apply_updates`` does, where jaxopt is imported."""

from __future__ import annotations

import importlib.util
import json
import textwrap
from typing import TYPE_CHECKING

import pytest

from support import processes
from support.processes import STOCK
from support.scripts import run
from support.thorough import one_of

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.tmpdir import TempPathFactory

PATH = "jaxopt._src.optax_wrapper:OptaxSolver._apply_updates"


@pytest.fixture(scope="module", autouse=True)
def _it_is_there(tmp_path_factory: TempPathFactory) -> None:
    """Skip where jaxopt cannot be imported: its last release is older than the newest jax."""
    if importlib.util.find_spec("jaxopt") is None:
        pytest.skip("jaxopt is not installed")
    folder = tmp_path_factory.mktemp("jaxopt")
    done = processes.run("-c", "import jaxopt", folder=folder)
    if done.returncode:
        pytest.skip(f"jaxopt does not run with this jax: {done.stderr.splitlines()[-1]}")


SOLVE = """
    import json
    import jax, jax.numpy as jnp, numpy as np

    INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(64, 8)), jnp.float32)
    TARGETS = INPUTS @ jnp.linspace(0.5, 1.5, 8)

    def loss(params, inputs, targets):
        return jnp.mean((inputs @ params.astype(jnp.float32) - targets) ** 2)

    def solved(dtype, steps=1500, jit=jax.jit):
        solver = jaxopt.OptaxSolver(loss, optax.adam(3e-4))
        params = jnp.full(8, 1.25, dtype)
        state = solver.init_state(params, INPUTS, TARGETS)
        update = jit(solver.update)
        for _ in range(steps):
            params, state = update(params, state, INPUTS, TARGETS)
        assert params.dtype == dtype
        return params

    def loss_of(params):
        return float(loss(params, INPUTS, TARGETS))
    """

ORDERS = {
    "shim first": """
        import optax_dtypefix as shim
        import optax
        assert "jaxopt" not in sys.modules
        import jaxopt
        """,
    "jaxopt first": """
        import jaxopt
        import optax_dtypefix as shim
        import optax
        """,
    "shim last": """
        import jaxopt, optax
        import optax_dtypefix as shim
        """,
}


def outcome(folder: Path, order: str, script: str, **variables: str) -> str:
    """Run a script in strict mode, and return what it prints."""
    text = "".join(map(textwrap.dedent, (ORDERS[order], SOLVE, script)))
    return run(folder, text, OPTAX_DTYPEFIX_STRICT="1", **variables)


def test_half_precision_params_end_near_those_of_float32(tmp_path: Path) -> None:
    script = """
        wide, narrow = solved(jnp.float32), solved(jnp.bfloat16)
        print(json.dumps([loss_of(wide), loss_of(narrow), bool((narrow == 1.25).all())]))
        """
    stock, patched = (
        json.loads(outcome(tmp_path, "shim first", script, **way)) for way in (STOCK, {})
    )
    assert stock[0] == patched[0], "the program of float32 is stock's"
    assert stock[2], "stock moves nothing"
    assert stock[1] > 2 * stock[0]
    assert patched[1] < 1.1 * patched[0]


@pytest.mark.parametrize("order", one_of(4, ORDERS))
def test_it_is_patched_in_any_order_of_imports(order: str, tmp_path: Path) -> None:
    script = f"""
        row = shim.status()["stochastic_rounding"]
        assert row.state == "applied" and "{PATH}" in row.targets, row
        add = lambda: jaxopt.OptaxSolver._apply_updates
        patched = loss_of(solved(jnp.bfloat16, 300))
        shim.revert()
        assert stock(add())
        still = solved(jnp.bfloat16, 300)
        assert (still == 1.25).all() and patched < loss_of(still)
        shim.apply()
        assert not stock(add())
        print(loss_of(solved(jnp.bfloat16, 300)) == patched, shim.status().notes)
        """
    assert outcome(tmp_path, order, script) == "True []\n"


def test_other_leaves_are_stock_s(tmp_path: Path) -> None:
    script = """
        solver = jaxopt.OptaxSolver(loss, optax.sgd(0.1))
        params = {"wide": jnp.ones(3), "whole": jnp.arange(3), "number": 2.0, "none": None,
                  "numpy": np.ones(3, np.float16), "exact": jnp.ones(3, jnp.bfloat16)}
        updates = {**params, "whole": jnp.full(3, 0.75), "exact": jnp.zeros(3, jnp.float32)}
        found = solver._apply_updates(params, updates)
        leaves = jax.tree_util.tree_leaves(found)
        print(jax.tree_util.tree_structure(found),
              [(type(x).__name__, str(x.dtype), x.tolist()) for x in leaves])
        for wrong in ({"a": 1.0}, [jnp.ones(2), jnp.ones(2)], None):
            try:
                print(solver._apply_updates([jnp.ones(3, jnp.bfloat16)], wrong))
            except Exception as error:
                print(type(error).__name__, str(error)[:60])
        """
    stock, patched = (outcome(tmp_path, "shim first", script, **way) for way in (STOCK, {}))
    assert stock.splitlines() == patched.splitlines()
    assert "bfloat16" in stock
