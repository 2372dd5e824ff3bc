"""Implement ``python -m optax_dtypefix``, a file for each command."""
