"""``scan``: name the functions with faults that Python files and notebooks use.

``files`` finds and parses them, ``names`` resolves what they take from optax, ``results`` looks
these functions up in the table, and prints. Nothing is imported: neither the files, jax nor optax.
"""
