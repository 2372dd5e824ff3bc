"""inject_hyperparams: hyperparameters have the values that were given, whatever the params.

Stock keeps hyperparameters in the dtype of the params: of the first leaf up to 0.2.7, in the
highest of all from 0.2.8 on. Below one, bfloat16 has the numbers 1 - k/256. So b2 = 0.999 becomes
1, and adam divides by 1 - b2^t = 0. An integer leaf makes hyperparameters integers, a complex leaf
makes them complex. With ``hyperparam_dtype=float32`` they keep their values, but state and updates
change to float32.

Here the state is stock's, bit by bit, and the step uses what was given. A schedule is computed in
each step. A number is known since the transformation was built: where the state holds its rounding,
the number itself is used. Any other value in the state is the user's. Only where stock would make a
float an integer or a complex number, the state holds float32.

Hyperparameters that are wider than a param are weakly typed, and take the dtype of the leaf that
they meet, like a Python number. Functions of ``jax.lax`` do not promote: an inner transformation
that gives them hyperparameters is called twice in such a step, the second time in the dtype of the
params, as on stock.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, Callable

import jax
import numpy as np

from .._contract.dtypes import (
    PyTree,
    all_dtypes,
    cast,
    dtype_of,
    is_real,
    leaves,
    strip_weak_type,
    unflatten_like,
)
from .._contract.kinds import promote_initial_state
from .._contract.state import cast_back
from .._contract.updates import cast_updates, same_dtypes, subtrees_like
from .._contract.widths import widest_real
from .._engine.patch import Stock
from .._tally import paused
from .door.arguments import arguments_of
from .door.rebuild import Call, call_of, in_place_of, lifting_of, rebuild
from .hyperparameters import Factory, Widths, find_widths


def replace(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace ``inject_hyperparams``, with the arguments of the installed release.

    The state is stock's. Only where stock raises for the dtypes of the params, or keeps no floats,
    hyperparameters are float32, or float64 if a param is; and no wider than that where the user
    gives an array, or a schedule returns one.
    """
    arguments = arguments_of(stock, args, kwargs)
    names = arguments["static_args"]  # An iterator can be read only once, and a set has no hash.
    arguments["static_args"] = frozenset([names] if isinstance(names, str) else names)
    inner_factory = arguments["inner_factory"]
    signature = inspect.signature(inner_factory)

    def remember(**hyperparams: Any) -> Any:
        """Build what has the hyperparameters for its state, in place of a transformation."""
        import optax

        return optax.GradientTransformation(lambda _: hyperparams, lambda *_: (None, hyperparams))

    remember.__signature__ = signature  # type: ignore[attr-defined]
    call, built = call_of(stock, (), arguments), stock(**arguments)  # Checks the arguments.
    hyperparams_of = stock(**{**arguments, "inner_factory": remember})

    def wrapped_transform(*args: Any, **kwargs: Any) -> Any:
        tx = built(*args, **kwargs)  # Checks the arguments, and has the right type.
        static = arguments["static_args"]
        types = _refused_types(inner_factory, signature.bind(*args, **kwargs)) - static
        if types:
            return replace(stock, **{**arguments, "static_args": static | types})(*args, **kwargs)
        factory = Factory(stock, arguments, signature.bind(*args, **kwargs))
        injected = _Injected(tx, hyperparams_of(*args, **kwargs), factory)
        again = Call(in_place, *args, **kwargs)
        return rebuild(tx, again, injected.update, injected.init)

    in_place = in_place_of(inner_factory, wrapped_transform, call)
    return in_place


def _refused_types(factory: Callable[..., Any], bound: inspect.BoundArguments) -> frozenset[str]:
    """List the arguments that are types, such as dtypes, if the factory needs them as such.

    A type can be called. Stock takes it for a schedule, and passes an array in its place.
    """
    bound.apply_defaults()  # Such as the dtype of adafactor's momentum.
    types = frozenset(name for name, value in bound.arguments.items() if isinstance(value, type))

    def build(number: Any) -> Any:
        bound.arguments.update(dict.fromkeys(types, number))
        with paused(stock_only=True):
            return factory(*bound.args, **bound.kwargs)

    if types:
        number = np.zeros((), np.float32)
        try:
            build(number)
        except TypeError:
            return types
        except Exception:  # Stock raises it, too.
            return _NONE
        try:
            jax.eval_shape(lambda number: build(number).init(number), number)
        except Exception as error:
            return types if _REFUSED in str(error) else _NONE
    return _NONE


_NONE = frozenset[str]()
_REFUSED = "Passing an array as a dtype"
"""What JAX says where ``init`` reads a dtype. Old versions take the dtype of the array."""


@dataclasses.dataclass(eq=False, repr=False)  # By identity: equinox hashes what a closure holds.
class _Injected:
    """A transformation whose hyperparameters are in its state.

    Attributes:
      stock: stock's transformation.
      hyperparams: stock's transformation, around one that has the hyperparameters for its state.
      factory: builds the inner transformation.
    """

    stock: Any
    hyperparams: Any
    factory: Factory

    def _find_widths(self, params: PyTree) -> Widths:
        dtypes = tuple(dict.fromkeys(all_dtypes(params)))
        return find_widths(self.factory.stock, dtypes, self.factory.requested)

    def init(self, params: PyTree) -> Any:
        widths = self._find_widths(params)
        same = (leaf for leaf in leaves(params) if getattr(leaf, "dtype", None) == widths.stock)
        # NumPy: a probe must not create JAX arrays. To make one of that may compile a program.
        state = self.hyperparams.init(next(same, np.zeros((), widths.stock)))
        kept, used = self.factory.settle(state.hyperparams, widths)
        build = functools.partial(self.factory.build, state.inner_state, used, widths)
        inner_state = strip_weak_type(build().init(params))
        update = functools.partial(self._update_inner, build, widths)
        inner_state = promote_initial_state(update, inner_state, params)
        # Integers stay weakly typed: int64, in 64-bit mode, would turn counters into int64.
        state = strip_weak_type(state._replace(hyperparams={}, inner_state=()))
        state = state._replace(hyperparams=kept, inner_state=inner_state)
        return state

    def update(
        self, updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        before, known = state.inner_state, params
        if params is None:  # Moments have the dtypes of the params.
            known = next(iter(subtrees_like(before, updates)), None)
        like = updates if known is None else known
        widths, same = self._find_widths(like), same_dtypes(updates, like)
        number = np.zeros((), widths.step)
        _, new_state = self.hyperparams.update(
            number, state._replace(inner_state=()), number, **extra_args
        )
        kept, used = self.factory.settle(new_state.hyperparams, widths, state.hyperparams)
        build = functools.partial(self.factory.build, new_state.inner_state, used, widths)
        grads = _widen(updates, like) if widths.promotes and not same else updates
        new_updates, inner_state = self._update_inner(
            build, widths, grads, before, params, **extra_args
        )
        new_state = new_state._replace(hyperparams=kept, inner_state=inner_state)
        target = state._replace(hyperparams=kept, inner_state=before if same else inner_state)
        return new_updates, cast_back(new_state, target)

    def _update_inner(
        self,
        build: Callable[..., Any],
        widths: Widths,
        grads: PyTree,
        state: PyTree,
        params: PyTree,
        /,
        **extra_args: Any,
    ) -> tuple[PyTree, PyTree]:
        """Take a step of the inner transformation, with updates no wider than the user asks for.

        Functions of ``jax.lax`` do not promote. Stock gives them hyperparameters in the dtype of
        the params, and so does a second try where JAX refuses float32 for that reason.
        """
        import optax

        # From 0.1.5 on.
        accept_extra_args = getattr(optax, "with_extra_args_support", lambda tx: tx)

        def step(dtype: Any = None) -> tuple[PyTree, PyTree]:
            tx = build(dtype)
            updates, after = accept_extra_args(tx).update(grads, state, params, **extra_args)
            if lifting_of(tx.update) is None:
                # In a mixed tree moments may be wide though nobody asked.
                moments = None if widths.mixed else state
                updates = cast_updates(updates, grads, params, moments, self.factory.dtypes)
            return updates, after

        try:
            return step()
        except (TypeError, ValueError) as error:  # ValueError comes from XLA, with old jax.
            unlike = any(text in str(error) for text in _UNLIKE)
            if not (widths.promotes and unlike and type(error) in (TypeError, ValueError)):
                raise
        return step(widths.narrowest)


_UNLIKE = (
    *("same dtype", "accept dtype", "dtypes should", "dtypes must"),
    *("equal types", "equal output types", "identical types", "compatible types"),
)
"""What JAX says of operands and branches whose dtypes differ, from 0.4.13 to 0.10."""


def _widen(grads: PyTree, params: PyTree) -> PyTree:
    """Cast each real gradient that is narrower than its param to the dtype of the param."""
    flat, like = leaves(grads), leaves(params)
    if list(map(np.shape, flat)) != list(map(np.shape, like)):
        return grads
    rows = ((grad, widest_real(dtype_of(grad), dtype_of(p))) for grad, p in zip(flat, like))
    return unflatten_like(
        grads, [cast(grad, dtype) if is_real(grad) else grad for grad, dtype in rows]
    )
