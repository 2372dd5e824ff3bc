"""Run functions of arrays in float32, with results in stock's dtypes."""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

from ..._contract.dtypes import (
    REAL,
    cast,
    dtype_of,
    half_to_float32,
    is_array,
    is_half,
    is_inexact,
    is_weak,
    kind_of,
    leaves,
    same_structure,
    tree_map,
    unflatten_like,
)
from ..._contract.updates import update_dtype
from ..._contract.widths import promoted
from ..._engine.patch import Stock
from ..._tally import paused


def in_float32(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function: it is given float32 copies of its half-precision arguments.

    Its results have stock's dtypes.
    """
    return _in_float32(stock, args, kwargs, lambda dtype, *_: dtype)


def trees_in_float32(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function of trees in the same way.

    A leaf is no wider than the same leaves of the trees given, or than another strong argument.
    """
    values = (*args, *kwargs.values())
    requested = tuple(dtype_of(value) for value in values if is_array(value) and not is_weak(value))

    def bound(dtype: Any, *place: Any) -> Any:
        return update_dtype(dtype, *map(dtype_of, place), requested=requested)

    return _in_float32(stock, args, kwargs, bound)


def _in_float32(
    stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any], bound: Callable[..., Any]
) -> Any:
    values = [*args, *kwargs.values()]
    trees = list(filter(_is_tree, values))
    if not any(map(is_half, leaves(values))) or not same_structure(*trees):
        return stock(*args, **kwargs)
    call = _Call(stock, len(args), list(kwargs), values, trees)
    results = call.run(call.columns, half_to_float32)
    like = call.dtypes_of_stock(results)

    def restored(result: Any, like: Any) -> Any:
        if not call.is_column(result):
            same_shape = [v for v in values if is_array(v) and v.shape == jnp.shape(result)]
            return cast(result, bound(dtype_of(like), *same_shape))
        dtypes = (bound(dtype_of(leaf), *place) for leaf, place in zip(like, call.places))
        return unflatten_like(trees[0], map(cast, result, dtypes))

    return tree_map(restored, results, like, is_leaf=call.is_column)


class _Call:
    """A call of stock on lists in place of trees: a user's node need not accept other dtypes.

    Attributes:
      columns: the leaves of each tree.
      places: for each place in the structure, the leaf that each tree has there.
    """

    def __init__(
        self, stock: Stock, by_position: int, names: list[str], values: list[Any], trees: list[Any]
    ) -> None:
        self._stock, self._by_position, self._names = stock, by_position, names
        self._values = values
        self._are_trees = [bool(trees) and same_structure(value, trees[0]) for value in values]
        of_trees = (value for value, is_tree in zip(values, self._are_trees) if is_tree)
        self.columns = list(map(leaves, of_trees))
        self.places = list(zip(*self.columns))

    def run(
        self, columns: list[list[Any]], convert: Callable[[Any], Any] = lambda given: given
    ) -> Any:
        """Run stock with these columns for its trees, on converted arguments."""
        rest = iter(columns)
        pairs = zip(self._are_trees, self._values)
        given = convert([next(rest) if is_tree else value for is_tree, value in pairs])
        by_name = dict(zip(self._names, given[self._by_position :]))
        return self._stock(*given[: self._by_position], **by_name)

    def is_column(self, result: Any) -> bool:
        """Check for a result that is a tree."""
        return any(self._are_trees) and isinstance(result, list)

    def dtypes_of_stock(self, results: Any) -> Any:
        """Return leaves with stock's dtypes in place of those of the results."""
        dtype = _dtype_of_results(self._values, self.columns)
        if dtype is not None:  # To trace stock takes longer than an eager step.
            known = jax.ShapeDtypeStruct((), dtype)
            return tree_map(lambda leaf: known if is_inexact(leaf) else leaf, results)
        try:
            with paused():  # Other patches change nothing that stays.
                return jax.eval_shape(self._on_one_of_each_kind)
        except Exception:  # Stock raises for these dtypes.
            return results

    def _on_one_of_each_kind(self) -> Any:
        """Run stock on one place of each kind: the others have the same dtypes."""
        kinds = [tuple((dtype_of(leaf), is_weak(leaf)) for leaf in place) for place in self.places]
        one_of_each = dict(zip(kinds, self.places))
        results = self.run([list(column) for column in zip(*one_of_each.values())])
        index = {kind: i for i, kind in enumerate(one_of_each)}

        def for_all(result: Any) -> Any:
            return [result[index[kind]] for kind in kinds] if self.is_column(result) else result

        return tree_map(for_all, results, is_leaf=self.is_column)


def _dtype_of_results(values: list[Any], columns: list[list[Any]]) -> Any:
    """Return the promoted dtype of all arrays, if stock's results have it for sure; else None.

    A Python number in a tree is an array of its own for stock. Integers and complex numbers change
    their dtypes, and what a strong number beside a tree promotes depends on the function.
    """
    strong = {dtype_of(leaf) for leaf in leaves(values) if is_array(leaf) and not is_weak(leaf)}
    numbers = any(not is_array(leaf) or is_weak(leaf) for column in columns for leaf in column)
    beside = any(is_array(value) and not is_weak(value) for value in values)
    if numbers or not strong or (beside and len(strong) > 1):
        return None
    return promoted(*strong) if all(kind_of(dtype) == REAL for dtype in strong) else None


def _is_tree(value: Any) -> bool:
    """Check for a tree; a tuple of axes is none."""
    is_leaf: bool = jax.tree_util.all_leaves([value])
    return not is_leaf and not all(isinstance(leaf, int) for leaf in leaves(value))
