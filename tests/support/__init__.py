"""Shared by several test folders; `pythonpath` in pyproject.toml makes it importable."""

import functools
import os


def share_context() -> None:
    """Lower all programs of this process in one MLIR context, where ``QUICKLY`` asks for it.

    JAX makes and ends one for each program, which takes longer than to lower a small one.
    """
    if os.environ.get("ONE_MLIR_CONTEXT"):
        from jax._src.interpreters import mlir

        mlir.make_ir_context = functools.cache(mlir.make_ir_context)


share_context()
