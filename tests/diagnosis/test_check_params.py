"""The params that ``check`` makes from ``--params`` and ``--dtype``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import (
    given,
    strategies as st,
)

from optax_dtypefix._diagnosis.check_command.params import (
    DTYPES,
    Leaf,
    in_float32,
    parse_dtypes,
    parse_own,
    parse_params,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def test_params_are_nested_by_dots() -> None:
    text = " layer.w = bfloat16[128, 256] ,layer.b=float32[16],scale=float32[]"
    assert parse_params(text) == {
        "layer": {"w": Leaf("bfloat16", (128, 256)), "b": Leaf("float32", (16,))},
        "scale": Leaf("float32", ()),
    }
    (case,) = parse_own(text)
    assert case.name == "layer.w=bfloat16[128,256],layer.b=float32[16],scale=float32[]"


words = st.from_regex("[a-z_][a-z0-9_]{0,5}", fullmatch=True)
leaves = st.builds(Leaf, st.sampled_from(DTYPES), st.lists(st.integers(0, 99), max_size=3))
trees: st.SearchStrategy[Any] = st.dictionaries(
    words,
    leaves | st.dictionaries(words, leaves, min_size=1, max_size=2),
    min_size=1,
    max_size=3,
)


def flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Leaf]]:
    for name, node in tree.items():
        path = f"{before}{name}"
        if isinstance(node, Leaf):
            yield path, node
        else:
            yield from flat(node, f"{path}.")


@given(trees)
def test_any_tree_can_be_written(tree: Any) -> None:
    text = ",".join(
        f"{path}={leaf.dtype}[{','.join(map(str, leaf.shape))}]" for path, leaf in flat(tree)
    )
    read = dict(flat(parse_params(text)))
    assert read == {path: leaf._replace(shape=tuple(leaf.shape)) for path, leaf in flat(tree)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read ''"),
        ("w=float32[2],", "cannot read ''"),
        ("w=float32[2] b=float32[2]", "cannot read 'w=float32"),
        ("w=float32", "cannot read 'w=float32'"),
        ("w=float32[2 3]", "cannot read 'w=float32[2 3]'"),
        ("w=flaot32[2]", "unknown dtype 'flaot32'. Did you mean 'float32'?"),
        ("w=int8[2],w=int8[3]", "'w' is named twice"),
        ("w=int8[2],w.x=int8[3]", "'w.x': 'w' is an array already"),
        ("w.x=int8[2],w=int8[3]", "'w' is named twice"),
        ("w..x=int8[2]", "cannot read 'w..x=int8[2]'"),
    ],
)
def test_malformed_params_are_explained(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        parse_params(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("written", "dtype"),
    [
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("f32", "float32"),
        ("float", "float32"),
        ("double", "float64"),
        ("jnp.bfloat16", "bfloat16"),
        ("Float32", "float32"),
    ],
)
def test_a_dtype_may_be_written_in_another_way(written: str, dtype: str) -> None:
    assert parse_dtypes(written) == parse_dtypes(dtype)
    assert parse_own(f"a.w = {written}[2, 3]") == parse_own(f"a.w={dtype}[2,3]")


def test_half_precision_becomes_float32() -> None:
    text = "w=bfloat16[2],float16 = float16 [3],b=float64[]"
    single = "w=float32[2],float16=float32[3],b=float64[]"
    assert parse_params(in_float32(text)) == parse_params(single)


def test_64_bits_need_64_bit_mode() -> None:
    assert [case.needs_x64 for case in parse_dtypes("float64, complex128,int64")] == [True] * 3
    assert [case.needs_x64 for case in parse_dtypes("float32,complex64")] == [False] * 2
