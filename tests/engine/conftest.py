from __future__ import annotations

import logging
import sys
import traceback
from typing import TYPE_CHECKING

import pytest

from optax_dtypefix._engine import (
    import_hook as _import_hook,
    lock as _lock,
)
from optax_dtypefix._logging import LOGGER
from support.fakepackage import FakePackage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_pending_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the hooks that an earlier test left."""
    monkeypatch.setattr(_import_hook, "_hooks", {})
    finders = [finder for finder in sys.meta_path if finder is not _import_hook._FINDER]
    monkeypatch.setattr(sys, "meta_path", finders)


@pytest.fixture(autouse=True)
def _no_logging_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which a thread logs while it holds our lock.

    A fork in another thread holds the lock of ``logging`` while it waits for ours.
    """
    logged, enabled = [], LOGGER.isEnabledFor

    def check(level: int) -> bool:
        if _lock.LOCK._is_owned():  # type: ignore[attr-defined]
            logged.extend(traceback.format_stack())
        return enabled(level)

    monkeypatch.setattr(LOGGER, "isEnabledFor", check)
    yield
    assert not logged, "".join(logged)


@pytest.fixture
def package(_no_pending_hooks: None) -> Iterator[FakePackage]:
    """Make the fake package importable, without importing it."""
    found = FakePackage()
    sys.meta_path.append(found)
    yield found
    sys.meta_path.remove(found)
    found.forget()


@pytest.fixture(autouse=True)
def _no_unexpected_warning(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that logs a warning it does not expect.

    With warnings as errors, the engine logs instead of raising: it must not break an import.
    """
    yield
    warnings = [r for r in caplog.get_records("call") if r.levelno >= logging.WARNING]
    assert not [r.getMessage() for r in warnings if r.name == "optax_dtypefix"]
