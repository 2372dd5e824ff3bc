"""Show the user's own code the user's own leaves, while stock runs on copies (C7)."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
from typing import Any, Callable

import jax
import numpy as np

from ..._contract.dtypes import (
    REAL,
    PyTree,
    all_dtypes,
    cast,
    cast_all,
    is_half,
    is_jax_array,
    is_number,
    is_real,
    is_weak,
    kind_of,
    leaves,
    same_structure,
    tree_map,
    unflatten_like,
)
from ..._contract.promotion import present_mode
from ..._contract.widths import compute_dtype

_FLOAT32 = np.dtype(np.float32)


@dataclasses.dataclass(eq=False, repr=False)
class Step:
    """A step in which stock runs on copies of the user's leaves.

    Attributes:
      grads: the user's.
      params: the user's.
      narrow: the dtypes of which stock is given float32 copies.
      lifted: those of them that the leaves have, or that the user asked for.
      dtype: if given, that of all real leaves.
      integers: whether stock is given integers as float32.
      mode: the user's mode of promotion.
      copies: of the user's leaves. As long as they live, no other object has their ids.
      lent: the user's leaves, by the id of a copy; and functions, by the id of what stock calls.
      asked: the dtypes that links ask for, by the path of an update.
    """

    grads: PyTree
    params: PyTree
    narrow: frozenset[Any]
    lifted: frozenset[Any]
    dtype: Any
    integers: bool
    mode: Any
    copies: list[Any] = dataclasses.field(default_factory=list)
    lent: dict[int, Any] = dataclasses.field(default_factory=dict)
    asked: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    @property
    def like(self) -> PyTree:
        """The params, or the gradients of a step without params."""
        return self.grads if self.params is None else self.params

    @functools.cached_property
    def widest(self) -> Any:
        """The widest dtype of arithmetic on the user's leaves."""
        return compute_dtype((self.grads, self.params))

    def lift(self, tree: PyTree, *, numbers: bool = True) -> PyTree:
        """Return a tree with copies that are wide enough for stock; note whose copies they are.

        Args:
          tree: gradients, params, or the state of a transformation of optax.
          numbers: whether integers are numbers, and not counters or random keys.
        """
        flat, dtypes = leaves(tree), all_dtypes(tree)
        if not flat:
            return tree
        wide_flat = list(flat)
        for dtype in set(dtypes):
            wide = self._wide(dtype, numbers=numbers)
            if wide == dtype:
                continue
            places = [place for place, found in enumerate(dtypes) if found == dtype]
            copies = cast_all([flat[place] for place in places], wide)
            for place, copy in zip(places, copies):
                wide_flat[place], self.lent[id(copy)] = copy, flat[place]
            self.copies += copies
        return unflatten_like(tree, wide_flat)

    def _wide(self, dtype: Any, *, numbers: bool) -> Any:
        """Return the dtype in which stock is given leaves of a dtype."""
        kind = kind_of(dtype)
        if kind == REAL:
            return self.dtype or (_FLOAT32 if dtype in self.narrow else dtype)
        is_integer = numbers and self.integers and 0 < kind < REAL
        return (self.dtype or _FLOAT32) if is_integer else dtype

    def free(self, keep: PyTree) -> None:
        """Delete the copies of an eager step: jax 0.4.25 keeps what a branch of ``cond`` holds.

        A derivative may need them. Then a result is a tracer.
        """
        kept = leaves(keep)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in kept):
            ids = set(map(id, kept))
            for copy in self.copies:
                if isinstance(copy, jax.Array) and id(copy) not in ids:
                    copy.delete()

    def lend(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stock calls in place of a function of the user's, which gets it back."""
        seen = as_the_user_sees(function)
        self.lent[id(seen)] = function  # It may be an object with methods.
        return seen

    def ask(self, updates: PyTree, dtypes: tuple[Any, ...]) -> None:
        """Note which dtypes a link asks for in its updates."""
        for path in paths(updates):
            self.asked[path] = (*self.asked.get(path, ()), *dtypes)

    def asked_for(self, updates: PyTree) -> list[tuple[Any, ...]]:
        """List for each update the dtypes that links asked for; of other trees, all of them."""
        found = paths(updates)
        if self.asked.keys() <= set(found):
            return [self.asked.get(path, ()) for path in found]
        every = tuple(dict.fromkeys(dtype for row in self.asked.values() for dtype in row))
        return [every] * len(found)

    def lower(self, tree: PyTree, like: PyTree) -> PyTree:
        """Return the user's leaves for their copies; new leaves in the dtypes of a tree like it."""
        flat = [self.lent.get(id(leaf), leaf) for leaf in leaves(tree)]
        dtypes = all_dtypes(like)
        if not self.dtype and self.narrow.isdisjoint(dtypes):
            return unflatten_like(tree, flat)
        if not same_structure(tree, like):
            if len(set(dtypes)) == 1:  # Some of the leaves, or one vector for all.
                dtypes = dtypes[:1] * len(flat)
            else:
                found = dict(zip(paths(like), dtypes))
                dtypes = [found.get(path) for path in paths(tree)]
        return unflatten_like(tree, map(self._narrowed, flat, dtypes))

    def _narrowed(self, leaf: Any, dtype: Any) -> Any:
        is_copy = dtype is not None and is_number(leaf) and is_real(leaf) and not is_half(leaf)
        is_copy = is_copy and kind_of(dtype) == REAL and (self.dtype or dtype.itemsize < 4)
        return cast(leaf, dtype) if is_copy else leaf


def paths(tree: PyTree) -> list[str]:
    """List the places of the leaves of a tree."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in with_paths]


STEP: contextvars.ContextVar[Step | None] = contextvars.ContextVar("step", default=None)
"""The step that the update around this code takes on copies, if one does in this thread."""


def in_step(step: Step | None, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function inside of a step, or outside of any."""
    token = STEP.set(step)
    try:
        return function(*args, **kwargs)
    finally:
        STEP.reset(token)


def is_called(name: str, argument: Any) -> bool:
    """Check for an extra argument that stock calls: a model is a tree, and may have a call."""
    is_tree = not jax.tree_util.all_leaves([argument])
    return callable(argument) and (not is_tree or name.endswith("_fn"))


def as_the_user_sees(function: Callable[..., Any], *, is_link: bool = False) -> Callable[..., Any]:
    """Call a function that is not lifted with the user's leaves, in the user's mode.

    Args:
      function: a schedule, a mask, an objective, or the update of a transformation of the user's.
      is_link: whether it is such an update.
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        step = STEP.get()
        if step is None:
            return function(*args, **kwargs)
        likes = (step.grads, (), step.params) if is_link else (step.like,)
        likes = (*likes, *(() for _ in args))
        names = {"params": step.params, "updates": step.grads} if is_link else {}
        args = tuple(map(step.lower, args, likes))
        kwargs = {name: step.lower(value, names.get(name, ())) for name, value in kwargs.items()}
        with present_mode(step.mode):
            result = in_step(None, function, *args, **kwargs)
        if is_link:
            from ..._contract.master_weights import requested_by  # Few programs need it.

            updates, state = result
            asked = requested_by(state)
            if asked:
                step.ask(updates, asked)
            return step.lift(updates), state
        return _fit(step, result)

    return functools.update_wrapper(called, function)


def _fit(step: Step, result: Any) -> Any:
    """Cast what a function returns to a dtype that neither narrows nor widens the step."""

    def fit(leaf: Any) -> Any:
        if not is_jax_array(leaf) or is_weak(leaf) or not is_real(leaf):
            return leaf
        if leaf.dtype in step.narrow:
            return cast(leaf, np.float32)
        return cast(leaf, step.widest) if leaf.dtype.itemsize > step.widest.itemsize else leaf

    return tree_map(fit, result)
