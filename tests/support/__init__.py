"""Shared by several test folders; `pythonpath` in pyproject.toml makes it importable."""
