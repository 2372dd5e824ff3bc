"""Make a small random problem for a transformation: a quadratic bowl with noise."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._contract.dtypes import PyTree, dtype_of, is_inexact, is_number, leaves
from .._contract.x64 import x64
from .jaxpr import equations
from .shrink import shrunk_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    Arrays = list[Any]

_RANDOM = {"threefry2x32", "random_bits", "random_seed", "random_wrap", "rng_bit_generator"}
"""Primitives that draw random numbers."""


class Inputs(NamedTuple):
    """One step: the leaves of params and then of gradients, in the user's dtypes, and the loss."""

    arrays: Arrays
    loss: float


class RandomProblem:
    """The user's trees and extra arguments, with random numbers in small shapes.

    Where an extra argument is a function, such as ``value_fn``, the shapes and the given params
    stay, because the function may need them, and gradients are those of ``value_fn``.

    Attributes:
      update: ``update(grads, state, params, arrays)``, compiled.
      init: that of the transformation.
      loss: ``value_fn``, if it is given: then the transformation may converge.
      double: whether float32 is not enough for the exact run.
      half: whether a param or gradient is in half precision.
      shrunk: whether the user has larger shapes.
      coarse: whether a param or gradient has 8 bits: rounding alone explains any error.
      paths: key path of each gradient.
    """

    def __init__(
        self,
        tx: Any,
        params: PyTree,
        grads: PyTree,
        extra_args: dict[str, Any],
        *,
        least: int = 4,
    ) -> None:
        functions = {name: value for name, value in extra_args.items() if callable(value)}
        arrays = {name: value for name, value in extra_args.items() if name not in functions}

        def update(
            grads: PyTree, state: PyTree, params: PyTree, arrays: dict[str, Any]
        ) -> tuple[PyTree, PyTree]:
            result: tuple[PyTree, PyTree] = tx.update(grads, state, params, **arrays, **functions)
            return result

        if not all(map(is_number, leaves((params, grads, arrays)))):
            raise TypeError("a leaf is no array")
        self.update = jax.jit(update)
        self.init = tx.init
        self.loss = functions.get("value_fn")
        self._extra_arrays = arrays
        self._structure: Any = jax.tree_util.tree_structure((params, grads))
        shapes = {} if functions else shrunk_shapes(tx, params, grads, least=least)
        self.shrunk = any(shape != small for shape, small in shapes.items())
        every = [_Leaf.make(leaf, shapes) for leaf in leaves((params, grads))]
        self._params, self._grads = every[: len(leaves(params))], every[len(leaves(params)) :]
        bits = [jnp.finfo(leaf.dtype).bits for leaf in every if leaf.is_float]
        self.double = max(bits, default=0) > 16
        self.half = min(bits, default=32) <= 16
        self.coarse = min(bits, default=32) <= 8
        flat, _ = jax.tree_util.tree_flatten_with_path(grads)
        self.paths = [f"updates{jax.tree_util.keystr(path)}" for path, _ in flat]

    def is_random(self, first: Inputs) -> bool:
        """Check whether the update draws random numbers: these differ by dtype."""
        params, grads, extra_args = self.arguments(first, exact=False)

        def updates() -> list[Any]:
            return leaves(self.update(grads, self.init(params), params, extra_args)[0])

        jaxpr = jax.make_jaxpr(updates)()
        return any(equation.primitive.name in _RANDOM for equation in equations(jaxpr.jaxpr))

    def replace_by_nan(self, inputs: Inputs) -> Inputs:
        """Return the inputs with NaN for every float gradient."""
        params = inputs.arrays[: len(self._params)]
        pairs = zip(self._grads, inputs.arrays[len(params) :])
        grads = [np.full_like(g, np.nan) if leaf.is_float else g for leaf, g in pairs]
        return inputs._replace(arrays=[*params, *grads])

    def mode(self, *, exact: bool) -> contextlib.AbstractContextManager[None]:
        """Set the mode of JAX that a run needs, in this thread."""
        return x64() if exact and self.double else contextlib.nullcontext()

    def cast(self, value: Any, dtype: Any, *, exact: bool) -> Any:
        """Make an array of this dtype, or for the exact run of one that is wide enough."""
        if exact and jnp.issubdtype(dtype, jnp.complexfloating):
            dtype = np.complex128  # complex64 has float32 parts.
        elif exact and jnp.issubdtype(dtype, jnp.inexact):
            dtype = np.float64 if self.double else np.float32
        return jnp.asarray(value, dtype)

    def start(self, rng: np.random.Generator) -> Arrays:
        """Return the first params."""
        return [leaf.draw(rng) if leaf.given is None else leaf.given for leaf in self._params]

    def steady(self, rng: np.random.Generator) -> Inputs:
        """Return params and gradients of sizes between 0.5 and 1.5, as on a slope without end."""
        every = [*self._params, *self._grads]
        return Inputs([leaf.round(leaf.draw(rng)) for leaf in every], 1.0)

    def inputs(
        self, params: Arrays, start: Arrays, step: int, scale: float, rng: np.random.Generator
    ) -> Inputs:
        """Return the rounded inputs of a step, for exact params."""
        rounded = list(map(_Leaf.round, self._params, params))
        if self.loss is not None:
            tree = self._structure.children()[0].unflatten(map(jnp.asarray, rounded))
            value, gradient = jax.value_and_grad(self.loss)(tree)
            flat, loss = [np.asarray(leaf) for leaf in leaves(gradient)], float(value)
        else:
            flat = [leaf.draw(rng) for leaf in self._grads]
            if len(flat) == len(params):  # The minimum is where the signs of the start turn.
                rows = zip(flat, params, start)
                flat = [g + _half_way(p, s, g) for g, p, s in rows]
            loss = 0.998**step  # It improves slowly and steadily.
        pairs = zip(self._grads, flat)
        grads = [leaf.round(scale * g if leaf.is_float else g) for leaf, g in pairs]
        return Inputs([*rounded, *grads], loss)

    def arguments(self, inputs: Inputs, *, exact: bool) -> tuple[PyTree, PyTree, dict[str, Any]]:
        """Return params, gradients and the extra arguments that are arrays, for one step."""
        pairs = zip([*self._params, *self._grads], inputs.arrays)
        params, grads = self._structure.unflatten(
            self.cast(value, leaf.dtype, exact=exact) for leaf, value in pairs
        )

        def extra_arg(name: str, given: Any) -> Any:
            if name == "grad":  # A line search starts from it.
                return grads
            if not (is_number(given) and is_inexact(given) and np.ndim(given) == 0):
                return given
            dtype = np.dtype(dtype_of(given))
            return self.cast(np.asarray(inputs.loss).astype(dtype), dtype, exact=exact)

        extra_args = {name: extra_arg(name, given) for name, given in self._extra_arrays.items()}
        return params, grads, extra_args


class _Leaf(NamedTuple):
    """A leaf of params or gradients. ``given`` is the user's array, where its shape stays."""

    shape: tuple[int, ...]
    dtype: Any
    given: Any

    @classmethod
    def make(cls, leaf: Any, shapes: Mapping[tuple[int, ...], tuple[int, ...]]) -> _Leaf:
        shape = tuple(np.shape(leaf))
        stays = not shapes and not isinstance(leaf, jax.ShapeDtypeStruct)
        dtype = np.dtype(dtype_of(leaf))
        return cls(shapes.get(shape, shape), dtype, np.asarray(leaf) if stays else None)

    @property
    def is_float(self) -> bool:
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw numbers of a size between 0.5 and 1.5."""
        numbers = rng.uniform(0.5, 1.5, self.shape) * rng.choice((-1.0, 1.0), self.shape)
        if self.dtype.kind == "c":
            return numbers * np.exp(1j * rng.uniform(0.0, np.pi, self.shape))
        return numbers

    def round(self, value: Any) -> Any:
        """Round to the dtype; integers away from zero, so that none becomes zero."""
        number = np.asarray(value) if self.dtype.kind == "c" else np.real(value)
        if not self.is_float:
            number = np.nan_to_num(np.sign(number) * np.ceil(np.abs(number)))
        with np.errstate(over="ignore"):  # A float16 may become inf, which the user would see too.
            return number.astype(self.dtype)


def _half_way(param: Any, start: Any, like: Any) -> Any:
    """Return half the distance from the minimum, or 0 if the gradient has another shape."""
    distance = np.asarray(param) + np.asarray(start)
    # Gradients of each example have one dimension more.
    fits = distance.shape == like.shape[like.ndim - distance.ndim :]
    return 0.5 * distance if fits else 0.0
