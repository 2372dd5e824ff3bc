from __future__ import annotations

from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # The tests of this folder run under the shim.

import hypothesis
import pytest

from support.processes import json_of

_ANY = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("few", max_examples=8, derandomize=True, **_ANY)
hypothesis.settings.register_profile("many", max_examples=2000, **_ANY)
hypothesis.settings.load_profile("few")


@pytest.fixture(scope="session")
def outcome_of() -> Any:
    """Runs a module of tests/ in a process of its own, once; gives the JSON that it prints."""
    return json_of
