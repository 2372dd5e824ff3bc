"""Apply and revert the patches of one package; import neither JAX nor optax.

``patch`` defines a patch, and ``engine`` has the verbs. ``import_hook`` waits for the package. An
``application`` decides on patches, by the ``release``, and adds them to ``patch_points`` (the
wrapped functions), with ``locate`` (finds them), ``wrapper`` (wraps them) and ``rebinding`` (finds
other names of them). The package is optax; the tests have a small one. A patch may also wrap a
function of another package, if a program imports that.

A program on a tested release loads no more. ``untested`` applies patches by probes, and
``built_before`` serves a late import.
"""
