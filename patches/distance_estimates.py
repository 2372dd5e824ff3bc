"""distance_estimates: dadapt_adamw, dog, dowg, momo, momo_adam, mechanize keep float32 scalars.

These optimizers find their step size from a distance that they estimate: from sums over all steps
(D-Adaptation, https://arxiv.org/abs/2301.07733; DoG, https://arxiv.org/abs/2302.12022; DoWG,
https://arxiv.org/abs/2305.16284), averages (MoMo, https://arxiv.org/abs/2305.07583) or a bet
(Mechanic, https://arxiv.org/abs/2306.00144). The sums are a few scalars.

From 0.2.4 on stock keeps these scalars in the lowest dtype of the params. In bfloat16 a sum of
equal terms stops at 256 terms. In float16 a first distance of 1e-6 and an eps of 1e-8 are 0, and
0/0 is nan. An integer leaf makes the scalars integers. Up to 0.2.3 the scalars are float32, and
updates of bfloat16 params are float32 too. In 64-bit mode ``beta ** count`` of a Python float and
an int32 array is float64, and the state and the updates become float64.

Stock squares complex numbers where their absolute values are meant, and compares real parts:
dadapt_adamw hardly moves, and momo takes complex step sizes.

Here stock runs in 32-bit mode on a list of the leaves, all in float32, or in float64 if one leaf
is, so that nothing is promoted. A complex leaf becomes a pair of real leaves: the algorithms are
made for real vectors. No upstream issue was found for the scalars; the linked issues are related.

Whether the first gradients are 0 is not known while a step is traced. So every dadapt_adamw counts
as changed in ``status()``, and in 64-bit mode every optimizer here does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    PyTree,
    cast,
    cast_back,
    cast_like,
    dtype_of,
    half_to_float32,
    is_inexact,
    leaves,
    same_structure,
    strip_weak_type,
    tree_map,
    unflatten_like,
)
from .._contract.kinds import promote_initial_state
from .._contract.promotion import standard_promotion
from .._contract.updates import cast_updates, update_dtype
from .._contract.widths import compute_dtype, statistics_dtype
from .._contract.x64 import is_x64, without_x64, x64
from .._engine.patch import Patch, Stock
from .._tally import count, counting, paused
from ._support import reproduce as demo
from ._support.arguments import arguments_of, array_in
from ._support.rebuild import call_of, rebuild
from ._support.representation import complex_places, in_parts, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

_DADAPT = ("optax.contrib._dadapt_adamw", "optax.contrib.dadapt_adamw")
_DOG = ("optax.contrib._dog",)
_MOMO = ("optax.contrib._momo",)
_MECHANIC = ("optax.contrib._mechanic", "optax.contrib.mechanic", "optax._src.contrib.mechanic")

PATCH = Patch(
    "distance_estimates",
    summary="`dadapt_adamw`, `dog`, `dowg`, `momo`, `momo_adam`, `mechanize`: scalar sums stall "
    "in bfloat16 and are NaN in float16",
    allow_missing_targets=True,
)

# Fields of stock's states with a leaf for each param; all other fields are scalars.
_COPIES = ("init_params", "x0")
_AVERAGES = ("exp_avg", "exp_avg_sq", "grad_sum")


@PATCH.wraps("dog", _DOG, ">=0.2.3")
@PATCH.wraps("dowg", _DOG, ">=0.2.3")
@PATCH.wraps("momo", _MOMO, ">=0.2.3")
@PATCH.wraps("momo_adam", _MOMO, ">=0.2.3")
def _estimator(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a stock function, with the arguments of the installed release.

    The state is stock's. Its scalars are float32, or float64 if all params are. Its trees have
    stock's dtypes. Averages of Adam in float16, where the square of a gradient is 0, and averages
    of integers are exceptions: they are float32. Updates are as wide as gradients and params.
    """
    built = stock(*args, **kwargs)  # Checks the arguments, and has the right type.
    arguments = arguments_of(stock, args, kwargs)

    def init_fn(params: PyTree) -> Any:
        return _start(stock, arguments, params)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None or not same_structure(updates, params, *_trees(state)):
            result: tuple[PyTree, Any] = built.update(updates, state, params, **extra_args)
            return result  # Stock raises, most often.
        new_updates, new_state = _step(stock, arguments, (updates, state, params), extra_args)
        return cast_updates(new_updates, updates, params), new_state

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _start(stock: Stock, arguments: dict[str, Any], params: PyTree) -> Any:
    """Start a state in its final dtypes."""
    dtype, places = compute_dtype(params), complex_places(params)
    numbers = _in(in_parts(params, places), dtype)
    tx = stock(**_hyperparameters(arguments, dtype, params))
    halves = [jax.ShapeDtypeStruct(np.shape(p), jnp.bfloat16) for p in leaves(params)]
    with standard_promotion():
        state = without_x64(tx.init, numbers)
    with standard_promotion(), paused():
        example = jax.eval_shape(tx.init, halves)  # Some trees of stock are always float32.
    scalars, adam = statistics_dtype(params), "exp_avg_sq" in getattr(state, "_fields", ())

    def average(leaf: Any, like: Any, param: Any) -> Any:
        param_dtype = dtype_of(param)
        follows = like.dtype == jnp.bfloat16 and is_inexact(param)
        if not follows or (adam and param_dtype == jnp.float16):
            param_dtype = jnp.promote_types(param_dtype, jnp.float32)
        return cast(leaf, param_dtype)

    def tree(name: str, new: list[Any], like: list[Any]) -> Any:
        if name in _COPIES:  # Some releases start with zeros and copy in the first step.
            return cast_like(unflatten_like(params, joined(new)), params)
        return unflatten_like(params, map(average, joined(new), like, leaves(params)))

    def scalar(leaf: Any, _: Any) -> Any:
        return cast(leaf, scalars if is_inexact(leaf) else dtype_of(leaf))

    return _map_fields(tree, scalar, state, example)


def _step(
    stock: Stock,
    arguments: dict[str, Any],
    given: tuple[PyTree, ...],
    extra_args: dict[str, Any],
    base: Callable[[], PyTree] | None = None,
) -> tuple[PyTree, Any]:
    """Take a step of stock on lists of leaves in one real dtype.

    Args:
      stock: builds the transformation.
      arguments: of ``stock``.
      given: gradients, state and params, all trees of one structure; for ``mechanize`` also the
        updates of the base optimizer, if one is complex where gradient and param are real.
      extra_args: of the update.
      base: for ``mechanize``, returns the updates of the base optimizer.

    Returns:
      Updates in that dtype, complex where a given tree is, and the new state in the dtypes of the
      old one.
    """
    updates, state, params, *more = given
    dtype, places = compute_dtype(given), complex_places(updates, params, *more)
    if extra_args.get("value") is not None:
        extra_args = {**extra_args, "value": _value(extra_args["value"], dtype)}
    hyperparameters = _hyperparameters(arguments, dtype, updates, state)
    if base is not None:
        if _in_32_bits(dtype):
            base()  # In the user's mode, before stock runs in 32-bit mode.
        hyperparameters["base_optimizer"] = _base(lambda: numbers(base()))

    def scalar(leaf: Any) -> Any:
        return cast(leaf, dtype) if is_inexact(leaf) else leaf

    def numbers(tree: PyTree) -> list[Any]:
        flat: list[Any] = _in(in_parts(tree, places), dtype)
        return flat

    def run(grads: Any, state: Any, params: Any) -> Any:
        return stock(**hyperparameters).update(grads, state, params, **extra_args)

    encoded = _map_fields(lambda _, tree: numbers(tree), scalar, state)
    with standard_promotion():
        new_updates, new_state = without_x64(run, numbers(updates), encoded, numbers(params))

    def tree(name: str, new: list[Any], old: PyTree) -> Any:
        structure: Any = jax.tree_util.tree_structure(old)
        tree = structure.unflatten(joined(new))
        return cast_like(tree, old) if name in _COPIES else tree

    new_state = _map_fields(tree, lambda leaf, _: leaf, new_state, state)
    return unflatten_like(updates, joined(new_updates)), cast_back(new_state, state)


@PATCH.wraps("dadapt_adamw", _DADAPT, ">=0.1.8")
def _dadapt_adamw(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Do as :func:`_estimator`, and keep the distance while all gradients are 0."""
    tx = _estimator(stock, *args, **kwargs)
    beta2 = arguments_of(stock, args, kwargs)["betas"][1]

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        new_updates, new_state = tx.update(updates, state, params, **extra_args)
        count("guard against 0/0")
        sums = [jnp.sum(jnp.abs(half_to_float32(leaf))) for leaf in leaves(new_state.grad_sum)]
        divisor = jnp.asarray(sum(sums))
        divisor *= 1 - cast(beta2, divisor.dtype) ** 0.5
        distance = jnp.where(divisor == 0, state.estim_lr, new_state.estim_lr)
        return new_updates, new_state._replace(estim_lr=distance)

    return rebuild(tx, call_of(stock, args, kwargs), update_fn, also_in_float32=True)


@PATCH.wraps("mechanize", _MECHANIC)
def _mechanize(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Do as :func:`_estimator`, around a base optimizer that sees its usual inputs."""
    import optax

    built = stock(*args, **kwargs)
    arguments = arguments_of(stock, args, kwargs)
    base = optax.with_extra_args_support(arguments["base_optimizer"])

    def init_fn(params: PyTree) -> Any:
        state = _start(stock, {**arguments, "base_optimizer": _base(tuple)}, params)
        base_state = strip_weak_type(promote_initial_state(base.update, base.init(params), params))
        return state._replace(base_optimizer_state=base_state)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None or not same_structure(updates, params, state.x0):
            return built.update(updates, state, params)  # type: ignore[no-any-return]  # It raises.
        before = state.base_optimizer_state
        bare = state._replace(base_optimizer_state=())

        @functools.cache
        def base_step() -> tuple[PyTree, PyTree]:
            result = base.update(updates, before, params, **extra_args)
            if not same_structure(result[0], params):
                built.update(updates, state, params)  # It raises.
            return result  # type: ignore[no-any-return]

        given: tuple[PyTree, ...] = updates, bare, params
        new_updates, new_state = _step(stock, arguments, given, {}, lambda: base_step()[0])
        base_updates, after = base_step()
        complex_base = complex_places(updates, params, base_updates)
        if complex_base != complex_places(updates, params):  # Not known before stock calls it.
            given = updates, bare, params, base_updates
            new_updates, new_state = _step(stock, arguments, given, {}, lambda: base_updates)

        # The state and the updates of the base optimizer show which dtypes the user asked for.
        bounded = cast_updates(base_updates, updates, params, before)
        inputs = zip(*([dtype_of(x) for x in leaves(t)] for t in (updates, params, bounded)))
        dtypes = [update_dtype(dtype_of(u), *row) for u, row in zip(leaves(new_updates), inputs)]
        new_updates = unflatten_like(updates, map(cast, leaves(new_updates), dtypes))
        held = cast_back(after, before, "mechanize: state of the base optimizer")
        return new_updates, new_state._replace(base_optimizer_state=held)

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _base(updates: Callable[[], PyTree]) -> Any:
    """Build a base optimizer without a state of its own."""
    import optax

    return optax.GradientTransformation(lambda _: (), lambda *_: (updates(), ()))


@PATCH.wraps("_tree_norm", _MECHANIC, "==0.1.7")
def _tree_norm(stock: Stock, tree: PyTree) -> Any:
    """Replace the norm of ``mechanize`` in 0.1.7, which newer jax cannot run."""
    try:
        return stock(tree)
    except AttributeError:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves(tree)))


def _in(tree: PyTree, dtype: Any) -> PyTree:
    """Cast each leaf to a real dtype."""
    return tree_map(lambda leaf: cast(leaf, dtype), tree)


def _trees(state: Any) -> list[PyTree]:
    """List the trees of a state that are like the params."""
    found: list[PyTree] = []
    _map_fields(lambda _, tree: found.append(tree), lambda leaf: leaf, state)
    return found


def _map_fields(
    tree: Callable[..., Any], scalar: Callable[..., Any], state: Any, *others: Any
) -> Any:
    """Map over the fields of a state: trees like the params, and scalars."""
    if not isinstance(state, tuple):
        return scalar(state, *others)
    names = getattr(state, "_fields", ("",) * len(state))
    mapped = [
        tree(name, *parts) if name in (*_COPIES, *_AVERAGES) else _map_fields(tree, scalar, *parts)
        for name, *parts in zip(names, state, *others)
    ]
    return type(state)(*mapped) if hasattr(state, "_fields") else tuple(mapped)


def _hyperparameters(
    arguments: dict[str, Any], dtype: Any, tree: PyTree, state: Any = None
) -> dict[str, Any]:
    """Convert the arguments to those for a list of leaves in one dtype.

    Args:
      arguments: with arrays, masks and schedules as the user gave them.
      dtype: of arrays and, for a state, of the results of schedules.
      tree: what a mask is made for: params in ``init``, then gradients.
      state: before the step.
    """

    def convert(name: str, value: Any) -> Any:
        if name == "mask" and value is not None:
            return _mask(value, tree)
        if callable(value) and name in ("learning_rate", "weight_decay") and state is not None:
            return _schedule(value, dtype, _count(name, state))
        return tree_map(lambda leaf: array_in(leaf, dtype), value)

    return {name: convert(name, value) for name, value in arguments.items()}


def _mask(mask: Any, tree: PyTree) -> list[Any]:
    """List the entry of a mask for each leaf of a tree; the mask may be a prefix, or a function."""
    made = mask(tree) if all(map(callable, leaves(mask))) and callable(mask) else mask
    structure: Any = jax.tree_util.tree_structure(made)
    below = map(leaves, structure.flatten_up_to(tree))
    return [entry for entry, flat in zip(leaves(made), below) for _ in flat]


def _schedule(schedule: Callable[[Any], Any], dtype: Any, count: Any) -> Callable[[Any], Any]:
    """Cast the values of a schedule to at most ``dtype``; run it in the user's mode."""
    if not _in_32_bits(dtype):
        return counting(lambda count: array_in(schedule(count), dtype))
    rate = array_in(schedule(count), dtype)
    return lambda _: rate


def _in_32_bits(dtype: Any) -> bool:
    """Check whether stock computes in ``dtype`` in another mode than the user's."""
    return is_x64() and bool(dtype == jnp.float32)


def _count(name: str, state: Any) -> Any:
    """Return the count that a schedule is called with; in a chain, weight decay comes first."""
    if "count" in getattr(state, "_fields", ()):
        return state.count
    return leaves(state[0 if name == "weight_decay" else -1])[0]


def _value(value: Any, dtype: Any) -> Any:
    """Cast a loss to ``dtype``. 0.2.5 and 0.2.6 need a NumPy method, which Python numbers lack."""
    import optax

    if hasattr(value, "dtype"):
        return array_in(value, dtype)
    if optax.__version__ in ("0.2.5", "0.2.6"):
        count("Python number accepted")
    return np.float64(value)


_NAMES = ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "mechanize")


def _optimizers(
    optax: Any, names: tuple[str, ...] = _NAMES, **arguments: Any
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield name, transformation and extra arguments of each optimizer of the release."""
    found = demo.all_public(optax, *(f"contrib.{name}" for name in names))
    for name, build in zip((path.rpartition(".")[2] for path in found), found.values()):
        base = (optax.sgd(0.1),) if name == "mechanize" else ()
        value = {"value": jax.ShapeDtypeStruct((), jnp.float32)}
        yield name, build(*base, **arguments), value if name.startswith("momo") else {}


def _show(
    optax: Any,
    dtype: Any,
    *more: Any,
    names: tuple[str, ...] = _NAMES,
    inside: bool = False,
    **arguments: Any,
) -> str | None:
    for name, tx, extra in _optimizers(optax, names, **arguments):
        found = demo.one_step(tx, demo.shapes(dtype, *more), inside=inside, **extra)
        if found is not None:
            return f"{name}: {found}"
    return None


def _probe_zero_gradient(optax: Any) -> str | None:
    """Trace whether the new distance is a maximum with a quotient, whatever its divisor is."""
    tx = demo.public(optax, "contrib.dadapt_adamw")()

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


@PATCH.fault("==0.2.3")
def weak_types(optax: Any) -> str | None:
    """Types of the state change in the first step of dog and dowg, which compiles twice."""
    return _show(optax, jnp.float32, names=("dog", "dowg"))


@PATCH.fault(">=0.1.7,<0.2.5", issue=1051)
def promoted_updates(optax: Any) -> str | None:
    """float32 updates or state for bfloat16 params."""
    return _show(optax, jnp.bfloat16)


@PATCH.fault(">=0.1.7,<0.2.4", issue=1051)
def float64(optax: Any) -> str | None:
    """float32 params in 64-bit mode: float64 in state, updates or arithmetic."""
    with x64():
        return _show(optax, jnp.float32, inside=True)


@PATCH.fault(">=0.1.7,<0.2.4", issue=1051)
def float64_params(optax: Any) -> str | None:
    """float64 params: the state changes from float32 to float64, or lax.clamp raises."""
    with x64():
        return _show(optax, jnp.float64)


@PATCH.fault(">=0.1.7", issue=1207)
def mixed_tree(optax: Any) -> str | None:
    """Leaves of different dtypes: the state changes dtype, or updates are promoted."""
    narrow = _first_scalar_not_float32(optax, demo.shapes(jnp.bfloat16, jnp.float32))
    return narrow or _show(optax, jnp.bfloat16, jnp.float32)


@PATCH.fault(">=0.1.7")
def mixed_halves(optax: Any) -> str | None:
    """bfloat16 and float16 leaves in one tree: ValueError, or float32 updates."""
    return _show(optax, jnp.bfloat16, jnp.float16)


@PATCH.fault(">=0.1.8")
def array_learning_rate(optax: Any) -> str | None:
    """float32 number as learning rate: float32 updates for bfloat16 params."""
    rate = np.asarray(0.1, np.float32)
    return _show(optax, jnp.bfloat16, names=_NAMES[:-1], learning_rate=rate)


@PATCH.fault(">=0.2.4")
def narrow_scalars(optax: Any) -> str | None:
    """Distances, sums and averages are kept in the lowest dtype of the params."""
    return _first_scalar_not_float32(optax, demo.shapes(jnp.bfloat16))


@PATCH.fault(">=0.2.4")
def integer_leaf(optax: Any) -> str | None:
    """Integer leaves in the params make the scalars integers."""
    return _first_scalar_not_float32(optax, demo.shapes(jnp.float32, jnp.int32))


@PATCH.fault(">=0.1.7")
def complex_params(optax: Any) -> str | None:
    """Complex params make the scalars complex: dadapt_adamw hardly moves, mechanize raises.

    JAX compares complex numbers by their real parts first; lax.clamp takes no complex numbers.
    """
    params = demo.shapes(jnp.complex64)
    return _show(optax, jnp.complex64) or _first_scalar_not_float32(optax, params)


_SCALARS = ("estim_lr", "estim_dist", "max_dist", "estim_sq_dist", "barf", "s")


def _first_scalar_not_float32(optax: Any, params: PyTree) -> str | None:
    for optimizer, tx, _ in _optimizers(optax):
        found = demo.first_not_float32(jax.eval_shape(tx.init, params), _SCALARS)
        if found is not None:
            return f"{optimizer}: {found}"
    return None


@PATCH.fault(">=0.2.3", abstract=False)
def stalled_sum(optax: Any) -> str | None:
    """With bfloat16 params, the sum of squared gradients of dog stops growing after 256 steps.

    A term of 16 is half a unit in the last place of 256 * 16 = 4096 in bfloat16.
    """
    tx, params, steps = demo.public(optax, "contrib.dog")(), demo.ones(jnp.bfloat16), 600

    def step(state: Any, _: None) -> tuple[Any, None]:
        return tx.update(params, state, params)[1], None

    state, _ = jax.jit(lambda: jax.lax.scan(step, tx.init(params), None, length=steps))()
    (got,) = (float(part.sum_sq_norm_grads) for part in state if len(part) > 1)
    exact = steps * 16.0  # |g|^2 = 16 at each step.
    if abs(got - exact) > 0.01 * exact:
        return f"the sum of squared norms is {got:g} after {steps} steps, not {exact:g}"
    return None


@PATCH.fault(">=0.2.4", abstract=False)
def float16(optax: Any) -> str | None:
    """float16 params: dadapt_adamw and mechanize give NaN in the first steps.

    estim_lr0 = 1e-6 and eps = 1e-8 are 0 in float16, whose smallest number is 6e-8.
    """
    return _first_not_finite(optax, "dadapt_adamw", jnp.float16, 1.0)


@PATCH.fault(">=0.1.8", abstract=False, probe=_probe_zero_gradient)
def zero_gradient(optax: Any) -> str | None:
    """dadapt_adamw gives NaN for good after a zero gradient in the first step.

    The divisor of the distance is the sum of all gradients: 0 / 0.
    """
    return _first_not_finite(optax, "dadapt_adamw", jnp.float32, 0.0)


def _first_not_finite(optax: Any, name: str, dtype: Any, gradient: float) -> str | None:
    params = demo.ones(dtype)
    grads = tree_map(lambda p: jnp.full_like(p, gradient), params)
    for _, tx, _ in _optimizers(optax, (name,)):

        def run(tx: Any = tx) -> Any:
            updates, state = grads, tx.init(params)
            for _ in range(3):
                updates, state = tx.update(grads, state, params)
            return updates, state

        if not all(bool(jnp.isfinite(leaf).all()) for leaf in leaves(jax.jit(run)())):
            return f"{name}: not finite after 3 gradients of {gradient:g}"
    return None


@PATCH.fault(">=0.2.5,<0.2.7", issue=1500)
def python_value(optax: Any) -> str | None:
    """Python numbers as value of momo: AttributeError."""
    params = demo.shapes(jnp.float32)
    for name, tx, _ in _optimizers(optax, ("momo", "momo_adam")):
        try:
            jax.eval_shape(lambda p, tx=tx: tx.update(p, tx.init(p), p, value=1.0), params)
        except AttributeError as error:
            return f"{name}: {error}"
    return None
