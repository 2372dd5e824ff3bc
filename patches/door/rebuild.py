"""Rebuild what a stock function returns, with functions of ours that look like stock's.

They have stock's names, signatures and arguments. cloudpickle takes along what local functions
refer to: types, modules, other functions; dill takes along all globals. So each of them pickles as
the call of optax that it comes from, and has no globals. Where it is loaded, optax builds it again:
patched, or stock without the shim.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from typing import Any, Callable, Literal, NamedTuple

import jax
import jax.numpy as jnp

from ..._contract.dtypes import FLOATS, PyTree, leaves, strong_dtypes, unflatten_like
from ..._contract.float32 import dtypes_in_float32
from ..._contract.signatures import positional_names
from ..._contract.state import cast_back
from ..._contract.steps import counted, note
from ..._contract.updates import INNERMOST, Step, cast_to_limits
from ..._engine.locate import find
from ..._engine.patch import Stock
from ..._tally import Tally
from ..._tracebacks import hide_our_frames
from .stock_dtypes import Growth


class Call(functools.partial[Any]):
    """The call of a function that pickles by its name. It pickles as what it returns."""

    def __reduce__(self) -> tuple[Any, ...]:
        # dill fills closures last: a function of ours could not be called while it is loaded.
        inside = getattr(self.func, "__wrapped__", None)
        func = inside if isinstance(inside, _Inside) else self.func
        return functools.partial(func, *self.args, **self.keywords), ()


def call_of(stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Describe the call that a replacement was given; it is made by the name of stock."""
    return Call(find(stock.__module__, stock.__qualname__) or stock, *args, **kwargs)


class _Inside(functools.partial[Any]):
    """A function of ours, inside of one that looks like stock's.

    A pytree, because equinox replaces functions in the closures of transformations.
    """

    pickled_as: tuple[Any, ...]
    parts: Parts | None = None
    __wrapped__: Callable[..., Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return self.pickled_as


class Parts(NamedTuple):
    """The update of a rebuilt transformation, for a chain or another patch around it.

    Attributes:
      link: takes the step, and leaves it to the caller to limit the updates; None if ``update``
        leaves nothing.
      links: stand for this link, and those inside, while a chain around them takes a step.
      as_stock: returns what stock would run, for a trace of its dtypes.
      stock: what runs in a float32 problem; None if stock is wrong there too.
      promotes: where stock's updates are wider than half-precision gradients and params.
    """

    link: Callable[..., Step] | None
    links: frozenset[object]
    as_stock: Callable[[], Callable[..., Any]]
    stock: Callable[..., Any] | None
    promotes: Promotes = "nowhere"


Promotes = Literal["nowhere", "in mixed trees", "everywhere"]


def parts_of(update: Any) -> Parts | None:
    """Return the parts of an update; None if it is the user's, or stock's own."""
    inside = update
    # A loaded function of ours has inside what optax built where it was loaded: ours once more.
    while getattr(getattr(inside, "__code__", None), "co_name", "") == _IN_PLACE:
        inside = getattr(inside, "__wrapped__", None)
    return inside.parts if isinstance(inside, _Inside) else None


def is_in_place(function: Any) -> bool:
    """Check for a function of ours that looks like stock's; dill loads it as one of optax."""
    return bool(function.__code__.co_name == _IN_PLACE)


_IN_PLACE = "in_place_of_stock"


def link_of(tx: Any) -> Callable[..., Any]:
    """Return the link of a transformation, or its update, which returns no more than a pair."""
    parts = parts_of(tx.update)
    return (parts and parts.link) or tx.update


jax.tree_util.register_pytree_node(
    _Inside, lambda inside: (inside.args, inside.func), lambda func, args: _Inside(func, *args)
)


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function, which stays an argument for equinox to find."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        hide_our_frames(error)
        raise


def in_place_of(
    stock: Callable[..., Any],
    function: Callable[..., Any],
    call: Call,
    part: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a function that looks like stock's.

    Args:
      stock: the function to look like.
      function: to be called.
      call: the call of optax that returns ``stock``, or something with ``stock`` in it.
      part: finds ``stock`` in that.
    """
    inside = _Inside(_call, function)
    inside.pickled_as = (part, (call,)) if part else call.__reduce__()
    inside.__wrapped__ = stock
    if hasattr(stock, "__qualname__") and isinstance(function, types.FunctionType):
        function.__qualname__ = stock.__qualname__  # Python names it if arguments are missing.

    def in_place_of_stock(*args: Any, **kwargs: Any) -> Any:
        return inside(*args, **kwargs)

    plain = inspect.unwrap(in_place_of_stock)  # An import hook on this package may have wrapped it.
    in_place = types.FunctionType(plain.__code__, {}, closure=plain.__closure__)
    # Annotations are types, which would be pickled by value.
    functools.update_wrapper(in_place, stock, ("__module__", "__name__", "__qualname__", "__doc__"))
    in_place.__dict__["__wrapped__"] = inside  # Between the two, so that stock is not pickled.
    return in_place


def rebuild(  # noqa: PLR0913
    tx: Any,
    call: Call,
    update: Callable[..., Any],
    init: Callable[..., Any] | None = None,
    *,
    also_in_float32: bool = False,
    links: frozenset[object] = frozenset(),
    as_stock: Callable[[], Callable[..., Any]] | None = None,
    in_float32: Callable[..., Any] | None = None,
    promotes: Promotes = "nowhere",
    passes_floats: tuple[str, ...] = (),
    tally: Tally | None = None,
) -> Any:
    """Return a transformation of stock with another ``update``, and perhaps another ``init``.

    In a float32 problem stock's own update runs: that saves time.

    Args:
      tx: the transformation.
      call: of the function that returned it.
      update: called as ``update(updates, state, params, **extra_args)``. May return a
        :class:`Step`, with updates as wide as stock's.
      init: called as ``init(params)``.
      also_in_float32: whether stock is wrong in float32 too, so that ``update`` always runs.
      links: those of the transformations inside, see :class:`Parts`.
      as_stock: see :class:`Parts`; else that of the parts inside.
      in_float32: to run in place of ``tx.update`` in a float32 problem.
      promotes: see :class:`Parts`.
      passes_floats: stock runs too where these have the same strong floats, of any width:
        "updates", and "params" if it reads them. To look at them takes a microsecond.
      tally: counts the steps that stock does not take; None if ``update`` counts them.
    """
    below = parts_of(tx.update)
    as_stock = as_stock or (below.as_stock if below else _call_for(tx.update))
    stock = in_float32 or (below and below.stock) or tx.update
    this = frozenset({object()})

    def link(*args: Any, **kwargs: Any) -> Step:
        return Step(*update(*args, **kwargs))

    def bounded(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        if tally:
            tally.reach()
        grown = grow(updates, state, params, extra_args)
        with counted(state, (updates, state, params)):
            step = link(updates, grown, params, **extra_args)
        new_updates = cast_to_limits(step.updates, step.limits)
        note(new_updates, updates, state, params)
        return new_updates, step.state

    def stock_in_float32(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        if passes_floats:
            given = strong_dtypes(updates)
            floats = given is not None and FLOATS.issuperset(given)
            if floats and ("params" not in passes_floats or strong_dtypes(params) == given):
                return stock(updates, state, params, **extra_args)  # type: ignore[no-any-return]
        owed = INNERMOST.get()
        if owed and owed.to_chain(this, updates):  # The chain has looked at the dtypes.
            step = link(updates, state, params, **extra_args)
            owed.add(step)
            return step.updates, step.state
        dtypes = dtypes_in_float32(state, updates, params, extra_args)
        if dtypes is None:
            return bounded(updates, state, params, **extra_args)
        new_updates, new_state = stock(updates, state, params, **extra_args)
        # User-defined code inside, such as a schedule, may return any dtype.
        if new_state is not state and strong_dtypes(new_state) != dtypes:
            new_state = cast_back(new_state, state)
        return new_updates, new_state

    if init is not None:
        own_init = init

        def init_fn(params: PyTree) -> PyTree:
            if tally and also_in_float32:
                tally.reach()
            return _copy_shared_arrays(own_init(params), params)

        tx = tx._replace(init=in_place_of(tx.init, init_fn, call, operator.attrgetter("init")))
    grow = Growth(tx.init, stock)
    if below and promotes == "nowhere":
        promotes = below.promotes
    if passes_floats:  # Few steps leave a cast to the chain: it need not look for that.
        alone = Parts(None, frozenset(), as_stock, stock)
        return _replace_update(tx, call, stock_in_float32, alone)
    if also_in_float32:
        return _replace_update(tx, call, bounded, Parts(None, frozenset(), as_stock, None))
    links = this.union(below.links if below else (), links)
    parts = Parts(link, links, as_stock, stock, promotes)
    return _replace_update(tx, call, stock_in_float32, parts)


def _call_for(value: Any) -> Callable[[], Any]:
    return lambda: value


def _copy_shared_arrays(state: PyTree, params: PyTree) -> PyTree:
    """Copy the arrays that a new state shares with the params, or holds twice.

    A jitted step that donates params and state would donate the same array twice: XLA raises.
    """
    seen = set(map(id, leaves(params)))
    flat = leaves(state)
    if len(seen.union(map(id, flat))) == len(seen) + len(flat):
        return state

    def own(leaf: Any) -> Any:
        shared = id(leaf) in seen
        seen.add(id(leaf))
        if not shared or not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
            return leaf
        return jnp.copy(leaf)

    return unflatten_like(state, map(own, flat))


def _replace_update(tx: Any, call: Call, update: Callable[..., Any], parts: Parts) -> Any:
    names = positional_names(parts.stock or tx.update)
    if names != ["updates", "state", "params"]:
        update = _accept_by_name(names, update)
    part = operator.attrgetter("update")
    rebuilt = in_place_of(tx.update, update, call, part)
    rebuilt.__wrapped__.parts = parts
    return tx._replace(update=rebuilt)


def _accept_by_name(names: list[str], update: Callable[..., Any]) -> Callable[..., Any]:
    """Accept the arguments of an update as stock names and orders them.

    adafactor calls its gradients ``grads``, and an estimator takes its objective by position.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= len(names):  # Else update raises.
            kwargs.update(zip(names[3:], args[3:]))
            args = args[:3]
        if names and names[0] in kwargs:
            args = (kwargs.pop(names[0]),)
        return update(*args, **kwargs)

    return wrapper
