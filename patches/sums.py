"""sums: functions that sum inside one call sum half precision in float32.

bfloat16 has 8 bits: 256 + 1 == 256, so a sum of ones stops at 256, and a mean of 4,096 ones that
are added one by one is 0.0625. In float16 the sum of squares overflows above 65504. Stock's
``skip_large_updates`` then skips every step of a ``MultiSteps``, for ever.

Here stock runs on float32 copies of the half-precision arguments, and the results have the dtypes
that stock gives them. So a float16 sum above 65504 that the user asks for is still infinite.
``microbatch`` calls the user's function with the user's dtypes, and adds up its results in float32.

No upstream issue was found about these sums.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import (
    PyTree,
    cast,
    dtype_of,
    half_to_float32,
    is_array,
    is_half,
    is_real,
    is_weak,
    leaves,
    same_structure,
    tree_map,
    unflatten_like,
)
from .._contract.promotion import standard_promotion
from .._contract.updates import update_dtype
from .._contract.widths import promoted
from .._engine.patch import Patch, Stock
from .._tally import counting, paused
from ._support import reproduce as demo

_ACCUMULATION = ("optax.transforms._accumulation", "optax._src.wrappers")
_MICROBATCHING = ("optax.microbatching._microbatching",)
_PROJECTIONS = ("optax.projections._projections",)
_SECOND_ORDER = (
    "optax.second_order._deprecated",
    "optax.second_order._hessian",
    "optax._src.second_order",
)
_TREE_MATH = ("optax.tree_utils._tree_math",)

PATCH = Patch(
    "sums",
    summary="sums of half-precision numbers stop growing or overflow in `tree.sum`, `tree.vdot`, "
    "`microbatch`, `skip_large_updates`, projections and `cosine_similarity`",
    allow_missing_targets=True,
)


@PATCH.wraps("cosine_similarity", ("optax.losses._regression", "optax._src.loss"))
def _cosine_similarity(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a function of arrays; the result keeps its dtype."""
    if not any(map(is_half, leaves((args, kwargs)))):
        return stock(*args, **kwargs)
    like = _shapes_of(lambda: stock(*args, **kwargs))
    return cast(stock(*half_to_float32(args), **half_to_float32(kwargs)), like.dtype)


@PATCH.wraps("tree_sum", _TREE_MATH, ">=0.1.8")
@PATCH.wraps("tree_vdot", _TREE_MATH, ">=0.1.8")
def _tree_sum(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a sum over trees; the result keeps its dtype."""
    call = _Call(stock, args, kwargs)
    if not call.sums_half:
        return stock(*args, **kwargs)
    like = _shapes_of(lambda: call(_one_of_each(*call.lists)))
    return cast(call(call.lists, half_to_float32), like.dtype)


@PATCH.wraps("projection_simplex", _PROJECTIONS, ">=0.2.3")
@PATCH.wraps("projection_l1_sphere", _PROJECTIONS, ">=0.2.4")
@PATCH.wraps("projection_vector", _PROJECTIONS, ">=0.2.6")
@PATCH.wraps("projection_hyperplane", _PROJECTIONS, ">=0.2.6")
@PATCH.wraps("projection_halfspace", _PROJECTIONS, ">=0.2.6")
def _projection(stock: Stock, *args: Any, **kwargs: Any) -> Any:
    """Replace a projection; its leaves are no wider than those of its trees, or a strong number."""
    call = _Call(stock, args, kwargs)
    if not call.sums_half:
        return stock(*args, **kwargs)
    like = leaves(_shapes_of(lambda: call(call.lists)))
    projected = leaves(call(call.lists, half_to_float32))
    shapes = [leaf.shape for leaf in projected]
    given = [flat for flat in map(leaves, call.values) if list(map(np.shape, flat)) == shapes]
    inputs = [tuple(map(dtype_of, same_place)) for same_place in zip(*given)]
    asked = tuple(dtype_of(v) for v in call.values if is_array(v) and not is_weak(v))
    dtypes = [dtype_of(leaf) for leaf in like]
    if inputs:
        dtypes = [update_dtype(dtype, *of, asked=asked) for dtype, of in zip(dtypes, inputs)]
    tree = call.trees[0] if call.trees else call.values[0]  # The first one is projected.
    return unflatten_like(tree, map(cast, projected, dtypes))


def _shapes_of(call: Callable[[], Any]) -> Any:
    """Return the shapes and dtypes of stock's results."""
    with paused():  # Other patches change nothing that stays.
        return jax.eval_shape(call)


class _Call:
    """A call of stock with lists in place of trees: a user's node need not accept other dtypes.

    Attributes:
      values: of all arguments.
      trees: among the values.
      lists: the leaves of each tree.
    """

    def __init__(self, stock: Stock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._stock, self._names, self.values = stock, tuple(kwargs), [*args, *kwargs.values()]
        self._are_trees = [not jax.tree_util.all_leaves([value]) for value in self.values]
        self.trees = [value for value, is_tree in zip(self.values, self._are_trees) if is_tree]
        self.lists = list(map(leaves, self.trees))

    @property
    def sums_half(self) -> bool:
        """Whether an argument is in half precision, and stock does not raise an error."""
        same = not self.trees or same_structure(*self.trees)
        return same and any(map(is_half, leaves(self.values)))

    def __call__(self, lists: list[Any], convert: Callable[[Any], Any] = lambda x: x) -> Any:
        """Call stock with other lists."""
        rest = iter(lists)
        pairs = zip(self.values, self._are_trees)
        given = [convert(next(rest) if is_tree else value) for value, is_tree in pairs]
        count = len(given) - len(self._names)
        return self._stock(*given[:count], **dict(zip(self._names, given[count:])))


def _one_of_each(*lists: list[Any]) -> list[list[Any]]:
    """Keep one place for each combination of types: the others do not change the dtype of a sum."""
    places = {tuple((dtype_of(x), is_weak(x)) for x in place): place for place in zip(*lists)}
    return [list(column) for column in zip(*places.values())]


@PATCH.wraps("skip_large_updates", _ACCUMULATION, ">=0.1.3")
def _skip_large_updates(stock: Stock, updates: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Replace a function that decides by a norm; the norm that it returns keeps its dtype."""
    flat = leaves(updates)
    if not any(map(is_half, flat)):
        return stock(updates, *args, **kwargs)
    with standard_promotion():  # The limit may be in half precision.
        skip, state = stock(half_to_float32(flat), *args, **kwargs)
    dtype = promoted(*map(dtype_of, flat))
    return skip, {**state, "norm_squared": cast(state["norm_squared"], dtype)}


def _cast_like(tree: PyTree, like: PyTree) -> PyTree:
    return unflatten_like(tree, map(cast, leaves(tree), map(dtype_of, leaves(like))))


@PATCH.wraps("_sum", _MICROBATCHING, ">=0.2.7")
@PATCH.wraps("_mean", _MICROBATCHING, ">=0.2.7")
@PATCH.wraps("_running_mean", _MICROBATCHING, ">=0.2.7")
def _accumulator(stock: Stock, *args: Any) -> Any:
    """Replace an accumulator of ``microbatch``: it carries a list, in float32 or wider."""
    accumulator = stock(*args)
    first: list[PyTree] = []

    @counting
    def init(value: PyTree) -> PyTree:
        first[:] = [value]  # A value up to 0.2.7, then its shapes and dtypes.
        abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves(value))
        wide = jax.eval_shape(half_to_float32, leaves(value)) if abstract else _wide_leaves(value)
        return accumulator.init(wide)

    @counting
    def update(carry: PyTree, value: PyTree, index: Any) -> PyTree:
        return accumulator.update(carry, _wide_leaves(value), index)

    @counting
    def finalize(carry: PyTree) -> PyTree:
        (like,) = first
        return unflatten_like(like, _cast_like(accumulator.finalize(carry), leaves(like)))

    return dataclasses.replace(accumulator, init=init, update=update, finalize=finalize)


def _wide_leaves(tree: PyTree) -> list[Any]:
    return list(map(half_to_float32, leaves(tree)))


@PATCH.wraps("hessian_diag", _SECOND_ORDER)
def _hessian_diag(stock: Stock, loss: Any, params: PyTree, *args: Any, **kwargs: Any) -> Any:
    """Give stock params in the dtype of its unit vectors; the loss is called with the user's."""
    default = jnp.zeros(()).dtype
    if all(dtype_of(leaf) == default for leaf in leaves(params) if is_real(leaf)):
        return stock(loss, params, *args, **kwargs)
    wide = tree_map(lambda leaf: cast(leaf, default) if is_real(leaf) else leaf, params)

    @counting
    def loss_of_wide(params_: PyTree, *args: Any) -> Any:
        return cast(loss(_cast_like(params_, params), *args), default)

    diagonal = stock(loss_of_wide, wide, *args, **kwargs)
    return cast(diagonal, promoted(*map(dtype_of, leaves(params))))


def _wrong(what: str, got: Any, expected: float) -> str | None:
    got = float(np.ravel(got)[0])
    return None if np.isclose(got, expected, rtol=0.01) else f"{what} is {got:g}, not {expected:g}"


def _ones(count: int) -> PyTree:
    return [jnp.ones((), jnp.bfloat16)] * count


def _probe_sum(optax: Any) -> str | None:
    return demo.in_half(demo.public(optax, "tree_utils.tree_sum"), demo.shapes(jnp.bfloat16))


@PATCH.fault(">=0.1.8", abstract=False, probe=_probe_sum)
def tree_sum(optax: Any) -> str | None:
    """tree.sum of 1,000 bfloat16 leaves is 256, and so is tree.vdot."""
    found = demo.public(optax, "tree_utils.tree_sum")(_ones(1000))
    dot = demo.public(optax, "tree_utils.tree_vdot")(_ones(1000), _ones(1000))
    return _wrong("the sum of 1,000 ones", found, 1000) or _wrong("their product", dot, 1000)


@PATCH.fault(">=0.1.3", abstract=False)
def skip_large_updates(optax: Any) -> str | None:
    """skip_large_updates in float16 skips every update with a norm above 255."""
    updates = jnp.full((4,), 200, jnp.float16)
    skip, _ = demo.public(optax, "skip_large_updates")(updates, 0, updates, 1e6)
    return "a squared norm of 160000 counts as above 1e6" if skip else None


@PATCH.fault(">=0.2.7", abstract=False)
def microbatch(optax: Any) -> str | None:
    """In bfloat16, microbatch gives 4,096 ones the sum 256 and the mean 0.0625."""
    function = demo.public(optax, "microbatching.microbatch")
    mean = demo.public(optax, "microbatching.AccumulationType").MEAN
    averaged = function(lambda x: x.sum(), 0, 1, mean)
    return _wrong("the mean of ones", averaged(jnp.ones(4096, jnp.bfloat16)), 1)


@PATCH.fault(">=0.2.3", abstract=False)
def projection(optax: Any) -> str | None:
    """In bfloat16, projection_simplex gives 3,000 numbers from 0 to 100 a sum of 5.5 or 62."""
    project = demo.public(optax, "projections.projection_simplex")
    found = project(jnp.linspace(0, 100, 3000).astype(jnp.bfloat16))
    return _wrong("the sum", found.astype(jnp.float32).sum(), 1)


@PATCH.fault(">=0.1.2", abstract=False)
def cosine_similarity(optax: Any) -> str | None:
    """cosine_similarity in float16 of vectors with a norm above 255 is 0."""
    vector = jnp.full((4,), 400, jnp.float16)
    return _wrong("the similarity of equal vectors", optax.cosine_similarity(vector, vector), 1)


@PATCH.fault(">=0.1.2", abstract=False)
def hessian_diag(optax: Any) -> str | None:
    """hessian_diag of half-precision params: TypeError."""
    params = jnp.ones(3, jnp.bfloat16)
    names = ("second_order.hessian_diag", "hessian_diag")  # The second until 0.1.8.
    function = next(iter(demo.all_public(optax, *names).values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # From 0.2.7 on.
        # Eagerly, each operation would be compiled.
        found = jax.jit(lambda p: function(lambda p, x, _: (x * p**2).sum(), p, p, p))(params)
    return _wrong("the second derivative of p^2", found, 2)
