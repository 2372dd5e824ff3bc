from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

from optax_dtypefix._contract.x64 import x64
from optax_dtypefix.patches.sums import in_float32
from support.nodes import Bfloat16Only, Converting
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.trees import in_float64, leaves, tree_map, tree_of

if TYPE_CHECKING:
    from support.fuzzing import Draw


HAS_SKIP = hasattr(optax, "skip_large_updates")


def fuzzed(draw: Draw) -> Any:
    if not HAS_SKIP:
        return optax.sgd(draw.rate())
    limit = draw.of(0.1, 1.0, 100.0)
    skip = functools.partial(optax.skip_large_updates, max_squared_norm=limit)
    return optax.MultiSteps(optax.sgd(draw.rate()), 2, should_skip_update_fn=skip)


def summing() -> Any:
    sums = optax.tree_utils

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        total = sums.tree_sum(grads) + sums.tree_vdot(grads, grads)
        return tree_map(lambda g: g / total, grads), state

    return optax.GradientTransformation(lambda _: (), update)


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {
    "sums": Program(summing, releases=">=0.1.8"),
    "sums complex": Program(summing, jnp.complex64, releases=">=0.1.8"),
}

HALVES = [jnp.bfloat16, jnp.float16]
EPS = {jnp.bfloat16: 2**-8, jnp.float16: 2**-11}
half = pytest.mark.parametrize("dtype", HALVES)


def has(path: str) -> bool:
    found: Any = optax
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None


def since(path: str) -> Any:
    return pytest.mark.skipif(not has(path), reason=f"optax.{path} came later")


@since("tree_utils")
@half
def test_sums_over_many_leaves_are_right_to_the_last_place(dtype: Any) -> None:
    tree = [jnp.full((), 1.5, dtype)] * 1000
    for found, exact in (
        (optax.tree_utils.tree_sum(tree), 1500),
        (optax.tree_utils.tree_vdot(tree, tree), 2250),
    ):
        assert found.dtype == dtype
        np.testing.assert_allclose(float(found), exact, rtol=EPS[dtype])


@since("tree_utils")
def test_sums_have_the_dtypes_of_stock() -> None:
    total = optax.tree_utils.tree_sum
    assert total(tree_of(jnp.bfloat16, jnp.float16)).dtype == jnp.float32
    assert total(tree_of(jnp.bfloat16, jnp.int32)).dtype == jnp.bfloat16
    assert total(tree_of(jnp.bfloat16, jnp.complex64)).dtype == jnp.complex64
    assert total(Converting(jnp.ones(3, jnp.bfloat16))).dtype == jnp.bfloat16
    with x64():
        assert total(tree_of(jnp.bfloat16)).dtype == jnp.bfloat16
        assert total(tree_of(jnp.bfloat16, jnp.float64)).dtype == jnp.float64


@since("skip_large_updates")
@half
def test_only_updates_with_a_large_norm_are_skipped(dtype: Any) -> None:
    for size, skipped in ((200, False), (600, True), (np.nan, True)):
        updates = {"w": jnp.full((4,), size, dtype)}
        skip, state = optax.skip_large_updates(updates, 0, updates, 1e6)
        assert bool(skip) is bool(state["should_skip"]) is skipped
        assert state["norm_squared"].dtype == dtype


@since("skip_large_updates")
def test_multi_steps_trains_on_large_gradients_in_float16() -> None:
    skip = functools.partial(optax.skip_large_updates, max_squared_norm=1e6)
    tx = optax.MultiSteps(optax.sgd(1e-3), 2, should_skip_update_fn=skip)
    params = {"w": jnp.full((4,), 200, jnp.float16)}
    state = tx.init(params)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(params, state, params)
    np.testing.assert_allclose(updates["w"], -0.2, rtol=1e-3)


@since("microbatching")
@half
@pytest.mark.parametrize("kind", ["SUM", "MEAN", "RUNNING_MEAN"])
def test_microbatch_adds_up_in_float32(kind: str, dtype: Any) -> None:
    seen = []

    def function(x: Any) -> Any:
        seen.append(x.dtype)
        return {"ones": x.sum(), "single": x.sum().astype(jnp.float32)}

    accumulator = optax.microbatching.AccumulationType[kind]
    found = optax.microbatching.microbatch(function, 0, 1, accumulator)(jnp.ones(4096, dtype))
    assert {*seen} == {jnp.dtype(dtype)}
    assert (found["ones"].dtype, found["single"].dtype) == (dtype, jnp.float32)
    for total in leaves(in_float64(found)):
        np.testing.assert_allclose(total, 4096 if kind == "SUM" else 1, rtol=1e-3)


@since("microbatching")
def test_microbatch_gives_nodes_their_dtypes() -> None:
    halves = jnp.full(3, 0.5, jnp.bfloat16)
    total = optax.microbatching.microbatch(lambda x: Bfloat16Only(x.sum()), 0, 1)(halves)
    assert total.child == 1.5


@since("microbatching")
def test_microbatch_combines_kinds() -> None:
    kinds = optax.microbatching.AccumulationType
    function = optax.microbatching.microbatch(
        lambda x: (2 * x, x.sum()), 0, 2, (kinds.CONCAT, kinds.SUM)
    )
    each, total = jax.jit(function)(jnp.ones(1024, jnp.bfloat16))
    np.testing.assert_array_equal(each, 2)
    assert (each.shape, each.dtype, total) == ((1024,), jnp.bfloat16, 1024)


def simplex(values: Any) -> Any:
    """Project onto the simplex in float64, by the sorted prefix sums of Duchi et al. (2008)."""
    ordered = np.sort(values)[::-1]
    excess = np.cumsum(ordered) - 1
    count = np.arange(1, values.size + 1)
    active = np.nonzero(ordered * count > excess)[0][-1]
    return np.maximum(values - excess[active] / count[active], 0)


@since("projections.projection_simplex")
@half
def test_projections_onto_a_simplex_are_right(dtype: Any) -> None:
    values = jnp.asarray(np.random.default_rng(0).normal(size=1000) * 0.01, dtype)
    found = optax.projections.projection_simplex({"w": values})["w"]
    assert found.dtype == dtype
    exact = simplex(np.asarray(values, np.float64))
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2 * EPS[dtype], atol=1e-6)
    if has("projections.projection_l1_sphere"):
        found = optax.projections.projection_l1_sphere(values)
        assert found.dtype == dtype
        np.testing.assert_allclose(np.abs(np.asarray(found, np.float64)).sum(), 1, rtol=0.01)


@since("projections.projection_vector")
@half
def test_projections_along_a_vector_are_right(dtype: Any) -> None:
    random = np.random.default_rng(0)
    x, a = (jnp.asarray(random.normal(1, 1, 1000) * 300, dtype) for _ in range(2))
    x64_, a64 = (np.asarray(v, np.float64) for v in (x, a))
    share = (x64_ @ a64) / (a64 @ a64)
    projections = optax.projections
    for found, exact in (
        (projections.projection_vector(x, a), share * a64),
        (projections.projection_hyperplane(x, a, 0.0), x64_ - share * a64),
        (projections.projection_halfspace(x, a, 0.0), x64_ - max(share, 0) * a64),
    ):
        assert found.dtype == dtype
        bound = {"rtol": 2 * EPS[dtype], "atol": 1e-2}
        np.testing.assert_allclose(np.asarray(found, np.float64), exact, **bound)


@half
@pytest.mark.parametrize("scale", [1e-3, 1.0, 400.0])
def test_cosine_similarity_is_right(dtype: Any, scale: float) -> None:
    random = np.random.default_rng(0)
    a, b = (jnp.asarray(random.normal(1, 1, (8, 64)) * scale, dtype) for _ in range(2))
    found = optax.cosine_similarity(a, b)
    assert found.dtype == dtype
    a64, b64 = (np.asarray(v, np.float64) for v in (a, b))
    norms = np.linalg.norm(a64, axis=1) * np.linalg.norm(b64, axis=1)
    exact = (a64 * b64).sum(axis=1) / norms
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2 * EPS[dtype])


@since("projections.projection_hyperplane")
def test_a_hyperplane_may_be_given_by_a_larger_array() -> None:
    ones = jnp.ones(3, jnp.bfloat16)
    for project in (
        optax.projections.projection_hyperplane,
        optax.projections.projection_halfspace,
    ):
        for dtype in (jnp.float32, jnp.bfloat16):
            found = project(ones, ones, jnp.ones((5, 1), dtype))
            assert (found.shape, found.dtype) == ((5, 3), dtype)


@since("projections.projection_hyperplane")
@pytest.mark.parametrize("node", [Converting, Bfloat16Only])
def test_nodes_may_convert_or_check_their_children(node: Any) -> None:
    tree = node(jnp.full(3, 0.5, jnp.bfloat16))
    trees, projections = optax.tree_utils, optax.projections
    assert trees.tree_sum(tree) == 1.5
    assert trees.tree_vdot(tree, tree) == trees.tree_norm(tree, squared=True) == 0.75
    skip, _ = optax.skip_large_updates(tree, 0, tree, 1.0)
    assert not skip
    vectors = [projections.projection_vector(tree, tree)]
    vectors += [projections.projection_hyperplane(tree, tree, 0.75)]
    vectors += [projections.projection_l2_ball(tree, 9.0)]
    if node is Converting:  # Stock raises for the other.
        vectors += [projections.projection_simplex(tree=tree, scale=1.5)]
        vectors += [projections.projection_l1_ball(tree, 9)]
    for found in vectors:
        assert isinstance(found, node)
        np.testing.assert_array_equal(found.child, tree.child)
        assert found.child.dtype == jnp.bfloat16


@since("projections.projection_l2_ball")
def test_integer_leaves_get_the_dtype_of_stock() -> None:
    tree = [jnp.full(3, 400, jnp.float16), jnp.ones(3, jnp.int32)]
    project = [optax.projections.projection_l2_sphere]
    if Version(optax.__version__) >= Version("0.2.5"):  # 0.2.4 refuses it.
        project.append(optax.projections.projection_l2_ball)
    for function in project:
        assert [leaf.dtype for leaf in function(tree)] == [jnp.float16, jnp.float16]


@since("tree_utils.tree_vdot")
def test_trees_of_different_structures_are_still_refused() -> None:
    one = jnp.ones(3, jnp.bfloat16)
    with pytest.raises(ValueError, match=r"mismatch|different"):
        optax.tree_utils.tree_vdot({"a": one}, {"b": one})


@pytest.mark.skipif(jax.__version_info__ <= (0, 4, 13), reason="keeps no trace: it would crash")
def test_the_dtype_of_a_sum_is_traced_once() -> None:
    lengths = []

    def stock(tree: Any) -> Any:
        lengths.append(len(tree))
        return sum(tree)

    half = jnp.ones((), jnp.bfloat16)
    for _ in range(2):
        total = in_float32(stock, (*[half] * 5, 1.0, jnp.ones((), jnp.float32)))
        assert (total, total.dtype) == (7, jnp.float32)
    assert lengths == [7, 7, 7]
    in_float32(stock, [half] * 5)
    in_float32(stock, [half] * 5)
    assert lengths == [7, 7, 7, 5, 5, 5], "once for each structure"


@since("microbatching")
def test_microbatch_runs_in_strict_promotion_and_with_float8() -> None:
    numbers = jnp.arange(8, dtype=jnp.bfloat16)
    kinds = optax.microbatching.AccumulationType
    for kind, expected in ((kinds.SUM, 28), (kinds.MEAN, 7), (kinds.RUNNING_MEAN, 7)):
        with jax.numpy_dtype_promotion("strict"):
            found = optax.microbatching.microbatch(lambda x: x.sum(), 0, 2, kind)(numbers)
        assert (found.dtype, found) == (jnp.bfloat16, expected)
    total = optax.microbatching.microbatch(lambda x: x.sum().astype(jnp.float8_e5m2), 0, 2)
    assert total(numbers).dtype == jnp.float8_e5m2


@since("skip_large_updates")
def test_a_limit_in_half_precision_runs_in_strict_promotion() -> None:
    ones = jnp.ones(3, jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"):
        skip, _ = optax.skip_large_updates(ones, 0, ones, jnp.ones((), jnp.bfloat16))
    assert skip


def hessian_diag(*args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # From 0.2.7 on.
        return (optax.second_order if has("second_order") else optax).hessian_diag(*args)


@pytest.mark.thorough
@pytest.mark.parametrize("in_x64", [False, True], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("dtype", one_of(2, [*HALVES, jnp.float32]))
def test_hessian_diag_takes_any_float(dtype: Any, in_x64: bool) -> None:
    seen = []

    def loss(params: Any, inputs: Any, targets: Any) -> Any:
        seen.append(params["w"].dtype)
        return (inputs * params["w"] ** 2).sum() + (targets * params["b"] ** 3).sum()

    with x64(in_x64):
        params = {"b": jnp.full(2, 0.5, dtype), "w": jnp.ones(3, dtype)}
        inputs, targets = jnp.arange(3, dtype=dtype), jnp.ones(2, dtype)
        found = hessian_diag(loss, params, inputs, targets)
    assert found.dtype == dtype
    assert {*seen} == {jnp.dtype(dtype)}
    np.testing.assert_allclose(np.asarray(found, float), [3, 3, 0, 2, 4], rtol=2**-7)


def test_hessian_diag_is_as_wide_as_the_params() -> None:
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": 2.1}
    found = hessian_diag(lambda p, *_: (p["a"] ** 2).sum() + p["b"] ** 3, params, 0.0, 0.0)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, [2, 2, 12.6], rtol=1e-5)


@since("projections.projection_hyperplane")
@pytest.mark.parametrize("dtype", one_of(2, [jnp.float32, jnp.bfloat16], 1))
def test_a_normal_under_other_keys_raises(dtype: Any) -> None:
    ones = jnp.ones(3, dtype)
    with pytest.raises((KeyError, TypeError, ValueError)):
        optax.projections.projection_hyperplane({"a": ones}, {"b": ones}, 1.0)
