"""The modes of a user do not reach what runs in ``default_modes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import pytest

from optax_dtypefix._contract.modes import default_modes

if TYPE_CHECKING:
    from collections.abc import Iterator

MODES: dict[str, Any] = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_debug_infs": True,
    "jax_debug_nans": True,
    "jax_disable_jit": True,
    "jax_legacy_prng_key": "error",
}


def modes() -> dict[str, Any]:
    return {name: getattr(jax.config, name) for name in MODES if hasattr(jax.config, name)}


@pytest.fixture
def default() -> Iterator[dict[str, Any]]:
    before = modes()
    for name in before:
        jax.config.update(name, MODES[name])
    yield before
    for name, value in before.items():
        jax.config.update(name, value)


def test_default_modes(default: dict[str, Any]) -> None:
    users = modes()
    assert not set(users.items()) & set(default.items())
    with default_modes():
        assert modes() == default
    assert modes() == users
