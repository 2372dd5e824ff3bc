"""Check the contract by running JAX, independently of `optax_dtypefix.check`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import jax
import jax.numpy as jnp

from optax_dtypefix._diagnosis.jaxpr import equations
from support.trees import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator


class Step(NamedTuple):
    """A start and a step, by shapes and dtypes.

    Attributes:
      structures: of the state before and after, of the gradients and of the updates.
      before: shape, dtype and weak type of each leaf of the state.
      after: likewise.
      updates: the dtypes of the updates.
      float64: the shapes of the float64 values that are computed inside.
    """

    structures: list[Any]
    before: list[Any]
    after: list[Any]
    updates: list[Any]
    float64: list[Any]


def one_step(tx: Any, params: Any, grads: Any, extra: dict[str, Any] | None = None) -> Step:
    """Trace ``init`` and ``update``. Nothing is compiled."""
    seen: list[Any] = []
    jaxpr = _traced(tx, params, grads, extra or {}, seen)
    return Step(*seen, _float64_of(jaxpr))


def program(tx: Any, params: Any, grads: Any, extra: dict[str, Any] | None = None) -> str:
    """Return the jaxpr of ``init`` and ``update``, without addresses and unused constants."""
    text = re.sub("0x[0-9a-f]+", "", str(_traced(tx, params, grads, extra or {}, [])))
    # jax 0.6.2 traces copies of constants that nothing uses.
    return re.sub(r"\n *_:\S+ = device_put\[[^]]*\] \S+", "", text)


def _traced(tx: Any, params: Any, grads: Any, extra: dict[str, Any], seen: list[Any]) -> Any:
    functions = {name: value for name, value in extra.items() if callable(value)}
    traced = {name: value for name, value in extra.items() if name not in functions}

    def step(params: Any, grads: Any, traced: Any) -> Any:
        state = tx.init(params)
        updates, after = tx.update(grads, state, params, **traced, **functions)
        trees = (state, after, grads, updates)
        seen.append([jax.tree_util.tree_structure(tree) for tree in trees])
        seen.extend([_types(state), _types(after), [u.dtype for u in leaves(updates)]])
        return leaves((updates, after))

    return jax.make_jaxpr(step)(params, grads, traced)


def _types(tree: Any) -> list[tuple[Any, ...]]:
    return [
        (jnp.shape(x), jnp.result_type(x), getattr(x, "weak_type", not hasattr(x, "dtype")))
        for x in leaves(tree)
    ]


def broken(
    step: Step, params: Any, grads: Any, asked: tuple[Any, ...] = (), *, stable: bool = True
) -> Iterator[str]:
    """Yield what breaks C1 to C3. ``asked`` are dtypes that the user asked for."""
    before, after, wanted, got = step.structures
    if (before, wanted) != (after, got):
        yield f"structures: {step.structures}"
    if stable and step.before != step.after:
        yield f"C1: {[(a, b) for a, b in zip(step.before, step.after) if a != b]}"
    # A scalar, of shape (), is free.
    if any(step.float64) and all(bits(leaf.dtype) < 64 for leaf in leaves((params, grads))):
        yield f"C3: float64 of shapes {set(step.float64)}"
    most = bounds(params, grads, asked)
    if any(bits(update) > limit for update, limit in zip(step.updates, most)):
        yield f"C2: updates {step.updates}"


def narrower(
    step: Step,
    params: Any,
    grads: Any,
    on_stock: Callable[[], Step | None],
    asked: tuple[Any, ...] = (),
) -> Iterator[str]:
    """Yield updates that do not hold those of stock, and are not cut to their bound."""
    most = bounds(params, grads, asked)
    rows = list(zip(step.updates, (grad.dtype for grad in leaves(grads)), most))
    if all(bits(update) == limit and _holds(update, grad) for update, grad, limit in rows):
        return  # They are as wide as can be.
    stock = on_stock()
    for was, (update, _, limit) in zip(stock.updates if stock else (), rows):
        one_kind = jnp.iscomplexobj(update.type(0)) == jnp.iscomplexobj(was.type(0))
        cut = bits(was) > bits(update) == limit and one_kind
        if not (cut or _holds(update, was)):
            yield f"C2: {update}, on stock {was}"


def bounds(params: Any, grads: Any, asked: tuple[Any, ...] = ()) -> list[int]:
    """Return the most bits of each update (C2): 32 for only integers, and for mixed halves."""
    halves, found = {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}, []
    for param, grad in zip(leaves(params), leaves(grads)):
        inexact = {jnp.dtype(d) for d in (param.dtype, grad.dtype, *asked) if bits(d)}
        most = max(map(bits, inexact), default=32)
        found.append(max(most, 32) if halves <= inexact else most)
    return found


def bits(dtype: Any) -> int:
    """Return the width of a float, or of the parts of a complex number, and 0 for an integer."""
    return int(jnp.finfo(dtype).bits) if jnp.issubdtype(dtype, jnp.inexact) else 0


def _holds(dtype: Any, other: Any) -> bool:
    """Whether a dtype contains the numbers of another. Integers may be rounded."""
    return bool(dtype == other or jnp.promote_types(dtype, other) == dtype)


def assert_keeps_the_contract(
    tx: Any, params: Any, grads: Any = None, extra: Callable[[Any], dict[str, Any]] | None = None
) -> None:
    """Assert C1 to C3 in one step.

    The state keeps its types, weak types too, so a step is traced once, and a loop takes it.
    """
    grads = params if grads is None else grads
    step = one_step(tx, params, grads, None if extra is None else extra(params))
    assert list(broken(step, params, grads)) == []


def float64_in(function: Callable[..., Any], *args: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the float64 values that a function computes, from its jaxpr."""
    return _float64_of(jax.make_jaxpr(function)(*args))


def _float64_of(jaxpr: Any) -> list[tuple[int, ...]]:
    return [
        variable.aval.shape
        for equation in equations(jaxpr.jaxpr)
        for variable in equation.outvars
        if getattr(variable.aval, "dtype", None) == jnp.float64
    ]
