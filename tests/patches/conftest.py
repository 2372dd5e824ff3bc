from __future__ import annotations

from typing import Any, Callable

import optax_dtypefix  # noqa: F401  # isort: skip  # The tests of this folder run under the shim.

import hypothesis
import pytest

from support.processes import json_of

_ANY = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("few", max_examples=10, derandomize=True, **_ANY)
hypothesis.settings.register_profile("many", max_examples=2000, **_ANY)
hypothesis.settings.load_profile("few")


@pytest.fixture(scope="session")
def outcome_of() -> Any:
    """Run a module of tests/ in a new process, once, and return the JSON that it prints."""
    return json_of


@pytest.fixture(scope="module")
def selected(request: pytest.FixtureRequest) -> Callable[[str], tuple[Any, ...]]:
    """Return the values that a parameter has in the selected tests of this module.

    A process that serves many tests does so only for these, so ``-k ID`` is quick.
    """

    def values(parameter: str) -> tuple[Any, ...]:
        of_module = [
            item.callspec.params
            for item in request.session.items
            if item.path == request.path and hasattr(item, "callspec")
        ]
        return tuple(dict.fromkeys(p[parameter] for p in of_module if parameter in p))

    return values
