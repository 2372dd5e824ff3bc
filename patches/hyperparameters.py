"""Find what the state keeps of each hyperparameter, and what the step uses in place of it."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    REAL,
    cast,
    dtype_of,
    is_array,
    is_number,
    is_real,
    is_weak,
    kind_of,
)
from .._contract.signatures import is_of_dtype
from .._contract.widths import promoted, widest_real
from .._tally import paused

if TYPE_CHECKING:
    import inspect


class Widths(NamedTuple):
    """What the dtypes of the params mean for the hyperparameters of a step.

    Attributes:
      params: the dtypes of the params.
      stock: the dtype in which stock keeps a number in its state; float32, or float64 if a param
        is, where stock raises or makes a float something else.
      keeps_arrays: whether stock rounds numbers alone, and not arrays: from 0.2.8 on.
      step: the dtype in which the step uses a number.
      narrowest: the narrowest dtype of floats among the params.
      promotes: whether stock's strongly typed hyperparameters would promote a leaf.
      mixed: whether they would, and stock has them in one of several dtypes.
    """

    params: tuple[Any, ...]
    stock: Any
    keeps_arrays: bool
    step: Any
    narrowest: Any
    promotes: bool
    mixed: bool


@functools.cache
def find_widths(stock: Callable[..., Any], dtypes: tuple[Any, ...], requested: Any) -> Widths:
    """Settle the widths of hyperparameters.

    Args:
      stock: ``inject_hyperparams``.
      dtypes: of the params, each once, in the order of the leaves.
      requested: the user's ``hyperparam_dtype``, if any.
    """
    import optax

    def start(value: Any, params: Any) -> Any:
        return stock(optax.scale)(value).init(params).hyperparams["step_size"]

    shapes = [jax.ShapeDtypeStruct((), dtype) for dtype in dtypes]
    array, half = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.float32, jnp.bfloat16))
    with paused():
        keeps_arrays = jax.eval_shape(start, array, half).dtype == array.dtype
        try:
            found = jax.eval_shape(start, 1.0, shapes).dtype
        except Exception:  # Of bfloat16 and float16, none is the highest.
            found = None
    wide = widest_real(array.dtype, *dtypes)
    of_stock = found if found in dtypes and kind_of(found) == REAL else None
    step = wide if requested is None else promoted(requested, array.dtype)
    floats = [dtype for dtype in dtypes if kind_of(dtype) >= REAL]
    narrowest = min(floats, key=lambda dtype: jnp.finfo(dtype).bits, default=step)
    promotes = jnp.finfo(narrowest).bits < jnp.finfo(step).bits
    return Widths(
        dtypes,
        requested or of_stock or wide,
        keeps_arrays,
        step,
        narrowest,
        promotes,
        promotes and len(floats) > 1,
    )


class Factory:
    """The user's function that builds the inner transformation, and what it was given.

    Attributes:
      stock: ``inject_hyperparams``.
      requested: the user's ``hyperparam_dtype``, if any; an argument from 0.1.4 on.
      static: names of the arguments that are passed on unchanged.
      dtypes: those that the user gave, as in ``mu_dtype=jnp.float32``.
      defaults: names of the dtypes that the user left to the function, as ``dtype_momentum``.
    """

    def __init__(
        self,
        stock: Callable[..., Any],
        arguments: dict[str, Any],
        bound: inspect.BoundArguments,
    ) -> None:
        self.stock, self._function = stock, arguments["inner_factory"]
        self.static: frozenset[str] = arguments["static_args"]
        of_dtypes = list(filter(is_of_dtype, bound.signature.parameters))
        self.defaults = frozenset(of_dtypes) - frozenset(bound.arguments)
        self.dtypes: tuple[Any, ...] = ()
        asked = (bound.arguments.get(name) for name in of_dtypes)
        with contextlib.suppress(TypeError):  # An argument of the user's may mean something else.
            self.dtypes = tuple(jax.dtypes.canonicalize_dtype(x) for x in asked if x is not None)
        bound.apply_defaults()
        given, requested = bound.arguments, arguments.get("hyperparam_dtype")
        self.requested = requested and jax.dtypes.canonicalize_dtype(requested)
        numbers = {name: x for name, x in given.items() if isinstance(x, float) or is_array(x)}
        self._numbers = {
            name: _copy_to_host(x)
            for name, x in numbers.items()
            if is_real(x) and requested is None  # A requested rounding stands.
        }

    def build(
        self, arguments: dict[str, Any], used: dict[str, Any], widths: Widths, dtype: Any = None
    ) -> Any:
        """Build the inner transformation of a step.

        Args:
          arguments: of the user's function, with hyperparameters of stock.
          used: the real hyperparameters as the step uses them.
          widths: of this step.
          dtype: if given, all hyperparameters are weakly typed and have it.
        """
        given = {**arguments, **used}
        if widths.promotes:
            for name, value in arguments.items():
                if isinstance(value, np.generic) and name not in self.static and is_real(value):
                    given[name] = float(value)
            arrays = {name: x for name, x in used.items() if name not in self.static}
            given.update(_make_weak(arrays, dtype) if arrays else {})
        for name in self.defaults:  # No dtypes that nobody asked for.
            given.pop(name, None)
        return self._function(**given)

    def settle(
        self,
        stocks: dict[str, Any],
        widths: Widths,
        before: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the hyperparameters as the state keeps them, and the real ones as used.

        Args:
          stocks: hyperparameters of stock: in ``init`` rounded, in ``update`` wide.
          widths: of this step.
          before: the hyperparameters before this step; None in ``init``.
        """
        widest = self.requested or widths.step
        unrounded = self._find_unrounded(stocks if before is None else before, widths.step)
        kept, used = {}, {}
        for name, value in stocks.items():
            kept[name] = new = value
            if not isinstance(value, jax.Array):
                if not is_number(value):  # Of a mask that is a function: a schedule, to stock.
                    continue
                # From 0.2.8 on, an integer may be a Python number.
                kept[name] = new = jnp.asarray(value)
            if kind_of(new.dtype) != REAL:
                continue
            if new.dtype.itemsize > widest.itemsize:
                kept[name] = new = cast(new, widest)
            used[name] = unrounded[name] if name in unrounded else cast(new, widths.step)
            if before is not None:
                leaf: Any = before.get(name)
                stays = name in unrounded and isinstance(leaf, jax.Array)
                stays = stays and leaf.dtype == widths.stock  # Most often.
                kept[name] = leaf if stays else cast(used[name], _find_dtype_after(leaf, widths))
        return kept, used

    def _find_unrounded(self, hyperparams: dict[str, Any], widest: Any) -> dict[str, Any]:
        """Return the number that was given, in ``widest``, for each array that is its rounding.

        An array of any other value, or NaN, is returned as it is, as wide.
        """
        rows = {}
        for name, value in self._numbers.items():
            leaf: Any = hyperparams.get(name)
            dtype = getattr(leaf, "dtype", value.dtype)
            narrow = kind_of(dtype) == REAL and dtype.itemsize < widest.itemsize
            if not narrow or dtype == value.dtype or getattr(leaf, "weak_type", False):
                continue
            if np.shape(value) in ((), np.shape(leaf)):
                with np.errstate(over="ignore"):  # Stock has warned, or not.
                    rows[name] = leaf, value.astype(dtype), value.astype(widest)
        return _choose_all(rows) if rows else {}


def _find_dtype_after(leaf: Any, widths: Widths) -> Any:
    """Find the dtype that a float has in stock's state after a leaf."""
    dtype = dtype_of(leaf)
    if not is_real(leaf):
        # Up to 0.2.7, from an integer or complex param. A stateful schedule may start so, too.
        return dtype if dtype in widths.params else widths.stock
    strong = isinstance(leaf, jax.Array) and not is_weak(leaf)
    return dtype if widths.keeps_arrays and strong else widths.stock


def _copy_to_host(value: Any) -> Any:
    """Copy an array: the user may donate it, or keep the state on other devices."""
    try:
        return np.asarray(value)
    except Exception:  # A tracer, or on other hosts.
        return value


@functools.partial(jax.jit, inline=True)
def _choose_all(rows: dict[str, tuple[Any, Any, Any]]) -> dict[str, Any]:
    return {name: _choose(*row) for name, row in rows.items()}


@jax.custom_jvp
def _choose(leaf: Any, rounded: Any, given: Any) -> Any:
    return jnp.where(leaf == rounded, given, leaf.astype(given.dtype))


def _choose_jvp(primals: Any, tangents: Any) -> Any:
    """Pass on the derivative by what was given, if there is one; else that by the leaf.

    A state that ``init`` made within the derivative has both, and its own is rounded.
    """
    (leaf, rounded, _), (by_leaf, _, by_given) = primals, tangents
    result = _choose(*primals)
    zero = jax.custom_derivatives.SymbolicZero
    tangent = jnp.zeros_like(result) if isinstance(by_leaf, zero) else by_leaf.astype(result.dtype)
    if not isinstance(by_given, zero):
        tangent = jnp.where(leaf == rounded, by_given, tangent)
    return result, tangent


_choose.defjvp(_choose_jvp, symbolic_zeros=True)


@functools.partial(jax.jit, static_argnums=1, inline=True)
def _make_weak(arrays: dict[str, Any], dtype: Any = None) -> dict[str, Any]:
    """Give arrays of floats a weak type, and perhaps another dtype."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    # Later versions of jax give a cast one parameter more.
    (equation,) = jax.make_jaxpr(lambda x: x.astype(jnp.bfloat16))(scalar).eqns
    bind = functools.partial(jax.lax.convert_element_type_p.bind, **equation.params)
    return {name: bind(x, new_dtype=dtype or x.dtype, weak_type=True) for name, x in arrays.items()}
