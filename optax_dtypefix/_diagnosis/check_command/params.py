"""Read the params to check from text such as ``w=bfloat16[128,256],b=float32[16]``."""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple, Union

from ..._text import suggest

DTYPES = (
    *("float32", "bfloat16", "float16", "float64", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)
_SHORT = {
    "bf16": "bfloat16",
    **dict.fromkeys(("f16", "fp16", "half"), "float16"),
    **dict.fromkeys(("f32", "fp32", "float"), "float32"),
    **dict.fromkeys(("f64", "fp64", "double"), "float64"),
}
"""Other names that people write."""

USUAL = "float32,bfloat16,float16"
"""What is checked if the user names no dtype and no params."""
_64_BITS = ("float64", "complex128", "int64", "uint64")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_DTYPE = re.compile(r"=([\w.]+)\[")
_LEAF = re.compile(
    r"""\s* (?P<path> [^\s=,.\[\]]+ (\.[^\s=,.\[\]]+)* )
    \s* = \s* (?P<dtype> [\w.]+ )
    \s* \[ (?P<shape> (\s*\d+\s*,)* (\s*\d+)? \s* ) \] \s*""",
    re.VERBOSE,
)


class Leaf(NamedTuple):
    """One array."""

    dtype: str
    shape: tuple[int, ...]


Tree = dict[str, Union[Leaf, "Tree"]]


class NamedParams(NamedTuple):
    """Params to check, and what to call them."""

    name: str
    params: str

    @property
    def needs_x64(self) -> bool:
        """Whether JAX has such arrays in 64-bit mode only."""
        return any(match["dtype"] in _64_BITS for match in _LEAF.finditer(self.params))


def default_params(dtype: str) -> NamedParams:
    """Return a matrix that adafactor factors, a vector and a scalar."""
    return NamedParams(dtype, f"w={dtype}[256,128],b={dtype}[128],scale={dtype}[]")


def parse_dtypes(text: str) -> list[NamedParams]:
    """Read dtypes separated by commas; return the default params in each.

    Raises:
      ArgumentTypeError: a dtype is unknown; the message names the nearest one.
    """
    return [default_params(_dtype(word.strip())) for word in text.split(",")]


def parse_own(text: str) -> list[NamedParams]:
    """Read the user's own params.

    Raises:
      ArgumentTypeError: the text is malformed; the message names the part.
    """
    parse_params(text)
    written = _DTYPE.sub(lambda match: f"={_dtype(match[1])}[", "".join(text.split()))
    return [NamedParams(written, written)]


def parse_params(text: str) -> Tree:
    """Read ``path=dtype[shape],...`` as nested dicts; the parts of a path are joined by dots.

    Raises:
      ArgumentTypeError: the text is malformed; the message names the part.
    """
    tree: Tree = {}
    for part in _COMMA_OUTSIDE_BRACKETS.split(text):
        match = _LEAF.fullmatch(part)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"cannot read {part!r}. Write NAME=DTYPE[SHAPE],..., such as "
                f"w=bfloat16[128,256],layer.b=float32[16],scale=float32[]"
            )
        shape = tuple(map(int, re.findall(r"\d+", match["shape"])))
        _insert(tree, match["path"], Leaf(_dtype(match["dtype"]), shape))
    return tree


def in_float32(params: str) -> str:
    """Return the params with float32 for every half-precision dtype."""
    return re.sub(r"=\s*b?float16\b", "=float32", params)


def _dtype(word: str) -> str:
    name = word.lower().rpartition(".")[2]  # As in ``jnp.bfloat16``.
    name = _SHORT.get(name, name)
    if name not in DTYPES:
        raise argparse.ArgumentTypeError(f"unknown dtype {word!r}. {suggest(name, DTYPES)}")
    return name


def _insert(tree: Tree, path: str, leaf: Leaf) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        node = tree.setdefault(folder, {})
        if isinstance(node, Leaf):
            raise argparse.ArgumentTypeError(f"{path!r}: {folder!r} is an array already")
        tree = node
    if name in tree:
        raise argparse.ArgumentTypeError(f"{path!r} is named twice")
    tree[name] = leaf
