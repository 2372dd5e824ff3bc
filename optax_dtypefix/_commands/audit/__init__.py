"""``audit``: check the contract on every public transformation of the installed optax.

``regimes`` lists the dtypes and modes, ``cases`` finds the transformations, ``measure`` checks one
case in one regime, ``process`` checks all cases in a worker process, ``known_exceptions`` lists
what is broken by design, ``results`` compares the processes, and ``picture`` draws the result.
"""
