"""``migrate_state`` makes a restored state fit, whether stock or patched optax wrote it."""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_dtypefix import migrate_state
from support.checkpoints import CASES, PARAMS, new_states
from support.nodes import Node
from support.processes import STOCK, json_of
from support.thorough import one_of
from support.trees import leaves, tree_map

if TYPE_CHECKING:
    from pathlib import Path

# optax 0.1.2 calls jax.tree_leaves.
pytestmark = pytest.mark.filterwarnings("ignore:jax.tree_leaves is deprecated:FutureWarning")

HALF = PARAMS["bfloat16"]


def injected(**changed: Any) -> Any:
    return optax.inject_hyperparams(optax.adam)(**{"learning_rate": 0.01, **changed})


def as_stock_writes_it(state: Any, dtype: Any = jnp.bfloat16) -> Any:
    """Round the hyperparameters, as stock does for half-precision params."""
    rounded = {name: jnp.asarray(x, dtype) for name, x in state.hyperparams.items()}
    return state._replace(hyperparams=rounded)


def assert_same(state: Any, other: Any) -> None:
    assert jax.tree_util.tree_structure(state) == jax.tree_util.tree_structure(other)
    for leaf, wanted in zip(leaves(state), leaves(other)):
        assert leaf.dtype == wanted.dtype
        np.testing.assert_array_equal(leaf, wanted)


# From and to stock.


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """New states of stock, and what stock makes of new states of patched optax."""
    folder: Path = tmp_path_factory.mktemp("states")
    (folder / "patched.pickle").write_bytes(pickle.dumps(new_states()))
    resumed = json_of("support.checkpoints", str(folder), **STOCK)
    return pickle.loads((folder / "stock.pickle").read_bytes()), resumed


@pytest.mark.rule("C6")
@pytest.mark.parametrize("dtype", PARAMS)
@pytest.mark.parametrize("name", CASES)
def test_a_new_state_of_stock_becomes_a_new_state(name: str, dtype: str, states: Any) -> None:
    """Bit by bit, also if the restoring library cast it to the dtypes of the patched state."""
    tx, params = CASES[name](), PARAMS[dtype]
    new = tx.init(params)
    saved = states[0][f"{name}, {dtype}"]
    structure = jax.tree_util.tree_structure(new)
    for restored in (saved, [old.astype(leaf.dtype) for old, leaf in zip(saved, leaves(new))]):
        state, changes = migrate_state(tx, params, structure.unflatten(restored))
        assert_same(state, new)
        assert {change.kind for change in changes} <= {"replaced", "cast"}


@pytest.mark.rule("C6")
@pytest.mark.parametrize("dtype", PARAMS)
@pytest.mark.parametrize("name", CASES)
def test_a_new_state_becomes_a_new_state_of_stock(name: str, dtype: str, states: Any) -> None:
    found = states[1][f"{name}, {dtype}"]
    assert "replaced" not in found["kinds"]
    if dtype != "integer":  # There a rate of 0.01 is kept, where a new one is rounded to 0.
        assert found["unlike a new state"] == []
        assert set(found["kinds"]) <= {"cast"}


@pytest.mark.parametrize("dtype", one_of(3, ["bfloat16", "float16", "float32"]))
@pytest.mark.parametrize("name", ["inject", "nested", "labelled", "MultiSteps", "scheduled"])
def test_hyperparameters_of_stock_need_no_migration(name: str, dtype: str, states: Any) -> None:
    """A new state has the bits of a new state of stock, and the first update is right."""
    tx, params = CASES[name](), PARAMS[dtype]
    new = tx.init(params)
    saved = states[0][f"{name}, {dtype}"]
    restored = jax.tree_util.tree_structure(new).unflatten(saved)
    changes = migrate_state(tx, params, restored)[1]
    if name == "MultiSteps":  # Its accumulators are float32, on stock from 0.2.8 on.
        changes = tuple(change for change in changes if "acc_grads" not in change.where)
    assert [change.kind for change in changes] in (
        [],
        ["cast"],  # A scheduled rate that is weakly typed on stock.
    )
    if name != "MultiSteps":
        assert_same(restored, new)
    if name == "inject":
        updates, _ = tx.update(params, restored, params)
        assert float(updates["b"][0]) == pytest.approx(-0.01, rel=0.01)


def test_what_1_1_wrote_is_cast_to_the_dtype_of_stock() -> None:
    """Up to 1.1 the hyperparameters of half-precision params were float32."""
    tx = injected()
    new = tx.init(HALF)
    exact = {name: jnp.float32(x) for name, x in {**as_given(), "learning_rate": 0.003}.items()}
    migrated, changes = migrate_state(tx, HALF, new._replace(hyperparams=exact))
    kinds = {change.where.split("'")[1]: change.kind for change in changes}
    assert kinds == {**dict.fromkeys(exact, "cast"), "learning_rate": "kept"}
    assert migrated.hyperparams["learning_rate"] == jnp.bfloat16(0.003)
    migrated.hyperparams["learning_rate"] = new.hyperparams["learning_rate"]
    assert_same(migrated, new)


def as_given() -> dict[str, float]:
    names = inspect.signature(optax.adam).parameters
    return {n: p.default for n, p in names.items() if isinstance(p.default, float)}


# What is kept.


def test_a_state_that_fits_is_returned_as_it_is() -> None:
    for tx in (injected(), optax.adam(0.1), optax.MultiSteps(optax.sgd(0.1), 2)):
        state = tx.init(HALF)
        migrated, changes = migrate_state(tx, HALF, state)
        assert changes == ()
        assert all(x is y for x, y in zip(leaves(migrated), leaves(state)))


@pytest.mark.parametrize("dtype", one_of(2, [jnp.bfloat16, jnp.float32]), ids=["as saved", "cast"])
def test_a_rate_that_was_lowered_by_hand_is_kept(dtype: Any) -> None:
    tx = injected()
    new = tx.init(HALF).hyperparams
    restored = as_stock_writes_it(tx.init(HALF))
    restored.hyperparams["learning_rate"] = jnp.asarray(0.003, jnp.bfloat16)
    restored = as_stock_writes_it(restored, dtype)
    for _ in range(2):  # Again: nothing changes.
        restored, changes = migrate_state(tx, HALF, restored)
        (kept,) = [change for change in changes if change.kind == "kept"]
        assert kept.where == "state.hyperparams['learning_rate']"
        assert kept.message == "0.00300598 kept; a new state has 0.0100098"
    assert changes == (kept,)
    assert_same(restored.hyperparams, {**new, "learning_rate": jnp.bfloat16(0.003)})


def test_a_value_of_float32_is_not_taken_for_a_rounded_one() -> None:
    """1e-8 is 0 in float16, but so is no 0.9: the state never was float16."""
    params = PARAMS["float32"]
    tx = injected()
    state = tx.init(params)
    state.hyperparams["eps"] = jnp.float32(0)
    migrated, changes = migrate_state(tx, params, state)
    assert float(migrated.hyperparams["eps"]) == 0
    assert [(change.where, change.kind) for change in changes] == [
        ("state.hyperparams['eps']", "kept")
    ]


def test_half_precision_before_is_seen_in_float32_params() -> None:
    """A run goes on in float32, and the restoring library has cast the state."""
    params = PARAMS["float32"]
    tx = injected()
    new = tx.init(params)
    restored = as_stock_writes_it(as_stock_writes_it(new), jnp.float32)
    migrated, _ = migrate_state(tx, params, restored)
    assert_same(migrated, new)


def test_python_numbers_that_were_set_by_hand() -> None:
    tx = injected()
    state = tx.init(HALF)
    state.hyperparams.update(learning_rate=0.003, b1=0.9)
    migrated, changes = migrate_state(tx, HALF, state)
    kinds = {change.where.split("'")[1]: change.kind for change in changes}
    assert kinds == {"learning_rate": "kept", "b1": "cast"}
    assert not any(leaf.weak_type for leaf in leaves(migrated))
    assert migrated.hyperparams["learning_rate"] == jnp.bfloat16(0.003)


def test_an_integer_that_was_set_by_hand_is_kept() -> None:
    """257 is 256 in bfloat16, but stock rounds floats alone."""

    def factory(learning_rate: Any, steps: Any) -> Any:
        del steps
        return optax.sgd(learning_rate)

    tx = optax.inject_hyperparams(factory)(0.1, 257)
    state = tx.init(HALF)
    state.hyperparams["steps"] = jnp.asarray(256)
    migrated, (change,) = migrate_state(tx, HALF, state)
    assert int(migrated.hyperparams["steps"]) == 256
    assert change.message == "256 kept; a new state has 257"


def test_a_schedule_goes_on() -> None:
    tx = injected(learning_rate=optax.linear_schedule(0.1, 0.01, 7))
    state = tx.init(HALF)
    for _ in range(2):
        _, state = tx.update(HALF, state, HALF)
    migrated, changes = migrate_state(tx, HALF, as_stock_writes_it(state))
    assert int(migrated.count) == 2
    wanted = tx.update(HALF, state, HALF)
    assert_same(tx.update(HALF, migrated, HALF), wanted)
    kinds = [change.kind for change in changes if "learning_rate" in change.where]
    if state.hyperparams["learning_rate"].dtype == jnp.bfloat16:
        assert kinds == []  # Stock of this release rounds what the schedule gives.
    elif hasattr(state, "hyperparams_states"):
        assert kinds == ["cast"]
    else:  # The state does not name what is scheduled.
        assert len(kinds) == 1


def test_moments_and_counts_go_on() -> None:
    tx = injected()
    _, state = tx.update(HALF, tx.init(HALF), HALF)
    migrated, _ = migrate_state(tx, HALF, as_stock_writes_it(state))
    assert_same(migrated, state)
    kept = zip(leaves(migrated.inner_state), leaves(state.inner_state))
    assert all(leaf is before for leaf, before in kept)


# Any state.


def starting(state: Any) -> Any:
    return optax.GradientTransformation(
        lambda _: tree_map(jnp.asarray, state), lambda updates, s, _=None: (updates, s)
    )


def test_leaves_stay_within_their_kind_of_number() -> None:
    tx = starting({"complex": np.zeros(2, np.float32), "float": np.zeros(2, np.int32)})
    restored = {"complex": jnp.ones(2, jnp.complex64), "float": jnp.full(2, 0.5)}
    state, changes = migrate_state(tx, HALF, restored)
    assert all(state[name] is restored[name] for name in restored)
    assert list(map(str, changes)) == [
        "state['complex']: complex64 kept: float32, as in a new state, cannot hold it",
        "state['float']: float32 kept: int32, as in a new state, cannot hold it",
    ]
    state, changes = migrate_state(
        starting(restored), HALF, {"complex": jnp.ones(2), "float": jnp.ones(2, jnp.int32)}
    )
    assert [leaf.dtype for leaf in leaves(state)] == [jnp.complex64, jnp.float32]
    assert {change.kind for change in changes} == {"cast"}


def test_a_number_that_would_overflow_is_kept() -> None:
    tx = starting({"nu": np.zeros(2, jnp.float16), "mu": np.zeros(2, jnp.float16)})
    restored = {"nu": jnp.asarray([1e6, 1.0]), "mu": jnp.asarray([1.0, jnp.inf])}
    with jax.debug_nans(True), jax.debug_infs(True):
        state, changes = migrate_state(tx, HALF, restored)
    assert state["nu"] is restored["nu"]
    assert state["mu"].dtype == jnp.float16
    assert [(change.where, change.kind) for change in changes] == [
        ("state['mu']", "cast"),
        ("state['nu']", "kept"),
    ]


def test_nan_in_a_statistic_is_shown() -> None:
    tx = starting({"sum": np.ones((), np.float32)})
    _, changes = migrate_state(tx, HALF, {"sum": jnp.asarray(jnp.nan, jnp.bfloat16)})
    assert list(map(str, changes)) == ["state['sum']: nan kept; a new state has 1"]


def test_leaves_that_are_no_numbers_are_left_alone() -> None:
    key = jax.random.key(0) if hasattr(jax.random, "key") else jax.random.PRNGKey(0)
    start = {"f": jnp.tanh, "host": 0, "numpy": np.zeros(2), "key": key, "none": None}
    tx = optax.GradientTransformation(lambda _: dict(start), lambda g, s, _=None: (g, s))
    restored = {**start, "host": 3, "numpy": np.ones(2)}
    model = {"w": Node(jnp.ones(2)), "activation": jnp.tanh}
    state, changes = migrate_state(tx, model, restored)
    assert changes == ()
    assert all(state[name] is restored[name] for name in restored)


def test_arrays_stay_where_they_are() -> None:
    tx = injected()
    restored = as_stock_writes_it(tx.init(HALF))
    on_host = tree_map(np.asarray, restored)
    state, _ = migrate_state(starting(tree_map(lambda x: x.astype(float), on_host)), HALF, on_host)
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves(state.inner_state))


def test_params_may_be_shapes() -> None:
    shapes = tree_map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), HALF)
    tx = injected()
    restored = as_stock_writes_it(tx.init(HALF))
    assert_same(migrate_state(tx, shapes, restored)[0], tx.init(HALF))


def test_an_init_that_cannot_be_traced() -> None:
    def init(params: Any) -> Any:
        assert float(params["w"].sum()) == 0
        return {"decay": jnp.float32(0.999)}

    tx = optax.GradientTransformation(init, lambda g, s, _=None: (g, s))
    state, (change,) = migrate_state(tx, HALF, {"decay": jnp.bfloat16(0.999)})
    assert float(state["decay"]) == float(np.float32(0.999))
    assert change.kind == "replaced"


def test_a_state_that_does_not_belong_is_refused() -> None:
    tx = injected()
    state = tx.init(HALF)
    with pytest.raises(ValueError, match=r"state\.count, not state\[1\]\.count\. Restore"):
        migrate_state(optax.chain(optax.clip(1.0), tx), HALF, state)
    with pytest.raises(
        ValueError, match=r"structure than tx\.init\(params\): other types of nodes\."
    ):
        migrate_state(starting((1.0, 2.0)), HALF, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"mu\['b'\] has the shape \[1, 3\], and in a new state"):
        migrate_state(optax.adam(0.1), HALF, optax.adam(0.1).init({**HALF, "b": jnp.ones((1, 3))}))
    with pytest.raises(TypeError, match=r"arguments are swapped"):
        migrate_state(HALF, tx, state)
    with pytest.raises(TypeError, match=r"outside of jax\.jit"):
        jax.jit(lambda state: migrate_state(tx, HALF, state)[0])(state)


def test_no_tracer_is_leaked() -> None:
    tx = optax.adam(1e-3)
    with jax.checking_leaks():
        migrate_state(tx, HALF, tx.init(HALF))
