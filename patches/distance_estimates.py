"""dadapt_adamw, dog, dowg, momo, momo_adam, mechanize: float32 scalars, the dtypes of the user.

These optimizers find their step size from a distance that they estimate as they go: from sums over
all steps (D-Adaptation, https://arxiv.org/abs/2301.07733; DoG, https://arxiv.org/abs/2302.12022;
DoWG, https://arxiv.org/abs/2305.16284), averages (MoMo, https://arxiv.org/abs/2305.07583) or a bet
on it (Mechanic, https://arxiv.org/abs/2306.00144). The sums are a few scalars.

From 0.2.4 on stock keeps them in the lowest dtype of the params. In bfloat16 a sum of equal terms
stops at 256 of them; in float16 a first distance of 1e-6 and an eps of 1e-8 are 0, and 0/0 is nan;
an integer leaf makes integers of them. Up to 0.2.3 they are float32, and updates of bfloat16 params
with them; ``beta ** count`` of a Python float and an int32 array is float64 in 64-bit mode, and
spreads from there.

Here stock runs, in 32-bit mode, on copies of its inputs in float32, or in float64 if one of them
is: all in one dtype, so that nothing in it is promoted. No upstream issue was found for the
scalars; those that are linked below are of the same family.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from optax_dtypefix._dtypes import (
    PyTree,
    cast,
    cast_like,
    dtype_of,
    hold,
    is_inexact,
    is_x64,
    leaves,
    scalar_dtype,
    strengthen,
    tree_map,
    widen,
    without_x64,
    working_dtype,
    x64,
)
from optax_dtypefix._patch import Fault, Patch, Target
from optax_dtypefix.patches import _demonstrate as demo
from optax_dtypefix.patches._hyperparameters import arguments_of, array_in

if TYPE_CHECKING:
    from collections.abc import Iterator

# Fields of stock's states that have a leaf for each leaf of the params; all others are scalars.
_COPIES = ("init_params", "x0")
_AVERAGES = ("exp_avg", "exp_avg_sq", "grad_sum")


def _estimator(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of a stock function, with the arguments of the installed release.

    The state is stock's. Its scalars are float32, or float64 if all params are; its trees have the
    dtypes that stock gives them, but for the averages of Adam in float16, where the square of a
    gradient is 0: float32 there. Updates have the dtypes of the gradients.
    """
    built = stock(*args, **kwargs)  # Checks the arguments, and has the type to return.
    return _run_in_one_dtype(stock, built, arguments_of(stock, args, kwargs))


def _run_in_one_dtype(stock: Callable[..., Any], built: Any, arguments: dict[str, Any]) -> Any:
    def in_one(dtype: Any, state: Any = None) -> Any:
        return stock(**_hyperparameters(arguments, dtype, state))

    def init_fn(params: PyTree) -> Any:
        half = tree_map(lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.bfloat16), params)
        example = jax.eval_shape(built.init, half)
        dtype = working_dtype(params)
        state = without_x64(in_one(dtype).init, _in(params, dtype))
        return _state_like(state, example, params)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None:
            return built.update(updates, state, params, **extra_args)  # type: ignore[no-any-return]
        dtype = working_dtype((updates, state, params))
        tx = in_one(dtype, state)
        if extra_args.get("value") is not None:
            extra_args["value"] = _value(extra_args["value"], dtype)
        step = functools.partial(tx.update, **extra_args)
        new_updates, new_state = without_x64(
            step, _in(updates, dtype), _state_in(state, dtype), _in(params, dtype)
        )
        return cast_like(new_updates, updates), hold(new_state, state)

    return built._replace(init=init_fn, update=update_fn)


def _dadapt_adamw(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """As the others; and the distance stays as it is as long as all gradients were 0."""
    tx = _estimator(stock, *args, **kwargs)
    beta2 = arguments_of(stock, args, kwargs)["betas"][1]

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        new_updates, new_state = tx.update(updates, state, params, **extra_args)
        sums = tree_map(lambda leaf: jnp.sum(jnp.abs(widen(leaf))), new_state.grad_sum)
        divisor = jnp.asarray(sum(leaves(sums)))
        divisor *= 1 - cast(beta2, divisor.dtype) ** 0.5
        distance = jnp.where(divisor == 0, state.estim_lr, new_state.estim_lr)
        return new_updates, new_state._replace(estim_lr=distance)

    return tx._replace(update=update_fn)


def _mechanize(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """As the others, around a base optimizer that sees the dtypes that it would have seen."""
    import optax

    built = stock(*args, **kwargs)
    arguments = arguments_of(stock, args, kwargs)
    base = optax.with_extra_args_support(arguments["base_optimizer"])

    def around(base_update: Callable[..., Any]) -> Any:
        inner = optax.GradientTransformation(lambda _: (), base_update)
        given = {**arguments, "base_optimizer": inner}
        return _run_in_one_dtype(stock, stock(**given), given)

    def init_fn(params: PyTree) -> Any:
        if any(map(_is_complex, leaves(params))):  # Mechanic compares: it is not for them.
            return built.init(params)
        state = around(base.update).init(params)
        return state._replace(base_optimizer_state=strengthen(base.init(params)))

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None or any(map(_is_complex, leaves(params))):  # Without params, it raises.
            return built.update(updates, state, params)  # type: ignore[no-any-return]
        before = state.base_optimizer_state
        bare = state._replace(base_optimizer_state=())
        dtype = working_dtype((updates, bare, params))
        results: list[tuple[PyTree, PyTree]] = []

        def base_update(*_: Any) -> tuple[PyTree, PyTree]:
            if not results:
                results.append(base.update(updates, before, params, **extra_args))
            return _in(results[0][0], dtype), ()

        if _in_32_bits(dtype):
            base_update()  # In the mode of the user, before stock runs in the other.
        new_updates, new_state = around(base_update).update(updates, bare, params)
        after = hold(results[0][1], before, "mechanize: state of the base optimizer")
        return new_updates, new_state._replace(base_optimizer_state=after)

    return built._replace(init=init_fn, update=update_fn)


def _tree_norm(stock: Callable[..., Any], tree: PyTree) -> Any:
    """In place of the norm of ``mechanize`` in 0.1.7, which newer jax cannot run."""
    try:
        return stock(tree)
    except AttributeError:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves(tree)))


def _in(tree: PyTree, dtype: Any) -> PyTree:
    """Each leaf in a real dtype; complex ones as they are."""
    return tree_map(lambda leaf: leaf if _is_complex(leaf) else cast(leaf, dtype), tree)


def _is_complex(leaf: Any) -> bool:
    return bool(jnp.issubdtype(dtype_of(leaf), jnp.complexfloating))


def _state_in(state: Any, dtype: Any) -> Any:
    """A state with its trees and its scalars in one dtype; counts and flags as they are."""

    def scalar(leaf: Any) -> Any:
        return cast(leaf, dtype) if is_inexact(leaf) else leaf

    return _map_fields(lambda _, tree: _in(tree, dtype), scalar, state)


def _state_like(state: Any, example: Any, params: PyTree) -> Any:
    """An initial state in the dtypes that it is to have.

    Args:
      state: of stock, on params that were all cast to one dtype.
      example: the shapes and dtypes of stock's state for bfloat16 params: some of its trees are
        float32 whatever the params are.
      params: as they are.
    """
    scalars, adam = scalar_dtype(params), "exp_avg_sq" in getattr(state, "_fields", ())

    def average(leaf: Any, like: Any, param: Any) -> Any:
        dtype = dtype_of(param)
        follows = like.dtype == jnp.bfloat16 and is_inexact(param)
        if not follows or (adam and dtype == jnp.float16):
            dtype = jnp.promote_types(dtype, jnp.float32)
        return cast(leaf, dtype)

    def tree(name: str, leaf: Any, like: Any) -> Any:
        if name in _COPIES:
            return cast_like(leaf, params)
        return tree_map(average, leaf, like, params)

    def scalar(leaf: Any, _: Any) -> Any:
        return cast(leaf, scalars if is_inexact(leaf) else dtype_of(leaf))

    return _map_fields(tree, scalar, state, example)


def _map_fields(
    tree: Callable[..., Any], scalar: Callable[..., Any], state: Any, *others: Any
) -> Any:
    """Maps over the fields of a state: those that are trees like the params, and the scalars."""
    if not isinstance(state, tuple):
        return scalar(state, *others)
    names = getattr(state, "_fields", ("",) * len(state))
    mapped = [
        tree(name, *parts) if name in (*_COPIES, *_AVERAGES) else _map_fields(tree, scalar, *parts)
        for name, *parts in zip(names, state, *others)
    ]
    return type(state)(*mapped) if hasattr(state, "_fields") else tuple(mapped)


def _hyperparameters(arguments: dict[str, Any], dtype: Any, state: Any = None) -> dict[str, Any]:
    """The arguments, with arrays and, for a state, the results of schedules in one dtype."""

    def convert(name: str, value: Any) -> Any:
        if callable(value) and name in ("learning_rate", "weight_decay") and state is not None:
            return _schedule(value, dtype, _count(name, state))
        return tree_map(lambda leaf: array_in(leaf, dtype), value)

    return {name: convert(name, value) for name, value in arguments.items()}


def _schedule(schedule: Callable[[Any], Any], dtype: Any, count: Any) -> Callable[[Any], Any]:
    """A schedule that gives no more than ``dtype``; it runs in the mode of the user."""
    if not _in_32_bits(dtype):
        return lambda count: array_in(schedule(count), dtype)
    rate = array_in(schedule(count), dtype)
    return lambda _: rate


def _in_32_bits(dtype: Any) -> bool:
    """Whether stock will run in another mode than the user does, to compute in ``dtype``."""
    return is_x64() and bool(dtype == jnp.float32)


def _count(name: str, state: Any) -> Any:
    """The count that a schedule is called with; in a chain, weight decay comes first."""
    if "count" in getattr(state, "_fields", ()):
        return state.count
    return leaves(state[0 if name == "weight_decay" else -1])[0]


def _value(value: Any, dtype: Any) -> Any:
    """A loss in ``dtype``. Of a Python number, 0.2.5 and 0.2.6 call a method that numpy's have."""
    return array_in(value, dtype) if hasattr(value, "dtype") else np.float64(value)


_NAMES = ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "mechanize")


def _optimizers(
    names: tuple[str, ...] = _NAMES, **arguments: Any
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, transformation and extra arguments of each optimizer that the release has."""
    import optax

    for name in names:
        build = demo.contrib(name)
        if build is not None:
            base = (optax.sgd(0.1),) if name == "mechanize" else ()
            value = {"value": jax.ShapeDtypeStruct((), jnp.float32)}
            yield name, build(*base, **arguments), value if name.startswith("momo") else {}


def _show(
    dtype: Any, *more: Any, names: tuple[str, ...] = _NAMES, inside: bool = False, **arguments: Any
) -> str | None:
    for name, tx, extra in _optimizers(names, **arguments):
        found = demo.one_step(tx, demo.shapes(dtype, *more), inside=inside, **extra)
        if found is not None:
            return f"{name}: {found}"
    return None


def _show_weak_types() -> str | None:
    return _show(jnp.float32, names=("dog", "dowg"))


def _show_promoted_updates() -> str | None:
    return _show(jnp.bfloat16)


def _show_float64() -> str | None:
    with x64():
        return _show(jnp.float32, inside=True)


def _show_float64_params() -> str | None:
    with x64():
        return _show(jnp.float64)


def _show_mixed_tree() -> str | None:
    return _show(jnp.bfloat16, jnp.float32)


def _show_mixed_halves() -> str | None:
    return _show(jnp.bfloat16, jnp.float16)


def _show_array_learning_rate() -> str | None:
    rate = np.asarray(0.1, np.float32)
    return _show(jnp.bfloat16, names=_NAMES[:-1], learning_rate=rate)


def _show_narrow_scalars() -> str | None:
    return _first_scalar_not_float32(demo.shapes(jnp.bfloat16))


def _show_integer_leaf() -> str | None:
    return _first_scalar_not_float32(demo.shapes(jnp.float32, jnp.int32))


_SCALARS = ("estim_lr", "estim_dist", "max_dist", "estim_sq_dist", "barf", "s")


def _first_scalar_not_float32(params: PyTree) -> str | None:
    for optimizer, tx, _ in _optimizers():
        state = jax.eval_shape(tx.init, params)
        for part in (state, *state):
            for name in set(_SCALARS) & set(getattr(part, "_fields", ())):
                found = getattr(part, name).dtype
                if found != jnp.float32:
                    return f"{optimizer}: {name} is {found}"
    return None


def _show_stalled_sum() -> str | None:
    dog = demo.contrib("dog")
    if dog is None:
        return None
    tx, params, steps = dog(), demo.ones(jnp.bfloat16), 600

    def step(state: Any, _: None) -> tuple[Any, None]:
        return tx.update(params, state, params)[1], None

    state, _ = jax.jit(lambda: jax.lax.scan(step, tx.init(params), None, length=steps))()
    (got,) = (float(part.sum_sq_norm_grads) for part in state if len(part) > 1)
    exact = steps * 16.0  # |g|^2 = 16 at each step.
    if abs(got - exact) > 0.01 * exact:
        return f"the sum of squared norms is {got:g} after {steps} steps, not {exact:g}"
    return None


def _show_float16() -> str | None:
    return _first_not_finite("dadapt_adamw", jnp.float16, 1.0)


def _show_zero_gradient() -> str | None:
    return _first_not_finite("dadapt_adamw", jnp.float32, 0.0)


def _first_not_finite(name: str, dtype: Any, gradient: float) -> str | None:
    params = demo.ones(dtype)
    grads = tree_map(lambda p: jnp.full_like(p, gradient), params)
    for _, tx, _ in _optimizers((name,)):

        def run(tx: Any = tx) -> Any:
            updates, state = grads, tx.init(params)
            for _ in range(3):
                updates, state = tx.update(grads, state, params)
            return updates, state

        if not all(bool(jnp.isfinite(leaf).all()) for leaf in leaves(jax.jit(run)())):
            return f"{name}: not finite after 3 gradients of {gradient:g}"
    return None


def _probe_zero_gradient() -> str | None:
    """The new distance is the maximum of the old one and a quotient, whatever its divisor is."""
    dadapt_adamw = demo.contrib("dadapt_adamw")
    if dadapt_adamw is None:
        return None
    tx = dadapt_adamw()

    def distance(params: PyTree) -> Any:
        return tx.update(params, tx.init(params), params)[1].estim_lr

    jaxpr: Any = jax.make_jaxpr(distance)(demo.shapes(jnp.float32)).jaxpr
    makers = {variable: e for e in jaxpr.eqns for variable in e.outvars}
    last = makers[jaxpr.outvars[0]]
    operands = [makers.get(v) for v in last.invars if not hasattr(v, "val")]
    names = [operand.primitive.name for operand in operands if operand is not None]
    if last.primitive.name == "max" and "div" in names:
        return "the distance is divided by a sum of gradients, which may be 0"
    return None


def _show_python_value() -> str | None:
    params = demo.shapes(jnp.float32)
    for name, tx, _ in _optimizers(("momo", "momo_adam")):
        try:
            jax.eval_shape(lambda p, tx=tx: tx.update(p, tx.init(p), p, value=1.0), params)
        except AttributeError as error:
            return f"{name}: {error}"
    return None


_DADAPT = ("optax.contrib._dadapt_adamw", "optax.contrib.dadapt_adamw")
_DOG = ("optax.contrib._dog",)
_MOMO = ("optax.contrib._momo",)
_MECHANIC = ("optax.contrib._mechanic", "optax.contrib.mechanic", "optax._src.contrib.mechanic")
_FAMILY = "https://github.com/google-deepmind/optax/issues/1051"
_TREES = "https://github.com/google-deepmind/optax/issues/1207"

PATCH = Patch(
    id="distance_estimates",
    summary=(
        "`dadapt_adamw`, `dog`, `dowg`, `momo`, `momo_adam`, `mechanize`: drift to float64 or "
        "float32 (up to 0.2.3); scalars in the lowest dtype of the params, so that sums stall "
        "in bfloat16, are NaN in float16 and integers with an integer leaf (from 0.2.4); NaN "
        "for a zero gradient (`dadapt_adamw`)"
    ),
    independent=True,
    faults=(
        Fault(
            "narrow_scalars",
            "distances, sums and averages are kept in the lowest dtype of the params",
            ">=0.2.4",
            _show_narrow_scalars,
        ),
        # A term of 16 is half a unit in the last place of 256 * 16 = 4096 in bfloat16.
        Fault(
            "stalled_sum",
            "with bfloat16 params dog's sum of squared gradients stops growing after 256 steps",
            ">=0.2.3",
            _show_stalled_sum,
            abstract=False,
        ),
        Fault(
            "integer_leaf",
            "an integer leaf in the params turns the scalars into integers",
            ">=0.2.4",
            _show_integer_leaf,
        ),
        # estim_lr0 = 1e-6 and eps = 1e-8 are 0 in float16, whose smallest number is 6e-8.
        Fault(
            "float16",
            "float16 params: dadapt_adamw is nan in its first steps, and so is mechanize",
            ">=0.2.4",
            _show_float16,
            abstract=False,
        ),
        Fault(
            "mixed_halves",
            "bfloat16 and float16 leaves in one tree: ValueError, or float32 updates",
            ">=0.1.7",
            _show_mixed_halves,
        ),
        Fault(
            "mixed_tree",
            "leaves of different dtypes: the state drifts, or updates are promoted",
            ">=0.1.7",
            _show_mixed_tree,
            _TREES,
        ),
        Fault(
            "promoted_updates",
            "float32 updates or state for bfloat16 params",
            ">=0.1.7,<0.2.5",
            _show_promoted_updates,
            _FAMILY,
        ),
        Fault(
            "float64",
            "float32 params in 64-bit mode: float64 in state, updates or arithmetic",
            ">=0.1.7,<0.2.4",
            _show_float64,
            _FAMILY,
        ),
        Fault(
            "float64_params",
            "float64 params: the float32 state turns into float64, or lax.clamp raises",
            ">=0.1.7,<0.2.4",
            _show_float64_params,
            _FAMILY,
        ),
        Fault(
            "weak_types",
            "dog and dowg: the types of the state change in the first step; it compiles twice",
            "==0.2.3",
            _show_weak_types,
        ),
        Fault(
            "array_learning_rate",
            "a float32 number as learning rate gives float32 updates for bfloat16 params",
            ">=0.1.8",
            _show_array_learning_rate,
        ),
        # The divisor of the distance is the sum of all gradients: 0 / 0.
        Fault(
            "zero_gradient",
            "dadapt_adamw: a zero gradient in the first step: 0/0, nan from then on",
            ">=0.1.8",
            _show_zero_gradient,
            abstract=False,
            probe=_probe_zero_gradient,
        ),
        Fault(
            "python_value",
            "momo with a Python number as value: AttributeError",
            ">=0.2.5,<0.2.7",
            _show_python_value,
            "https://github.com/google-deepmind/optax/issues/1500",
        ),
    ),
    targets=(
        Target(_MECHANIC, "mechanize", _mechanize),
        Target(_MECHANIC, "_tree_norm", _tree_norm, "==0.1.7"),
        Target(_DADAPT, "dadapt_adamw", _dadapt_adamw, ">=0.1.8"),
        Target(_DOG, "dog", _estimator, ">=0.2.3"),
        Target(_DOG, "dowg", _estimator, ">=0.2.3"),
        Target(_MOMO, "momo", _estimator, ">=0.2.3"),
        Target(_MOMO, "momo_adam", _estimator, ">=0.2.3"),
    ),
)
