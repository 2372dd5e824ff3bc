"""Reproduce a fault: abstractly where dtypes show it, else in few compiled programs.

Eagerly, each operation would be compiled by itself. A fault is a row: see :func:`row`.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._contract.dtypes import is_half, leaves, tree_map
from ..._contract.x64 import x64
from ..jaxpr import equations
from ..probes import NotInReleaseError, Reproducer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PyTree = Any


def shapes(dtype: Any, *more: Any) -> PyTree:
    """Return abstract params: ``w`` of shape (3, 4), ``b`` of shape (4,) and the last dtype."""
    last = more[-1] if more else dtype
    return {"w": jax.ShapeDtypeStruct((3, 4), dtype), "b": jax.ShapeDtypeStruct((4,), last)}


def ones(dtype: Any) -> PyTree:
    """Return concrete params of the same shapes."""
    return {"w": np.ones((3, 4), dtype), "b": np.ones((4,), dtype)}


def thousand_ones() -> list[Any]:
    """Return 1,000 leaves: a bfloat16 sum of ones stops at 256."""
    return [jnp.ones((), jnp.bfloat16)] * 1000


def public(optax: Any, path: str, *parameters: str) -> Any:
    """Look up a public function, such as ``contrib.prodigy``.

    Raises:
      NotInReleaseError: the installed optax has no such function, or none with these parameters.
    """
    found = optax
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None or (
        parameters and not {*parameters} <= inspect.signature(found).parameters.keys()
    ):
        raise NotInReleaseError(path)
    return found


def call(path: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Return a function that calls a public function of a package."""
    return lambda optax: public(optax, path, *kwargs)(*args, **kwargs)


def all_public(optax: Any, *paths: str) -> dict[str, Any]:
    """Look up those of some public functions that the installed optax has, by their names.

    Raises:
      NotInReleaseError: it has none of them.
    """
    found: dict[str, Any] = {}
    for path in paths:
        with contextlib.suppress(NotInReleaseError):
            found[path.rpartition(".")[2]] = public(optax, path)
    if not found:
        raise NotInReleaseError(paths)
    return found


def available(optax: Any, *names: str) -> dict[str, Any]:
    """Build the named transformations that the installed optax has."""
    paths = [path for name in names for path in (name, f"contrib.{name}")]
    return {name: build() for name, build in all_public(optax, *paths).items()}


def initial(tx: Any, *dtypes: Any) -> Any:
    """Return the state before the first step, abstractly. See :func:`shapes` for the dtypes."""
    return jax.eval_shape(tx.init, shapes(*dtypes))


def warm_up(count: Any) -> Any:
    """Return a strongly typed learning rate, as most schedules of optax do."""
    return jnp.asarray(0.1, jnp.float32) * jnp.minimum(1.0, (count + 1) / 10.0)


def drifting(optax: Any) -> Any:
    """Build a transformation that returns float32 whatever it is given, as many still do."""

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del state, params
        wide = tree_map(lambda g: jnp.asarray(g, jnp.float32), grads)
        return wide, wide

    return optax.GradientTransformation(lambda params: tree_map(jnp.zeros_like, params), update)


def one_step(
    tx: Any,
    *dtypes: Any,
    grads: Any = None,
    in_cond: bool = False,
    state_asks: bool = False,
    loss: Callable[[PyTree], Any] | None = None,
    **extra_args: Any,
) -> str | None:
    """Trace ``init`` and one ``update``, and describe the first leaf that breaks the contract.

    Args:
      tx: the transformation.
      *dtypes: of the params, for :func:`shapes`.
      grads: dtype of the gradients, if not those of the params.
      in_cond: in ``cond(pred, update, keep)``, as in a checkpointed scan, not in ``scan``.
      state_asks: whether an update may be as wide as the state that is kept for its param.
      loss: of the params, for a line search: it is passed to ``update``, with value and gradient.
      **extra_args: passed to ``update``, abstractly where they are arrays or shapes.

    Returns:
      None if state and updates keep their shapes, dtypes and weak types.
    """
    from ..check import TracedStep

    params = shapes(*dtypes)
    given = params if grads is None else shapes(grads)
    if loss is not None:
        value = jax.eval_shape(loss, params)
        extra_args = {"value": value, "grad": given, "value_fn": loss}
    problem = TracedStep(tx, params, given, extra_args, state_asks=state_asks)
    return next(map(str, problem.cond() if in_cond else problem.step()), None)


def row(
    summary: str,
    build: Callable[[Any], Any],
    describe: Callable[[Any], str | None],
    *,
    in_x64: bool = False,
    strict: bool = False,
) -> Reproducer:
    """Reproduce a fault; the functions below are kinds of faults.

    Args:
      summary: what a user sees, in one line.
      build: makes something from the functions of a package, or a dictionary of several.
      describe: describes the fault of one of these, if it has one.
      in_x64: in 64-bit mode.
      strict: in strict promotion mode.
    """

    def run(optax: Any) -> str | None:
        promotion = jax.numpy_dtype_promotion("strict" if strict else "standard")
        with warnings.catch_warnings(), x64(in_x64), promotion:
            warnings.simplefilter("ignore")  # Some names are deprecated.
            built = build(optax)
            for name, case in (built if type(built) is dict else {"": built}).items():
                fault = describe(case)
                if fault:
                    return f"{name}: {fault}" if name else fault
        return None

    return Reproducer(summary, run)


def traced(reproducer: Reproducer) -> Reproducer:
    """Make a reproducer that evaluates shapes and dtypes only its own probe."""
    return reproducer._replace(probe=reproducer.run)


def step(
    summary: str,
    build: Callable[[Any], Any],
    *dtypes: Any,
    in_x64: bool = False,
    strict: bool = False,
    float32_fields: Sequence[str] = (),
    **how: Any,
) -> Reproducer:
    """Reproduce a fault that one abstract step of a transformation shows.

    Args:
      summary: see :func:`row`.
      build: see :func:`row`.
      *dtypes: of the params, for :func:`shapes`.
      in_x64: see :func:`row`.
      strict: see :func:`row`.
      float32_fields: fields of the state that must start in float32.
      **how: see :func:`one_step`.
    """

    def describe(tx: Any) -> str | None:
        return _not_float32(tx, dtypes, float32_fields) or one_step(tx, *dtypes, **how)

    return traced(row(summary, build, describe, in_x64=in_x64, strict=strict))


def narrow_fields(
    summary: str, build: Callable[[Any], Any], *dtypes: Any, names: Sequence[str]
) -> Reproducer:
    """Reproduce a fault of the first state: one of some fields is not float32."""
    return traced(row(summary, build, lambda tx: _not_float32(tx, dtypes, names)))


def _not_float32(tx: Any, dtypes: Sequence[Any], names: Sequence[str]) -> str | None:
    """Describe the first of some fields of the first state, or of its parts."""
    state = initial(tx, *dtypes) if names else ()
    for part in (state, *state):
        for name in names:
            leaf = getattr(part, name, None)
            if leaf is not None and leaf.dtype != jnp.float32:
                return f"{name} is {leaf.dtype}"
    return None


def wrong_dtype(
    summary: str,
    text: str,
    trace: Callable[[Any], Any],
    dtype: Any = jnp.float32,
    *,
    in_x64: bool = False,
) -> Reproducer:
    """Reproduce a fault that the dtype of an abstract leaf shows.

    Args:
      summary: see :func:`row`.
      text: has a place for the dtype.
      trace: returns the leaf, for a package.
      dtype: the right one.
      in_x64: see :func:`row`.
    """

    def describe(leaf: Any) -> str | None:
        return None if leaf.dtype == dtype else text.format(leaf.dtype)

    return traced(row(summary, trace, describe, in_x64=in_x64))


def operation(
    summary: str,
    build: Callable[[Any], Any],
    matches: Callable[[Any, Sequence[str]], bool],
    params: PyTree,
) -> Reproducer:
    """Reproduce a fault that an operation of a traced function shows.

    Args:
      summary: see :func:`row`.
      build: returns the function of the params, for a package, or a transformation.
      matches: whether the operation is of the kind that is looked for. It is given an equation,
        and for each operand the name of the operation that made the operand, or "".
      params: abstract ones.
    """

    def describe(found: Any) -> str | None:
        function = found if callable(found) else first_update(found)
        made: dict[int, str] = {}
        for equation in equations(jax.make_jaxpr(function)(params).jaxpr):
            name = equation.primitive.name
            if matches(equation, [made.get(id(operand), "") for operand in equation.invars]):
                return f"{name} of {equation.outvars[0].aval}"
            made.update((id(result), name) for result in equation.outvars)
        return None

    return traced(row(summary, build, describe))


def is_in_half(equation: Any, _: Sequence[str]) -> bool:
    """Check whether an operation is arithmetic in half precision."""
    names = ("add", "mul", "square", "integer_pow", "sqrt")
    return equation.primitive.name in names and is_half(equation.outvars[0].aval)


def is_quotient_of_sums(equation: Any, made_by: Sequence[str]) -> bool:
    """Check for a quotient of two numbers whose divisor nothing keeps from being 0."""
    is_number = equation.primitive.name == "div" and equation.outvars[0].aval.shape == ()
    return is_number and made_by[1] in ("add", "mul", "reduce_sum")


def number(
    summary: str,
    text: str,
    compute: Callable[[Any], Any],
    exact: float,
    *,
    rtol: float = 0.01,
) -> Reproducer:
    """Reproduce a fault that a wrong number shows.

    Args:
      summary: see :func:`row`.
      text: has places for both numbers; else ``is ..., not ...`` follows.
      compute: returns an array, of which the last number counts, for a package.
      exact: the exact number.
      rtol: the relative error that is allowed.
    """

    def describe(got: Any) -> str | None:
        number = float(np.ravel(got)[-1]) + 0.0  # -0 is 0.
        wrong = text if "{" in text else text + " is {:g}, not {:g}"
        return None if np.isclose(number, exact, rtol) else wrong.format(number, exact)

    return row(summary, compute, describe)


def not_finite(summary: str, text: str, compute: Callable[[Any], Any]) -> Reproducer:
    """Reproduce a fault that infinite numbers and NaN show: ``compute`` returns a tree of arrays.

    A dictionary of trees has their names.
    """

    def describe(tree: PyTree) -> str | None:
        return None if all(np.isfinite(leaf).all() for leaf in leaves(tree)) else text

    return row(summary, compute, describe)


_ROUNDED: dict[str, str | bool] = {"xla_allow_excess_precision": False}
# To compile takes longer than to run. Older compilers lack these options.
_QUICKLY: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_cpu_use_fusion_emitters": False,
}


def compiled(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in one program that rounds each result to its dtype; return NumPy arrays."""
    lowered = jax.jit(function).lower(*args)
    try:
        program = lowered.compile(compiler_options={**_ROUNDED, **_QUICKLY})
    except RuntimeError:
        program = lowered.compile(compiler_options=_ROUNDED)
    return tree_map(np.asarray, program(*args))


def steps(
    tx: Any, params: PyTree, gradients: Any, dtype: Any = None, **extra_args: Any
) -> tuple[PyTree, Any]:
    """Initialize a transformation and take some steps, in one program.

    Args:
      tx: the transformation.
      params: tree of NumPy arrays, the same in each step.
      gradients: for each step the number that fills all gradients.
      dtype: of the gradients, if not that of the params.
      **extra_args: arrays with one entry for each step.

    Returns:
      The updates of all steps, along a new first axis, and the last state.
    """
    numbers = np.asarray(gradients)

    def filled(leaf: Any) -> Any:
        return np.multiply.outer(numbers, np.ones(leaf.shape)).astype(dtype or leaf.dtype)

    def run(params: PyTree, inputs: Any) -> Any:
        def step(state: PyTree, given: Any) -> tuple[PyTree, PyTree]:
            grads, extra = given
            updates, state = tx.update(grads, state, params, **extra)
            return state, updates

        return jax.lax.scan(step, tx.init(params), inputs)

    state, updates = compiled(run, params, (tree_map(filled, params), extra_args))
    return updates, state


def first_update(tx: Any) -> Callable[[PyTree], PyTree]:
    """Return a function that takes the params as gradients too, and gives the first updates."""
    return lambda params: tx.update(params, tx.init(params), params)[0]


def first_updates(tx: Any, params: PyTree) -> PyTree:
    """Compute the first updates, with the params as gradients."""
    return compiled(first_update(tx), params)
