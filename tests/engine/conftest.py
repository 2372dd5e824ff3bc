from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import pytest

from optax_dtypefix._engine import import_hook as _import_hook
from support.fakepackage import FakePackage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nothing_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test waits for must not be found by the next."""
    monkeypatch.setattr(_import_hook, "_awaited", [])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.fixture
def package(_nothing_is_awaited: None) -> Iterator[FakePackage]:
    """The fake package, importable, not imported yet."""
    found = FakePackage()
    sys.meta_path.append(found)
    yield found
    sys.meta_path.remove(found)
    found.forget()


@pytest.fixture(autouse=True)
def _no_complaint(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A complaint that a test does not expect fails it.

    Under "warnings as errors" the engine logs instead of raising, as it must not break an import.
    """
    yield
    complaints = [r for r in caplog.get_records("call") if r.levelno >= logging.WARNING]
    assert not [r.getMessage() for r in complaints if r.name == "optax_dtypefix"]
