from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix
from optax_dtypefix._contract.x64 import is_x64, x64
from support.patch_cases import FuzzCase, Program
from support.thorough import one_of
from support.transformations import with_value
from support.trees import dtypes_of, in_float64, leaves, tree_map, tree_of

if TYPE_CHECKING:
    from support.fuzzing import Draw


contrib = getattr(optax, "contrib", None)
ALL = ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "mechanize")
NAMES = [name for name in ALL if hasattr(contrib, name)]
pytestmark = pytest.mark.skipif(not NAMES, reason="the first of them came with optax 0.1.7")


def fuzzed(draw: Draw) -> Any:
    builders: dict[str, Callable[[], Any]] = {
        "dadapt_adamw": lambda: contrib.dadapt_adamw(draw.rate()),
        "dog": lambda: contrib.dog(draw.number()),
        "dowg": lambda: contrib.dowg(draw.number()),
        "mechanize": lambda: contrib.mechanize(optax.adam(draw.rate())),
        "momo": lambda: contrib.momo(draw.number()),
        "momo_adam": lambda: contrib.momo_adam(draw.number()),
    }
    return builders[draw.of(*NAMES)]()


FUZZ = FuzzCase(fuzzed, "contrib.mechanize", takes_value=True)
DECAYING: dict[str, Any] = {"weight_decay": 0.1, "adapt_lower_bound": True}


def warm_up() -> Any:
    return optax.linear_schedule(0.1, 1.0, 5)


# A zero first gradient is fixed in dadapt_adamw.
PROGRAMS = {
    "dadapt_adamw": Program(
        lambda: contrib.dadapt_adamw(weight_decay=0.1), releases=">=0.1.8", same="bits"
    ),
    "dadapt_adamw schedule": Program(
        lambda: contrib.dadapt_adamw(warm_up()), releases=">=0.1.8", same="bits"
    ),
    "dog": Program(
        lambda: contrib.dog(weight_decay=0.1, mask={"w": True, "b": False}),
        releases=">=0.2.3",
        same="compiled",
    ),
    "dog schedule": Program(lambda: contrib.dog(warm_up()), releases=">=0.2.3", same="compiled"),
    "dowg": Program(
        lambda: contrib.dowg(jnp.asarray(0.5, jnp.float32)), releases=">=0.2.3", same="compiled"
    ),
    "momo": Program(lambda: with_value(contrib.momo()), releases=">=0.2.3"),
    "momo decay": Program(
        lambda: with_value(contrib.momo(np.float64(0.1), **DECAYING)), releases=">=0.2.3"
    ),
    "momo_adam": Program(
        lambda: with_value(contrib.momo_adam(warm_up(), **DECAYING)), releases=">=0.2.3"
    ),
    "momo_adam value": Program(
        lambda: with_value(contrib.momo_adam(), 1.7), releases=">=0.2.3,!=0.2.5,!=0.2.6"
    ),
    "mechanize bfloat16": Program(
        lambda: contrib.mechanize(optax.adam(1e-3)), jnp.bfloat16, ">=0.1.7", same="state"
    ),
}
if optax.__version__ != "0.1.7" or hasattr(jax, "tree_map"):  # Its mechanize calls that.
    PROGRAMS["mechanize"] = Program(
        lambda: contrib.mechanize(optax.adam(1e-2), weight_decay=0.1), releases=">=0.1.7"
    )
for name in ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam"):
    PROGRAMS[f"{name} float16"] = Program(
        lambda name=name: getattr(contrib, name)(), jnp.float16, ">=0.2.3", same="state"
    )

STEPS = 400
EPS, D0, BETA1, BETA2 = 1e-8, 1e-6, 0.9, 0.999
SCALARS = {
    "dadapt_adamw": ("estim_lr", "numerator_weighted"),
    "dog": ("estim_dist", "max_dist", "sum_sq_norm_grads"),
    "dowg": ("estim_sq_dist", "weighted_sq_norm_grads"),
    "momo": ("barf", "gamma"),
    "momo_adam": ("barf", "gamma"),
    "mechanize": ("r", "m", "v", "s"),
}
AVERAGES = ("exp_avg", "exp_avg_sq", "grad_sum")


def build(name: str, **arguments: Any) -> Any:
    if name == "mechanize":
        return contrib.mechanize(optax.sgd(0.1), **arguments)
    return getattr(contrib, name)(**arguments)


def values(name: str, value: Any = 1.5) -> dict[str, Any]:
    return {"value": jnp.asarray(value, jnp.float32)} if name.startswith("momo") else {}


def fields(state: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return those of the named fields that the state, or a part of a chain, has."""
    parts = [part for part in (state, *state) if hasattr(part, "_fields")]
    return {n: getattr(part, n) for part in parts for n in names if n in part._fields}


def square(tree: Any) -> Any:
    return sum((leaf**2).sum() for leaf in tree.values())


def dot(a: Any, b: Any) -> Any:
    return sum((a[name] * b[name]).sum() for name in a)


def dog(params: Any, grads: Any, *_: Any) -> Any:
    start, total, distance = params[0], 0.0, 1e-6 * (1 + np.sqrt(square(params[0])))
    for p, g in zip(params, grads):
        distance = max(distance, np.sqrt(square({n: p[n] - start[n] for n in p})))
        total += square(g)
        yield distance, total


def dowg(params: Any, grads: Any, *_: Any) -> Any:
    start, total, distance = params[0], 0.0, 1e-4
    for p, g in zip(params, grads):
        distance = max(distance, square({n: p[n] - start[n] for n in p}))
        total += distance * square(g)
        yield distance, total


def dadapt_adamw(params: Any, grads: Any, _: Any, averages: Any) -> Any:
    """Take the stored averages if they are bfloat16, because the user chose that."""
    zeros = {n: np.zeros_like(leaf) for n, leaf in params[0].items()}
    v, s, d, r, beta3 = zeros, zeros, D0, 0.0, BETA2**0.5
    for k, g in enumerate(grads, 1):
        step = d * np.sqrt(1 - BETA2**k) / (1 - BETA1**k)
        progress = sum((g[n] * s[n] / (np.sqrt(v[n]) + EPS)).sum() for n in g)
        v = {n: BETA2 * v[n] + (1 - BETA2) * g[n] ** 2 for n in g}
        s = {n: beta3 * s[n] + (1 - beta3) * step * g[n] for n in g}
        r = beta3 * r + (1 - beta3) * step * progress
        d = max(d, r / ((1 - beta3) * sum(np.abs(leaf).sum() for leaf in s.values())))
        if averages["grad_sum"][0]["w"].dtype == jnp.bfloat16:
            v, s = (in_float64(averages[name][k - 1]) for name in ("exp_avg_sq", "grad_sum"))
        yield d, r


def momo(params: Any, grads: Any, losses: Any, _: Any, zeroth: bool = True) -> Any:
    mean, gamma = 0.0, 0.0
    for k, (p, g, loss) in enumerate(zip(params, grads, losses)):
        beta = 0.0 if zeroth and k == 0 else 0.9
        mean = beta * mean + (1 - beta) * loss
        gamma = beta * gamma + (1 - beta) * dot(g, p)
        yield mean, gamma


def momo_adam(*args: Any) -> Any:
    return momo(*args, zeroth=False)


def mechanize(params: Any, grads: Any, *_: Any) -> Any:
    betas = 1 - 0.1 ** np.arange(1.0, 7)
    start, r, m, v, s = params[0], np.zeros(6), np.zeros(6), np.zeros(6), np.full(6, 1e-6)
    for p, g in zip(params, grads):
        decay = 0.01 * s.sum() * np.sqrt(square(g)) / (np.sqrt(square(p)) + EPS)
        h = sum(((g[n] + decay * p[n]) * (start[n] - p[n])).sum() for n in p) / (s.sum() + EPS)
        clipped = np.clip(h, -m, m)
        m = np.maximum(betas * m, abs(h) + EPS)
        v = betas**2 * v + h**2
        r = betas * r + clipped * s
        s = (1e-6 / 6 * m + np.maximum(r, 0)) / (np.sqrt(v) + EPS)
        yield r, m, v, s


REFERENCES = {f.__name__: f for f in (dog, dowg, dadapt_adamw, momo, momo_adam, mechanize)}


@pytest.mark.rule("C4")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", one_of(3, [jnp.bfloat16, jnp.float32, jnp.float16]))
def test_scalars_follow_the_paper_at_every_step(name: str, dtype: Any) -> None:
    """The params walk at random, so the scalars only depend on the inputs."""
    random = np.random.default_rng(0)
    shapes = {"w": (STEPS, 3, 4), "b": (STEPS, 4)}
    grads = {n: jnp.asarray(random.normal(size=shape), dtype) for n, shape in shapes.items()}
    walk = {n: np.cumsum(random.normal(size=shape), 0) / 50 for n, shape in shapes.items()}
    params = {n: jnp.asarray(leaf, dtype) for n, leaf in walk.items()}
    losses = jnp.asarray(2 + random.normal(size=STEPS), jnp.float32)
    tx = build(name)

    def step(state: Any, inputs: Any) -> Any:
        p, g, loss = inputs
        updates, state = tx.update(g, state, p, **values(name, loss))
        return state, (updates, fields(state, (*SCALARS[name], *AVERAGES)))

    first = tx.init(tree_map(lambda leaf: leaf[0], params))
    _, (updates, got) = jax.lax.scan(step, first, (params, grads, losses))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves(updates))

    def history(tree: Any) -> Any:
        arrays = {n: np.asarray(leaf) for n, leaf in tree.items()}
        return [{n: array[k] for n, array in arrays.items()} for k in range(STEPS)]

    averages = {n: history(tree) for n, tree in got.items() if n in AVERAGES}
    inputs = [[*map(in_float64, history(tree))] for tree in (params, grads)]
    wanted = zip(*REFERENCES[name](*inputs, np.asarray(losses, np.float64), averages))
    for field, reference in zip([n for n in SCALARS[name] if n in got], wanted):
        error = np.abs(np.asarray(got[field]).astype(np.float64) - np.asarray(reference))
        largest = np.maximum.accumulate(np.abs(reference), 0)
        assert (error <= 0.01 * largest + 1e-30).all(), field


@pytest.mark.parametrize("name", one_of(2, NAMES))
@pytest.mark.parametrize("dtype", one_of(3, [jnp.float32, jnp.bfloat16, jnp.float16]))
def test_training_starts_after_zero_gradients(name: str, dtype: Any) -> None:
    tx, params = build(name), tree_of(dtype)
    state, update = tx.init(params), jax.jit(tx.update)
    for scale in (0, 0, 1, 1):
        grads = tree_map(lambda p, scale=scale: scale * p, params)
        updates, state = update(grads, state, params, **values(name))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves((updates, state)))
        if name == "dadapt_adamw" and scale == 0:
            assert float(state.estim_lr) == np.float32(D0)
    assert any(bool(leaf.any()) for leaf in leaves(updates))


@pytest.mark.parametrize("name", one_of(2, NAMES))
def test_a_half_precision_or_integer_leaf_does_not_change_the_scalars(name: str) -> None:
    tx, params = build(name), tree_of(jnp.float32)
    exact = tree_map(lambda p: p.astype(jnp.bfloat16).astype(jnp.float32), params)
    mixed = {"w": exact["w"].astype(jnp.bfloat16), "b": exact["b"]}
    counted = {**exact, "steps": jnp.zeros((2,), jnp.int32)}
    found = []
    for tree in (exact, mixed, counted):
        _, state = tx.update(tree, tx.init(tree), tree, **values(name))
        found.append(fields(state, SCALARS[name]))
    for other in found[1:]:
        for field, expected in found[0].items():
            np.testing.assert_allclose(other[field], expected, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_trees_have_the_dtypes_of_stock(name: str) -> None:
    for params in (tree_of(jnp.bfloat16), tree_of(jnp.float32)):
        state = jax.eval_shape(build(name).init, params)
        with optax_dtypefix.disabled():
            stock = jax.eval_shape(build(name).init, params)
        for trees in (AVERAGES, ("init_params", "x0")):
            assert fields(state, trees) == fields(stock, trees)
    state = jax.eval_shape(build(name).init, tree_of(jnp.float16))
    averages = fields(state, AVERAGES)
    if "exp_avg_sq" in averages:
        assert {*dtypes_of(averages)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("name", NAMES)
def test_copies_of_the_params_have_their_dtypes(name: str) -> None:
    params = {"w": jnp.ones(3, jnp.float16), "n": jnp.ones(3, jnp.int8), "b": jnp.ones(3)}
    copies = fields(jax.eval_shape(build(name).init, params), ("init_params", "x0"))
    for copied in copies.values():
        assert dtypes_of(copied) == [jnp.float32, jnp.float32, jnp.float16]  # Of b, n and w.


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("momo")])
def test_the_loss_may_have_any_type(name: str) -> None:
    tx, params = build(name), tree_of(jnp.float32)
    _, expected = tx.update(params, tx.init(params), params, value=jnp.asarray(1.5, jnp.float32))
    with x64():
        wide = (jnp.asarray(1.5, jnp.float64), np.float64(1.5))
        for value in (*wide, 1.5, np.float32(1.5), jnp.asarray(1.5, jnp.bfloat16)):
            updates, state = tx.update(params, tx.init(params), params, value=value)
            np.testing.assert_allclose(state.barf, expected.barf, rtol=1e-6)
            assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("momo")])
def test_a_python_loss_is_as_exact_as_a_float64_array(name: str) -> None:
    with x64():
        tx, params = build(name, learning_rate=10.0), jnp.ones(3, jnp.float64)
        found, expected = (
            tx.update(params / 3, tx.init(params), params, value=value)[0]
            for value in (0.1, jnp.asarray(0.1, jnp.float64))
        )
        np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("momo")])
def test_losses_in_half_precision_are_averaged_in_float32(name: str) -> None:
    tx, params = build(name), tree_of(jnp.float32)
    losses = [1.5, 2.25, 3.0]
    state, exact = tx.init(params), losses[0] if name == "momo" else 0.0
    for loss in losses:
        _, state = tx.update(params, state, params, value=jnp.asarray(loss, jnp.bfloat16))
        exact = BETA1 * exact + (1 - BETA1) * loss
    np.testing.assert_allclose(state.barf, exact, rtol=1e-6)


@pytest.mark.skipif("dog" not in NAMES, reason="dog came with optax 0.2.3")
def test_a_schedule_runs_in_the_users_64_bit_mode() -> None:
    seen = []

    def schedule(count: Any) -> Any:
        seen.append(is_x64())
        return jnp.asarray(0.5) * (count + 1)

    params = tree_of(jnp.float32)
    with x64():
        tx = contrib.dog(schedule)
        state = tx.init(params)
        for _ in range(2):
            updates, state = jax.jit(tx.update)(params, state, params)
    assert seen == [True]
    assert updates["w"].dtype == jnp.float32


WEIGHT_DECAY = inspect.signature(optax.add_decayed_weights).parameters["weight_decay"]


@pytest.mark.thorough
@pytest.mark.skipif(
    "Callable" not in str(WEIGHT_DECAY.annotation), reason="this release takes a number"
)
@pytest.mark.parametrize("name", ["dog", "dowg"])
@pytest.mark.parametrize(
    "rate", one_of(2, [1.0, optax.linear_schedule(1.0, 0.5, 2)]), ids=["1", "schedule"]
)
def test_weight_decay_may_follow_a_schedule(name: str, rate: Any) -> None:
    """Compare with two steps of a constant weight decay; a step with a zero gradient shows it."""
    params = {"w": jnp.ones(2)}
    grads = [{"w": jnp.full(2, 1.0)}, {"w": jnp.zeros(2)}]

    def updates_of(weight_decay: Any) -> list[Any]:
        tx = build(name, learning_rate=rate, weight_decay=weight_decay)
        return [updates["w"] for updates, _ in steps_of(tx, params, grads)]

    expected = updates_of(lambda count: 0.5 / (1 + count))
    with x64():
        found = updates_of(lambda count: jnp.asarray(0.5, jnp.float64) / (1 + count))
    for leaf, other in zip(found, expected):
        assert leaf.dtype == jnp.float32
        np.testing.assert_allclose(leaf, other, rtol=1e-6)


@pytest.mark.skipif("momo" not in NAMES, reason="momo came with optax 0.2.3")
def test_a_flag_may_be_an_int64_array() -> None:
    """Stock reads the flag while a step is traced."""
    params = tree_of(jnp.float32)
    with x64():
        tx = contrib.momo(adapt_lower_bound=jnp.asarray(1, jnp.int64))
        updates, _ = jax.jit(tx.update)(params, tx.init(params), params, **values("momo"))
    assert {*dtypes_of(updates)} == {jnp.dtype(jnp.float32)}


@pytest.mark.skipif("dowg" not in NAMES, reason="dowg came with optax 0.2.3")
def test_a_complex_learning_rate_keeps_its_imaginary_part() -> None:
    params = tree_of(jnp.float32)
    real, rotated = (
        tx.update(params, tx.init(params), params)[0]
        for tx in (build("dowg", learning_rate=jnp.asarray(rate)) for rate in (1.0, 1 + 2j))
    )
    for name, leaf in real.items():
        np.testing.assert_allclose(rotated[name], (1 + 2j) * leaf, rtol=1e-6)


def steps_of(tx: Any, params: Any, gradients: list[Any], losses: Any = None) -> Any:
    """Return the updates and states of a few steps, with the params moved by the updates."""
    state, found, update = tx.init(params), [], jax.jit(tx.update)
    for k, grads in enumerate(gradients):
        extra = {} if losses is None else {"value": jnp.float32(losses[k])}
        updates, state = update(grads, state, params, **extra)
        params = tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        found.append((updates, state))
    return found


def gradients_in(dtype: Any, like: Any, count: int = 3) -> list[Any]:
    """Return gradients of small integers, which are exact in every dtype."""
    random = np.random.default_rng(0)
    trees = [tree_map(lambda p: random.integers(-5, 6, p.shape), like) for _ in range(count)]
    return [tree_map(lambda g: jnp.asarray(g, dtype), tree) for tree in trees]


def losses_of(name: str) -> Any:
    return [9.0, 7.0, 5.0] if name.startswith("momo") else None


@pytest.mark.parametrize("name", one_of(2, NAMES, 1))
@pytest.mark.parametrize("dtype", one_of(3, [jnp.bfloat16, jnp.float16, jnp.int8]))
def test_narrow_gradients_of_float32_params_give_the_results_of_float32_gradients(
    name: str, dtype: Any
) -> None:
    tx, params = build(name), tree_of(jnp.float32)
    if name == "mechanize":  # The base optimizer halves narrow gradients exactly.
        tx = contrib.mechanize(optax.sgd(0.5))
    expected = steps_of(tx, params, gradients_in(jnp.float32, params), losses_of(name))
    found = steps_of(tx, params, gradients_in(dtype, params), losses_of(name))
    for leaf, other in zip(leaves(found), leaves(expected)):
        assert leaf.dtype == other.dtype
        largest = np.abs(np.asarray(other, np.float64)).max()
        np.testing.assert_allclose(leaf, other, rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"dog", "dowg"}))
def test_gradients_under_other_keys_raise(name: str) -> None:
    tx, params = build(name), {"w": jnp.ones(3)}
    with pytest.raises((KeyError, TypeError, ValueError)):
        tx.update({"v": jnp.ones(3)}, tx.init(params), params, **values(name))


@pytest.mark.skipif("dog" not in NAMES, reason="dog came with optax 0.2.3")
def test_dog_trains_on_float16_gradients() -> None:
    """The first updates on |x - 3|^2 / 2 are below the smallest float16 number."""
    newer = "init_step" in inspect.signature(contrib.dog).parameters
    tx = contrib.dog(**({"init_step": ("distance", 1e-8)} if newer else {"reps_rel": 1e-8}))
    x = jnp.zeros((4,), jnp.float32)
    exact, total, distance = np.zeros(4), 0.0, 1e-8
    state, update = tx.init(x), jax.jit(tx.update)
    for _ in range(300):
        updates, state = update((x - 3).astype(jnp.float16), state, x)
        x += updates
        gradient = (exact - 3).astype(np.float16).astype(np.float64)
        distance = max(distance, np.sqrt((exact**2).sum()))
        total += (gradient**2).sum()
        exact = exact - distance / np.sqrt(total + EPS) * gradient
    np.testing.assert_allclose(x, exact, rtol=1e-4)
    assert np.abs(exact - 3).max() < 1e-2


def pairs(tree: Any) -> Any:
    """Split complex leaves into real and imaginary leaves."""
    return {(n, f.__name__): f(leaf) for n, leaf in tree.items() for f in (jnp.real, jnp.imag)}


@pytest.mark.skipif("dog" not in NAMES, reason="dog came with optax 0.2.3")
@pytest.mark.parametrize("name", ["dog", "dowg"])
def test_a_mask_gets_the_users_params(name: str) -> None:
    params = {"a": jnp.ones((2, 2), jnp.bfloat16), "b": jnp.ones((3,), jnp.float32)}
    zeros = tree_map(jnp.zeros_like, params)

    def is_half(tree: Any) -> Any:
        return {name: leaves(tree[name])[0].dtype == jnp.bfloat16 for name in tree}

    for mask in (is_half, {"a": True, "b": False}):
        tx = build(name, learning_rate=1e4, weight_decay=0.5, mask=mask)
        updates, _ = tx.update(zeros, tx.init(params), params)
        assert bool((updates["a"] < 0).all())
        assert not updates["b"].any()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mechanize"])
@pytest.mark.parametrize("attribute", [None, np.float32], ids=str)
def test_a_schedule_may_have_an_attribute_that_is_called_dtype(name: str, attribute: Any) -> None:
    class Schedule:
        dtype = attribute

        def __call__(self, count: Any) -> float:
            del count
            return 0.1

    params = {"w": jnp.ones(3)}
    got, expected = (
        tx.update(params, tx.init(params), params, **values(name))
        for tx in (build(name, learning_rate=rate) for rate in (Schedule(), lambda _: 0.1))
    )
    tree_map(np.testing.assert_array_equal, got, expected)
