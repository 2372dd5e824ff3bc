from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix
from evidence.stalls.test_stalls import bound_of, cells, is_known
from evidence.ways import in_three_ways
from optax_dtypefix._contract.moments import ROUNDINGS
from optax_dtypefix.patches.releases import TESTED
from support import moments
from support.nodes import Bfloat16Only
from support.patch_cases import FuzzCase, Program
from support.processes import run, stdout_of
from support.thorough import one_of
from support.trees import leaves, tree_map, tree_of, types

if TYPE_CHECKING:
    from pathlib import Path

    from support.fuzzing import Draw
    from support.moments import MomentTransform

# Old releases call deprecated functions of JAX.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

contrib = getattr(optax, "contrib", None)


def fuzzed(draw: Draw) -> Any:
    return draw.call(
        optax,
        "adam adamw adamax amsgrad nadam radam rmsprop novograd adabelief adan yogi lamb lion",
        draw.rate(),
    )


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {  # Other dtypes than bfloat16, and a momentum whose dtype the user chose.
    "adam": Program(lambda: optax.adam(1e-2)),
    "adam with mu_dtype": Program(
        lambda: optax.adam(1e-2, mu_dtype=jnp.bfloat16), jnp.float32, same="state"
    ),
    "adam complex": Program(lambda: optax.adam(1e-2), jnp.complex64),
    "yogi": Program(lambda: optax.yogi(1e-2)),
    "adagrad": Program(lambda: optax.adagrad(1e-2)),
    "rmsprop centered": Program(lambda: optax.rmsprop(1e-2, centered=True)),
    "sm3": Program(lambda: optax.sm3(1e-2)),
    "lion": Program(lambda: optax.lion(1e-2), releases=">=0.1.5"),
    "ema": Program(lambda: optax.ema(0.9)),
    "apply_every": Program(lambda: optax.apply_every(3)),
    "adafactor": Program(lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2)),
    "muon": Program(lambda: contrib.muon(1e-2), releases=">=0.2.5"),
    "momentum": Program(lambda: optax.sgd(1e-2, momentum=0.9)),
    "momentum bfloat16": Program(lambda: optax.sgd(1e-2, momentum=0.9), jnp.bfloat16, same="state"),
    "adam bfloat16": Program(lambda: optax.adam(1e-3), jnp.bfloat16, same="state"),
    "rmsprop bfloat16": Program(lambda: optax.rmsprop(1e-3), jnp.bfloat16, same="state"),
}

by_some_transforms = moments.parametrize(moments.SIMPLE, 4)


@pytest.fixture(scope="module", params=["adam", "inject rmsprop,ema"])
def measured(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("stalls")
    # ``nox -s audit`` measures all.
    few = request.param.split(",")
    return in_three_ways(folder, "evidence.stalls.measure", "bfloat16", *few)


@pytest.mark.thorough
@pytest.mark.rule("C0")
def test_1200_steps_are_never_worse_than_on_stock(measured: Any) -> None:
    found = [cell for cell in cells(measured) if not is_known(*cell[:2], "bfloat16")]
    worse = [cell for cell in found if cell[3] > 1.25 * cell[2] + bound_of(cell[0])]
    assert worse == []


@pytest.mark.thorough
@pytest.mark.rule("C4")
def test_updates_of_1200_steps_are_within_two_percent(measured: Any) -> None:
    found = list(cells(measured))
    assert len(found) > 30
    assert [cell for cell in found if cell[3] > 0.02] == []
    assert sum(was > 0.03 for *_, was, _ in found) >= 12  # Where stock stalls.
    if stock := [was for case, _, was, _ in found if case == "adam|all|a"]:
        assert 0.105 < min(stock) < max(stock) < 0.375


@by_some_transforms
def test_init_runs_the_program_of_stock(transform: MomentTransform) -> None:
    """A float32 copy of the params would need more memory than training."""
    stock, patched = moments.stock_and_patched(transform)
    params = tree_of(jnp.bfloat16)
    if transform.starts_at_zero:
        assert str(jax.make_jaxpr(patched.init)(params)) == str(jax.make_jaxpr(stock.init)(params))
    else:
        large = tree_map(lambda leaf: jnp.zeros((100, *leaf.shape), leaf.dtype), params)
        wide = [wide_arrays(tx.init, large) for tx in (patched, stock)]
        assert wide[0] == wide[1]


@by_some_transforms
def test_what_starts_at_zero_is_known(transform: MomentTransform) -> None:
    stock, _ = moments.stock_and_patched(transform)
    state = stock.init(tree_of(jnp.float32))
    fields = ROUNDINGS[type(state).__name__]
    found = [np.asarray(leaf) for name in fields for leaf in leaves(getattr(state, name))]
    assert not transform.starts_at_zero or not any(leaf.any() for leaf in found)


def wide_arrays(function: Any, tree: Any) -> int:
    """Count the large arrays of float32 that a function makes."""
    made = [v.aval for e in jax.make_jaxpr(function)(tree).jaxpr.eqns for v in e.outvars]
    return sum(aval.dtype == jnp.float32 and aval.size > 100 for aval in made)


def test_each_run_gives_the_same_bits_eager_and_compiled() -> None:
    tx, params = optax.scale_by_adam(), tree_of(jnp.bfloat16)
    runs = []
    for step in (tx.update, tx.update, jax.jit(tx.update)):
        state = tx.init(params)
        for seed in range(5):
            _, state = step(tree_of(jnp.bfloat16, seed=seed), state, params)
        runs.append(state)
    for other in runs[1:]:
        for got, expected in zip(leaves(other.nu), leaves(runs[0].nu)):
            np.testing.assert_array_equal(np.asarray(got, float), np.asarray(expected, float))


@pytest.mark.parametrize("wrap", one_of(2, [optax.MultiSteps, optax.apply_if_finite]))
@pytest.mark.parametrize("build", [lambda: optax.sgd(0.1, 0.9), lambda: optax.rmsprop(0.1)])
def test_vmap_may_choose_the_branch_of_a_wrapper(wrap: Any, build: Any) -> None:
    """Each member steps as it does alone, with bits from the data of the step."""
    tx, rng = wrap(build(), 2), np.random.default_rng(0)
    shapes = {"w": (3, 3, 4), "number": (3,)}
    params = {name: jnp.asarray(rng.normal(size=of), jnp.bfloat16) for name, of in shapes.items()}

    def train(params: Any) -> Any:
        def step(state: Any, _: None) -> Any:
            updates, state = tx.update(params, state, params)
            return state, updates

        return jax.lax.scan(step, tx.init(params), None, 4)[1]

    together = jax.jit(jax.vmap(train))(params)
    for member in range(3):
        alone = jax.jit(train)(tree_map(lambda leaf, i=member: leaf[i], params))
        for name in shapes:
            np.testing.assert_array_equal(together[name][member], alone[name])


def test_vmap_gives_each_row_the_steps_that_it_has_alone() -> None:
    tx, rows = optax.scale_by_adam(), jnp.asarray(np.random.randn(3, 5), jnp.bfloat16)

    def nu_after_steps(row: Any) -> Any:
        state = tx.init(row)
        for _ in range(4):
            _, state = tx.update(row, state, row)
        return state.nu

    together = jax.jit(jax.vmap(nu_after_steps))(rows)
    alone = jnp.stack([jax.jit(nu_after_steps)(row) for row in rows])
    np.testing.assert_array_equal(np.asarray(together, float), np.asarray(alone, float))


@pytest.mark.thorough
def test_a_derivative_through_steps_follows_float32() -> None:
    """Rounding is differentiated as a cast, because a step has the derivative 0."""

    def last_update(g: Any, dtype: Any) -> Any:
        tx, params = optax.scale_by_adam(), jnp.ones((), dtype)
        state = tx.init(params)
        for _ in range(3):
            update, state = tx.update((g * g).astype(dtype), state, params)
        return update.astype(jnp.float32) * g

    got, exact = (
        float(jax.grad(last_update)(jnp.float32(0.3), d)) for d in (jnp.bfloat16, jnp.float32)
    )
    np.testing.assert_allclose(got, exact, rtol=0.03)


ASKED = {
    "scale_by_adam": "mu_dtype",
    "scale_by_ademamix": "mu_dtype",
    "scale_by_amsgrad": "mu_dtype",
    "scale_by_lion": "mu_dtype",
    "scale_by_muon": "mu_dtype",
    "scale_by_novograd": "mu_dtype",
    "trace": "accumulator_dtype",
    "ema": "accumulator_dtype",
}
DECAYS = {"trace": {"decay": 0.99}, "ema": {"decay": 0.99}}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("asked", one_of(2, [jnp.bfloat16, "float16"]))
def test_a_moment_in_a_dtype_that_the_user_asked_for_does_not_stall(name: str, asked: Any) -> None:
    """On stock those in bfloat16 stop at half of what they should be, in float32 problems too."""
    function = getattr(optax, name, getattr(contrib, name, None))
    if function is None or ASKED[name] not in inspect.signature(function).parameters:
        assert optax.__version__ != TESTED[-1], f"{name} is misspelt, or its argument"
        pytest.skip("this release does not have the function, or the argument")
    random, steps = np.random.default_rng(0), 600
    grads = jnp.asarray(1 + 0.3 * random.normal(size=(steps, 8, 8)), jnp.float32)
    grads = jnp.where(jnp.arange(steps)[:, None, None] < 300, grads, 0.1 * grads)
    found = {}
    for dtype in (None, asked):
        tx = function(**DECAYS.get(name, {}), **{ASKED[name]: dtype})
        param = jnp.ones((8, 8))

        def step(state: Any, grad: Any, tx: Any = tx, param: Any = param) -> Any:
            updates, after = tx.update(grad, state, param)
            return after, updates

        first = tx.init(param)
        last, updates = jax.jit(lambda s, f=step: jax.lax.scan(f, s, grads))(first)
        assert types(last) == types(first)
        assert updates.dtype == jnp.float32
        found[dtype] = np.asarray(updates[-1], float)
        dtypes = {leaf.dtype for leaf in leaves(last) if leaf.ndim}
        assert dtype is None or jnp.dtype(asked) in dtypes
    if name == "scale_by_lion":  # Of one sign.
        np.testing.assert_array_equal(found[asked], found[None])
    # Muon makes small singular values as large as the others.
    atol = 0.1 if name == "scale_by_muon" else 0.02
    np.testing.assert_allclose(found[asked], found[None], rtol=0.09, atol=atol)
    if name != "scale_by_muon":  # Of one element in a hundred the error is three times as large.
        assert np.sqrt(np.mean((found[asked] / found[None] - 1) ** 2)) < 0.03


@pytest.mark.parametrize("name", ["scale_by_rms", "scale_by_belief", "ema"])
def test_without_params_updates_have_the_dtypes_of_stock(name: str) -> None:
    tx = getattr(optax, name)(*([0.9] if name == "ema" else []))
    params = tree_of(jnp.bfloat16)
    grads = {**params, "b": None}
    updates, _ = tx.update(grads, tx.init(params))
    assert [leaf.dtype for leaf in leaves(updates)] == [jnp.bfloat16] * len(leaves(grads))


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(3,), (3, 3), (3, 4)])
def test_states_that_are_stacked_run_without_vmap(shape: tuple[int, ...]) -> None:
    """Each row has its own counter. A leaf without rows is rounded to nearest."""
    tx = optax.ema(0.9, debias=False)
    params = {"w": jnp.asarray(np.random.randn(*shape), jnp.bfloat16)}
    state = jax.vmap(tx.init)(params)
    state = state._replace(count=jnp.arange(3, dtype=jnp.int32))
    _, together = tx.update(params, state, params)
    _, row_by_row = jax.vmap(tx.update)(params, state, params)
    np.testing.assert_array_equal(
        np.asarray(together.ema["w"], float), np.asarray(row_by_row.ema["w"], float)
    )
    _, other = tx.update(params, state._replace(count=jnp.zeros(2, jnp.int32)), params)
    assert types(other.ema) == types(state.ema)


def test_a_subclass_of_a_state_becomes_that_of_stock() -> None:
    class Own(optax.ScaleByAdamState):  # type: ignore[misc]
        pass

    tx, params = optax.scale_by_adam(), tree_of(jnp.bfloat16)
    _, state = tx.update(params, Own(*tx.init(params)), params)
    assert type(state) is optax.ScaleByAdamState


@pytest.mark.skipif(not hasattr(contrib, "MuonDimensionNumbers"), reason="came with optax 0.2.6")
def test_a_function_of_the_users_is_given_the_users_dtypes() -> None:
    seen = set()

    def by_dtype(tree: Any) -> Any:
        seen.update(leaf.dtype for leaf in leaves(tree))
        return tree_map(lambda _: contrib.MuonDimensionNumbers(), tree)

    tx = contrib.scale_by_muon(weight_dimension_numbers=by_dtype)
    params = {"w": jnp.ones((4, 4), jnp.bfloat16)}
    tx.update(params, tx.init(params), params)
    jax.jit(tx.update)(params, tx.init(params), params)
    assert seen == {jnp.dtype(jnp.bfloat16)}


def test_a_state_from_stock_goes_on() -> None:
    """Its dtypes are those of a new state."""
    tx, params = optax.adam(1e-3), tree_of(jnp.bfloat16)
    with optax_dtypefix.disabled():
        stock = optax.adam(1e-3)
        _, saved = stock.update(params, stock.init(params), params)
    _, state = tx.update(params, saved, params)
    assert types(state) == types(saved) == types(tx.init(params))


def test_a_node_that_takes_bfloat16_alone_gets_no_float32_copy() -> None:
    tx, params = optax.adam(0.125), Bfloat16Only(jnp.ones((3,), jnp.bfloat16))
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(params, state, params)
    np.testing.assert_allclose(np.asarray(updates.child, float), -0.125, rtol=1e-2)


def test_the_opt_in_patch_alone_keeps_a_float32_moment() -> None:
    optax_dtypefix.apply("float32_moments")
    try:
        tx, params = optax.scale_by_adam(), tree_of(jnp.bfloat16)
        state = tx.init(params)
        _, after = tx.update(params, state)
        updates, _ = tx.update(params, after)
    finally:
        optax_dtypefix.revert("float32_moments")
    assert {leaf.dtype for leaf in leaves((after.mu, after.nu))} == {jnp.dtype(jnp.float32)}
    assert {leaf.dtype for leaf in leaves(updates)} == {jnp.dtype(jnp.bfloat16)}
    assert types(state) == types(after)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(contrib, "sophia"), reason="optax has no sophia")
def test_the_objective_of_sophia_runs_as_often_as_on_stock_with_wide_gradients() -> None:
    calls: list[Any] = []

    def objective(params: Any) -> Any:
        calls.append(params)
        return jnp.sum(params.astype(jnp.float32) ** 2)

    tx, params = contrib.sophia(1e-2), jnp.ones(2, jnp.bfloat16)
    state = tx.init(params)
    for _ in range(2):
        _, state = tx.update(jnp.ones(2), state, params, obj_fn=objective)
    assert len(calls) == 2
    assert state[0].mu.dtype == jnp.bfloat16


@pytest.mark.thorough
def test_alone_this_patch_keeps_a_moment_that_an_array_would_make_wide() -> None:
    """Without ``promotion``, as with OPTAX_DTYPEFIX_ONLY=bfloat16_moments."""
    code = (
        "import jax.numpy as jnp, optax, optax_dtypefix\n"
        "tx, p = optax.ema(jnp.float32(0.999), debias=False), jnp.ones(3, jnp.bfloat16)\n"
        "state = tx.init(p)\n"
        "_, after = tx.update(p, state)\n"
        "print(state.ema.dtype, after.ema.dtype)"
    )
    done = run("-W", "ignore", "-c", code, OPTAX_DTYPEFIX_ONLY="bfloat16_moments")
    assert stdout_of(done) == "bfloat16 bfloat16\n"
