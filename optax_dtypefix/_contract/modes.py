"""Leave the modes that a user set in JAX, in this thread, for as long as a probe runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import jax

from .x64 import x64

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    with contextlib.ExitStack() as stack:
        stack.enter_context(x64(False))
        for name, value in _DEFAULTS.items():
            if hasattr(jax, name):
                stack.enter_context(getattr(jax, name)(value))
        yield
