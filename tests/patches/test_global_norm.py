from __future__ import annotations

import functools
import re
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix._contract.x64 import x64
from support.contract import assert_keeps_the_contract, float64_in
from support.patch_cases import FuzzCase, Program
from support.processes import run, stdout_of
from support.thorough import one_of
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of

if TYPE_CHECKING:
    from support.fuzzing import Draw


# optax 0.1.2 calls functions that jax deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning")


def fuzzed(draw: Draw) -> Any:
    limit = draw.of(0.1, 1.0, 100.0)
    return draw.of(
        lambda: optax.clip_by_global_norm(limit),
        lambda: optax.clip_by_block_rms(limit),
        lambda: optax.adaptive_grad_clip(limit),
        lambda: optax.scale_by_trust_ratio(min_norm=draw.of(0.0, 0.1)),
        lambda: optax.lamb(draw.rate()),
    )()


def dividing_by_norms() -> Any:
    norm = optax.tree.norm if hasattr(optax, "tree") else optax.global_norm

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        total = norm(grads) + optax.safe_norm(grads["w"], 0.1)
        total += optax.safe_root_mean_squares(grads["b"], 0.1)
        return tree_map(lambda g: g / total, grads), state

    return optax.GradientTransformation(lambda _: (), update)


def normalize_by_norm() -> Any:
    return optax.contrib.normalize()


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {
    "clip": Program(lambda: optax.clip_by_global_norm(1.0)),
    "clip complex": Program(lambda: optax.clip_by_global_norm(1.0), jnp.complex64),
    "clip by array": Program(lambda: optax.clip_by_global_norm(jnp.asarray(1.0))),
    "block": Program(lambda: optax.clip_by_block_rms(0.5)),
    "block complex": Program(lambda: optax.clip_by_block_rms(0.5), jnp.complex64),
    "adaptive": Program(lambda: optax.adaptive_grad_clip(0.1)),
    "trust ratio": Program(lambda: optax.scale_by_trust_ratio(min_norm=0.0)),
    "lamb": Program(lambda: optax.lamb(1e-2)),
    "lars": Program(lambda: optax.lars(1e-2)),
    "norms": Program(dividing_by_norms),
    "normalize": Program(lambda: optax.normalize_by_update_norm(1.0), releases=">=0.2.3"),
    "clip to 0": Program(lambda: optax.clip_by_global_norm(0.0), same="bits"),
    "block to 0": Program(lambda: optax.clip_by_block_rms(0.0), same="bits"),
    # Older stock needs an older jax.
    "normalize for SAM": Program(normalize_by_norm, releases=">=0.2.3", same="bits"),
}


# In float16: a norm above 255, a norm above the largest number, and squares that underflow.
GRADIENTS: dict[str, Any] = {
    "large": (500, jnp.float16),
    "larger": (15000, jnp.float16),
    "small": (1e-4, jnp.float16),
    "with float32": (500, jnp.float16, jnp.float32),
    "with bfloat16": (500, jnp.float16, jnp.bfloat16),
}
PRECISION = {jnp.float16: 2**-11, jnp.bfloat16: 2**-8, jnp.float32: 2**-23}
HALVES = [jnp.float16, jnp.bfloat16]


def scaled(scale: float, dtype: Any, *more: Any, seed: int = 0) -> Any:
    """Return gradients with elements of about this scale, rounded to their dtypes."""
    tree = tree_map(lambda leaf: leaf * scale, tree_of(jnp.float32, seed=seed))
    last = more[-1] if more else dtype
    return {"w": tree["w"].astype(dtype), "b": tree["b"].astype(last)}


def norm_of(tree: Any) -> float:
    return float(np.sqrt(sum((leaf**2).sum() for leaf in leaves(in_float64(tree)))))


def assert_close(got: Any, expected: Any) -> None:
    """Compare to the last place of each leaf, and to the smallest number of its dtype."""
    for name, leaf in got.items():
        bound = {
            "rtol": 2 * PRECISION[leaf.dtype.type],
            "atol": float(jnp.finfo(leaf.dtype).tiny) / 1000,
        }
        np.testing.assert_allclose(in_float64(leaf), expected[name], **bound)


def updates_of(tx: Any, grads: Any, params: Any = None) -> Any:
    params = grads if params is None else params
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    return updates


def global_norm(tree: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Deprecated from 0.2.7 on.
        return optax.global_norm(tree)


def two_norms() -> dict[str, Any]:
    """Return every function of the installed release that gives the 2-norm of a tree."""
    found = {"global_norm": global_norm}
    if hasattr(optax, "tree_utils"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ``tree_l2_norm`` is deprecated from 0.2.5 on.
            for name in ("tree_norm", "tree_l2_norm"):
                if hasattr(optax.tree_utils, name):
                    found[name] = getattr(optax.tree_utils, name)
    if hasattr(optax, "tree"):
        found["tree.norm"] = optax.tree.norm
    return found


def one_norms() -> dict[str, Any]:
    found = {}
    if hasattr(optax, "tree_utils"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if hasattr(optax.tree_utils, "tree_l1_norm"):
                found["tree_l1_norm"] = optax.tree_utils.tree_l1_norm
            if hasattr(optax.tree_utils, "tree_norm"):
                found["tree_norm"] = functools.partial(optax.tree_utils.tree_norm, ord=1)
    return found


TWO_NORMS, ONE_NORMS = two_norms(), one_norms()
by_gradients = pytest.mark.parametrize("case", GRADIENTS.values(), ids=GRADIENTS.keys())
by_two_norm = pytest.mark.parametrize("norm", TWO_NORMS.values(), ids=TWO_NORMS.keys())


@by_two_norm
@pytest.mark.parametrize("dtype", one_of(2, HALVES))
def test_a_norm_is_right_to_the_last_place(norm: Any, dtype: Any) -> None:
    trees = [scaled(scale, dtype) for scale in (500, 1, 1e-4)]
    trees += [[jnp.ones((), dtype)] * 1000, scaled(1, dtype, jnp.float32)]
    for tree in trees:
        got = norm(tree)
        np.testing.assert_allclose(float(got), norm_of(tree), rtol=PRECISION[dtype])


@by_two_norm
def test_a_norm_has_the_dtype_of_stock(norm: Any) -> None:
    """Gradients divided by a float32 norm would be float32."""
    assert norm(tree_of(jnp.bfloat16)).dtype == jnp.bfloat16
    assert norm(tree_of(jnp.float16)).dtype == jnp.float16
    assert norm(tree_of(jnp.bfloat16, jnp.float16)).dtype == jnp.float32
    assert norm(tree_of(jnp.bfloat16, jnp.int32)).dtype == jnp.bfloat16
    assert norm(tree_of(jnp.bfloat16, jnp.complex64)).dtype == jnp.float32
    with x64():
        assert norm(tree_of(jnp.bfloat16)).dtype == jnp.bfloat16
        assert norm(tree_of(jnp.bfloat16, jnp.float64)).dtype == jnp.float64


@pytest.mark.thorough
@pytest.mark.skipif(not ONE_NORMS, reason="tree_l1_norm came with optax 0.2.3")
@pytest.mark.parametrize("dtype", HALVES)
def test_a_1_norm_is_right_to_the_last_place(dtype: Any) -> None:
    for norm in ONE_NORMS.values():
        tree = [jnp.full((), 1.5, dtype)] * 1000
        assert norm(tree).dtype == dtype
        np.testing.assert_allclose(float(norm(tree)), 1500, rtol=PRECISION[dtype])


@pytest.mark.skipif(
    not {"tree_norm", "tree_l2_norm"} & TWO_NORMS.keys(),
    reason="tree_utils came with optax 0.1.8",
)
def test_norms_pass_on_other_arguments() -> None:
    tree = scaled(1, jnp.bfloat16)
    for name in {"tree_norm", "tree_l2_norm"} & TWO_NORMS.keys():
        for squared in (
            TWO_NORMS[name](tree, squared=True),
            TWO_NORMS[name](squared=True, tree=tree),
        ):
            assert squared.dtype == jnp.bfloat16
            np.testing.assert_allclose(float(squared), norm_of(tree) ** 2, rtol=2**-8)
    if "tree_norm" in TWO_NORMS:
        largest = max(np.abs(leaf).max() for leaf in leaves(in_float64(tree)))
        assert float(TWO_NORMS["tree_norm"](tree, jnp.inf)) == largest


@pytest.mark.parametrize("dtype", HALVES)
def test_safe_norms_are_right_to_the_last_place(dtype: Any) -> None:
    for scale in (500, 1e-4):
        x = scaled(scale, dtype)["w"]
        exact = in_float64(x)
        norm, rms = optax.safe_norm(x, 1e-9), optax.safe_root_mean_squares(x=x, min_rms=1e-9)
        assert norm.dtype == rms.dtype == dtype
        np.testing.assert_allclose(float(norm), np.sqrt((exact**2).sum()), rtol=PRECISION[dtype])
        np.testing.assert_allclose(float(rms), np.sqrt((exact**2).mean()), rtol=PRECISION[dtype])
        rows = optax.safe_norm(x, 0.0, axis=1)
        expected = np.sqrt((exact**2).sum(1))
        np.testing.assert_allclose(in_float64(rows), expected, rtol=PRECISION[dtype])


def test_safe_norms_have_the_dtype_of_stock() -> None:
    """A min_norm that underflows in float16 makes the norm float32."""
    smallest = np.float32(1e-9)
    got = optax.safe_norm(jnp.zeros((3,), jnp.float16), smallest)
    assert got.dtype == jnp.float32
    assert got == smallest


@pytest.mark.parametrize("dtype", one_of(2, [*HALVES, jnp.float32]))
def test_a_safe_norm_of_zero_has_a_gradient(dtype: Any) -> None:
    slope = jax.grad(lambda x: optax.safe_norm(x, 1e-3))(jnp.zeros((3,), dtype))
    assert slope.dtype == dtype
    np.testing.assert_array_equal(in_float64(slope), 0)


@by_gradients
@pytest.mark.parametrize("share", [0.5, 2])
def test_clip_by_global_norm_is_right(case: Any, share: float) -> None:
    grads = scaled(*case)
    limit = share * norm_of(grads)
    updates = updates_of(optax.clip_by_global_norm(limit), grads)
    assert_close(updates, tree_map(lambda g: g * min(1, share), in_float64(grads)))
    if share > 1:  # No bit changes where there is nothing to clip.
        for update, grad in zip(leaves(updates), leaves(grads)):
            np.testing.assert_array_equal(np.asarray(update), np.asarray(grad))


def test_clip_by_global_norm_of_many_leaves_is_right() -> None:
    grads = {str(i): jnp.ones((), jnp.bfloat16) for i in range(1000)}
    updates, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
    np.testing.assert_allclose(norm_of(updates), 1, rtol=2**-8)


@by_gradients
def test_clip_by_block_rms_is_right(case: Any) -> None:
    grads = scaled(*case)
    exact, limit = in_float64(grads), 0.5 * case[0]
    expected = tree_map(lambda g: g / max(1, np.sqrt((g**2).mean()) / limit), exact)
    assert_close(updates_of(optax.clip_by_block_rms(limit), grads), expected)


@by_gradients
def test_adaptive_grad_clip_is_right(case: Any) -> None:
    grads, params = scaled(*case), scaled(*case, seed=1)
    g, p, expected = in_float64(grads), in_float64(params), {}
    for name, axis in (("w", 0), ("b", None)):
        g_norm, p_norm = (np.sqrt((tree[name] ** 2).sum(axis)) for tree in (g, p))
        largest = 0.5 * np.maximum(p_norm, 1e-3)
        factor = np.where(g_norm < largest, 1, largest / np.maximum(g_norm, 1e-6))
        expected[name] = g[name] * factor
    assert_close(updates_of(optax.adaptive_grad_clip(0.5), grads, params), expected)


@by_gradients
def test_scale_by_trust_ratio_is_right(case: Any) -> None:
    grads, params = scaled(*case), scaled(10, *case[1:], seed=1)
    g, p = in_float64(grads), in_float64(params)
    expected = {name: g[name] * norm_of(p[name]) / norm_of(g[name]) for name in g}
    assert_close(updates_of(optax.scale_by_trust_ratio(), grads, params), expected)


@pytest.mark.skipif(
    not hasattr(optax, "normalize_by_update_norm"), reason="it came with optax 0.2.3"
)
@by_gradients
def test_normalize_by_update_norm_is_right(case: Any) -> None:
    grads = scaled(*case)
    norm = norm_of(grads) + 1e-6
    expected = tree_map(lambda g: 3 * g / norm, in_float64(grads))
    assert_close(updates_of(optax.normalize_by_update_norm(3.0), grads), expected)


@pytest.mark.skipif(
    not hasattr(optax, "per_example_global_norm_clip"), reason="it came with optax 0.1.3"
)
@by_gradients
def test_per_example_global_norm_clip_is_right(case: Any) -> None:
    tree = scaled(*case)
    grads = [jnp.stack([tree["w"], tree["w"] / 1000]), jnp.stack([tree["b"], tree["b"] / 1000])]
    w, b = in_float64(grads)
    norms = [norm_of([w[i], b[i]]) for i in range(2)]
    limit = 0.1 * norms[0]
    (got_w, got_b), count = optax.per_example_global_norm_clip(grads, limit)
    assert (count.dtype, int(count)) == (jnp.int32, 1)
    factors = [min(1, limit / norm) for norm in norms]
    expected = {"w": w[0] * factors[0] + w[1], "b": b[0] * factors[0] + b[1]}
    for name, leaf in (("w", got_w), ("b", got_b)):
        assert leaf.dtype == tree[name].dtype
        # Elements of the two examples may cancel, and numbers below ``tiny`` are coarse.
        largest = np.abs(expected[name]).max() + float(jnp.finfo(leaf.dtype).tiny)
        bound = 2 * PRECISION[leaf.dtype.type] * largest
        np.testing.assert_allclose(in_float64(leaf), expected[name], atol=bound)


@pytest.mark.skipif(
    not hasattr(optax, "per_example_layer_norm_clip"), reason="it came with optax 0.1.8"
)
def test_per_example_layer_norm_clip_is_right() -> None:
    tree = scaled(500, jnp.float16)
    grads = [tree["w"][None], tree["b"][None]]
    clipped, counts = optax.per_example_layer_norm_clip(grads, 1.0)
    assert [(count.dtype, int(count)) for count in counts] == [(jnp.int32, 1)] * 2
    for leaf, grad in zip(clipped, (tree["w"], tree["b"])):
        assert leaf.dtype == jnp.float16
        expected = in_float64(grad) / norm_of(grad) * 0.5**0.5
        np.testing.assert_allclose(in_float64(leaf), expected, rtol=2**-10)


@pytest.mark.skipif(
    not hasattr(getattr(optax, "projections", None), "projection_l2_ball"),
    reason="projections on balls came with optax 0.2.4",
)
@pytest.mark.parametrize(
    "case", [(500, jnp.float16), (500, jnp.float16, jnp.float32)], ids=["large", "with float32"]
)
def test_projections_are_right(case: Any) -> None:
    tree = scaled(*case)
    expected = tree_map(lambda leaf: leaf / norm_of(tree) * 3, in_float64(tree))
    for project in (optax.projections.projection_l2_ball, optax.projections.projection_l2_sphere):
        got = project(tree, 3.0)
        assert dtypes_of(got) == dtypes_of(tree)
        assert_close(got, expected)
    inside = optax.projections.projection_l2_ball(tree, 1e6)
    np.testing.assert_array_equal(in_float64(inside["w"]), in_float64(tree["w"]))
    got = in_float64(optax.projections.projection_l1_ball(tree, 3.0))
    np.testing.assert_allclose(sum(np.abs(leaf).sum() for leaf in leaves(got)), 3, rtol=2**-9)


ARRAYS: dict[str, Any] = {
    "clip_by_global_norm": lambda: optax.clip_by_global_norm(np.float64(0.1)),
    "clip_by_block_rms": lambda: optax.clip_by_block_rms(np.float64(0.1)),
    "adaptive_grad_clip": lambda: optax.adaptive_grad_clip(np.float64(0.1), eps=np.float64(1e-3)),
    "scale_by_trust_ratio": lambda: optax.scale_by_trust_ratio(trust_coefficient=np.float64(2)),
}


@pytest.mark.parametrize("build", ARRAYS.values(), ids=ARRAYS.keys())
def test_an_array_as_argument_keeps_the_contract(build: Any) -> None:
    for dtype in (jnp.bfloat16, jnp.float32):
        assert_keeps_the_contract(build(), tree_of(dtype))
        with x64():
            assert_keeps_the_contract(build(), tree_of(dtype))
            assert not float64_in(lambda g: build().update(g, build().init(g), g), tree_of(dtype))


BY_PARAMS = {
    "scale_by_trust_ratio": optax.scale_by_trust_ratio,
    "adaptive_grad_clip": lambda: optax.adaptive_grad_clip(0.1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("build", BY_PARAMS.values(), ids=BY_PARAMS)
@pytest.mark.parametrize("narrow", one_of(2, [*HALVES, jnp.int8]))
def test_scaling_by_norms_of_float32_params_gives_float32_updates(build: Any, narrow: Any) -> None:
    params = tree_of(jnp.float32)
    grads = tree_map(lambda leaf: (5 * leaf).astype(narrow), tree_of(jnp.float32, seed=1))
    expected = updates_of(build(), tree_map(lambda g: g.astype(jnp.float32), grads), params)
    for leaf, other in zip(leaves(updates_of(build(), grads, params)), leaves(expected)):
        assert leaf.dtype == jnp.float32
        np.testing.assert_allclose(leaf, other, rtol=1e-6)


def test_clipping_without_params_keeps_the_dtype_of_the_gradients() -> None:
    for tx in (optax.clip_by_global_norm(1.0), optax.clip_by_block_rms(0.1)):
        updates = updates_of(tx, tree_of(jnp.bfloat16), tree_of(jnp.float32))
        assert {*dtypes_of(updates)} == {jnp.dtype(jnp.bfloat16)}


def test_clipping_integers_gives_fractions() -> None:
    grads = {"w": jnp.asarray([3, 4], jnp.int8)}
    updates = updates_of(optax.clip_by_global_norm(1.0), grads, {"w": jnp.ones(2)})
    np.testing.assert_allclose(updates["w"], [0.6, 0.8], rtol=1e-6)


def test_lamb_and_lars_are_finite_in_float16() -> None:
    params, grads = scaled(400, jnp.float16), scaled(400, jnp.float16, seed=1)
    for tx in (optax.lamb(1e-3), optax.lars(1e-3)):
        updates = updates_of(tx, grads, params)
        assert all(np.isfinite(leaf).all() and leaf.any() for leaf in leaves(in_float64(updates)))


def assert_stocks_program(name: str, *args: Any, **options: Any) -> None:
    """Compare the jaxpr of a function, if this release has it; PROGRAMS has transformations."""
    *path, last = name.split(".")
    function = getattr(functools.reduce(lambda o, n: getattr(o, n, None), path, optax), last, None)
    if function is None:
        return
    stock = optax_dtypefix.original(function)
    assert stock is not function
    programs = [jax.make_jaxpr(functools.partial(f, **options))(*args) for f in (function, stock)]
    patched, expected = (re.sub("0x[0-9a-f]+", "", str(program)) for program in programs)
    assert patched == expected


def test_functions_of_float32_trees_have_the_program_of_stock() -> None:
    tree, batch = tree_of(jnp.float32), [jnp.ones((2, 3)), jnp.ones((2, 5))]
    for each in (tree, tree_of(jnp.float32, jnp.complex64), tree_of(jnp.float32, jnp.int32)):
        for name in ("tree_utils.tree_norm", "tree.norm"):
            assert_stocks_program(name, each)
        if not hasattr(optax, "tree"):  # Where it exists, these names are deprecated.
            assert_stocks_program("global_norm", each)
            if hasattr(optax, "tree_utils"):
                assert_stocks_program("tree_utils.tree_l2_norm", each)
    assert_stocks_program("safe_norm", tree["w"], min_norm=1e-3)
    assert_stocks_program("safe_root_mean_squares", tree["w"], min_rms=1e-3)
    assert_stocks_program("transforms.unitwise_norm", tree["w"])
    assert_stocks_program("per_example_global_norm_clip", batch, l2_norm_clip=1.0)
    assert_stocks_program("per_example_layer_norm_clip", batch, global_l2_norm_clip=1.0)
    for name in ("projection_l2_ball", "projection_l2_sphere", "projection_l1_ball"):
        assert_stocks_program(f"projections.{name}", tree)


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["optax", "optax_dtypefix"])
@pytest.mark.skipif("tree_l2_norm" not in TWO_NORMS, reason="it came with optax 0.1.8")
def test_deprecated_names_are_patched_in_any_order_of_import(first: str) -> None:
    """From 0.2.5 on optax keeps partial objects of them in a dict."""
    code = f"""
import {first}
import optax, optax_dtypefix
import jax.numpy as jnp
x = jnp.full((4,), 400, jnp.float16)
norms = [optax.tree_utils.tree_l2_norm(x)]
with optax_dtypefix.disabled("global_norm"):
    norms.append(optax.tree_utils.tree_l2_norm(x))
optax_dtypefix.revert("global_norm")
norms.append(optax.tree_utils.tree_l2_norm(x))
print(*map(float, norms))
"""
    printed = stdout_of(run("-W", "ignore", "-c", code))
    assert printed.split() == ["800.0", "inf", "inf"]


ZERO_LIMITS: dict[str, Any] = {
    "clip_by_global_norm": lambda: optax.clip_by_global_norm(0.0),
    "clip_by_block_rms": lambda: optax.clip_by_block_rms(0.0),
    "array": lambda: optax.clip_by_global_norm(jnp.zeros(())),
    "negative": lambda: optax.clip_by_global_norm(-1.0),
}
if hasattr(getattr(optax, "contrib", None), "normalize"):
    ZERO_LIMITS["normalize"] = optax.contrib.normalize
if hasattr(optax, "normalize_by_update_norm"):
    ZERO_LIMITS["eps"] = lambda: optax.normalize_by_update_norm(eps=0.0)


@pytest.mark.parametrize(
    "dtype", one_of(4, [jnp.float32, jnp.bfloat16, jnp.float16, jnp.complex64])
)
@pytest.mark.parametrize("name", ZERO_LIMITS)
def test_gradients_of_zero_give_updates_of_zero(name: str, dtype: Any) -> None:
    grads = tree_map(jnp.zeros_like, tree_of(dtype))
    updates = updates_of(ZERO_LIMITS[name](), grads)
    assert dtypes_of(updates) == dtypes_of(grads)
    for leaf in leaves(updates):
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))
    tx = optax.chain(ZERO_LIMITS[name](), optax.adam(1e-3))
    assert not any(np.asarray(leaf).any() for leaf in leaves(updates_of(tx, grads)))


@pytest.mark.parametrize("name", ["clip_by_global_norm", "clip_by_block_rms"])
def test_a_limit_of_zero_gives_zero_where_squares_underflow(name: str) -> None:
    """The square of 1e-30 is 0: on stock, the update is 1e-30 / 0 * 0."""
    grads = {"w": jnp.full(3, 1e-30, jnp.float32), "b": jnp.zeros(2)}
    for leaf in leaves(updates_of(ZERO_LIMITS[name](), grads)):
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


@pytest.mark.parametrize("name", ZERO_LIMITS)
def test_a_gradient_that_is_not_a_number_still_shows(name: str) -> None:
    grads = {"w": jnp.asarray([jnp.nan, 0.0]), "b": jnp.zeros(2)}
    updates = updates_of(ZERO_LIMITS[name](), grads)
    assert np.isnan(updates["w"]).all()
    # The norm of all is not a number, and that of one leaf is 0.
    expected = np.zeros(2) if name == "clip_by_block_rms" else np.full(2, np.nan)
    np.testing.assert_array_equal(updates["b"], expected)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", one_of(3, [jnp.float32, jnp.bfloat16, jnp.float16], 1))
def test_a_schedule_of_the_limit_may_end_at_zero(dtype: Any) -> None:
    first = int(Version(optax.__version__) < Version("0.1.4"))  # The count of the first step.

    def limit(count: Any) -> Any:
        return 1.0 - jnp.minimum(count - first, 2) / 2

    tx = optax.inject_hyperparams(optax.clip_by_global_norm)(limit)
    grads = {"w": jnp.full((2, 2), 4, dtype)}
    state = tx.init(grads)
    for factor, expected in ((1, 0.5), (1, 0.25), (1, 0.0), (0, 0.0)):
        updates, state = tx.update(tree_map(lambda g, by=factor: g * by, grads), state, grads)
        assert updates["w"].dtype == dtype
        np.testing.assert_array_equal(in_float64(updates)["w"], np.full((2, 2), expected))


@pytest.mark.skipif("normalize" not in ZERO_LIMITS, reason="SAM came with optax 0.1.8")
def test_sam_stands_still_at_a_minimum() -> None:
    """The gradient of |x|^2 at 0 is 0, and so is the step to the worst point nearby."""
    adversarial = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    tx = optax.contrib.sam(optax.sgd(0.1), adversarial, sync_period=2)
    params = {"x": jnp.zeros(3)}
    state = tx.init(params)
    for _ in range(4):
        updates, state = tx.update(tree_map(lambda x: 2 * x, params), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_array_equal(params["x"], np.zeros(3))


@pytest.mark.skipif(not hasattr(optax, "normalize_by_update_norm"), reason="it came with 0.2.3")
@pytest.mark.parametrize("name", ["normalize_by_update_norm", "contrib.normalize"])
def test_in_a_mixed_tree_an_update_is_as_wide_as_its_param(name: str) -> None:
    """There the norm of all leaves is float32, and promotes on stock."""
    tx = getattr(optax.contrib, "normalize", None) if "contrib" in name else None
    tx = (tx or optax.normalize_by_update_norm)()
    params = {"a": jnp.ones(3, jnp.float16), "b": jnp.ones(3)}
    grads = {"a": jnp.ones(3), "b": jnp.full(3, 0.7, jnp.float16)}
    updates, _ = tx.update(grads, tx.init(params), params)
    b = float(grads["b"][0])
    assert updates["b"].dtype == jnp.float32
    np.testing.assert_allclose(updates["b"], b / np.sqrt(3 + 3 * b**2), rtol=1e-4)


def test_a_float64_limit_clips_float32_gradients_of_float64_params() -> None:
    """``lax.select`` refuses a limit that is wider than a gradient: stock raises."""
    with x64():
        params, grads = jnp.zeros(5), jnp.ones(5, jnp.float32)
        limit = jnp.asarray(0.5)
        for tx in (
            optax.clip_by_global_norm(limit),
            optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=0.5),
        ):
            updates, _ = tx.update(grads, tx.init(params), params)
            assert updates.dtype == jnp.float32
            np.testing.assert_allclose(updates, 0.5 / np.sqrt(5), rtol=1e-6)
