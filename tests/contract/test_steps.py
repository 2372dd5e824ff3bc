"""Updates are noted with the step that they are of, and nothing lives longer for that."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix  # noqa: F401
from optax_dtypefix._contract import steps
from optax_dtypefix._contract.steps import counters_in, is_noted, take_bits
from support.thorough import one_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

TX = optax.adam(1e-3)


def params() -> Any:
    return {"w": jnp.ones((3, 4), jnp.bfloat16), "b": jnp.ones(4, jnp.bfloat16)}


def step(given: Any) -> Any:
    updates, _ = TX.update(given, TX.init(given), given)
    assert all(is_noted(leaf) for leaf in jax.tree_util.tree_leaves(updates))
    return optax.apply_updates(given, updates)


def stacked(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: jnp.stack([x, x]), tree)


WAYS = {
    "eager": lambda: step(params()),
    "jit": lambda: jax.jit(step)(params()),
    "vmap": lambda: jax.vmap(step)(stacked(params())),
    "scan": lambda: jax.lax.scan(lambda p, _: (step(p), None), params(), None, length=2),
    "grad": lambda: jax.grad(lambda p: step(p)["b"].astype(jnp.float32).sum())(params()),
    "cond": lambda: jax.lax.cond(jnp.bool_(True), step, lambda p: p, params()),
    "remat": lambda: jax.checkpoint(step)(params()),
    "shapes": lambda: jax.eval_shape(step, params()),
    "pmap": lambda: jax.pmap(step)(jax.tree_util.tree_map(lambda x: x[None], params())),
}


@pytest.fixture
def collector_off() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.rule("C0")
@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("name", one_of(4, WAYS))
def test_nothing_noted_outlives_its_step(
    name: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "TX", TX if counts else optax.sgd(1e-3))
    WAYS[name]()  # What is compiled once may keep what it was traced with.
    before = len(steps._NOTES.by_id)
    found = WAYS[name]()
    held = sum(is_noted(leaf) for leaf in jax.tree_util.tree_leaves(found))
    assert len(steps._NOTES.by_id) <= before + held
    del found
    assert len(steps._NOTES.by_id) <= before


def test_nothing_noted_outlives_a_trace_that_failed() -> None:
    def failing(given: Any) -> Any:
        step(given)
        raise KeyError

    gc.collect()
    before = len(steps._NOTES.by_id)
    for wrap in (jax.jit, jax.vmap, jax.checkpoint):
        with pytest.raises(KeyError):
            wrap(failing)(stacked(params()))
    jax.jit(lambda p: step(p))(params())  # noqa: PLW0108  # The next trace forgets them.
    gc.collect()
    assert len(steps._NOTES.by_id) <= before


@pytest.mark.parametrize("counts", [True, False])
def test_no_tracer_leaks(counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TX", TX if counts else optax.sgd(1e-3))
    with jax.checking_leaks():
        jax.jit(step)(params())


@pytest.mark.usefixtures("collector_off")
def test_updates_that_are_the_gradients_do_not_keep_themselves() -> None:
    tx, given = optax.masked(optax.sgd(1e-3), mask=False), params()
    state, before = tx.init(given), len(steps._NOTES.by_id)
    grads = params()
    updates, _ = tx.update(grads, state, given)
    assert updates["w"] is grads["w"]
    of_grad = weakref.ref(grads["w"])
    del grads, updates
    assert of_grad() is None
    assert len(steps._NOTES.by_id) <= before
    with jax.checking_leaks():
        jax.jit(lambda grads: tx.update(grads, state, given)[0])(given)


def test_a_note_is_of_an_array_and_not_of_its_id() -> None:
    array = jnp.ones(3)
    steps.note_bits([array], 1)
    other = jnp.ones(3)
    steps._NOTES.by_id[id(other)] = steps._NOTES.by_id[id(array)]
    assert take_bits(array) == 1
    assert take_bits(array) is None
    assert take_bits(other) is None


def test_arrays_without_halves_are_not_noted() -> None:
    given = {"w": jnp.ones((3, 4))}
    updates, _ = TX.update(given, TX.init(given), given)
    assert not is_noted(updates["w"])


def test_float32_updates_of_half_precision_params_are_noted() -> None:
    half = {"w": jnp.ones((3, 4), jnp.bfloat16)}
    updates, _ = TX.update({"w": jnp.ones((3, 4))}, TX.init(half), half)
    assert updates["w"].dtype == jnp.float32
    assert is_noted(updates["w"])


def test_only_what_counts_on_is_a_counter() -> None:
    p = params()
    plain = {
        "sgd": (optax.sgd(0.1), 0),
        "adam": (optax.adam(0.1), 1),
        "schedule": (optax.adamw(optax.constant_schedule(0.1)), 2),
        "if finite": (optax.apply_if_finite(optax.sgd(0.1), 3), 0),
        "every": (optax.apply_every(3), 0),
        "lookahead": (optax.lookahead(optax.sgd(0.1), 3, 0.5), 0),
        "masked": (optax.masked(optax.adam(0.1), {"w": True, "b": False}), 1),
        "multi": (
            optax.multi_transform(
                {"a": optax.adam(0.1), "b": optax.sgd(0.1)}, {"w": "a", "b": "b"}
            ),
            1,
        ),
        "inject": (optax.inject_hyperparams(optax.adam)(0.1), 2),
        "MultiSteps": (optax.MultiSteps(optax.sgd(0.1), 3), 1),
    }
    for name, (tx, count) in plain.items():
        pair = optax.LookaheadParams(p, p) if name == "lookahead" else p
        assert len(counters_in(tx.init(pair))) == count, name
        on_host = jax.tree_util.tree_map(np.asarray, tx.init(pair))  # As some checkpoints are.
        assert len(counters_in(on_host)) == count, name
    assert counters_in({"count": jnp.int32(3)}) == []
    assert counters_in(optax.ScaleByScheduleState(count=jnp.zeros(3, jnp.int32))) == []


def test_several_counters_of_a_state_go_through_all_parts() -> None:
    """If they move together. If one stands still, the bits of all steps are even."""
    for slopes in ((1,), (1, 1), (1, 1, 1)):
        counts = np.arange(410)[:, None] * np.asarray(slopes)
        bits = jax.vmap(lambda row: steps.bits_of_counters([*row]))(jnp.asarray(counts, jnp.int32))
        parts = np.sort((np.asarray(bits) % 2**16).reshape(-1, 41).astype(int), 1)
        assert np.diff(parts, axis=1).max() <= 2 * 2**16 / 41
    for still in (0, 500):
        bits = jax.vmap(lambda n, at=still: steps.bits_of_counters([jnp.int32(at), n]))(
            jnp.arange(410)
        )
        cells = np.histogram(np.asarray(bits, int) % 2**16, 8, (0, 2**16))[0]
        assert np.abs(cells - 410 / 8).max() < 12


def test_what_a_step_was_given_is_not_noted() -> None:
    """Its bits would be those of a trace that ended."""
    half = params()
    grads = jax.tree_util.tree_map(lambda p: p * 0.01, half)
    tx = optax.masked(optax.sgd(lambda _: 1e-3), {"w": True, "b": False})
    state = tx.init(half)
    jax.jit(lambda p, s: tx.update(grads, s, p))(half, state)
    optax.apply_updates(half, grads)
    with jax.checking_leaks():
        jax.jit(lambda p, s: tx.update(grads, s, p)[0])(half, state)


def test_what_vmap_does_not_map_stays_so_beside_counters_that_it_maps() -> None:
    tx = optax.multi_transform(
        {"h": optax.adamw(1e-2), "t": optax.set_to_zero()}, {"head": "h", "trunk": "t"}
    )
    axes = {"head": 0, "trunk": None}
    given = {"head": jnp.ones((4, 3), jnp.bfloat16), "trunk": jnp.ones(3, jnp.bfloat16)}
    state = jax.vmap(tx.init, in_axes=(axes,))(given)

    def one(p: Any, s: Any) -> Any:
        updates, s = tx.update(p, s, p)
        return optax.apply_updates(p, updates), s

    after, _ = jax.vmap(one, in_axes=(axes, 0), out_axes=(axes, 0))(given, state)
    assert after["trunk"].shape == (3,)


class Fields:
    _fields = ("count",)


def test_a_state_that_only_looks_like_a_named_tuple_has_no_counters() -> None:
    assert counters_in(Fields()) == []
