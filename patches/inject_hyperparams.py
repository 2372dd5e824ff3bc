"""inject_hyperparams: hyperparameters in float32 or wider, whatever the params.

Stock keeps hyperparameters in the dtype of the params: of the first leaf up to 0.2.7, in the
highest of all from 0.2.8 on. bfloat16 has 8 bits: below one it has the numbers 1 - k/256, so that
b2 = 0.999 becomes 1, and 1 - b2^t, which adam divides by, 0. In float16, whose smallest number is
6e-8, eps = 1e-8 becomes 0. An integer leaf makes integers of them, a complex one complex numbers.
With ``hyperparam_dtype=float32`` they keep their values, and state and updates turn into float32.
https://github.com/google-deepmind/optax/issues/1414 asks for another dtype; no upstream issue was
found about the not-a-number, or about the dtypes of state and updates.

Here stock does the bookkeeping, and sees neither params nor gradients but the dtype that
hyperparameters shall have. The transformation inside runs with all half-precision leaves in
float32: a float32 hyperparameter would promote just some of them, which lax.cond does not take.
What it returns gets the dtypes of the user. So ``float16_eps`` does not see float16 there; moments
are rounded to it as that patch rounds them.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from optax_dtypefix._dtypes import (
    PyTree,
    cast,
    have_one_structure,
    hold,
    is_half,
    is_inexact,
    is_weak,
    leaves,
    scalar_dtype,
    strengthen,
    tree_map,
    widen,
    x64,
)
from optax_dtypefix._patch import Fault, Patch, Target
from optax_dtypefix.patches import _demonstrate as demo
from optax_dtypefix.patches._moments import is_float16, store


def _inject_hyperparams(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of ``inject_hyperparams``, with the arguments of the installed release.

    The state is stock's. Hyperparameters that are real floats are in ``hyperparam_dtype`` if that
    is given, else in float32, or float64 if all params are; others are as in stock. A leaf of
    another dtype, of a restored state or set by the user, keeps it.
    """
    bound = inspect.signature(stock).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    names = arguments["static_args"]
    # An iterator gives them only once; and a set has no hash, see below.
    static = frozenset([names] if isinstance(names, str) else names)
    arguments["static_args"] = static
    inner_factory = arguments["inner_factory"]
    signature = _Signature(inspect.signature(inner_factory))
    asked = arguments.get("hyperparam_dtype")  # From 0.1.4 on.
    built = stock(**arguments)  # Checks the arguments.

    @functools.wraps(inner_factory)
    def wrapped_transform(*args: Any, **kwargs: Any) -> Any:
        tx = built(*args, **kwargs)  # As above, and has the type to return.

        def stock_around(
            dtype: Any, init: Callable[..., Any], update: Callable[..., Any] = lambda _: None
        ) -> Any:
            """Stock's transformation, which calls these two with the transformation inside."""
            import optax

            def factory(**hyperparams: Any) -> Any:
                for name, value in hyperparams.items():
                    if name not in static and isinstance(value, jax.Array):
                        hyperparams[name] = widen(_keep(value, dtype, asked))
                inner = inner_factory(**hyperparams)
                return optax.GradientTransformation(
                    lambda _: init(inner), lambda *_: update(_taking_extra_args(inner))
                )

            factory.__signature__ = signature.of  # type: ignore[attr-defined]
            return stock(**{**arguments, "inner_factory": factory})(*args, **kwargs)

        def init_fn(params: PyTree) -> Any:
            dtype = scalar_dtype(params)
            state = stock_around(dtype, lambda inner: inner.init(params)).init(_tree_of(dtype))
            kept = {name: _keep(value, dtype, asked) for name, value in state.hyperparams.items()}
            # Integers stay weakly typed: int64, in 64-bit mode, would turn counters into int64.
            return strengthen(state._replace(hyperparams={}))._replace(hyperparams=kept)

        def update_fn(
            updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
        ) -> tuple[PyTree, Any]:
            dtype = scalar_dtype(updates if params is None else params)

            def update(inner: Any) -> Any:
                return inner.update(
                    widen(updates),
                    widen(state.inner_state),
                    widen(params),
                    **_on_widened(extra_args, params),
                )

            like, around = _tree_of(dtype), stock_around(dtype, lambda _: None, update)
            new_updates, new_state = around.update(like, state, like, **extra_args)
            schedules = getattr(state, "hyperparams_states", {})  # From 0.1.5 on.
            kept = {
                name: _hold(
                    _keep(value, dtype, asked),
                    state.hyperparams.get(name, value),
                    stateful=_is_stateful(schedules.get(name)),
                )
                for name, value in new_state.hyperparams.items()
            }
            inner = hold(_store(new_state.inner_state, state.inner_state), state.inner_state)
            # What is left are the count, and the states of the user's schedules.
            rest, old_rest = (
                part._replace(hyperparams={}, inner_state=()) for part in (new_state, state)
            )
            if have_one_structure(rest, old_rest):
                rest = tree_map(functools.partial(_hold, stateful=True), rest, old_rest)
            # Those of lookahead are like its params, not like the gradients.
            like = updates if have_one_structure(new_updates, updates) else params
            return hold(new_updates, like), rest._replace(hyperparams=kept, inner_state=inner)

        return tx._replace(init=init_fn, update=update_fn)

    return wrapped_transform


class _Signature:
    """A signature, hashed by identity: some default in it may have no hash.

    equinox and optimistix hash what a transformation closes over, and put an object without a
    signature in the place of each function there.
    """

    def __init__(self, of: inspect.Signature) -> None:
        self.of = of


def _tree_of(dtype: Any) -> Any:
    """What stock sees in place of params and gradients. No array of JAX: a probe must make none."""
    return np.zeros((), dtype)


def _taking_extra_args(tx: Any) -> Any:
    import optax

    # From 0.1.5 on.
    return optax.with_extra_args_support(tx) if hasattr(optax, "with_extra_args_support") else tx


def _keep(value: Any, widest: Any, asked: Any) -> Any:
    """A hyperparameter as the state keeps it.

    Args:
      value: what stock made of it: from 0.2.8 on, arrays have the dtype that they came with.
      widest: the widest dtype to keep it in; the narrowest is float32.
      asked: the user's ``hyperparam_dtype``, if any.
    """
    value = jnp.asarray(value)
    if not _is_float(value):
        return value
    if asked is not None:
        return cast(value, jax.dtypes.canonicalize_dtype(asked))
    value = widen(value)
    return cast(value, widest) if value.dtype.itemsize > widest.itemsize else value


def _hold(value: Any, before: Any, *, stateful: bool) -> Any:
    """A number in the dtype that it had in the state, unless that is a Python number's.

    A stateful schedule that starts with an integer and goes on with floats has its way.
    """
    value, before = jnp.asarray(value), jnp.asarray(before)
    grown = jnp.issubdtype(before.dtype, jnp.integer) and _is_float(value)
    return value if is_weak(before) or (stateful and grown) else cast(value, before.dtype)


def _is_stateful(state: Any) -> bool:
    """Whether it is the state of a schedule that the user wrote, not one that counts steps."""
    return state is not None and type(state).__name__ != "WrappedScheduleState"


def _store(new: PyTree, old: PyTree) -> PyTree:
    """The state of the transformation inside with moments rounded to float16, where it has that."""
    rounded = any(map(is_float16, leaves(old))) and have_one_structure(new, old)
    return store(new, old) if rounded else new


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def _on_widened(extra_args: dict[str, Any], params: PyTree) -> dict[str, Any]:
    """Extra arguments for a transformation that is given widened params.

    Gradients and scalars are widened too. A function of the params still gets the dtypes of the
    user, and what it returns is widened.
    """
    if not any(map(is_half, leaves(params))):
        return extra_args

    def widen_argument(value: Any) -> Any:
        if callable(value):
            return _Widened(value, params)
        like_params = have_one_structure(value, params)
        scalar = hasattr(value, "shape") and value.shape == ()
        return tree_map(_widen_leaf, value) if like_params or scalar else value

    return {name: widen_argument(value) for name, value in extra_args.items()}


class _Widened:
    """A function of the user: it is given params in their own dtypes, and its results widened."""

    def __init__(self, function: Callable[..., Any], params: PyTree) -> None:
        self._function, self._params = function, params

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(self._as_the_user_has_it, args))
        kwargs = {name: self._as_the_user_has_it(value) for name, value in kwargs.items()}
        return tree_map(_widen_leaf, self._function(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name == "_function":  # Not there yet: it is being copied.
            raise AttributeError(name)
        return getattr(self._function, name)

    def _as_the_user_has_it(self, value: Any) -> Any:
        if not have_one_structure(value, self._params):
            return value
        kinds = [
            [(jnp.shape(leaf), is_inexact(leaf)) for leaf in leaves(tree)]
            for tree in (value, self._params)
        ]
        return hold(value, self._params) if kinds[0] == kinds[1] else value


def _widen_leaf(leaf: Any) -> Any:
    return widen(leaf) if hasattr(leaf, "dtype") else leaf


def _inject(factory: str, *args: Any, **hyperparams: Any) -> Any:
    import optax

    dtype = hyperparams.pop("hyperparam_dtype", None)
    options = {} if dtype is None else {"hyperparam_dtype": dtype}
    return optax.inject_hyperparams(getattr(optax, factory), **options)(*args, **hyperparams)


def _show_not_a_number() -> str | None:
    return _first_update_of_adam(demo.ones(jnp.bfloat16))


def _show_float16_eps() -> str | None:
    return _first_update_of_adam(tree_map(jnp.zeros_like, demo.ones(jnp.float16)))


def _first_update_of_adam(grads: PyTree) -> str | None:
    tx = _inject("adam", 1e-2)
    updates, _ = jax.jit(tx.update)(grads, tx.init(grads), grads)
    got, exact = float(updates["b"][0]), 0.0 - 1e-2 * float(grads["b"][0])
    if abs(got - exact) <= 1e-4:
        return None
    return f"the first update of adam is {got:g}, not {exact:g}"


def _show_narrow_hyperparams() -> str | None:
    return _dtype_is_not(jnp.float32, demo.shapes(jnp.bfloat16))


def _show_integer_leaf() -> str | None:
    return _dtype_is_not(jnp.float32, demo.shapes(jnp.float32, jnp.int32))


def _dtype_is_not(dtype: Any, params: PyTree) -> str | None:
    state = jax.eval_shape(_inject("sgd", 0.1).init, params)
    found = state.hyperparams["learning_rate"].dtype
    return None if found == dtype else f"the learning rate is kept in {found}"


def _show_hyperparam_dtype() -> str | None:
    import optax

    if "hyperparam_dtype" not in inspect.signature(optax.inject_hyperparams).parameters:
        return None
    tx = _inject("adam", 1e-2, hyperparam_dtype=jnp.float32)
    return demo.one_step(tx, demo.shapes(jnp.bfloat16))


def _show_strong_array() -> str | None:
    return demo.one_step(_inject("sgd", _warm_up), demo.shapes(jnp.bfloat16))


def _warm_up(count: Any) -> Any:
    """Strongly typed, as most of optax's schedules."""
    return jnp.asarray(0.1, jnp.float32) * jnp.minimum(1.0, (count + 1) / 10.0)


def _show_float64_schedule() -> str | None:
    with x64():
        tx = _inject("sgd", lambda count: jnp.asarray(0.1, jnp.float64) / (count + 1))
        return demo.one_step(tx, demo.shapes(jnp.float32))


def _show_numpy_scalar() -> str | None:
    return demo.one_step(_inject("sgd", np.float32(0.1)), demo.shapes(jnp.bfloat16))


def _show_wide_gradients() -> str | None:
    params, grads = demo.shapes(jnp.bfloat16), demo.shapes(jnp.float32)
    return demo.one_step(_inject("sgd", 0.1), params, grads)


def _show_mixed_tree() -> str | None:
    return demo.one_step(_inject("sgd", 0.1), demo.shapes(jnp.bfloat16, jnp.float32))


def _show_mixed_halves() -> str | None:
    return demo.one_step(_inject("sgd", 0.1), demo.shapes(jnp.bfloat16, jnp.float16))


def _show_complex_leaf() -> str | None:
    return demo.one_step(_inject("sgd", 0.1), demo.shapes(jnp.float32, jnp.complex64))


_KNOWN = frozenset({"inner_factory", "static_args", "hyperparam_dtype"})
_ISSUE = "https://github.com/google-deepmind/optax/issues/1414"
_STEADY = "https://github.com/google-deepmind/optax/issues/1207"

PATCH = Patch(
    id="inject_hyperparams",
    summary=(
        "hyperparameters take the dtype of the params: in bfloat16 `b2=0.999` becomes 1 and "
        "adam gives NaN from the first update on, in float16 `eps` becomes 0, an integer leaf "
        "makes the learning rate 0 (up to 0.2.7); with `hyperparam_dtype=float32`, arrays or "
        "schedules, state or updates turn into float32"
    ),
    faults=(
        # 0.999 in bfloat16 is 1, and adam divides by 1 - b2^t = 0.
        Fault(
            "not_a_number",
            "adam on bfloat16 params: not-a-number from the first update on",
            ">=0.1.2",
            _show_not_a_number,
            _ISSUE,
            abstract=False,
        ),
        # 1e-8 in float16 is 0, and a zero gradient gives 0 / (sqrt(0) + 0).
        Fault(
            "float16_eps",
            "adam on float16 params: a zero gradient gives not-a-number",
            ">=0.1.2",
            _show_float16_eps,
            _ISSUE,
            abstract=False,
        ),
        Fault(
            "narrow_hyperparams",
            "hyperparameters are rounded to the half precision of the params",
            ">=0.1.2",
            _show_narrow_hyperparams,
            _ISSUE,
        ),
        # 0.1 in int32 is 0: nothing is trained, and nothing says so.
        Fault(
            "integer_leaf",
            "hyperparameters become integers, a learning rate 0, if the first leaf is one",
            "<0.2.8",
            _show_integer_leaf,
        ),
        Fault(
            "hyperparam_dtype",
            "hyperparam_dtype=float32 turns state and updates of bfloat16 params into float32",
            ">=0.1.4",
            _show_hyperparam_dtype,
            _STEADY,
        ),
        # A strong float32 scalar makes float32 of bfloat16: of the update, and of what uses it.
        Fault(
            "strong_array",
            "a schedule that returns a float32 array gives float32 updates for bfloat16 params",
            ">=0.2.8",
            _show_strong_array,
        ),
        Fault(
            "float64_schedule",
            "in 64-bit mode, a schedule in float64 gives float64 updates for float32 params",
            ">=0.2.8",
            _show_float64_schedule,
        ),
        Fault(
            "numpy_scalar",
            "a NumPy float32 as learning rate gives float32 updates for bfloat16 params",
            ">=0.1.5",
            _show_numpy_scalar,
        ),
        # init takes the dtype from the params, update from the gradients.
        Fault(
            "wide_gradients",
            "float32 gradients of bfloat16 params: the hyperparameters change dtype in a step",
            "<0.2.8",
            _show_wide_gradients,
        ),
        Fault(
            "mixed_tree",
            "bfloat16 and float32 leaves in one tree: float32 updates for bfloat16",
            ">=0.1.2",
            _show_mixed_tree,
            _STEADY,
        ),
        Fault(
            "mixed_halves",
            "bfloat16 and float16 leaves in one tree: float32 updates, or ValueError",
            ">=0.1.2",
            _show_mixed_halves,
        ),
        # The dtype of a complex leaf as that of the learning rate: complex * float is complex.
        Fault(
            "complex_leaf",
            "a complex leaf gives complex updates for the real ones",
            ">=0.1.2",
            _show_complex_leaf,
        ),
    ),
    targets=(
        Target(
            ("optax.schedules._inject", "optax._src.schedule"),
            "inject_hyperparams",
            _inject_hyperparams,
            knows=_KNOWN,
        ),
        # From 0.1.9 on it calls the other one.
        Target(
            ("optax.schedules._stateful",),
            "inject_stateful_hyperparams",
            _inject_hyperparams,
            "==0.1.8",
            knows=_KNOWN,
        ),
    ),
)
