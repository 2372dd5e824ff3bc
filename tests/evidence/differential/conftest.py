from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest

from evidence.differential.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANY = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
_NO_SHRINKING = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.shrink]
hypothesis.settings.register_profile(
    "few", max_examples=6, derandomize=True, phases=_NO_SHRINKING, **_ANY
)
hypothesis.settings.register_profile("many", max_examples=2000, **_ANY)
hypothesis.settings.load_profile("few")


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    running = Workers()
    yield running
    running.close()
