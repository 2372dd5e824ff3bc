"""The contract on any transformation, by abstract evaluation: nothing is computed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from optax_dtypefix._errors import OptaxDtypeFixError, in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Violation:
    """One way in which a transformation breaks the contract.

    Attributes:
      kind: ``state``, ``structure``, ``updates``, ``float64``, ``scan``, ``cond`` or ``error``.
      where: key path of the leaf, as in ``[0].mu['w']``; empty if it is about the whole.
      message: what is wrong, from what to what.
    """

    kind: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}{self.where}: {self.message}"


@dataclasses.dataclass(frozen=True)
class Check:
    """What :func:`check` found. Iterates over the violations."""

    violations: tuple[Violation, ...]
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether the transformation keeps the contract."""
        return not self.violations

    def __iter__(self) -> Iterator[Violation]:
        return iter(self.violations)

    def __str__(self) -> str:
        return "\n".join(map(str, self.violations)) or "keeps the contract"

    def raise_if_broken(self) -> None:
        """Raises.

        Raises:
          OptaxDtypeFixError: the contract is broken; the message has one line a violation. Its
            cause is the exception that the transformation raised, if it did.
        """
        if not self.ok:
            raise OptaxDtypeFixError(
                f"the transformation breaks the contract:\n{self}"
            ) from self.error


def check(tx: Any, params: PyTree, grads: PyTree = None, **extra_args: Any) -> Check:
    """Checks the dtype contract on a transformation, as stock or patched functions built it.

    Nothing is computed and nothing allocated: trees of ``jax.ShapeDtypeStruct`` may be of any size.
    Of arrays only shapes and dtypes count.

    Args:
      tx: anything with ``init`` and ``update``.
      params: tree of arrays or ``jax.ShapeDtypeStruct``.
      grads: likewise; like the params if not given.
      **extra_args: passed to ``update``. Trees of arrays or ``jax.ShapeDtypeStruct`` are abstract
        too; anything else, such as a function, is passed as it is.

    Returns:
      A :class:`Check`: ``.ok``, ``.raise_if_broken()``, ``str()``. It says which leaf of the state
      changes its shape, dtype or weak type in a step, or the structure of the state; which update
      has not the dtype of its gradient; whether float64 is computed inside although no input is
      float64; whether ``lax.scan`` and ``lax.cond`` take the state. An exception of the
      transformation is a violation too, with its cause in ``.error``.
    """
    grads = params if grads is None else grads
    try:
        problem = Problem(tx, params, grads, extra_args)
        violations = [*problem.step(), *problem.loops()]
    except Exception as error:  # Reported, not swallowed: it is in the result, with its cause.
        return Check((Violation("error", "", in_words(error)),), error)
    return Check(tuple(violations))


class Problem:
    """A transformation with the shapes that it is checked on."""

    def __init__(
        self, tx: Any, params: PyTree, grads: PyTree, extra_args: dict[str, Any] | None = None
    ) -> None:
        extra_args = extra_args or {}
        abstract = {k: v for k, v in extra_args.items() if _is_abstract(v)}
        self._static = {k: v for k, v in extra_args.items() if k not in abstract}
        self._tx = tx
        self._inputs = jax.tree_util.tree_map(_shape, (params, grads, abstract))

    def _update(self, state: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        params, grads, abstract = inputs
        result: tuple[PyTree, PyTree] = self._tx.update(
            grads, state, params, **abstract, **self._static
        )
        return result

    def step(self) -> Iterator[Violation]:
        """What one step changes, and what it computes in float64. Raises what ``tx`` raises."""

        def run(inputs: PyTree) -> tuple[PyTree, PyTree, PyTree]:
            state = self._tx.init(inputs[0])
            updates, new_state = self._update(state, inputs)
            return updates, state, new_state

        jaxpr, trees = jax.make_jaxpr(run, return_shape=True)(self._inputs)
        updates, before, after = _with_paths(jaxpr.out_avals, trees)
        structures: list[Any] = [jax.tree_util.tree_structure(tree) for tree in trees]
        if structures[1] != structures[2]:
            message = f"turns from {structures[1]} into {structures[2]}"
            yield Violation("structure", "", message)
        else:
            for (path, was), (_, now) in zip(before, after):
                if describe(was) != describe(now):
                    message = f"turns from {describe(was)} into {describe(now)}"
                    yield Violation("state", path, message)
        grads = jax.tree_util.tree_leaves(self._inputs[1])
        for grad, (path, update) in zip(grads, updates):
            if grad.dtype != update.dtype:
                message = f"{update.dtype} for a gradient that is {grad.dtype}"
                yield Violation("updates", path, message)
        if not _has_float64(self._inputs) and float64_inside(jaxpr.jaxpr):
            yield Violation("float64", "", "computed inside, although no input is float64")

    def loops(self) -> Iterator[Violation]:
        """Whether ``lax.scan`` and ``lax.cond`` take the state."""

        def scan(inputs: PyTree) -> PyTree:
            def body(state: PyTree, _: None) -> tuple[PyTree, None]:
                return self._update(state, inputs)[1], None

            return jax.lax.scan(body, self._tx.init(inputs[0]), None, length=2)[0]

        def cond(inputs: PyTree) -> PyTree:
            def update(state: PyTree) -> PyTree:
                return self._update(state, inputs)[1]

            return jax.lax.cond(True, update, lambda state: state, self._tx.init(inputs[0]))

        for function in (scan, cond):
            try:
                jax.eval_shape(function, self._inputs)
            except TypeError as error:
                name = function.__name__
                yield Violation(name, "", f"does not take the state: {in_words(error)}")


def describe(aval: Any) -> str:
    """Dtype and shape of an abstract value, and whether it is weakly typed."""
    weak = "weak " if getattr(aval, "weak_type", False) else ""
    return f"{weak}{aval.dtype}{list(aval.shape)}"


def float64_inside(jaxpr: Any) -> bool:
    """Whether any value in a jaxpr, or in one nested in it, is a float64 array."""
    return any(
        getattr(variable.aval, "dtype", None) in (jnp.float64, jnp.complex128)
        for equation in equations(jaxpr)
        for variable in equation.outvars
    )


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr and of those nested in it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def _with_paths(avals: Any, trees: tuple[PyTree, ...]) -> list[list[tuple[str, Any]]]:
    """Key path and abstract value of each leaf: avals know weak types, the trees do not."""
    remaining = iter(avals)
    return [
        [
            (jax.tree_util.keystr(path), next(remaining))
            for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
        ]
        for tree in trees
    ]


def _is_abstract(value: Any) -> bool:
    found = jax.tree_util.tree_leaves(value)
    return bool(found) and all(hasattr(leaf, "dtype") and hasattr(leaf, "shape") for leaf in found)


def _shape(leaf: Any) -> Any:
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.ShapeDtypeStruct((), jnp.result_type(leaf))


def _has_float64(tree: PyTree) -> bool:
    found = jax.tree_util.tree_leaves(tree)
    return any(leaf.dtype in (jnp.float64, jnp.complex128) for leaf in found)
