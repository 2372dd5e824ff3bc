"""Random trees and random hyperparameters for test_properties.py."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

from support.nodes import Node
from support.transformations import drifting, warm_up
from support.trees import leaves, tree_map


class Pair(NamedTuple):
    """A user-defined node."""

    first: Any
    second: Any


SHAPES = st.sampled_from([(), (1,), (0,), (3,), (2, 3), (2, 0), (4, 1, 2)])
FLOATS = [jnp.float32, jnp.bfloat16, jnp.float16]
RARE = [jnp.complex64, jnp.float8_e4m3fn, jnp.float8_e5m2]
INTEGERS = [jnp.int32, jnp.int8, jnp.uint8]


class Leaf(NamedTuple):
    """A leaf, which takes its dtypes from lists that are drawn for the whole tree."""

    shape: Any
    dtype: int
    grad: int

    def dtype_in(self, dtypes: list[Any]) -> Any:
        """Return the dtype of the param."""
        return dtypes[self.dtype % len(dtypes)]

    def grad_in(self, dtypes: list[Any]) -> Any:
        """Return the dtype of the gradient."""
        return dtypes[self.grad % len(dtypes)]


# Built once: Hypothesis examines a strategy when it first draws from it. 12 is a multiple of the
# lengths of all lists of dtypes.
TREES = st.recursive(
    st.builds(Leaf, SHAPES, st.integers(0, 11), st.integers(0, 11)) | st.none(),
    lambda node: st.one_of(
        st.dictionaries(st.sampled_from("abc"), node, max_size=3),
        st.lists(node, max_size=3),
        st.tuples(node, node),
        st.builds(Pair, node, node),
        st.builds(Node, node),
    ),
    max_leaves=5,
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Abstract params and gradients, and whether 64-bit mode is on."""

    params: Any
    grads: Any
    x64: bool

    @property
    def one_dtype(self) -> bool:
        """Whether each gradient has the dtype of its param."""
        pairs = zip(leaves(self.params), leaves(self.grads))
        return all(param.dtype == grad.dtype for param, grad in pairs)


@st.composite
def problems(draw: Any) -> Problem:
    """Draw a tree with leaves of any dtype. In half the trees, gradients have other dtypes."""
    in_64_bits = draw(st.booleans())
    floats = [*FLOATS, *([jnp.float64] if in_64_bits else [])]
    # An integer times a Python float is float64 in 64-bit mode, by JAX's own rules.
    integers = [] if in_64_bits else INTEGERS
    # A tree of one dtype is as likely as any mixed one.
    few = draw(st.lists(st.sampled_from([*floats * 3, *RARE, *integers]), min_size=1, max_size=3))
    others = [*floats, *integers] if draw(st.booleans()) else []
    tree = draw(TREES)

    def shapes(of: Callable[[Leaf], Any]) -> Any:
        return tree_map(
            lambda node: jax.ShapeDtypeStruct(node.shape, of(node)),
            tree,
            is_leaf=lambda node: isinstance(node, Leaf),
        )

    def gradient(leaf: Leaf) -> Any:
        dtype = leaf.dtype_in(few)
        return leaf.grad_in(others) if others and dtype in floats else dtype

    return Problem(shapes(lambda leaf: leaf.dtype_in(few)), shapes(gradient), in_64_bits)


def loss(params: Any) -> Any:
    """Return a sum of squares, in float32 for leaves of any dtype."""
    return sum(
        (jnp.sum(jnp.abs(leaf).astype(jnp.float32) ** 2) for leaf in leaves(params)),
        jnp.zeros((), jnp.float32),
    )


RATES: dict[str, Callable[[], Any]] = {
    "float": lambda: 0.1,
    "numpy": lambda: np.float64(0.1),
    "array": lambda: jnp.asarray(0.1, jnp.float32),
    "schedule": lambda: warm_up,
}
NUMBERS = {name: RATES[name] for name in ("float", "numpy", "array")}


class Draw:
    """Draws hyperparameters one by one."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self._drawn: list[int] = []
        self.asked: Any = None
        self._replayed: list[int] = []

    def of(self, *values: Any) -> Any:
        """Draw one of the values."""
        if self._replayed:
            return values[self._replayed.pop(0)]
        index = self._draw(st.integers(0, len(values) - 1))
        self._drawn.append(index)
        return values[index]

    def again(self) -> Draw:
        """Return a copy that repeats the draws."""
        same = Draw(self._draw)
        same._replayed = list(self._drawn)
        return same

    def rate(self) -> Any:
        """Draw a learning rate: a number or a schedule."""
        return self.of(*RATES.values())()

    def number(self) -> Any:
        """Draw a number as Python, NumPy or JAX has it."""
        return self.of(*NUMBERS.values())()

    def dtype(self) -> Any:
        """Draw a dtype that the user asks for, or none."""
        self.asked = self.of(None, jnp.float32)
        return self.asked

    def call(self, package: Any, names: str, *args: Any, **kwargs: Any) -> Any:
        """Call one of the named functions that this release has."""
        present = [name for name in names.split() if hasattr(package, name)]
        return getattr(package, self.of(*present))(*args, **kwargs)

    def inner(self) -> Any:
        """Draw an optimizer to wrap."""
        return self.of(
            lambda: optax.sgd(self.rate()),
            lambda: optax.adam(self.rate(), mu_dtype=self.dtype()),
            lambda: optax.adafactor(0.1),
            lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.9)),
            drifting,
        )()
