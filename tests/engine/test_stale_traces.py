"""After a late ``apply``, ``revert`` or ``disabled``, JAX uses none of its old traces."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import optax
import pytest
from optax._src import numerics

from optax_dtypefix._engine import release as _release
from optax_dtypefix._engine.patch import Target
from optax_dtypefix._settings import Settings
from optax_dtypefix.patches.releases import TESTED
from support.fakepackage import Engine, fault, patch
from support.thorough import one_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def doubled(stock: Callable[..., Any], *args: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: 2 * leaf, stock(*args))


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine with one patch, of a function that every optax has and no patch of ours wraps."""
    target = Target(("optax._src.numerics",), "abs_sq", doubled)
    made = Engine(
        "optax",
        ("doubled",),
        lambda _: patch("doubled", target, faults=[fault()]),
        Settings(),
        TESTED,
    )
    yield made
    made.revert()


def apply_as_the_import_does(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as importing:
        importing.setattr(optax.__spec__, "_initializing", True)
        engine.on_import(optax)


def step(x: Any) -> Any:
    return 2 * numerics.abs_sq(jnp.sqrt(x))


def inner(x: Any) -> Any:
    return jax.jit(step)(x)


def body(carry: Any, _: None) -> tuple[Any, Any]:
    return step(carry), carry


@functools.partial(jax.jit, static_argnums=0)
def call(function: Callable[[Any], Any], x: Any) -> Any:
    return function(x)


JITTED = jax.jit(step)
ONE = jnp.ones(())
WAYS: dict[str, Callable[[], Any]] = {
    "eager": lambda: step(ONE),
    "jit": lambda: JITTED(ONE),
    "jit of the same function again": lambda: jax.jit(step)(ONE),
    "jit in jit": lambda: jax.jit(inner)(ONE),
    "static argument": lambda: call(step, ONE),
    "grad": lambda: jax.grad(JITTED)(ONE),
    "vmap": lambda: jax.vmap(JITTED)(ONE[None])[0],
    "scan": lambda: jax.lax.scan(body, ONE, None, 1)[0],
    "cond": lambda: jax.lax.cond(True, step, lambda x: x, ONE),
    "while": lambda: jax.lax.while_loop(lambda x: x < 1.5, step, ONE),
    "checkpoint": lambda: jax.checkpoint(step)(ONE),
}


@pytest.mark.parametrize("way", one_of(8, WAYS))
def test_late_changes_reach_compiled_functions(engine: Engine, way: str) -> None:
    run = WAYS[way]
    expected = []
    values = [run()]
    for _ in range(2):
        engine.apply()
        values.append(run())
        with engine.disabled():
            values.append(run())
        values.append(run())
        engine.revert()
        values.append(run())
        expected += [4, 2, 4, 2]
    assert [float(value) for value in values] == [2, *expected]


def test_caches_are_cleared_only_when_something_changes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large programs take minutes to compile again."""
    cleared: list[None] = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(None))
    engine.revert()
    with engine.disabled():
        engine.status()
    assert len(cleared) == 0
    engine.apply()
    assert len(cleared) == 1
    engine.apply()
    assert len(cleared) == 1
    step(ONE)
    with engine.disabled():
        assert len(cleared) == 2
        with engine.disabled():
            assert len(cleared) == 2
        assert len(cleared) == 2
    assert len(cleared) == 3
    engine.revert()
    engine.revert()
    assert len(cleared) == 4


def test_caches_are_kept_while_no_changed_function_was_called(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the shim comes first it sees every call, and other programs stay compiled."""
    jax.clear_caches()
    cleared: list[None] = []
    drop = jax.clear_caches
    monkeypatch.setattr(jax, "clear_caches", lambda: (cleared.append(None), drop()))
    apply_as_the_import_does(engine, monkeypatch)
    for _ in range(2):
        with engine.disabled():
            pass
        engine.apply()
    assert len(cleared) == 0
    assert float(JITTED(ONE)) == 4
    with engine.disabled():
        assert len(cleared) == 1
        assert float(JITTED(ONE)) == 2
    assert len(cleared) == 2
    assert float(JITTED(ONE)) == 4
    engine.revert()
    assert (len(cleared), float(JITTED(ONE))) == (3, 2)
    engine.apply()  # Nobody saw the calls in between.
    assert (len(cleared), float(JITTED(ONE))) == (4, 4)


def test_a_call_inside_a_disabled_block_is_seen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax.clear_caches()
    apply_as_the_import_does(engine, monkeypatch)
    with engine.disabled():
        assert float(JITTED(ONE)) == 2
    assert float(JITTED(ONE)) == 4


def by_probe(monkeypatch: pytest.MonkeyPatch, seen: list[float]) -> Engine:
    """Return an engine with two patches, whose probes compile a function on an unknown release."""
    monkeypatch.setattr(_release, "installed", lambda *_: _release.Release("99.0"))

    def probe() -> str:
        seen.append(float(JITTED(ONE)))
        return "seen"

    target = Target(("optax._src.numerics",), "abs_sq", doubled)
    return Engine(
        "optax",
        ("a", "b"),
        lambda name: patch(name, target, faults=[fault(probe)]),
        Settings(),
        TESTED,
    )


def test_a_probe_shares_no_traces_with_patched_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []
    engine = by_probe(monkeypatch, seen)
    try:
        engine.apply("a")
        assert float(JITTED(ONE)) == 4
        engine.apply("b")
        assert float(JITTED(ONE)) == 8
    finally:
        engine.revert()
    assert seen == [2, 2]


def test_a_probe_during_the_import_leaves_no_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = by_probe(monkeypatch, [])
    try:
        apply_as_the_import_does(engine, monkeypatch)
        assert float(JITTED(ONE)) == 8
    finally:
        engine.revert()


def test_a_probe_that_finds_nothing_leaves_no_traces_of_stock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_release, "installed", lambda *_: _release.Release("99.0"))

    def finds_nothing() -> None:
        assert float(JITTED(ONE)) == 2

    probes = {"a": lambda: "seen", "b": finds_nothing}
    target = Target(("optax._src.numerics",), "abs_sq", doubled)
    engine = Engine(
        "optax",
        ("a", "b"),
        lambda name: patch(name, target, faults=[fault(probes[name])]),
        Settings(),
        TESTED,
    )
    try:
        engine.apply("a")
        engine.apply("b")
        assert engine.status()["b"].state == "not-needed"
        assert float(JITTED(ONE)) == 4
    finally:
        engine.revert()
