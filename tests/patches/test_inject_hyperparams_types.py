"""A dtype can be called, and ``inject_hyperparams`` of stock takes it for a schedule."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix.patches.releases import TESTED
from support.processes import STOCK, run, stdout_of
from support.thorough import one_of

pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning")

inject = optax.inject_hyperparams
TWICE = pytest.mark.parametrize("dtype", one_of(2, [jnp.float32, jnp.bfloat16], 1))


def two_steps(tx: Any, params: Any) -> Any:
    state = tx.init(params)
    for step in (tx.update, jax.jit(tx.update)):
        updates, state = step(params, state, params)
    return updates, state


@pytest.mark.thorough
def test_stock_refuses_a_type() -> None:
    script = """if True:
        import optax, jax.numpy as jnp
        try:
            optax.inject_hyperparams(optax.adamw)(1e-3, mu_dtype=jnp.bfloat16).init(jnp.ones(3))
        except TypeError as error:
            print(error)
    """
    assert "unhashable type" in stdout_of(run("-c", script, **STOCK))


@pytest.mark.thorough
@TWICE
@pytest.mark.parametrize("rate", one_of(2, [1e-3, optax.linear_schedule(1e-3, 0.0, 10)]))
def test_a_type_does_what_its_name_does(rate: Any, dtype: Any) -> None:
    params = jnp.linspace(0.5, 2.0, 8, dtype=dtype)
    by_type, by_name = (
        two_steps(inject(optax.adamw)(rate, mu_dtype=of), params)
        for of in (jnp.bfloat16, "bfloat16")
    )
    jax.tree_util.tree_map(np.testing.assert_array_equal, by_type, by_name)
    moments = by_type[1].inner_state[0].mu
    assert moments.dtype == jnp.bfloat16


@TWICE
def test_a_type_by_place_or_by_the_users_own_function(dtype: Any) -> None:
    def make(rate: Any, kind: Any) -> Any:
        return optax.trace(rate, accumulator_dtype=kind)

    params = jnp.ones(3, dtype)
    for given, by_name in (((0.9, jnp.float32), {}), ((0.9,), {"kind": jnp.float32})):
        _, state = two_steps(inject(make)(*given, **by_name), params)
        assert state.inner_state.trace.dtype == jnp.float32


def test_where_stock_runs_the_state_is_stocks() -> None:
    """Without momentum its dtype is not read: stock keeps it among the hyperparameters."""
    params = jnp.ones(3)
    _, state = two_steps(inject(optax.adafactor)(1e-3, dtype_momentum=jnp.bfloat16), params)
    assert "dtype_momentum" in state.hyperparams


@TWICE
def test_a_default_that_is_a_type(dtype: Any) -> None:
    """Stock calls it too, and raises: adafactor takes no array for a dtype."""
    params = jnp.linspace(0.5, 2.0, 8, dtype=dtype)
    injected = two_steps(inject(optax.adafactor)(1e-3, momentum=0.9), params)
    plain = two_steps(optax.adafactor(1e-3, momentum=0.9), params)
    np.testing.assert_allclose(*(np.asarray(u, float) for u in (injected[0], plain[0])), rtol=0.01)
    assert injected[0].dtype == plain[0].dtype


@pytest.mark.filterwarnings("ignore:Passing an array as a dtype:DeprecationWarning")
@pytest.mark.parametrize("name", ["schedule_free_sgd", "schedule_free_adamw"])
def test_a_type_that_only_init_reads(name: str) -> None:
    make = getattr(getattr(optax, "contrib", None), name, None)
    if make is None:
        assert optax.__version__ != TESTED[-1], f"{name} is misspelt"
        pytest.skip("this release has no schedule_free")
    params = jnp.ones(3, jnp.bfloat16)
    if Version(optax.__version__) < Version("0.2.5"):
        # Nothing reads it: stock runs, with a number in its place.
        assert "state_dtype" in inject(make)(0.1, state_dtype=jnp.float32).init(params).hyperparams
        return
    by_type, by_name = (
        two_steps(inject(make)(0.1, state_dtype=of), params) for of in (jnp.float32, "float32")
    )
    jax.tree_util.tree_map(np.testing.assert_array_equal, by_type, by_name)


def test_to_ask_whether_stock_runs_breaks_no_patch() -> None:
    """An array in place of a dtype is no argument that a patch has to understand."""
    inject(optax.trace)(0.9, accumulator_dtype=jnp.float32)
    inject(optax.adafactor)(1e-3, dtype_momentum=jnp.float32)
    if hasattr(optax, "scale_by_distance_over_gradients"):
        inject(optax.scale_by_distance_over_gradients)(1e-3, param_dtype=jnp.float32)
    assert [status.id for status in optax_dtypefix.status() if status.state == "failed"] == []


@pytest.mark.thorough
def test_pickles_load_without_the_patches(tmp_path: Any) -> None:
    tx = inject(optax.adamw)(1e-3, mu_dtype=jnp.bfloat16)
    (tmp_path / "tx").write_bytes(cloudpickle.dumps(tx))
    again = pickle.loads((tmp_path / "tx").read_bytes())
    assert again.init(jnp.ones(3)).inner_state[0].mu.dtype == jnp.bfloat16
    script = f"""if True:
        import pickle, jax.numpy as jnp
        tx = pickle.load(open({str(tmp_path / "tx")!r}, "rb"))
        print(tx.init(jnp.ones(3)).inner_state[0].mu.dtype)
    """
    assert stdout_of(run("-c", script, **STOCK)) == "bfloat16\n"
