"""Choose which rows of a table the README's command tests; ``.ci/run`` tests all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optax_dtypefix.patches.wrapped import BUILDERS

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence


def thorough_but(kept: Container[Any], values: Iterable[Any]) -> list[Any]:
    """Mark the values that are not kept as thorough, for ``parametrize``."""
    return [
        pytest.param(value, marks=() if value in kept else pytest.mark.thorough) for value in values
    ]


def of_each_kind(cases: Sequence[Any]) -> list[Any]:
    """Mark all transformations as thorough but the first that a patch lifts first, of each."""
    kinds = {BUILDERS.get(case.name.rpartition(".")[2], ("",))[0]: case for case in cases[::-1]}
    return thorough_but([*kinds.values()], cases)


def one_of(count: int, values: Iterable[Any], first: int = 0) -> list[Any]:
    """Mark all values as thorough but each ``count``-th, from the one with this index on."""
    return [
        pytest.param(value, marks=() if index % count == first else pytest.mark.thorough)
        for index, value in enumerate(values)
    ]
