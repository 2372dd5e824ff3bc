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
from typing import Any, Callable

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
from .._contract.updates import cast_updates, same_dtypes
from .._contract.widths import compute_dtype, statistics_dtype
from .._contract.x64 import is_x64, without_x64, x64
from .._engine.patch import Patch, Stock
from .._tally import count, counting
from ._support import (
    modules,
    reproduce as demo,
)
from ._support.arguments import arguments_of, array_in
from ._support.rebuild import call_of, rebuild
from ._support.representation import Representation, average_dtype
from ._support.stock_dtypes import as_stock_promotes, start_as_stock, without_user_code

PATCH = Patch(
    "distance_estimates",
    summary="`dadapt_adamw`, `dog`, `dowg`, `momo`, `momo_adam`, `mechanize`: scalar sums stall "
    "in bfloat16 and are NaN in float16",
    allow_missing_targets=True,
)

# Fields of stock's states with a leaf for each param; all others are scalars.
_COPIES = frozenset({"init_params", "x0"})
_AVERAGES = frozenset({"exp_avg", "exp_avg_sq", "grad_sum"})
_TREES = _COPIES | _AVERAGES


@PATCH.wraps("dog", modules.contrib("dog"), ">=0.2.3")
@PATCH.wraps("dowg", modules.contrib("dog"), ">=0.2.3")
@PATCH.wraps("momo", modules.contrib("momo"), ">=0.2.3")
@PATCH.wraps("momo_adam", modules.contrib("momo"), ">=0.2.3")
def _estimator(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a stock function, with the arguments of the installed release.

    The state is stock's. Its scalars are float32, or float64 if all params are. Its trees have
    stock's dtypes. Averages of Adam in float16, where the square of a gradient is 0, and averages
    of integers are exceptions: they are float32. Updates are as wide as gradients and params.
    """
    built = stock(*args, **kwargs)  # Checks the arguments, and has the right type.
    arguments = arguments_of(stock, args, kwargs)
    traced = stock(**without_user_code(arguments))

    def init_fn(params: PyTree) -> Any:
        return start_as_stock(traced, _start(stock, arguments, params), params)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None or not same_structure(updates, params, *_trees(state)):
            result: tuple[PyTree, Any] = built.update(updates, state, params, **extra_args)
            return result  # Stock raises, most often.
        new_updates, new_state = _step(stock, arguments, (updates, state, params), extra_args)
        step = functools.partial(traced.update, **extra_args)
        held = as_stock_promotes(step, updates, state, params)
        return cast_updates(new_updates, updates, params), cast_back(new_state, held)

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _start(stock: Stock, arguments: dict[str, Any], params: PyTree) -> Any:
    """Start a state in its final dtypes."""
    problem = Representation.of(compute_dtype(params), params)
    tx = stock(**_hyperparameters(arguments, problem.dtype, params))
    with standard_promotion():
        state = without_x64(tx.init, problem.to_list(params))
    scalars_in = statistics_dtype(params)
    squares = hasattr(state, "exp_avg_sq")
    averages_in = [average_dtype(p, squares=squares) for p in leaves(params)]

    def final(name: str, field: Any) -> Any:
        if name not in _TREES:
            return cast(field, scalars_in if is_inexact(field) else dtype_of(field))
        tree = problem.to_tree(field, params)
        if name in _COPIES:  # Some releases start with zeros and copy in the first step.
            return cast_like(tree, params)
        return unflatten_like(params, map(cast, leaves(tree), averages_in))

    return _map_fields(final, state)


def _step(
    stock: Stock,
    arguments: dict[str, Any],
    given: tuple[PyTree, Any, PyTree],
    extra_args: dict[str, Any],
    base: Callable[[], PyTree] | None = None,
) -> tuple[PyTree, Any]:
    """Take a step of stock on lists of leaves in one real dtype.

    Args:
      stock: builds the transformation.
      arguments: of ``stock``.
      given: gradients, state and params.
      extra_args: of the update.
      base: for ``mechanize``, returns the updates of the base optimizer. One may be complex where
        gradient and param are real: stock only scales and adds them.

    Returns:
      Updates and new state in that dtype, complex where a tree is.
    """
    updates, state, params = given
    problem = Representation.of(compute_dtype(given), updates, params, *_trees(state))
    if extra_args.get("value") is not None:
        extra_args = {**extra_args, "value": _value(extra_args["value"], problem.dtype)}
    hyperparameters = _hyperparameters(arguments, problem.dtype, updates, state)
    if base is not None:
        if _in_32_bits(problem.dtype):
            base()  # In the user's mode, before stock runs in 32-bit mode.
        hyperparameters["base_optimizer"] = _returning(lambda: problem.to_list(base()))

    def to_stock(name: str, field: Any) -> Any:
        if name in _TREES:
            return problem.to_list(field)
        return cast(field, problem.dtype) if is_inexact(field) else field

    def from_stock(name: str, field: Any, old: Any) -> Any:
        if name not in _TREES:
            return field
        tree = problem.to_tree(field, old)
        return cast_like(tree, old) if name in _COPIES else tree

    def run(*lists: Any) -> Any:
        return stock(**hyperparameters).update(*lists, **extra_args)

    lists = problem.to_list(updates), _map_fields(to_stock, state), problem.to_list(params)
    with standard_promotion():
        new_updates, new_state = without_x64(run, *lists)
    new_state = _map_fields(from_stock, new_state, state)
    result = problem.to_tree(new_updates, updates), new_state
    if base is not None:
        _free(lists, keep=(given, result))
    return result


def _free(copies: PyTree, keep: PyTree) -> None:
    """Delete the copies of an eager step: jax 0.4.25 keeps what a branch of ``cond`` closes over.

    A derivative may need them. Then a result is a tracer.
    """
    kept = leaves(keep)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in kept):
        return
    ids = set(map(id, kept))
    for leaf in leaves(copies):
        if isinstance(leaf, jax.Array) and id(leaf) not in ids:
            leaf.delete()


@PATCH.wraps("dadapt_adamw", modules.contrib("dadapt_adamw"), ">=0.1.8")
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


@PATCH.wraps("mechanize", modules.contrib("mechanic"))
def _mechanize(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Do as :func:`_estimator`, around a base optimizer that sees its usual inputs."""
    import optax

    built = stock(*args, **kwargs)
    arguments = arguments_of(stock, args, kwargs)
    base = optax.with_extra_args_support(arguments["base_optimizer"])

    def init_fn(params: PyTree) -> Any:
        state = _start(stock, {**arguments, "base_optimizer": _returning(tuple)}, params)
        base_state = strip_weak_type(promote_initial_state(base.update, base.init(params), params))
        return state._replace(base_optimizer_state=base_state)

    def update_fn(
        updates: PyTree, state: Any, params: PyTree = None, **extra_args: Any
    ) -> tuple[PyTree, Any]:
        if params is None or not same_structure(updates, params, state.x0):
            return built.update(updates, state, params)  # type: ignore[no-any-return]  # It raises.
        before = state.base_optimizer_state

        @functools.cache
        def base_step() -> tuple[PyTree, PyTree]:
            result: tuple[PyTree, PyTree] = base.update(updates, before, params, **extra_args)
            if not same_structure(result[0], params):
                built.update(updates, state, params)  # It raises.
            return result

        given = updates, state._replace(base_optimizer_state=()), params
        new_updates, new_state = _step(stock, arguments, given, {}, lambda: base_step()[0])
        new_state = cast_back(new_state, given[1])
        base_updates, after = base_step()
        # The state and the updates of the base optimizer show which dtypes the user asked for.
        bounded = cast_updates(base_updates, updates, params, before)
        if same_dtypes(updates, params):
            after = cast_back(after, before, "mechanize: state of the base optimizer")
        new_state = new_state._replace(base_optimizer_state=after)
        return cast_updates(new_updates, updates, params, bounded), new_state

    return rebuild(built, call_of(stock, args, kwargs), update_fn, init_fn, also_in_float32=True)


def _returning(updates: Callable[[], PyTree]) -> Any:
    """Build a transformation that gives these updates, and has no state."""
    import optax

    return optax.GradientTransformation(lambda _: (), lambda *_: (updates(), ()))


@PATCH.wraps("_tree_norm", modules.contrib("mechanic"), "==0.1.7")
def _tree_norm(stock: Stock, tree: PyTree) -> Any:
    """Replace the norm of ``mechanize`` in 0.1.7, which newer jax cannot run."""
    try:
        return stock(tree)
    except AttributeError:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves(tree)))


def _has_trees(node: Any) -> bool:
    """Check whether this is a state with trees, perhaps one of several in the state of a chain."""
    return not _TREES.isdisjoint(getattr(node, "_fields", ()))


def _trees(state: Any) -> list[PyTree]:
    """List the trees of a state that are like the params."""
    parts = filter(_has_trees, jax.tree_util.tree_leaves(state, is_leaf=_has_trees))
    return [field for part in parts for name, field in part._asdict().items() if name in _TREES]


def _map_fields(function: Callable[..., Any], state: Any, *others: Any) -> Any:
    """Replace each field of a state with trees; the rest of a chain has only counts."""

    def replace(part: Any, *others: Any) -> Any:
        if not _has_trees(part):
            return part
        return type(part)(*map(function, part._fields, part, *others))

    return tree_map(replace, state, *others, is_leaf=_has_trees)


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
    found: dict[str, Any] = tree_map(lambda leaf: array_in(leaf, dtype), dict(arguments))
    if arguments.get("mask") is not None:
        found["mask"] = _mask(arguments["mask"], tree)
    for name in ("learning_rate", "weight_decay"):
        if state is not None and callable(arguments.get(name)):
            found[name] = _schedule(arguments[name], dtype, _count(name, state))
    return found


def _schedule(schedule: Callable[[Any], Any], dtype: Any, count: Any) -> Callable[[Any], Any]:
    """Cast the values of a schedule to at most ``dtype``; run it in the user's mode."""
    if not _in_32_bits(dtype):
        return counting(lambda count: array_in(schedule(count), dtype))
    rate = array_in(schedule(count), dtype)
    return lambda _: rate


def _in_32_bits(dtype: Any) -> bool:
    """Check whether stock computes in ``dtype`` in another mode than the user's."""
    return is_x64() and bool(dtype == jnp.float32)


def _mask(mask: Any, tree: PyTree) -> list[Any]:
    """List the entry of a mask for each leaf of a tree; the mask may be a prefix, or a function."""
    made = mask(tree) if all(map(callable, leaves(mask))) and callable(mask) else mask
    structure: Any = jax.tree_util.tree_structure(made)
    below = map(leaves, structure.flatten_up_to(tree))
    return [entry for entry, flat in zip(leaves(made), below) for _ in flat]


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


def _optimizers(optax: Any, names: tuple[str, ...] = _NAMES, **arguments: Any) -> dict[str, Any]:
    """Build each optimizer of the release; its update ignores a value that it does not need."""
    bases = {"mechanize": (optax.sgd(0.1),)}
    found = demo.all_public(optax, *(f"contrib.{name}" for name in names))
    return {
        name: optax.with_extra_args_support(build(*bases.get(name, ()), **arguments))
        for name, build in found.items()
    }


def _show(optimizers: dict[str, Any], *dtypes: Any, inside: bool = False) -> str | None:
    value = jax.ShapeDtypeStruct((), jnp.float32)
    return demo.first_named(
        lambda tx: demo.one_step(tx, *dtypes, inside=inside, value=value), optimizers
    )


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
    """Types in the state change in the first step of dog and dowg: the step compiles twice."""
    return _show(_optimizers(optax, ("dog", "dowg")), jnp.float32)


@PATCH.fault(">=0.1.7,<0.2.5", issue=1051)
def promoted_updates(optax: Any) -> str | None:
    """float32 updates or state for bfloat16 params."""
    return _show(_optimizers(optax), jnp.bfloat16)


@PATCH.fault(">=0.1.7,<0.2.4", issue=1051)
@x64()
def float64(optax: Any) -> str | None:
    """float32 params in 64-bit mode: float64 in state, updates or arithmetic."""
    return _show(_optimizers(optax), jnp.float32, inside=True)


@PATCH.fault(">=0.1.7,<0.2.4", issue=1051)
@x64()
def float64_params(optax: Any) -> str | None:
    """float64 params: the state changes from float32 to float64, or lax.clamp raises."""
    return _show(_optimizers(optax), jnp.float64)


@PATCH.fault(">=0.1.7", issue=1207)
def mixed_tree(optax: Any) -> str | None:
    """Leaves of different dtypes: the state changes dtype, or updates are promoted."""
    optimizers, dtypes = _optimizers(optax), (jnp.bfloat16, jnp.float32)
    return _narrow(optimizers, *dtypes) or _show(optimizers, *dtypes)


@PATCH.fault(">=0.1.7")
def mixed_halves(optax: Any) -> str | None:
    """bfloat16 and float16 leaves in one tree: ValueError, or float32 updates."""
    return _show(_optimizers(optax), jnp.bfloat16, jnp.float16)


@PATCH.fault(">=0.1.8")
def array_learning_rate(optax: Any) -> str | None:
    """float32 number as learning rate: float32 updates for bfloat16 params."""
    rate = np.asarray(0.1, np.float32)
    return _show(_optimizers(optax, _NAMES[:-1], learning_rate=rate), jnp.bfloat16)


@PATCH.fault(">=0.2.4")
def narrow_scalars(optax: Any) -> str | None:
    """Distances, sums and averages are kept in the lowest dtype of the params."""
    return _narrow(_optimizers(optax), jnp.bfloat16)


@PATCH.fault(">=0.2.4")
def integer_leaf(optax: Any) -> str | None:
    """Integer leaves in the params make the scalars integers."""
    return _narrow(_optimizers(optax), jnp.float32, jnp.int32)


@PATCH.fault(">=0.1.7")
def complex_params(optax: Any) -> str | None:
    """Complex params make the scalars complex: dadapt_adamw hardly moves, mechanize raises.

    JAX compares complex numbers by their real parts first; lax.clamp takes no complex numbers.
    """
    optimizers = _optimizers(optax)
    return _show(optimizers, jnp.complex64) or _narrow(optimizers, jnp.complex64)


_SCALARS = ("estim_lr", "estim_dist", "max_dist", "estim_sq_dist", "barf", "s")


def _narrow(optimizers: dict[str, Any], *dtypes: Any) -> str | None:
    return demo.first_named(
        lambda tx: demo.first_not_float32(demo.initial(tx, *dtypes), _SCALARS), optimizers
    )


@PATCH.fault(">=0.2.3", abstract=False)
def stalled_sum(optax: Any) -> str | None:
    """With bfloat16 params, the sum of squared gradients of dog stops growing after 256 steps.

    A term of 16 is half a unit in the last place of 256 * 16 = 4096 in bfloat16.
    """
    tx = demo.public(optax, "contrib.dog")()
    _, state = demo.steps(tx, demo.ones(jnp.bfloat16), [1.0] * 600)
    (got,) = (part.sum_sq_norm_grads for part in state if len(part) > 1)
    text = "the sum of squared norms is {:g} after 600 steps, not {:g}"
    return demo.wrong(text, got, 600 * 16.0)  # |g|^2 = 16 at each step.


@PATCH.fault(">=0.2.4", abstract=False)
def float16(optax: Any) -> str | None:
    """float16 params: dadapt_adamw and mechanize give NaN in the first steps.

    estim_lr0 = 1e-6 and eps = 1e-8 are 0 in float16, whose smallest number is 6e-8.
    """
    return _not_finite(optax, jnp.float16, 1.0)


@PATCH.fault(">=0.1.8", abstract=False, probe=_probe_zero_gradient)
def zero_gradient(optax: Any) -> str | None:
    """dadapt_adamw gives NaN for good after a zero gradient in the first step.

    The divisor of the distance is the sum of all gradients: 0 / 0.
    """
    return _not_finite(optax, jnp.float32, 0.0)


def _not_finite(optax: Any, dtype: Any, gradient: float) -> str | None:
    tx = demo.public(optax, "contrib.dadapt_adamw")()
    found = demo.steps(tx, demo.ones(dtype), [gradient] * 3)
    return demo.not_finite(f"dadapt_adamw: not finite after 3 gradients of {gradient:g}", found)


@PATCH.fault(">=0.2.5,<0.2.7", issue=1500)
def python_value(optax: Any) -> str | None:
    """Python numbers as value of momo: AttributeError."""
    params = demo.shapes(jnp.float32)
    for name, tx in _optimizers(optax, ("momo", "momo_adam")).items():
        try:
            jax.eval_shape(lambda p, tx=tx: tx.update(p, tx.init(p), p, value=1.0), params)
        except AttributeError as error:
            return f"{name}: {error}"
    return None
