from __future__ import annotations

import functools
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from optax_dtypefix._contract.bits import bits_from, starts_of
from support.compiled import compiled_step
from support.nodes import Converting
from support.patch_cases import FuzzCase, Program
from support.processes import run, stdout_of
from support.python_calls import calls_into_the_shim
from support.trees import in_float64

if TYPE_CHECKING:
    from support.fuzzing import Draw


# Old releases call deprecated functions of JAX.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def fuzzed(draw: Draw) -> Any:
    return optax.sgd(draw.rate())


FUZZ = FuzzCase(fuzzed)
PROGRAMS = {"sgd": Program(lambda: optax.sgd(0.1), jnp.bfloat16)}

HALVES = pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
STEPS = 8000


def unit(params: Any) -> Any:
    """Return the distance of half-precision numbers to the next one."""
    return np.asarray(np.spacing(np.asarray(params)), np.float64)


def normal(size: Any, dtype: Any = jnp.float32, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=size), dtype)


@HALVES
def test_sums_are_right_on_average(dtype: Any) -> None:
    params = jnp.asarray(np.random.default_rng(1).uniform(1, 1.9, size=(40, 25)), dtype)
    updates = 1e-3 * normal((40, 25))
    apply = jax.jit(optax.apply_updates)
    # Updates that differ by little: the bits of each step are others, and the sum nearly the same.
    factors = np.linspace(1, 1.001, 100)
    errors = [
        in_float64(apply(params, updates * factor))
        - (in_float64(params) + in_float64(updates * factor))
        for factor in factors
    ]
    in_units = np.asarray(errors) / unit(params)
    assert np.abs(in_units).max() <= 1
    assert abs(in_units.mean()) < 0.01
    assert np.abs(in_units.mean(0)).max() < 0.25  # Five times the spread of 100 roundings.


@HALVES
def test_averages_are_right_on_average(dtype: Any) -> None:
    new, old = (jnp.asarray(1 + np.random.default_rng(i).random((40, 25)), dtype) for i in (0, 1))
    update = jax.jit(optax.incremental_update)
    errors = []
    for step_size in np.linspace(1e-3, 2e-3, 30):
        exact = step_size * in_float64(new) + (1 - step_size) * in_float64(old)
        errors.append((in_float64(update(new, old, step_size)) - exact) / unit(old))
    assert np.abs(errors).max() <= 1
    assert abs(np.mean(errors)) < 0.01


def chi_squared(*columns: Any) -> float:
    """Return how far cells of an 8 x 8 table (or 64 cells) are from even, in spreads."""
    cells = [
        np.ravel(column).astype(int) >> (13 if len(columns) == 2 else 10) for column in columns
    ]
    index = cells[0] * 8 + cells[1] if len(columns) == 2 else cells[0]
    counts = np.bincount(index, minlength=64)
    expected = counts.sum() / 64
    return float((((counts - expected) ** 2 / expected).sum() - 63) / np.sqrt(2 * 63))


@pytest.mark.parametrize("even", [False, True], ids=["hashed", "even"])
def test_bits_are_even_and_independent(even: bool) -> None:
    @jax.jit
    def bits(seed: Any) -> Any:
        same = jnp.full((6, 7), 1.25) + seed * 2.0**-20  # Elements and arrays with the same value.
        arrays = [same, same, jnp.ones(())]
        starts = starts_of([[leaf] for leaf in arrays])
        return [bits_from(start, x.shape, even) >> 16 for start, x in zip(starts, arrays)]

    first, second, number = map(np.asarray, jax.lax.map(bits, jnp.arange(4000.0)))
    pairs = {
        "elements": (first[:, 2, 3],),
        "neighbours": (first[:, 2, 3], first[:, 2, 4]),
        "rows": (first[:, 2, 3], first[:, 3, 3]),
        "far apart": (first[:, 0, 0], first[:, 5, 6]),
        "arrays": (first[:, 2, 3], second[:, 2, 3]),
        "an array and a number": (first[:, 0, 0], number),
        "steps": (first[:-1, 2, 3], first[1:, 2, 3]),
        "steps of a number": (number[:-1], number[1:]),
        "all": (first,),
    }
    if even:  # In one step neighbours are a fixed number apart.
        for name in ("neighbours", "rows", "far apart", "arrays", "an array and a number"):
            del pairs[name]
    far = {name: chi_squared(*columns) for name, columns in pairs.items()}
    assert max(far.values()) < 5, far


@pytest.mark.parametrize(
    ("tx", "steps"),
    [
        (lambda: optax.sgd(1e-3), 12_000),
        (lambda: optax.sgd(3e-3), 6_000),
        (lambda: optax.MultiSteps(optax.sgd(0.1), 21), 6_000),
    ],
    ids=["sgd(1e-3)", "sgd(3e-3)", "MultiSteps"],
)
def test_params_of_a_quadratic_end_where_they_should(tx: Any, steps: int) -> None:
    """The gradient follows the param, so all weights could be shifted together."""
    target = jnp.asarray(np.random.default_rng(0).uniform(1, 1.9, size=4096), jnp.float32)

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        updates, state = built.update(params.astype(jnp.float32) - target, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), (params.astype(jnp.float32) - target).mean()

    built = tx()
    params = target.astype(jnp.bfloat16)
    scan = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=steps)[1])
    errors = np.asarray(scan((params, built.init(params))), np.float64)
    assert abs(errors[steps // 2 :].mean()) / 2.0**-7 < 0.05


@HALVES
def test_what_is_exact_stays(dtype: Any) -> None:
    largest = float(jnp.finfo(dtype).max)
    numbers = [0.0, -0.0, 1.5, -3.0, largest, -largest, np.inf, -np.inf, np.nan]
    params = [jnp.asarray(numbers, dtype), normal(9, dtype)]
    zeros = [jnp.full(9, -0.0, dtype)] * 2
    for found in (
        optax.apply_updates(params, zeros),
        jax.jit(optax.apply_updates)(params, zeros),
        optax.incremental_update(params, params, 0.3),
        jax.jit(optax.incremental_update)(params, params, 0.3),
    ):
        for leaf, before in zip(found, params):
            assert leaf.tobytes() == before.tobytes() or np.isnan(in_float64(before)).any()
            np.testing.assert_array_equal(in_float64(leaf), in_float64(before))


@HALVES
def test_updates_of_master_weights_land_where_they_should(dtype: Any) -> None:
    params = {"w": normal((30, 20), dtype)}
    tx = optax_dtypefix.master_weights(optax.adam(1e-3))
    state = tx.init(params)
    for seed in range(5):
        grads = {"w": normal((30, 20), dtype, seed)}
        updates, state = jax.jit(tx.update)(grads, state, params)
        params = optax.apply_updates(params, updates)
        rounded = state.master["w"].astype(dtype)
        np.testing.assert_array_equal(in_float64(params["w"]), in_float64(rounded))


def test_other_leaves_are_stock_s() -> None:
    params = {
        "half": normal(4, jnp.bfloat16),
        "single": normal(4),
        "integer": jnp.arange(4),
        "complex": normal(4) * (1 + 2j),
        "none": None,
        "number": 2.0,
        "half of a complex update": normal(4, jnp.bfloat16),
    }
    updates = {
        name: None if name == "none" else normal(4) * (1j if "complex" in name else 1)
        for name in params
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Stock drops the imaginary part.
        found = optax.apply_updates(params, updates)
        stock = optax_dtypefix.original(optax.apply_updates)(params, updates)
    for name in params.keys() - {"half", "none"}:
        assert found[name].dtype == stock[name].dtype
        np.testing.assert_array_equal(found[name], stock[name])
    assert found["none"] is None
    assert found["half"].dtype == jnp.bfloat16


def test_a_program_without_halves_is_stock_s() -> None:
    tree = {"w": jnp.ones((3, 4)), "n": jnp.arange(3)}
    for function, args in (
        (optax.apply_updates, (tree, tree)),
        (optax.incremental_update, (tree, tree, 0.1)),
    ):
        texts = [
            str(jax.make_jaxpr(f)(*args)) for f in (function, optax_dtypefix.original(function))
        ]
        assert texts[0] == texts[1]


def test_leaves_that_are_no_halves_take_one_look_each() -> None:
    """Then stock gets the whole trees. Eager steps make these calls each time."""
    tree = {str(index): jnp.ones(3) for index in range(20)}
    for function, args in ((optax.apply_updates, ()), (optax.incremental_update, (0.1,))):
        function(tree, tree, *args)  # It loads the file of the patch.
        calls = calls_into_the_shim(lambda f=function, more=args: f(tree, tree, *more))
        assert len(tree) < len(calls) <= 3 * len(tree) + 10, calls


def test_the_errors_of_odd_trees_are_stock_s() -> None:
    half = jnp.ones(3, jnp.bfloat16)
    for params, updates in (
        ([half], [half, half]),
        ({"a": half}, {"b": half}),
        ([half], [None]),
        ([half], [jnp.ones(2)]),
    ):
        messages = []
        for function in (optax.apply_updates, optax_dtypefix.original(optax.apply_updates)):
            with pytest.raises((TypeError, ValueError)) as raised:
                function(params, updates)
            messages.append(type(raised.value))
        assert messages[0] == messages[1]


def test_derivatives_are_stock_s() -> None:
    params, updates = normal(50, jnp.bfloat16), normal(50, jnp.bfloat16, 1)

    def loss(function: Any, args: Any) -> Any:
        return (function(*args).astype(jnp.float32) * normal(50, seed=2)).sum()

    share = jnp.float32(0.3).astype(jnp.bfloat16)
    for function, args in (
        (optax.apply_updates, (params, updates)),
        (optax.incremental_update, (updates, params, share)),
        (optax.incremental_update, (params, params, share)),
    ):
        found, stock = (
            jax.jit(jax.grad(functools.partial(loss, f)))(args)
            for f in (function, optax_dtypefix.original(function))
        )
        for leaf, exact in zip(found, stock):
            assert leaf.dtype == exact.dtype
            np.testing.assert_allclose(
                in_float64(leaf),
                in_float64(exact),
                rtol=2**-6,
                atol=2**-4 if leaf.ndim == 0 else 1e-2,
            )


def test_eager_compiled_scanned_and_checkpointed_steps_are_the_same() -> None:
    params, updates = normal((8, 9), jnp.bfloat16), 1e-3 * normal((8, 9), seed=1)
    eager = params
    for _ in range(3):
        eager = optax.apply_updates(eager, updates)

    def step(params: Any, _: None) -> Any:
        return optax.apply_updates(params, updates), None

    for body in (step, jax.checkpoint(step)):
        scanned, _ = jax.jit(lambda p, f=body: jax.lax.scan(f, p, None, length=3))(params)
        np.testing.assert_array_equal(in_float64(scanned), in_float64(eager))
    donated = jax.jit(optax.apply_updates, donate_argnums=0)(jnp.array(params), updates)
    np.testing.assert_array_equal(
        in_float64(donated), in_float64(optax.apply_updates(params, updates))
    )


def test_members_of_vmap_have_their_own_bits() -> None:
    params, updates = normal((5, 30), jnp.bfloat16), 1e-3 * normal((5, 30), seed=1)
    found = jax.vmap(optax.apply_updates)(params, updates)
    for member in range(5):
        alone = optax.apply_updates(params[member], updates[member])
        np.testing.assert_array_equal(in_float64(found[member]), in_float64(alone))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["", "jit", "remat"])
def test_what_vmap_does_not_map_stays_so(wrap: Any) -> None:
    """Stock's result of an array that all members share is one array, as ``out_axes`` says."""
    if wrap is jax.checkpoint and Version(jax.__version__) < Version("0.4.20"):
        pytest.skip("JAX crashes: checkpoint inside vmap, then clear_caches; without us, too")
    params = {"both": normal((3, 4, 5)), "first": normal((3, 6)), "second": normal((4, 7))}
    params = {**params, "none": normal(8), "number": normal(())}
    params = {name: leaf.astype(jnp.bfloat16) for name, leaf in params.items()}
    updates = {name: leaf * jnp.bfloat16(1e-3) for name, leaf in params.items()}
    outer: dict[str, Any] = {**dict.fromkeys(params), "both": 0, "first": 0}
    inner: dict[str, Any] = {**dict.fromkeys(params), "both": 0, "second": 0}
    once = jax.vmap(wrap(optax.apply_updates), (inner, inner), inner)
    found = jax.vmap(once, (outer, outer), outer)(params, updates)
    assert {name: leaf.shape for name, leaf in found.items()} == {
        name: leaf.shape for name, leaf in params.items()
    }
    again = jax.vmap(once, (outer, outer), outer)(params, {**updates, "both": 2 * updates["both"]})
    for name in params.keys() - {"both"}:
        np.testing.assert_array_equal(in_float64(found[name]), in_float64(again[name]))


def test_an_array_of_few_elements_has_bits_of_all_data() -> None:
    """Those of its own would repeat, as its updates do."""
    params = {"many": normal(64, jnp.bfloat16), "one": jnp.ones((), jnp.bfloat16)}
    step = jax.jit(optax.apply_updates)
    for seed in range(400):
        updates = {"many": 1e-2 * normal(64, seed=seed), "one": jnp.float32(1e-3)}
        params = step(params, updates)
    assert in_float64(params["one"]) == pytest.approx(1.4, abs=0.12)


def outcome(function: Any, *args: Any) -> Any:
    """Return the dtype and shape of what a function returns, or that it raises an error."""
    try:
        leaf = jax.eval_shape(lambda: function(*args))  # Nothing is compiled.
    except (TypeError, ValueError) as error:
        return type(error)
    return leaf.dtype, leaf.shape


def test_dtypes_and_errors_of_any_pair_are_stock_s() -> None:
    half, names = normal(3, jnp.bfloat16), ["int32", "float16", "float32"]
    if Version(jax.__version__) >= Version("0.4.31"):  # Before it, XLA may crash on these.
        names += ["int4", "float8_e4m3fn"]
    others = [jnp.ones(3, getattr(jnp, name)) for name in names if hasattr(jnp, name)]
    others += [normal(2), normal((2, 3)), jnp.asarray(1j), np.int64(1), np.float16(1), 1j, 1, True]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Stock drops the imaginary part.
        for other in others:
            for function, args in (
                (optax.apply_updates, (half, other)),
                (optax.apply_updates, (other, half)),
                (optax.incremental_update, (half, half, other)),
                (optax.incremental_update, (other, half, 0.1)),
            ):
                stock = outcome(optax_dtypefix.original(function), *args)
                assert outcome(function, *args) == stock, (function, other)


@HALVES
def test_the_infinite_makes_no_nan(dtype: Any) -> None:
    """Where each operation is checked, one inside would raise an error."""
    leaf = jnp.asarray([jnp.inf, -jnp.inf, 1.0], dtype)
    try:
        with jax.debug_nans(True), jax.disable_jit():
            found = optax.apply_updates(leaf, leaf)
            average = optax.incremental_update(leaf, leaf, 0.3)
    finally:
        jax.config.update("jax_debug_nans", False)
    np.testing.assert_array_equal(in_float64(found), [np.inf, -np.inf, 2.0])
    np.testing.assert_array_equal(in_float64(average), in_float64(leaf))


def test_equal_arrays_and_elements_differ() -> None:
    params = [jnp.ones((20, 20), jnp.bfloat16)] * 2
    first, second = optax.apply_updates(params, [jnp.full((20, 20), 2.0**-9)] * 2)
    assert 80 < (first != 1).sum() < 120
    assert (first != second).any()


def test_a_change_of_signs_gives_other_bits() -> None:
    """As of lion, whose updates are the rate or its negative."""
    param = jnp.full(16, 1.2, jnp.bfloat16)
    signs = np.random.default_rng(0).choice([-1, 1], (2000, 16))
    start = jax.jit(jax.vmap(lambda signs: starts_of([[param, jnp.bfloat16(1e-4) * signs]])[0]))
    assert len(np.unique(start(signs), axis=0)) == len(np.unique(signs, axis=0))


def test_a_step_that_repeats_is_rounded_the_same_way() -> None:
    """Nothing tells the steps apart; ``master_weights`` rounds nothing away."""
    param, grad = jnp.ones((), jnp.bfloat16), jnp.float32(1e-4)
    ways = (optax.sgd(1.0), optax_dtypefix.master_weights(optax.sgd(1.0)))
    moved = []
    for tx in ways:

        def step(carry: Any, _: None, tx: Any = tx) -> Any:
            param, state = carry
            updates, state = tx.update(-grad, state, param)
            return (optax.apply_updates(param, updates), state), None

        scan = jax.jit(lambda c, f=step: jax.lax.scan(f, c, None, length=STEPS)[0][0])
        moved.append(float(scan((param, tx.init(param)))) - 1)
    assert moved == [0, pytest.approx(0.8, abs=2.0**-8)]


@pytest.mark.parametrize(("count", "crc32"), [(3, 1449003915), (65, 26234907)], ids=["few", "many"])
def test_the_bits_are_those_of_every_release(count: int, crc32: int) -> None:
    """A run that goes on with other versions of optax and jax rounds as before."""
    params = [jnp.linspace(1, 1.75, 4).astype(jnp.bfloat16) + place / 8 for place in range(count)]
    updates = [jnp.float32(2.0**-12) * jnp.arange(1.0, 5)] * count  # The sums are exact.
    for _ in range(8):
        params = jax.jit(optax.apply_updates)(params, updates)
    assert zlib.crc32(in_float64(jnp.stack(params)).tobytes()) == crc32


def test_in_each_step_as_many_move_as_should() -> None:
    """If none moved, the next step would be the same, and all would stay for ever."""
    step = jax.jit(optax.apply_updates)
    for seed in range(50):
        params = jnp.full((10, 100), 1 + seed * 2.0**-7, jnp.bfloat16)
        moved = (step(params, jnp.full(params.shape, 2.0**-9)) != params).sum()
        assert 230 <= moved <= 270


def test_many_params_with_a_constant_gradient_move() -> None:
    params, updates = jnp.full(64, 1.5, jnp.bfloat16), jnp.linspace(0.9e-3, 1.1e-3, 64)
    step = jax.jit(optax.apply_updates)
    for _ in range(200):
        params = step(params, updates)
    assert in_float64(params).mean() == pytest.approx(1.7, abs=0.01)


def test_nodes_may_convert_their_children() -> None:
    params = Converting(jnp.ones(3, jnp.bfloat16))
    assert isinstance(optax.apply_updates(params, params), Converting)
    assert isinstance(optax.incremental_update(params, params, 0.1), Converting)


def test_an_eager_step_compiles_two_programs_a_shape() -> None:
    count = 0

    def counted(name: str, *_: Any, **__: Any) -> None:
        nonlocal count
        count += name.endswith("backend_compile_duration")

    shapes = [(3, 17), (19,)]
    params = [normal(shape, jnp.bfloat16) for shape in shapes * 10]
    updates = [normal(shape, jnp.bfloat16) for shape in shapes * 10]
    jax.monitoring.register_event_duration_secs_listener(counted)
    optax.apply_updates(params, updates)
    first, count = count, 0
    optax.apply_updates(params, updates)
    assert count == 0
    assert first <= 2 * len(shapes) + 1


@pytest.mark.skipif(
    Version(jax.__version__) < Version("0.10"), reason="older versions of XLA keep 4 bytes more"
)
def test_temporaries_take_at_most_two_bytes_a_param() -> None:
    params = [jnp.ones((512, 256), jnp.bfloat16)] * 4
    tx = optax.adamw(1e-3)
    rounded = compiled_step(tx, params)
    with optax_dtypefix.disabled("stochastic_rounding"):
        jax.clear_caches()
        plain = compiled_step(tx, params)
    jax.clear_caches()
    temporary = [program.memory_analysis().temp_size_in_bytes for program in (rounded, plain)]
    assert (temporary[0] - temporary[1]) / (4 * 512 * 256) <= 2.1


PROGRAM = """
import hashlib
import optax_dtypefix, jax, jax.numpy as jnp, numpy as np, optax
from jax._src import xla_bridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec

tx, abstract = optax.rmsprop(0.1), jax.ShapeDtypeStruct((4,), jnp.bfloat16)
state = jax.eval_shape(tx.init, abstract)
new, _ = jax.eval_shape(tx.update, abstract, state, abstract)
jax.eval_shape(optax.apply_updates, abstract, new)
assert not xla_bridge._backends, "jax.distributed.initialize would be too late"

random = np.random.default_rng(0)
params = {"w": random.normal(size=(16, 8)), "b": random.normal(size=8)}
params = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
updates = jax.tree_util.tree_map(lambda leaf: leaf * 1e-3, params)

def shown(tree):
    leaves = jax.tree_util.tree_leaves(tree)
    return hashlib.md5(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()

print(shown(jax.jit(optax.apply_updates)(params, updates)))
mesh = Mesh(np.array(jax.devices()), ("x",))
spread = jax.device_put((params, updates), NamedSharding(mesh, PartitionSpec("x")))
print(shown(jax.jit(optax.apply_updates)(*spread)))
count = jax.device_count()
copies = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * count), (params, updates))
copies = jax.pmap(optax.apply_updates)(*copies)
assert len({shown(jax.tree_util.tree_map(lambda leaf: leaf[i], copies)) for i in range(count)}) == 1

spec = {"w": PartitionSpec("x"), "b": PartitionSpec()}
both = (spec, spec)

def all_equal(leaf):
    return len({np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards}) == 1

if hasattr(jax, "shard_map"):
    mapped = [(jax.shard_map, "check_vma", check) for check in (True, False)]
else:
    from jax.experimental.shard_map import shard_map
    # Before jax 0.4.21 it has no rule for iota.
    mapped = [(shard_map, "check_rep", check) for check in (CHECKED, False)]
for shard_map, name, check in mapped:
    for function in (optax.apply_updates, jax.jit(optax.apply_updates)):
        done = shard_map(function, mesh=mesh, in_specs=both, out_specs=spec, **{name: check})
        assert all_equal(jax.jit(done)(params, updates)["b"]), (name, check)
rows = [{"w": tree["w"][:count], "b": tree["b"]} for tree in (params, updates)]
axes = {"w": 0, "b": None}
beside = jax.pmap(optax.apply_updates, in_axes=(axes, axes))(*rows)
assert all_equal(beside["b"])
"""


def test_processes_devices_and_replicas_agree() -> None:
    """Also those of an array that is replicated beside one that is not."""
    flag = "--xla_force_host_platform_device_count="
    checked = str(Version(jax.__version__) >= Version("0.4.21"))
    program = PROGRAM.replace("CHECKED", checked)
    lines = [
        line
        for count in "18"
        for line in stdout_of(
            run(
                "-c",
                program,
                XLA_FLAGS=flag + count,
            )
        ).split()
    ]
    assert len(lines) == 4
    assert len(set(lines)) == 1
