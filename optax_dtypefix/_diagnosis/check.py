"""Check the contract on any transformation by abstract evaluation: nothing is computed."""

from __future__ import annotations

import re
import sysconfig
import traceback
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from .._api import get_engine
from .._contract.dtypes import REAL, PyTree, dtype_of, is_number, is_weak, kind_of, leaves
from .._contract.updates import limits
from .._contract.wrong_arguments import refuse_wrong
from .._engine.built_before import builder_of, parts_of
from .._errors import summarize
from .._loaded_stock import builder_elsewhere
from .jaxpr import DOUBLE, float64_inside
from .result import Check, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._engine.engine import Engine

_LONG = (jnp.int64, jnp.uint64)
# Wherever they are installed: with ``pip install --user``, for example, not in ``purelib``.
_LIBRARIES = (__name__.partition(".")[0], "jax", "jaxlib", "optax")
_MISSING = re.compile(r"missing \d+ required (?:keyword-only |positional )?arguments?: (.+)")


def check(tx: Any, params: PyTree, grads: PyTree = None, **extra_args: Any) -> Check:
    """Check the dtype contract on a transformation, stock or patched; not its values.

    Nothing is computed and nothing allocated: trees of ``jax.ShapeDtypeStruct`` may have any size.
    Of arrays only shapes and dtypes count.

    Args:
      tx: anything with ``init`` and ``update``.
      params: tree of arrays or ``jax.ShapeDtypeStruct``.
      grads: tree of arrays or ``jax.ShapeDtypeStruct``; like the params if not given.
      **extra_args: passed to ``update``. Trees of arrays or ``jax.ShapeDtypeStruct`` are abstract
        too; anything else, such as a function, is passed unchanged.

    Returns:
      The violations. Use ``.ok``, ``.raise_if_broken()`` or ``str()``. These are violations:

      - A leaf of the state changes its shape, dtype or weak type in a step.
      - The state changes its structure, or ``lax.scan`` or ``lax.cond`` refuses the state.
      - An update is wider than its gradient, its param and the state that is kept for that param.
      - An update is an integer, but its gradient or its param is not.
      - The arithmetic is float64, or a leaf of the state has 64 bits, and no input is that wide.
      - The transformation raises an exception, which is in ``.error``.

    Raises:
      TypeError: ``tx`` or ``params`` is something else; the message says what was probably meant.
    """
    refuse_wrong("check", tx, params)
    grads = params if grads is None else grads
    failure: Exception | None = None
    try:
        problem = TracedStep(tx, params, grads, extra_args, state_asks=True)
        violations = (*problem.step(), *problem.cond())
    except Exception as error:  # Reported, not swallowed: it is in the result, with its cause.
        # A generator of ours turns StopIteration into RuntimeError.
        failure = error.__cause__ if isinstance(error.__cause__, StopIteration) else error
        message = summarize(failure) + line_of(failure) + _advice_on(failure, params)
        violations = (Violation("error", "", message),)
    return Check(violations, failure, list_built_before(tx, get_engine()))


class TracedStep:
    """A transformation with the shapes that it is checked on.

    ``state_asks`` says that an update may be as wide as the state that ``init`` keeps for its
    param: a user may have asked for that with ``mu_dtype``.
    """

    def __init__(
        self,
        tx: Any,
        params: PyTree,
        grads: PyTree,
        extra_args: dict[str, Any],
        *,
        state_asks: bool = False,
    ) -> None:
        abstract = {k: v for k, v in extra_args.items() if _is_abstract(v)}
        self._static = {k: v for k, v in extra_args.items() if k not in abstract}
        self._tx = tx
        self._state_asks = state_asks
        # A user-defined node may accept nothing but arrays, so it is given no shapes.
        trees = (params, grads, abstract)
        self._structure: Any = jax.tree_util.tree_structure(trees)
        self.inputs = list(map(_shape, leaves(trees)))

    def init(self, flat: list[Any]) -> PyTree:
        """Return the first state for such inputs."""
        return self._tx.init(self._structure.unflatten(flat)[0])

    def update(self, state: PyTree, flat: list[Any]) -> tuple[PyTree, PyTree]:
        """Return the updates and the next state for such inputs."""
        params, grads, abstract = self._structure.unflatten(flat)
        result: tuple[PyTree, PyTree] = self._tx.update(
            grads, state, params, **abstract, **self._static
        )
        return result

    def step(self) -> Iterator[Violation]:
        """Yield what one step breaks, in ``lax.scan``. Raise what ``tx`` raises."""
        seen: list[list[Violation]] = []

        def scan(flat: list[Any]) -> PyTree:
            def body(state: PyTree, _: None) -> tuple[PyTree, PyTree]:
                updates, new_state = self.update(state, flat)
                seen.append(list(self._compare(state, new_state, updates, flat)))
                return new_state, updates

            return jax.lax.scan(body, self.init(flat), None, length=2)

        refused: list[Violation] = []
        try:
            jaxpr = jax.make_jaxpr(scan)(self.inputs)
        except TypeError as error:
            if not seen:  # The transformation itself raises, not scan.
                raise
            refused = [_refused("scan", error)]
            jaxpr = jax.make_jaxpr(lambda flat: self.update(self.init(flat), flat))(self.inputs)
        # If a weak type changes, scan traces the body again without the weak type.
        yield from seen[0]
        if not self._has_input(DOUBLE) and float64_inside(jaxpr.jaxpr):
            yield Violation("float64", "", "computed inside, but no input is float64")
        yield from refused

    def cond(self) -> Iterator[Violation]:
        """Check that ``lax.cond`` accepts the state, updated in one branch and old in the other."""

        def cond(flat: list[Any]) -> list[Any]:
            def update(state: PyTree) -> PyTree:
                return self.update(state, flat)[1]

            return leaves(jax.lax.cond(True, update, lambda state: state, self.init(flat)))

        try:
            jax.eval_shape(cond, self.inputs)
        except TypeError as error:
            yield _refused("cond", error)

    def _compare(
        self, state: PyTree, new_state: PyTree, updates: PyTree, flat: list[Any]
    ) -> Iterator[Violation]:
        before: Any = jax.tree_util.tree_structure(state)
        after: Any = jax.tree_util.tree_structure(new_state)
        if before != after:
            yield Violation("structure", "", f"changes from {before} to {after}")
        else:
            for (path, leaf), new_leaf in zip(_flatten_with_paths(state), leaves(new_state)):
                was, now = _describe(leaf), _describe(new_leaf)
                if was != now:
                    yield Violation("state", path, f"changes from {was} to {now}")
        yield from self._widths(updates, state, flat)
        for kind, dtypes in (("float64", DOUBLE), ("int64", _LONG)):
            for path, leaf in () if self._has_input(dtypes) else _flatten_with_paths(new_state):
                if dtype_of(leaf) in dtypes:
                    message = f"{_describe(leaf)} in the state, but no input is {kind}"
                    yield Violation(kind, path, message)

    def _widths(self, updates: PyTree, state: PyTree, flat: list[Any]) -> Iterator[Violation]:
        """Compare each update with its bound: wider, or of a kind that loses the fraction."""
        params, grads, _ = self._structure.unflatten(flat)
        dtypes = limits(updates, grads, params, state if self._state_asks else None)
        if dtypes is None:
            has: Any = jax.tree_util.tree_structure(updates)
            wanted: Any = jax.tree_util.tree_structure(grads)
            yield Violation("updates", "", f"{has} for gradients that are {wanted}")
            return
        # Updates of lookahead are like its params: leaves for the gradients, then others.
        rows = zip(leaves(grads), leaves(params), _flatten_with_paths(updates), dtypes)
        for grad, param, (path, update), bound in rows:
            given = f"gradient {grad.dtype}, param {param.dtype}"
            dtype = dtype_of(update)
            if dtype != bound:
                yield Violation("updates", path, f"{dtype}, wider than {bound} ({given})")
            elif kind_of(bound) < REAL <= max(kind_of(grad.dtype), kind_of(param.dtype)):
                yield Violation("updates", path, f"{dtype} loses fractions ({given})")

    def _has_input(self, dtypes: tuple[Any, ...]) -> bool:
        return any(leaf.dtype in dtypes for leaf in self.inputs)


def _refused(by: str, error: Exception) -> Violation:
    return Violation(by, "", f"does not take the state: {summarize(error)}")


def _describe(leaf: Any) -> str:
    return f"{'weak ' if is_weak(leaf) else ''}{dtype_of(leaf)}{list(jnp.shape(leaf))}"


def _flatten_with_paths(tree: PyTree) -> list[tuple[str, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in flat]


def _is_abstract(value: Any) -> bool:
    return bool(leaves(value)) and all(hasattr(leaf, "dtype") for leaf in leaves(value))


def _shape(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(getattr(leaf, "shape", ()), dtype_of(leaf))


def list_built_before(tx: Any, engine: Engine) -> tuple[str, ...]:
    """Name the functions that built parts of a transformation before or where they were stock."""
    functions = [f for f in parts_of(tx, engine.package) if type(f) in (FunctionType, MethodType)]
    known = engine.built_before or ()
    elsewhere = set(filter(None, map(builder_elsewhere, functions)))
    return tuple(sorted(elsewhere.union(builder_of(f) for f in functions if f in known)))


def line_of(error: BaseException) -> str:
    """Return the innermost line that is in no installed package, and not in this one."""
    installed = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<")
    lines = [
        f" ({frame.f_code.co_filename}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(installed)
        and str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES
    ]
    return lines[-1] if lines else ""


def _advice_on(error: BaseException, params: PyTree) -> str:
    found = _MISSING.search(str(error)) if isinstance(error, TypeError) else None
    names = re.findall(r"'(\w+)'", found[1]) if found else []
    if names:
        given = ", ".join(f"{name}=..." for name in names)
        return f" The update needs {' and '.join(names)}: call check(tx, params, {given})."
    if "batch dimension" in str(error):  # Of DP-SGD.
        return " Call check(tx, params, grads), with grads of the shapes (batch, *param.shape)."
    if not all(map(is_number, leaves(params))):
        return (
            " Some leaves of params are no arrays. Pass the arrays alone: of an Equinox model "
            "`eqx.filter(model, eqx.is_inexact_array)`."
        )
    return ""
