from __future__ import annotations

import gc
import os
import warnings
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("support")

from support import share_context  # noqa: E402
from support.processes import CACHE, QUICKLY, Python  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

os.environ.update({**CACHE, **QUICKLY})
# Traces make many small objects that live on. Python would look at them all too often.
gc.set_threshold(100_000, 50, 100)


def pytest_configure(config: pytest.Config) -> None:
    """Import optax, but not in the process that only starts those that run the tests."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    share_context()
    with warnings.catch_warnings():
        # Old releases of optax and of chex use what the jax of their time deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        import optax  # noqa: F401


def pytest_collection_finish() -> None:
    """Leave out what was imported where the engine, or Python, looks through all objects."""
    gc.freeze()


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run Python in an empty folder."""
    return Python(tmp_path)


@pytest.fixture
def command(tmp_path: Path) -> Python:
    """Run ``python -m optax_dtypefix`` in an empty folder."""
    return Python(tmp_path, ("-m", "optax_dtypefix"))
