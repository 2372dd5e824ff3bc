"""Rebuild what a stock function returns, with functions of ours that look like stock's.

They have stock's names, signatures and arguments. cloudpickle takes along what local functions
refer to: types, modules, other functions. So each of them pickles as the call of optax that it
comes from, and has no globals. Where it is loaded, optax builds it again:
patched, or stock without the shim.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from typing import Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import PyTree, leaves, strong_dtypes, unflatten_like
from ..._contract.float32 import dtypes_in_float32
from ..._contract.signatures import positional_names
from ..._contract.state import cast_back
from ..._contract.steps import counted, note
from ..._engine.locate import find
from ..._engine.patch import Stock
from ..._tally import Tally


class Call(functools.partial[Any]):
    """The call of a function that pickles by its name. It pickles as what it returns."""

    def __reduce__(self) -> tuple[Any, ...]:
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
    lifting: Any = None
    __wrapped__: Callable[..., Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return self.pickled_as


def lifting_of(update: Any) -> Any:
    """Return what a lifted update is of; None if it is the user's, or stock's own."""
    inside = update
    # A loaded function of ours has inside what optax built where it was loaded: ours once more.
    # By its own type: a decorator, as by wrapt, shows the attributes of what it wraps.
    while type(inside) is types.FunctionType and inside.__code__.co_name == _IN_PLACE:
        inside = getattr(inside, "__wrapped__", None)
    return inside.lifting if isinstance(inside, _Inside) else None


_IN_PLACE = "in_place_of_stock"


jax.tree_util.register_pytree_node(
    _Inside, lambda inside: (inside.args, inside.func), lambda func, args: _Inside(func, *args)
)


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function, which stays an argument for equinox to find."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        from ..._tracebacks import hide_our_frames  # Few calls fail.

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
    tally: Tally | None = None,
) -> Any:
    """Return a transformation of stock with another ``update``, and perhaps another ``init``.

    In a float32 problem stock's own update runs, unless it is wrong there too: that saves time.

    Args:
      tx: the transformation, as stock builds it.
      call: of optax, which returns ``tx``.
      update: is given gradients, state and params, and extra arguments by name.
      init: if given, is given the params.
      also_in_float32: whether stock is wrong in float32 too.
      tally: of the patch.
    """

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, PyTree]:
        dtypes = None
        if not also_in_float32:
            dtypes = dtypes_in_float32(state, updates, params, extra_args)
        if dtypes is None:
            if tally:
                tally.reach()
            given = updates, state, params
            with counted(state, given) as is_outermost:
                new_updates, new_state = update(*given, **extra_args)
            if is_outermost:
                note(new_updates, *given)
            return new_updates, new_state
        new_updates, new_state = tx.update(updates, state, params, **extra_args)
        # User-defined code inside, such as a schedule, may return any dtype.
        if new_state is not state and strong_dtypes(new_state) != dtypes:
            new_state = cast_back(new_state, state)
        return new_updates, new_state

    def init_fn(params: PyTree) -> PyTree:
        if tally and also_in_float32:
            tally.reach()
        return copy_shared_arrays((init or tx.init)(params), params)

    named = accept_by_name(positional_names(tx.update), update_fn)
    return tx._replace(
        init=in_place_of(tx.init, init_fn, call, operator.attrgetter("init")) if init else tx.init,
        update=in_place_of(tx.update, named, call, operator.attrgetter("update")),
    )


def copy_shared_arrays(state: PyTree, params: PyTree) -> PyTree:
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


NAMES = ["updates", "state", "params"]
"""The positional parameters of almost every update."""


def accept_by_name(names: list[str], update: Callable[..., Any]) -> Callable[..., Any]:
    """Accept the arguments of an update as stock names and orders them.

    adafactor calls its gradients ``grads``, and an estimator takes its objective by position.
    """
    if names == NAMES:
        return update

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= len(names):  # Else update raises.
            kwargs.update(zip(names[3:], args[3:]))
            args = args[:3]
        if names and names[0] in kwargs:
            args = (kwargs.pop(names[0]),)
        return update(*args, **kwargs)

    return wrapper
