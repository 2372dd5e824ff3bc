"""Functions that are not transformations return float32 where an argument asks for it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from optax_dtypefix import patches
from support.functions import CALLS, STRONG, TREES, available
from support.processes import stock_and_patched
from support.thorough import one_of
from support.trees import in_float64, leaves, tree_of

# Stock warns of deprecated names.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

OTHERS = {"hessian_diag", "_sum", "_mean", "_running_mean", "__getattr__", "__new__"}
"""Functions without a number among their arguments, what looks up others, and the door."""


def test_every_function_is_called() -> None:
    targets = {t.name for name in ("global_norm", "sums") for t in patches.load(name).targets}
    assert targets == OTHERS | {path.rpartition(".")[2] for path in CALLS}


def bits(dtype: Any) -> int:
    return jnp.finfo(dtype).bits if jnp.issubdtype(dtype, jnp.inexact) else 0


@pytest.mark.thorough
def test_a_result_is_as_wide_as_on_stock_where_an_argument_asks_for_it() -> None:
    stock, patched = stock_and_patched("support.functions")
    narrower = []
    for case, dtypes in stock.items():
        path, tree, number = case.split()
        found = patched[case]
        if dtypes is None:  # Stock raises.
            continue
        if tree == "float32":
            assert found == dtypes, case
        of_leaves = min(map(bits, TREES[tree]))
        asked = max(of_leaves, bits(STRONG.get(number, "int32")))
        if any(bits(f) < min(bits(d), asked) for f, d in zip(found, dtypes)):
            narrower.append((case, dtypes, found))
        if path.endswith("norm"):  # A norm has the dtype of stock throughout.
            assert found == dtypes, case
    assert not narrower


def simplex(values: Any, total: float) -> Any:
    """Project onto a simplex in float64, by sorted prefix sums (Duchi et al., 2008)."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, values.size + 1)
    return np.maximum(values - excess[np.nonzero(ordered > excess)[0][-1]], 0)


def expected(name: str, x: Any, number: float) -> Any:
    """Compute a result in float64, for the values of all leaves in one vector."""
    norm = np.sqrt((x**2).sum())
    if name == "projection_l2_sphere":
        return x * number / norm
    if name == "projection_l2_ball":
        return x * min(1, number / norm)
    if name == "projection_simplex":
        return simplex(x, number)
    if name in ("projection_l1_sphere", "projection_l1_ball"):
        return np.sign(x) * simplex(np.abs(x), number)
    if name == "projection_hyperplane":
        return x + (number - norm**2) / norm**2 * x
    if name == "projection_halfspace":
        return x + min(0, (number - norm**2) / norm**2) * x
    return None


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
def test_float32_results_have_float32_values(dtype: Any) -> None:
    number = np.float32(0.7)
    tree = tree_of(dtype)
    vector = np.concatenate([leaf.ravel() for leaf in leaves(in_float64(tree))])
    for path, function in available().items():
        name = path.rpartition(".")[2]
        exact = expected(name, vector, float(number))
        if exact is None:
            continue
        got = leaves(CALLS[path](function, tree, jnp.asarray(number)))
        assert {leaf.dtype for leaf in got} == {jnp.dtype(jnp.float32)}, name
        found = np.concatenate([leaf.ravel() for leaf in in_float64(got)])
        np.testing.assert_allclose(found, exact, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float16]))
@pytest.mark.parametrize(
    "limit", one_of(2, [np.float32(1), np.float32(1e4)]), ids=["clipped", "as is"]
)
def test_sums_of_examples_have_float32_values(dtype: Any, limit: Any) -> None:
    batch = [jnp.asarray(np.random.default_rng(0).normal(size=(8, n)), dtype) for n in (3, 5)]
    exact = in_float64(batch)
    both = np.concatenate(exact, axis=1)

    def clipped(leaf: Any, norms_of: Any, limit: float) -> Any:
        norms = np.sqrt((norms_of**2).sum(axis=1, keepdims=True))
        return (leaf * np.minimum(1, limit / norms)).sum(axis=0)

    layers = [clipped(leaf, leaf, limit * 0.5**0.5) for leaf in exact]
    wanted = {
        "per_example_global_norm_clip": [clipped(leaf, both, limit) for leaf in exact],
        "per_example_layer_norm_clip": layers,
    }
    for name, sums in wanted.items():
        if name in available():
            for got, want in zip(available()[name](batch, jnp.asarray(limit))[0], sums):
                assert got.dtype == jnp.float32
                np.testing.assert_allclose(got, want, atol=2e-6, err_msg=name)
