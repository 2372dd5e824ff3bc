from __future__ import annotations

import gc
import os
import warnings

import pytest

pytest.register_assert_rewrite("support")

from support.processes import CACHE, QUICKLY  # noqa: E402

os.environ.update({**CACHE, **QUICKLY})
# Traces make many small objects that live on. Python would look at them all too often.
gc.set_threshold(100_000, 50, 100)

with warnings.catch_warnings():
    # Old releases of optax and of chex use what the jax of their time deprecates, when imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import optax  # noqa: F401
