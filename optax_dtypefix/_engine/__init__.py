"""Patch the functions of any package; import neither JAX nor optax.

``patch`` defines a patch. ``selection`` decides which patches an installed ``release`` needs.
``engine`` applies and reverts patches, and keeps the record that ``report`` shows. It uses
``patch_points`` (the wrapped functions), ``locate`` (finds them), ``wrapper`` (wraps them),
``rebinding`` (finds other references to them) and ``import_hook`` (waits for the package).
"""
