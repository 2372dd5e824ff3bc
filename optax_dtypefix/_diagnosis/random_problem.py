"""Make a small random problem for a transformation: a quadratic bowl with noise."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

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


@dataclasses.dataclass(frozen=True)
class Inputs:
    """One step: leaves of params and gradients in the user's dtypes, and the loss."""

    params: Arrays
    grads: Arrays
    loss: float


class RandomProblem:
    """The user's trees and extra arguments, with random numbers in small shapes.

    Where an extra argument is a function, such as ``value_fn``, the shapes and the given params
    stay, because the function may need them, and gradients are those of ``value_fn``.

    Attributes:
      update: ``update(grads, state, params, arrays)``, compiled.
      init: that of the transformation.
      searches: whether it is given the loss as a function, and so may converge.
      double: whether float32 is not enough for the exact run.
      half: whether a param or gradient is in half precision.
      coarse: whether a param or gradient has 8 bits: rounding alone explains any error.
      paths: key path of each gradient.
    """

    def __init__(self, tx: Any, params: PyTree, grads: PyTree, extra_args: dict[str, Any]) -> None:
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
        self._arrays = arrays
        self._loss = functions.get("value_fn")
        self.searches = self._loss is not None
        self._as_given = bool(functions)
        shapes = {} if self._as_given else shrunk_shapes(tx, params, grads)
        self._params = [_Leaf.make(leaf, shapes) for leaf in leaves(params)]
        self._grads = [_Leaf.make(leaf, shapes) for leaf in leaves(grads)]
        self._structures: Any = [jax.tree_util.tree_structure(tree) for tree in (params, grads)]
        floats = [leaf.dtype for leaf in (*self._params, *self._grads) if leaf.is_float]
        bits = [jnp.finfo(dtype).bits for dtype in floats]
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
        pairs = zip(self._grads, inputs.grads)
        grads = [np.full_like(g, np.nan) if leaf.is_float else g for leaf, g in pairs]
        return dataclasses.replace(inputs, grads=grads)

    def mode(self, *, exact: bool) -> contextlib.AbstractContextManager[None]:
        """Set the mode of JAX that a run needs, in this thread."""
        return x64() if exact and self.double else contextlib.nullcontext()

    def _dtype(self, dtype: Any, *, exact: bool) -> Any:
        if not (exact and jnp.issubdtype(dtype, jnp.inexact)):
            return dtype
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return np.dtype(np.complex128)  # complex64 has float32 parts.
        return np.dtype(np.float64 if self.double else np.float32)

    def widen(self, leaf: Any) -> Any:
        """Cast a float leaf of a state to the dtype of the exact run."""
        if not (is_number(leaf) and is_inexact(leaf)):
            return leaf
        return jnp.asarray(leaf, self._dtype(dtype_of(leaf), exact=True))

    def start(self, rng: np.random.Generator) -> Arrays:
        """Return the first params."""
        return [
            leaf.given if self._as_given and leaf.given is not None else leaf.draw(rng)
            for leaf in self._params
        ]

    def inputs(
        self, params: Arrays, start: Arrays, step: int, scale: float, rng: np.random.Generator
    ) -> Inputs:
        """Return the rounded inputs of a step, for exact params."""
        rounded = list(map(_Leaf.round, self._params, params))
        if self._loss is not None:
            tree = self._structures[0].unflatten(map(jnp.asarray, rounded))
            value, gradient = jax.value_and_grad(self._loss)(tree)
            flat, loss = [np.asarray(leaf) for leaf in leaves(gradient)], float(value)
        else:
            flat = [leaf.draw(rng) for leaf in self._grads]
            if len(flat) == len(params):  # The minimum is where the signs of the start turn.
                rows = zip(flat, params, start)
                flat = [g + _half_way(p, s, g) for g, p, s in rows]
            loss = 0.998**step  # It improves slowly and steadily.
        pairs = zip(self._grads, flat)
        grads = [leaf.round(scale * g if leaf.is_float else g) for leaf, g in pairs]
        return Inputs(rounded, grads, loss)

    def arguments(self, inputs: Inputs, *, exact: bool) -> tuple[PyTree, PyTree, dict[str, Any]]:
        """Return params, gradients and the extra arguments that are arrays, for one step."""
        params, grads = (
            structure.unflatten(
                jnp.asarray(value, self._dtype(leaf.dtype, exact=exact))
                for leaf, value in zip(flat, values)
            )
            for structure, flat, values in zip(
                self._structures,
                (self._params, self._grads),
                (inputs.params, inputs.grads),
            )
        )

        def extra_arg(name: str, given: Any) -> Any:
            if name == "grad":  # A line search starts from it.
                return grads
            if not (is_number(given) and np.ndim(given) == 0) or not is_inexact(given):
                return given
            dtype = np.dtype(dtype_of(given))
            rounded = np.asarray(inputs.loss).astype(dtype)
            return jnp.asarray(rounded, self._dtype(dtype, exact=exact))

        return params, grads, {name: extra_arg(name, x) for name, x in self._arrays.items()}


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A leaf of params or gradients."""

    shape: tuple[int, ...]
    dtype: Any
    given: Any

    @classmethod
    def make(cls, leaf: Any, shapes: Mapping[tuple[int, ...], tuple[int, ...]]) -> _Leaf:
        shape = tuple(np.shape(leaf))
        given = None if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)
        return cls(shapes.get(shape, shape), np.dtype(dtype_of(leaf)), given)

    @property
    def is_float(self) -> bool:
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw numbers of a size between 0.5 and 1.5."""
        numbers = rng.uniform(0.5, 1.5, self.shape) * rng.choice((-1.0, 1.0), self.shape)
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            return numbers * np.exp(1j * rng.uniform(0.0, np.pi, self.shape))
        return numbers

    def round(self, value: Any) -> Any:
        """Round to the dtype; integers away from zero, so that none becomes zero."""
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            return np.asarray(value).astype(self.dtype)
        real = np.real(np.asarray(value, np.complex128))
        if not self.is_float:
            real = np.nan_to_num(np.sign(real) * np.ceil(np.abs(real)))
        with np.errstate(over="ignore"):  # A float16 may become inf, which the user would see too.
            return real.astype(self.dtype)


def _half_way(param: Any, start: Any, like: Any) -> Any:
    """Return half the distance from the minimum, or 0 if the gradient has another shape."""
    distance = np.asarray(param) + np.asarray(start)
    # Gradients of each example have one dimension more.
    fits = distance.shape == like.shape[like.ndim - distance.ndim :]
    return 0.5 * distance if fits else 0.0
