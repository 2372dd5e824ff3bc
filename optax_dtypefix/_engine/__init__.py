"""Patch the functions of any package; import neither JAX nor optax.

``patch`` says what a patch is. ``selection`` decides which patches an installed ``release`` needs.
``engine`` applies and reverts them and keeps the record, which ``report`` shows. Below the engine:
``patch_points`` are the wrapped functions, ``locate`` finds them, ``wrapper`` wraps them,
``rebinding`` finds copies of their names, and ``import_hook`` waits for the package.
"""
