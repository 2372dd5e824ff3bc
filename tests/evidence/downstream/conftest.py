from __future__ import annotations

import importlib.util

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

LIBRARIES = (
    *("IPython", "beartype", "equinox", "flax", "haiku", "jaxtyping", "numpyro"),
    *("optimistix", "orbax"),
)

if not all(map(importlib.util.find_spec, LIBRARIES)):
    # `pytest tests` goes without them. `nox -s downstream` fails: pytest finds no test.
    collect_ignore_glob = ["test_*.py"]
