"""Apply and revert the patches of one package; import neither JAX nor optax.

``patch`` defines a patch. ``selection`` decides which patches an installed ``release`` needs.
``engine`` applies and reverts patches, and keeps what ``report`` shows. It uses ``patch_points``
(the wrapped functions), ``locate`` (finds them), ``wrapper`` (wraps them), ``rebinding`` (finds
other references to them), ``still_stock`` (finds what came before the patch) and ``import_hook``
(waits for the package). The package is optax; the tests have a small one of their own.
"""
