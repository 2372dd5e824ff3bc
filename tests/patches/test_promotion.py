from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version
from support import assert_keeps_the_contract, float64_in, leaves, tree_map, tree_of

from optax_dtypefix._dtypes import x64

RELEASE = Version(optax.__version__)
# Of optax 0.1.2, which calls functions of jax by their old names.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_:FutureWarning")

NAMES = (
    *("scale_by_adam", "scale_by_adamax", "scale_by_amsgrad", "scale_by_belief", "scale_by_yogi"),
    *("scale_by_rms", "scale_by_rss", "scale_by_stddev", "scale_by_lion", "scale_by_novograd"),
    *("scale_by_radam", "scale_by_sm3", "scale_by_adadelta", "scale_by_adan"),
    *("scale_by_factored_rms", "scale_by_trust_ratio", "centralize"),
)
AVAILABLE = [name for name in NAMES if hasattr(optax, name)]


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize(
    "dtypes",
    [
        *(("bfloat16",), ("float16",), ("bfloat16", "float32")),
        *(("float32", "int32"), ("int32", "float32")),  # centralize means matrices alone.
    ],
    ids="-".join,
)
def test_dtypes_are_kept(name: str, dtypes: tuple[str, ...]) -> None:
    assert_keeps_the_contract(getattr(optax, name)(), tree_of(*dtypes))


@pytest.mark.skipif(Version("0.2.5") > RELEASE, reason="muon came with optax 0.2.5")
def test_muon_keeps_an_integer_matrix() -> None:
    assert_keeps_the_contract(optax.contrib.muon(0.1), tree_of("int32", "float32"))


@pytest.mark.filterwarnings("ignore:optax.differentially_private_aggregate:DeprecationWarning")
def test_a_deprecated_name_is_that_of_the_patched_function() -> None:
    tx = optax.differentially_private_aggregate(1.0, 0.1, 0)
    params = tree_of("float32", "int32")
    batch = tree_map(lambda leaf: jnp.stack([leaf, leaf]), params)
    updates, _ = tx.update(batch, tx.init(params), params)
    assert updates["b"].dtype == jnp.int32


@pytest.mark.parametrize("name", AVAILABLE)
def test_float32_in_64_bit_mode_has_no_float64_array_inside(name: str) -> None:
    with x64():
        tx, params = getattr(optax, name)(), tree_of(jnp.float32)
        state = tx.init(params)
        assert not [shape for shape in float64_in(tx.update, params, state, params) if shape]


@pytest.mark.parametrize("name", AVAILABLE)
def test_strict_promotion_gives_the_same_bits(name: str) -> None:
    tx, params = getattr(optax, name)(), tree_of(jnp.float32)
    expected = tx.update(params, tx.init(params), params)
    with jax.numpy_dtype_promotion("strict"):
        got = tx.update(params, tx.init(params), params)
    for leaf, other in zip(leaves(got), leaves(expected)):
        np.testing.assert_array_equal(leaf, other)


def adam_in_numpy(grads: list[Any], *, b1: float = 0.9, b2: float = 0.999) -> Any:
    """Direction of Adam (Kingma and Ba 2015, algorithm 1) after these gradients, in float64."""
    m = v = 0.0
    for grad in grads:
        m = b1 * m + (1 - b1) * grad
        v = b2 * v + (1 - b2) * grad**2
    count = len(grads)
    return (m / (1 - b1**count)) / (np.sqrt(v / (1 - b2**count)) + 1e-8)


def test_float_leaves_beside_an_integer_leaf_are_right() -> None:
    tx = optax.scale_by_adam()
    params = tree_of(jnp.float32, jnp.int32)
    state = tx.init(params)
    grads = [tree_of(jnp.float32, jnp.int32, seed=seed) for seed in range(5)]
    for grad in grads:
        updates, state = tx.update(grad, state, params)
    expected = adam_in_numpy([np.asarray(grad["w"], np.float64) for grad in grads])
    np.testing.assert_allclose(updates["w"], expected, rtol=1e-5)
    assert updates["b"].dtype == jnp.int32


def rectified_adam_in_numpy(grads: list[Any], *, b1: float = 0.9, b2: float = 0.999) -> Any:
    """Direction of RAdam (Liu et al. 2020, algorithm 2; threshold 5), in float64."""
    m = v = 0.0
    for grad in grads:
        m = b1 * m + (1 - b1) * grad
        v = b2 * v + (1 - b2) * grad**2
    t = len(grads)
    limit = 2 / (1 - b2) - 1
    rho = limit - 2 * t * b2**t / (1 - b2**t)
    m_hat = m / (1 - b1**t)
    if rho < 5:
        return m_hat
    r = np.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))
    return r * m_hat / (np.sqrt(v / (1 - b2**t)) + 1e-8)


@pytest.mark.parametrize("steps", [3, 12])
def test_radam_in_bfloat16_is_right(steps: int) -> None:
    tx = optax.scale_by_radam()
    params = tree_of(jnp.bfloat16)
    state = tx.init(params)
    grad = tree_of(jnp.bfloat16, seed=1)
    for _ in range(steps):
        updates, state = tx.update(grad, state, params)
    expected = rectified_adam_in_numpy([np.asarray(grad["w"], np.float64)] * steps)
    # bfloat16 moments lose 2 ** -9 in each step.
    np.testing.assert_allclose(np.asarray(updates["w"], np.float64), expected, rtol=0.05)


@pytest.mark.skipif(Version("0.1.4") > RELEASE, reason="novograd came with optax 0.1.4")
def test_the_second_moment_of_novograd_does_not_stall_in_bfloat16() -> None:
    tx = optax.scale_by_novograd(b2=0.999)
    params = {"w": jnp.ones(16, jnp.bfloat16)}
    state = tx.init(params)
    assert state.nu["w"].dtype == jnp.float32

    def step(state: Any, _: None) -> Any:
        return tx.update(params, state, params)[1], None

    small = jax.tree_util.tree_map(lambda leaf: leaf * 0.5, params)
    state = tx.update(small, state, params)[1]  # nu = |g|^2 = 4
    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, None, length=1000))(state)
    expected = 0.999**1000 * 4 + (1 - 0.999**1000) * 16
    np.testing.assert_allclose(state.nu["w"], expected, rtol=1e-3)


@pytest.mark.skipif(Version("0.1.8") > RELEASE, reason="it came with optax 0.1.8")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scalars_of_distance_over_gradients_are_float32(dtype: Any) -> None:
    tx = optax.scale_by_distance_over_gradients()
    params = tree_of(dtype)
    state = tx.init(params)
    statistics = leaves((state.max_dist, state.grad_sum_of_squares))
    assert {leaf.dtype for leaf in statistics} == {jnp.dtype(jnp.float32)}
    assert_keeps_the_contract(tx, params)


def test_gradients_wider_than_params_are_left_to_the_user() -> None:
    """Stock's promotion stands there, unless ``every_transform`` is on."""
    tx = optax.trace(0.9)
    params, grads = tree_of(jnp.bfloat16), tree_of(jnp.float32)
    _, state = tx.update(grads, tx.init(params), params)
    assert {leaf.dtype for leaf in leaves(state)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "build",
    [
        lambda: optax.scale(-1.0),
        lambda: optax.scale_by_schedule(lambda _: 0.1),
        lambda: optax.adam(0.1),
        lambda: optax.add_decayed_weights(0.1),
    ],
    ids=["scale", "scale_by_schedule", "adam", "add_decayed_weights"],
)
def test_a_leaf_keeps_its_dtype_beside_one_with_a_wider_gradient(build: Any) -> None:
    """So ``lbfgs`` gave float32 for an integer leaf, which ``scale(-1.0)`` ends."""
    tx, params = build(), tree_of(jnp.bfloat16, jnp.int32)
    updates, _ = tx.update(tree_of(jnp.float32, jnp.int32), tx.init(params), params)
    assert updates["b"].dtype == jnp.int32
    assert updates["w"].dtype == jnp.float32, "whose gradient is wider: stock's promotion stands"


def test_the_signature_is_stocks() -> None:
    tx = optax.trace(0.9)
    with pytest.raises(TypeError, match="unexpected keyword"):
        tx.update(tree_of("float32"), tx.init(tree_of("float32")), None, value=1.0)


@pytest.mark.skipif(Version("0.2.5") > RELEASE, reason="sophia came with optax 0.2.5")
def test_sophia_takes_an_integer_leaf_inside_multi_steps() -> None:
    """Up to 0.2.7 the gradient of such a leaf is a float there, and the estimator has none."""

    def objective(params: Any) -> Any:
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves(params))

    tx = optax.MultiSteps(optax.contrib.sophia(0.1), 2)
    params = tree_of(jnp.float32, jnp.int32)
    assert_keeps_the_contract(tx, params, extra=lambda _: {"obj_fn": objective})


@pytest.mark.skipif(Version("0.2.5") > RELEASE, reason="sophia came with optax 0.2.5")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sophia_takes_an_estimator_of_the_users_own(dtype: str) -> None:
    def update(grads: Any, state: Any, params: Any = None, *, obj_fn: Any) -> Any:
        del grads
        diagonal = jnp.asarray(obj_fn(params, jnp.float32(2.0)))  # It takes a batch, too.
        return tree_map(lambda p: jnp.full_like(p, diagonal), params), state

    own = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = optax.contrib.sophia(0.1, hessian_diagonal_fn=own)
    params = {"w": jnp.ones(2, dtype)}
    updates, _ = tx.update(
        params, tx.init(params), params, obj_fn=lambda p, batch: jnp.sum(p["w"]) * batch
    )
    assert updates["w"].dtype == jnp.dtype(dtype)
    assert np.all(np.abs(np.asarray(updates["w"], np.float32)) > 0.05)
