"""Run a transformation on a small random problem: in the user's dtypes, and exactly.

The exact run moves the params. Every run of the problem is given the same params and gradients in
each step, rounded to the user's dtypes, so the runs differ only by what happens inside the
transformation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import PyTree, dtype_of, is_inexact, is_number, kind_of, leaves, tree_map
from .._contract.master_weights import requested_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .random_problem import Inputs, RandomProblem


class Results(NamedTuple):
    """What steps gave: the updates of each leaf, and the scalars of the state, by key path.

    In double precision, along a first axis of steps.
    """

    updates: list[Any]
    scalars: dict[str, Any]

    @classmethod
    def join(cls, steps: Sequence[Results]) -> Results:
        """Join the results of several runs of steps; of scalars those that all have."""
        names = [name for name in steps[0].scalars if all(name in step.scalars for step in steps)]
        return cls(
            [np.concatenate(leaf) for leaf in zip(*(step.updates for step in steps))],
            {name: np.concatenate([step.scalars[name] for step in steps]) for name in names},
        )


class Run:
    """One run of a problem.

    Args:
      problem: to be run.
      first: the inputs of the first step; ``init`` is given its params.
      exact: whether to run in float32 or float64, whichever is enough for the problem.
      stored: for an exact run, the dtype that each leaf of the state is rounded to after each step,
        or None. Such a run has the rounding that the user's dtypes explain, and no other.
    """

    def __init__(
        self,
        problem: RandomProblem,
        first: Inputs,
        *,
        exact: bool = False,
        stored: Sequence[Any] | None = None,
    ) -> None:
        self._problem = problem
        self._exact = exact
        self._stored = stored
        with problem.mode(exact=exact):
            params, _, _ = problem.arguments(first, exact=exact)
            state = problem.init(params)
            if exact:  # A dtype that is written into the code is not exact.
                state = tree_map(self._widened, state)
            self._state = self._kept(state)
            self._names = _names(self._state, params)

    def steps(self, every: Sequence[Inputs]) -> Results:
        """Run some steps."""
        return Results.join([self._step(inputs) for inputs in every])

    def _step(self, inputs: Inputs) -> Results:
        with self._problem.mode(exact=self._exact):
            params, grads, extra_args = self._problem.arguments(inputs, exact=self._exact)
            updates, state = self._problem.update(grads, self._state, params, extra_args)
            self._state = self._kept(state)
        scalars = {name: _double(leaf) for name, leaf in self.scalars().items()}
        return Results(list(map(_double, leaves(updates))), scalars)

    def scalars(self) -> dict[str, Any]:
        """Return the scalars of the state, by key path."""
        return {name: leaf for name, leaf in zip(self._names, leaves(self._state)) if name}

    def scalar_dtypes(self) -> dict[str, Any]:
        """Return the dtype of each float scalar of the state, by key path."""
        every = self.scalars().items()
        return {name: np.dtype(dtype_of(leaf)) for name, leaf in every if is_inexact(leaf)}

    @property
    def rounds_params(self) -> bool:
        """Whether the state is that of ``master_weights``, or holds one."""
        return bool(requested_by(self._state))

    def array_dtypes(self) -> list[Any]:
        """List the dtype of each float leaf of the state that is kept for a param, else None."""
        return [
            np.dtype(leaf.dtype) if not name and is_inexact(leaf) else None
            for name, leaf in zip(self._names, leaves(self._state))
        ]

    def _widened(self, leaf: Any) -> Any:
        if not (is_number(leaf) and is_inexact(leaf)):
            return leaf
        return self._problem.cast(leaf, dtype_of(leaf), exact=True)

    def _kept(self, state: PyTree) -> PyTree:
        if self._stored is None or len(leaves(state)) != len(self._stored):
            return state
        structure: Any = jax.tree_util.tree_structure(state)
        kept: PyTree = structure.unflatten(map(_rounded, leaves(state), self._stored))
        return kept


def _rounded(leaf: Any, dtype: Any) -> Any:
    """Round a leaf to a dtype, but keep its own."""
    return leaf if dtype is None else jnp.asarray(np.asarray(leaf).astype(dtype), leaf.dtype)


def _names(state: PyTree, params: PyTree) -> list[str]:
    """Name each scalar of the state that is not kept for a param; other leaves have no name."""
    structure: Any = jax.tree_util.tree_structure(params)
    shapes = [np.shape(leaf) for leaf in leaves(params)]

    def is_like_params(node: Any) -> bool:
        return (
            jax.tree_util.tree_structure(node) == structure
            and [np.shape(leaf) for leaf in leaves(node)] == shapes
        )

    names = []
    nodes, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_like_params)
    for path, node in nodes:
        statistic = not is_like_params(node) and is_number(node) and np.ndim(node) == 0
        statistic = statistic and kind_of(dtype_of(node)) >= 0  # Not a random key.
        name = f"state{jax.tree_util.keystr(path)}" if statistic else ""
        names += [name] * len(leaves(node))
    return names


def _double(leaf: Any) -> Any:
    """Return a leaf in double precision, with a first axis for the steps."""
    array = np.asarray(leaf)[None]
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
