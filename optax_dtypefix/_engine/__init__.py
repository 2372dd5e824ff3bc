"""Apply and revert the patches of one package; import neither JAX nor optax.

``patch`` reads what the tables say. ``import_hook`` waits for the package, and ``engine`` applies
what waits. ``application`` decides on each patch, by the ``release``; a decision has the layers,
which ``when_called`` imports. ``patch_points`` makes the functions follow: ``locate`` finds them,
``wrapper`` wraps them, and ``rebinding`` binds their other names. The package is optax; the tests
have a small one. A patch may also wrap a function of another package, if a program imports that.

A program on a tested release loads no more. ``verbs`` has what a program asks later, ``untested``
applies patches by probes, and ``built_before`` serves a late import.
"""
