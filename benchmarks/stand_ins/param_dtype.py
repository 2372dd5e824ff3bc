"""Cast the initial params of a program to the dtype that the environment names."""

from __future__ import annotations

import os
from typing import Any

import jax


def cast(params: Any) -> Any:
    """Return params in ``PARAM_DTYPE``."""
    return jax.tree_util.tree_map(lambda leaf: leaf.astype(os.environ["PARAM_DTYPE"]), params)
