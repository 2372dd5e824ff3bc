"""inject_hyperparams: hyperparameters are float32 or wider, whatever the params.

Stock keeps hyperparameters in the dtype of the params: of the first leaf up to 0.2.7, in the
highest of all from 0.2.8 on. bfloat16 has 8 bits: below one it has the numbers 1 - k/256. So b2 =
0.999 becomes 1, and adam divides by 1 - b2^t = 0. An integer leaf makes hyperparameters integers, a
complex leaf makes them complex. With ``hyperparam_dtype=float32`` they keep their values, but state
and updates change to float32. https://github.com/google-deepmind/optax/issues/1414 asks for another
dtype; no upstream issue was found about the NaN, or about the dtypes of state and updates.

Here stock computes the hyperparameters. Stock sees one number in place of the params and gradients,
and a transformation whose state is the hyperparameters in place of the inner one. The inner
transformation then sees the user's params, gradients and state. If no param is narrower than the
hyperparameters, they are passed on unchanged. Else they are weakly typed, and take the dtype of the
leaf that they meet, like a Python number. In that case a gradient narrower than its param is passed
on as wide as the param: stock's hyperparameters would promote that gradient too.

Functions of ``jax.lax`` do not promote. An inner transformation that gives them hyperparameters is
called twice in such a step: JAX refuses float32, then the hyperparameters have the dtype of the
params, as on stock. An error of the user's own comes out at once.

eps = 1e-8 is 0 in float16, for a Python number as for a hyperparameter: ``float16_eps`` fixes both.
"""

from __future__ import annotations

import dataclasses
import inspect
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    REAL,
    PyTree,
    cast,
    cast_back,
    dtype_of,
    dtypes_in,
    have_same_dtypes,
    is_half,
    is_half_dtype,
    is_inexact,
    is_real,
    is_weak,
    kind_of,
    leaves,
    strip_weak_type,
    unflatten_like,
)
from .._contract.kinds import promote_initial_state
from .._contract.signatures import Parameters
from .._contract.updates import cast_updates, kept_like, same_dtypes
from .._contract.widths import compute_dtype
from .._engine.patch import Patch, Stock
from .._tally import paused
from ._support import modules
from ._support.arguments import arguments_of
from ._support.rebuild import Call, call_of, in_place_of, rebuild
from ._support.representation import stand_in_number
from ._support.stock_dtypes import promotes_half, start_as_stock
from ._support.weak_scalars import weak

if TYPE_CHECKING:
    from collections.abc import Mapping

PATCH = Patch(
    "inject_hyperparams",
    summary="hyperparameters are rounded to the dtype of the params: in bfloat16 `b2=0.999` is 1, "
    "and adam gives NaN at once",
)
PATCH.fault("not_a_number", ">=0.1.2", issue=1414)
PATCH.fault("narrow_hyperparams", ">=0.1.2", issue=1414)
PATCH.fault("integer_leaf", "<0.2.8")
PATCH.fault("hyperparam_dtype", ">=0.1.4", issue=1207)
PATCH.fault("strong_array", ">=0.2.8")
PATCH.fault("float64_schedule", ">=0.2.8")
PATCH.fault("numpy_scalar", ">=0.1.5")
PATCH.fault("wide_gradients", "<0.2.8")
PATCH.fault("mixed_tree", ">=0.1.2", issue=1207)
PATCH.fault("mixed_halves", ">=0.1.2")
PATCH.fault("complex_leaf", ">=0.1.2")

_UNLIKE = (
    *("same dtype", "accept dtype", "dtypes should", "dtypes must"),
    *("equal types", "equal output types", "identical types", "compatible types"),
)
"""What JAX says of operands and branches whose dtypes differ, from 0.4.13 to 0.10."""


@PATCH.wraps("inject_hyperparams", modules.SCHEDULES)
@PATCH.wraps("inject_stateful_hyperparams", modules.SCHEDULES, "==0.1.8")
def _inject_hyperparams(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace ``inject_hyperparams``, with the arguments of the installed release.

    The state is stock's. Real hyperparameters are in ``hyperparam_dtype`` if the user gives one,
    else in float32, or float64 if a param is. Other hyperparameters are stock's. A leaf that has
    another dtype, because it was restored or set by the user, keeps its dtype.
    """
    arguments = arguments_of(stock, args, kwargs)
    static = arguments["static_args"] = _names(arguments["static_args"])
    inner_factory, requested = arguments["inner_factory"], arguments.get("hyperparam_dtype")
    parameters = Parameters(inner_factory)

    def remember(**hyperparams: Any) -> Any:
        """Build what has the hyperparameters for its state, in place of a transformation."""
        import optax

        def state() -> dict[str, Any]:  # Not a tree: ``every_transform`` casts numbers in a state.
            return hyperparams

        return optax.GradientTransformation(lambda _: state, lambda *_: (None, state))

    remember.__signature__ = parameters.signature  # type: ignore[attr-defined]
    call, built = call_of(stock, (), arguments), stock(**arguments)  # Checks the arguments.
    hyperparams_of = stock(**{**arguments, "inner_factory": remember})

    def wrapped_transform(*args: Any, **kwargs: Any) -> Any:
        tx = built(*args, **kwargs)  # Checks the arguments, and has the right type.
        bound = parameters.signature.bind(*args, **kwargs)
        defaults = frozenset(parameters.of_dtypes) - frozenset(bound.arguments)
        strong = _strong_names(bound, requested)
        hyperparams = hyperparams_of(*args, **kwargs)
        injected = _Injected(tx, inner_factory, hyperparams, static, defaults, strong, requested)
        return rebuild(tx, Call(factory, *args, **kwargs), injected.update, injected.init)

    factory = in_place_of(inner_factory, wrapped_transform, call)
    return factory


@dataclasses.dataclass(eq=False, repr=False)  # By identity: equinox hashes what a closure holds.
class _Injected:
    """A transformation whose hyperparameters are in its state.

    Attributes:
      stock: stock's transformation.
      factory: builds the inner transformation.
      hyperparams: stock's transformation, around one that has the hyperparameters for its state.
      static: names of the arguments that are passed on unchanged.
      defaults: names of the dtypes that the user left to the factory, as ``dtype_momentum``.
      strong: names of the hyperparameters that promote half precision without the wrapper.
      requested: the user's ``hyperparam_dtype``, if any; an argument from 0.1.4 on.
      asked_for: shapes and dtypes of the inner state, by those of the params.
    """

    stock: Any
    factory: Callable[..., Any]
    hyperparams: Any
    static: frozenset[str]
    defaults: frozenset[str]
    strong: frozenset[str]
    requested: Any
    asked_for: dict[Any, PyTree] = dataclasses.field(default_factory=dict)

    def init(self, params: PyTree) -> Any:
        dtype = compute_dtype(params)
        state = self.hyperparams.init(stand_in_number(params, dtype))
        kept = self._kept(state, dtype)
        given = self._arguments(state, kept)
        promotes = self._would_promote(params, dtype)

        def step(grads: PyTree, inner_state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
            return self._step(given, params, (grads, inner_state, params), promotes=promotes)

        inner_state = self._inner(given, params, promotes=promotes).init(params)
        inner_state = promote_initial_state(step, strip_weak_type(inner_state), params)
        # Integers stay weakly typed: int64, in 64-bit mode, would turn counters into int64.
        state = strip_weak_type(state._replace(hyperparams={}, inner_state=()))
        state = state._replace(hyperparams=kept, inner_state=inner_state)
        if promotes and _has_two_dtypes(params):  # Stock has hyperparameters in one of these.
            inner_state = start_as_stock(self.stock, state, params).inner_state
        return state._replace(inner_state=inner_state)

    def update(
        self, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        before = state.inner_state
        like = _params_like(updates, before) if params is None else params
        dtype = compute_dtype(like)
        number = stand_in_number(like, dtype)
        _, new_state = self.hyperparams.update(
            number, state._replace(inner_state=()), number, **extra_args
        )
        kept = self._kept(new_state, dtype)
        same, promotes = same_dtypes(updates, like), self._would_promote(like, dtype)
        wide = _as_wide_as(like, updates) if promotes and not same else updates
        given, trees = self._arguments(new_state, kept), (wide, before, params)
        new_updates, inner_state = self._step(given, like, trees, extra_args, promotes=promotes)
        if same:
            whose = "inject_hyperparams: state of the inner transformation"
            inner_state = cast_back(inner_state, before, whose)
        if not have_same_dtypes(kept, state.hyperparams):
            kept = _cast_all_back(kept, state, as_stock=not promotes)
        # The rest is the count and the states of the user's schedules.
        none: dict[str, Any] = {"hyperparams": {}, "inner_state": ()}
        rest = cast_back(new_state._replace(**none), state._replace(**none))
        new_state = rest._replace(hyperparams=kept, inner_state=inner_state)
        asks = before
        if promotes and _has_two_dtypes(like):  # Moments may be wide though nobody asked.
            asks = self._as_asked_for(given, like, before)
        return cast_updates(new_updates, updates, params, asks), new_state

    def _as_asked_for(self, given: dict[str, Any], like: PyTree, before: PyTree) -> PyTree:
        """Return a new inner state, abstractly: its dtypes are those that the user asked for."""
        structure: Any = jax.tree_util.tree_structure(like)
        key = structure, tuple((np.shape(leaf), dtype_of(leaf)) for leaf in leaves(like))
        try:
            if key not in self.asked_for:  # Once: to trace takes longer than an eager step.
                with paused():
                    init = self._inner(given, like, promotes=True).init
                    self.asked_for[key] = jax.eval_shape(init, like)
            return self.asked_for[key]
        except Exception:  # An ``init`` may need numbers.
            return before

    def _kept(self, state: Any, widest: Any) -> dict[str, Any]:
        """Cast each hyperparameter of stock to the dtype that the state keeps."""
        return {
            name: _keep(value, widest, self.requested) for name, value in state.hyperparams.items()
        }

    def _arguments(self, state: Any, kept: dict[str, Any]) -> dict[str, Any]:
        """List the arguments of the factory, as stock does, but no dtypes that nobody asked for."""
        every = {**state.inner_state(), **kept}
        return {name: value for name, value in every.items() if name not in self.defaults}

    def _would_promote(self, like: PyTree, widest: Any) -> bool:
        """Check whether stock's strongly typed hyperparameters would promote a leaf."""
        if self.requested is not None:
            widest = jnp.promote_types(jax.dtypes.canonicalize_dtype(self.requested), jnp.float32)
        bits = [jnp.finfo(dtype).bits for dtype in dtypes_in(like) if kind_of(dtype) >= REAL]
        return min(bits, default=64) < jnp.finfo(widest).bits

    def _step(
        self,
        given: dict[str, Any],
        like: PyTree,
        trees: tuple[PyTree, PyTree, PyTree],
        extra_args: Mapping[str, Any] = MappingProxyType({}),
        *,
        promotes: bool,
    ) -> tuple[PyTree, PyTree]:
        """Take a step of the inner transformation.

        Functions of ``jax.lax`` do not promote. Stock gives them hyperparameters in the dtype of
        the params, and so does a second try where JAX refuses float32 for that reason.
        """

        def run(**how: Any) -> tuple[PyTree, PyTree]:
            inner = _taking_extra_args(self._inner(given, like, promotes=promotes, **how))
            result: tuple[PyTree, PyTree] = inner.update(*trees, **extra_args)
            return result

        try:
            return run()
        except (TypeError, ValueError) as error:  # ValueError comes from XLA, with old jax.
            if not (promotes and _is_about_dtypes(error)):
                raise
        return run(dtype=_narrowest(like))

    def _inner(
        self, given: dict[str, Any], like: PyTree, *, promotes: bool, dtype: Any = None
    ) -> Any:
        """Build the inner transformation.

        Args:
          given: the arguments of the factory.
          like: the params, or what has their dtypes.
          promotes: whether strongly typed hyperparameters would promote a leaf.
          dtype: of such hyperparameters, if not weakly typed.
        """
        # JAX promotes float8 with nothing else.
        of_16_bits = bool(self.strong) and {
            d.itemsize for d in filter(is_half_dtype, dtypes_in(like))
        } == {2}
        may_promote = self.strong if of_16_bits and dtype is None else ()

        def argument(name: str, value: Any) -> Any:
            if promotes and isinstance(value, np.generic) and is_real(value):
                return value if name in may_promote else float(value)
            if not isinstance(value, jax.Array):
                return value
            if is_half_dtype(value.dtype):
                value = cast(value, jnp.float32)
            if not (promotes and kind_of(value.dtype) == REAL):
                return value
            if dtype is not None:
                return cast(value, dtype)
            return value if name in may_promote else weak(value)

        return self.factory(
            **{
                name: value if name in self.static else argument(name, value)
                for name, value in given.items()
            }
        )


def _has_two_dtypes(tree: PyTree) -> bool:
    return len([dtype for dtype in dtypes_in(tree) if kind_of(dtype) >= REAL]) > 1


def _cast_all_back(kept: dict[str, Any], state: Any, *, as_stock: bool) -> dict[str, Any]:
    """Cast hyperparameters back to their dtypes in the state, or keep those of stock."""
    schedules = getattr(state, "hyperparams_states", {})  # From 0.1.5 on.

    def back(name: str, value: Any) -> Any:
        before = jnp.asarray(state.hyperparams.get(name, value))
        if as_stock and is_real(value) and is_real(before):
            before = value
        # A stateful schedule may start with an integer and go on with floats: they are left alone.
        # A state from stock may have an integer for a float, and the float is what the step uses.
        stateful = _is_stateful(schedules.get(name))
        grown = stateful and jnp.issubdtype(before.dtype, jnp.integer) and is_real(value)
        return value if grown or is_weak(before) else cast(value, before.dtype)

    return {name: back(name, value) for name, value in kept.items()}


def _names(static_args: Any) -> frozenset[str]:
    """List the names: an iterator can be read only once, and a set has no hash."""
    return frozenset([static_args] if isinstance(static_args, str) else static_args)


def _strong_names(bound: inspect.BoundArguments, requested: Any) -> frozenset[str]:
    """Name the hyperparameters that are arrays or schedules; all with ``hyperparam_dtype``.

    Without the wrapper an array promotes half precision, and a Python number does not. So stock's
    moments are float32 and right, from 0.2.8 on; before, with ``hyperparam_dtype``.
    """
    bound.apply_defaults()
    given = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given.update(given.pop(name))
    if requested is not None and not is_half(jax.ShapeDtypeStruct((), requested)):
        return frozenset(given)
    return frozenset(n for n, value in given.items() if callable(value) or promotes_half(value))


def _taking_extra_args(tx: Any) -> Any:
    import optax

    # From 0.1.5 on.
    return optax.with_extra_args_support(tx) if hasattr(optax, "with_extra_args_support") else tx


def _params_like(grads: PyTree, state: PyTree) -> PyTree:
    """Find a tree with the dtypes of the params: without params, the moments if there are any."""
    return next(iter(kept_like(state, grads)), grads)


def _is_about_dtypes(error: Exception) -> bool:
    """Check for JAX's error about operands of two dtypes."""
    return type(error) in (TypeError, ValueError) and any(
        unlike in str(error) for unlike in _UNLIKE
    )


def _narrowest(tree: PyTree) -> Any:
    return min(
        (dtype_of(x) for x in leaves(tree) if is_inexact(x)), key=lambda d: jnp.finfo(d).bits
    )


def _as_wide_as(params: PyTree, grads: PyTree) -> PyTree:
    """Widen each real gradient that is narrower than its param."""
    flat, others = leaves(grads), leaves(params)
    if list(map(np.shape, flat)) != list(map(np.shape, others)):
        return grads
    return unflatten_like(grads, map(_as_wide_as_leaf, others, flat))


def _as_wide_as_leaf(param: Any, grad: Any) -> Any:
    if kind_of(dtype_of(param)) < REAL or kind_of(dtype_of(grad)) != REAL:
        return grad
    return cast(grad, jnp.promote_types(dtype_of(grad), jnp.finfo(dtype_of(param)).dtype))


def _keep(value: Any, widest: Any, requested: Any) -> Any:
    """Cast a hyperparameter to the dtype that the state keeps.

    Args:
      value: from stock. From 0.2.8 on, arrays have the dtype that the user gave them.
      widest: the widest dtype to keep it in; the narrowest is float32.
      requested: the user's ``hyperparam_dtype``, if any.
    """
    value = jnp.asarray(value)
    if kind_of(value.dtype) != REAL:
        return value
    if requested is not None:
        return cast(value, jax.dtypes.canonicalize_dtype(requested))
    if is_half_dtype(value.dtype):
        return cast(value, jnp.float32)
    return cast(value, widest) if value.dtype.itemsize > widest.itemsize else value


def _is_stateful(state: Any) -> bool:
    """Check whether a state belongs to a user-defined schedule, not to one that counts steps."""
    return state is not None and type(state).__name__ != "WrappedScheduleState"
