"""The contract on every public transformation of the installed optax.

``regimes`` says on which dtypes, ``transformations`` finds what to measure, ``measure`` measures
one cell, ``process`` runs all cells in a process, ``results`` puts the processes side by side, and
``picture`` draws them.
"""
