"""inject_hyperparams: hyperparameters have the values that were given, whatever the params.

Stock keeps hyperparameters in the dtype of the params: of the first leaf up to 0.2.7, in the
highest of all from 0.2.8 on. bfloat16 has 8 bits: below one it has the numbers 1 - k/256. So b2 =
0.999 becomes 1, and adam divides by 1 - b2^t = 0. An integer leaf makes hyperparameters integers, a
complex leaf makes them complex. With ``hyperparam_dtype=float32`` they keep their values, but state
and updates change to float32. https://github.com/google-deepmind/optax/issues/1414 asks for another
dtype; no upstream issue was found about the NaN, or about the dtypes of state and updates.

Here the state is stock's, bit by bit, and the step uses what was given. A schedule is computed in
each step. A number is known since the transformation was built: where the state holds its rounding,
the number itself is used. Any other value in the state is the user's, and is used as it is. Only
where stock would make a float an integer or a complex number, the state holds float32.

Stock sees one number in place of the params and gradients, and a transformation whose state is the
hyperparameters in place of the inner one. The inner transformation then sees the user's params,
gradients and state. If no param is narrower than the hyperparameters, they are passed on unchanged.
Else they are weakly typed, and take the dtype of the leaf that they meet, like a Python number. In
that case a gradient narrower than its param is passed on as wide as the param: stock's
hyperparameters would promote that gradient too.

Functions of ``jax.lax`` do not promote. An inner transformation that gives them hyperparameters is
called twice in such a step: JAX refuses float32, then the hyperparameters have the dtype of the
params, as on stock. An error of the user's own comes out at once.

eps = 1e-8 is 0 in float16, for a Python number as for a hyperparameter: ``float16_eps`` fixes both.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import (
    REAL,
    PyTree,
    all_dtypes,
    cast,
    dtype_of,
    is_real,
    kind_of,
    leaves,
    strip_weak_type,
    unflatten_like,
)
from ..._contract.kinds import promote_initial_state
from ..._contract.signatures import Parameters
from ..._contract.state import cast_back
from ..._contract.updates import cast_updates, kept_like, same_dtypes
from ..._engine.patch import Stock
from ..._tally import count, paused
from .._support.arguments import arguments_of
from .._support.rebuild import Call, call_of, in_place_of, rebuild
from .._support.stock_dtypes import start_as_stock
from .hyperparameters import Given, strong_names, widths_of
from .inner import Factory, Inner

if TYPE_CHECKING:
    from .hyperparameters import Widths


def replace(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace ``inject_hyperparams``, with the arguments of the installed release.

    The state is stock's. Only where stock raises for the dtypes of the params, or keeps no floats,
    hyperparameters are float32, or float64 if a param is; and no wider than that where the user
    gives an array, or a schedule returns one.
    """
    arguments = arguments_of(stock, args, kwargs)
    static = arguments["static_args"] = _names(arguments["static_args"])
    inner_factory, requested = arguments["inner_factory"], arguments.get("hyperparam_dtype")
    if requested is not None:
        requested = jax.dtypes.canonicalize_dtype(requested)
    parameters = Parameters(inner_factory)

    def remember(**hyperparams: Any) -> Any:
        """Build what has the hyperparameters for its state, in place of a transformation."""
        import optax

        # Not a tree: ``every_transform`` casts numbers in a state.
        state: Any = functools.partial(dict, hyperparams)
        return optax.GradientTransformation(lambda _: state, lambda *_: (None, state))

    remember.__signature__ = parameters.signature  # type: ignore[attr-defined]
    call, built = call_of(stock, (), arguments), stock(**arguments)  # Checks the arguments.
    hyperparams_of = stock(**{**arguments, "inner_factory": remember})

    def wrapped_transform(*args: Any, **kwargs: Any) -> Any:
        tx = built(*args, **kwargs)  # Checks the arguments, and has the right type.
        bound = parameters.signature.bind(*args, **kwargs)
        defaults = frozenset(parameters.of_dtypes) - frozenset(bound.arguments)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for name, parameter in parameters.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                given.update(given.pop(name))
        factory = Factory(inner_factory, static, defaults, strong_names(given, requested))
        numbers = Given(stock, given, requested)
        hyperparams = hyperparams_of(*args, **kwargs)
        injected = _Injected(stock, tx, hyperparams, factory, numbers, requested)
        again = Call(in_place, *args, **kwargs)
        return rebuild(tx, again, injected.update, injected.init)

    in_place = in_place_of(inner_factory, wrapped_transform, call)
    return in_place


def _names(static_args: Any) -> frozenset[str]:
    """List the names: an iterator can be read only once, and a set has no hash."""
    return frozenset([static_args] if isinstance(static_args, str) else static_args)


@dataclasses.dataclass(eq=False, repr=False)  # By identity: equinox hashes what a closure holds.
class _Injected:
    """A transformation whose hyperparameters are in its state.

    Attributes:
      inject: stock's function.
      stock: stock's transformation.
      hyperparams: stock's transformation, around one that has the hyperparameters for its state.
      factory: builds the inner transformation.
      given: the numbers that the user gave.
      requested: the user's ``hyperparam_dtype``, if any; an argument from 0.1.4 on.
      asked_for: shapes and dtypes of the inner state, by those of the params.
    """

    inject: Stock
    stock: Any
    hyperparams: Any
    factory: Factory
    given: Given
    requested: Any
    asked_for: dict[Any, PyTree] = dataclasses.field(default_factory=dict)

    def _widths(self, params: PyTree) -> Widths:
        dtypes = tuple(dict.fromkeys(all_dtypes(params)))
        widths = widths_of(self.inject, dtypes, self.requested)
        if not widths.is_stocks:
            count(f"hyperparameters to {widths.stock}")
        return widths

    def init(self, params: PyTree) -> Any:
        widths = self._widths(params)
        same = (leaf for leaf in leaves(params) if getattr(leaf, "dtype", None) == widths.stock)
        # NumPy: a probe must not create JAX arrays. To make one of that may compile a program.
        state = self.hyperparams.init(next(same, np.zeros((), widths.stock)))
        kept, used = self.given.settle(state.hyperparams, widths)
        inner = Inner(self.factory, state.inner_state(), used, widths)
        inner_state = strip_weak_type(inner.build().init(params))
        inner_state = promote_initial_state(inner.update, inner_state, params)
        # Integers stay weakly typed: int64, in 64-bit mode, would turn counters into int64.
        state = strip_weak_type(state._replace(hyperparams={}, inner_state=()))
        state = state._replace(hyperparams=kept, inner_state=inner_state)
        if widths.mixed:  # Stock has hyperparameters in one of these.
            inner_state = start_as_stock(self.stock, state, params).inner_state
        return state._replace(inner_state=inner_state)

    def update(
        self, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        before = state.inner_state
        like = _params_like(updates, before) if params is None else params
        widths = self._widths(like)
        number = np.zeros((), widths.step)
        _, new_state = self.hyperparams.update(
            number, state._replace(inner_state=()), number, **extra_args
        )
        kept, used = self.given.settle(new_state.hyperparams, widths, state.hyperparams)
        inner = Inner(self.factory, new_state.inner_state(), used, widths)
        same = same_dtypes(updates, like)
        wide = _as_wide_as(like, updates) if widths.promotes and not same else updates
        new_updates, inner_state = inner.update(wide, before, params, **extra_args)
        if same:
            whose = "inject_hyperparams: state of the inner transformation"
            inner_state = cast_back(inner_state, before, whose)
        # Moments may be wide though nobody asked.
        asks = self._as_asked_for(inner, like, before) if widths.mixed else before
        # The rest is the count and the states of the user's schedules.
        none: dict[str, Any] = {"hyperparams": {}, "inner_state": ()}
        rest = cast_back(new_state._replace(**none), state._replace(**none))
        new_state = rest._replace(hyperparams=kept, inner_state=inner_state)
        return cast_updates(new_updates, updates, params, asks), new_state

    def _as_asked_for(self, inner: Inner, like: PyTree, before: PyTree) -> PyTree:
        """Return a new inner state, abstractly: its dtypes are those that the user asked for."""
        structure: Any = jax.tree_util.tree_structure(like)
        key = structure, tuple((np.shape(leaf), dtype_of(leaf)) for leaf in leaves(like))
        try:
            if key not in self.asked_for:  # Once: to trace takes longer than an eager step.
                with paused():
                    self.asked_for[key] = jax.eval_shape(inner.build().init, like)
            return self.asked_for[key]
        except Exception:  # An ``init`` may need numbers.
            return before


def _params_like(grads: PyTree, state: PyTree) -> PyTree:
    """Find a tree with the dtypes of the params: without params, the moments if there are any."""
    return next(iter(kept_like(state, grads)), grads)


def _as_wide_as(params: PyTree, grads: PyTree) -> PyTree:
    """Widen each real gradient that is narrower than its param."""
    flat, others = leaves(grads), leaves(params)
    if list(map(np.shape, flat)) != list(map(np.shape, others)):
        return grads
    return unflatten_like(grads, map(_as_wide_as_leaf, others, flat))


def _as_wide_as_leaf(param: Any, grad: Any) -> Any:
    if kind_of(dtype_of(param)) < REAL or not is_real(grad):
        return grad
    return cast(grad, jnp.promote_types(dtype_of(grad), jnp.finfo(dtype_of(param)).dtype))
