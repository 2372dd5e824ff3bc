"""Leave the modes that a user set in JAX, in this thread, for as long as a probe runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax

from .x64 import x64

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

_DEFAULTS = {
    "numpy_dtype_promotion": "standard",
    "numpy_rank_promotion": "allow",
    "legacy_prng_key": "allow",
    "debug_infs": False,
    "debug_nans": False,
    "disable_jit": False,
}


@contextlib.contextmanager
def default_modes() -> Iterator[None]:
    """Set the modes that decide what can be traced to JAX's defaults, those that this jax has."""
    with x64(False), _set(_DEFAULTS):
        yield


def no_debugging() -> AbstractContextManager[None]:
    """Let NaN and inf pass, also where the user has JAX stop at them."""
    return _set({"debug_infs": False, "debug_nans": False})


@contextlib.contextmanager
def _set(modes: Mapping[str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, value in modes.items():
            if hasattr(jax, name):
                stack.enter_context(getattr(jax, name)(value))
        yield
