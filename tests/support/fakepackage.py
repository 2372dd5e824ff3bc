"""A package in memory and an engine for it, without files, optax or computation."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

from optax_dtypefix._diagnosis.probes import Reproducer
from optax_dtypefix._diagnosis.report import decision_now
from optax_dtypefix._engine import verbs
from optax_dtypefix._engine.engine import Engine as _Engine
from optax_dtypefix._engine.import_hook import after_import
from optax_dtypefix._engine.patch import Fault, Patch, Target
from optax_dtypefix._engine.state import State
from optax_dtypefix._settings import Settings
from optax_dtypefix.patches.releases import TESTED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

NAME = "fakepkg"

PATIENCE = 10.0
"""Seconds after which a test gives up waiting for a thread."""

SOURCES = {
    NAME: """
        __version__ = "0.2.5"
        from fakepkg.core import Box, scale, shift, twice
        """,
    f"{NAME}.core": """
        def scale(x, factor=2):
            return x * factor

        def shift(x):
            return x + 1

        def twice(x):
            return scale(scale(x))

        class Box:
            def __init__(self, value):
                self.value = value

            def get(self, extra=0):
                return self.value + extra

            @property
            def size(self):
                return 1

            @staticmethod
            def of(value):
                return Box(value)
        """,
    f"{NAME}.extra": "",
    f"{NAME}.extra.late": """
        def late(x):
            return x
        """,
}


class FakePackage(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import modules from strings. Change ``sources`` to change the modules."""

    def __init__(self) -> None:
        self.sources = dict(SOURCES)
        self.before_exec: Callable[[str], object] = str  # A test may set another function.

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname not in self.sources:
            return None
        is_package = any(name.startswith(fullname + ".") for name in self.sources)
        return importlib.util.spec_from_loader(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        self.before_exec(name)
        exec(compile(textwrap.dedent(self.sources[name]), name, "exec"), module.__dict__)

    def pause_import(self) -> tuple[threading.Event, threading.Event]:
        """Make an import set the first event, and wait for the second."""
        importing, go_on = threading.Event(), threading.Event()

        def pause(name: str) -> None:
            if name == f"{NAME}.core":
                importing.set()
                assert go_on.wait(PATIENCE)

        self.before_exec = pause
        return importing, go_on

    def release(self, version: str) -> None:
        """Pretend to be another release."""
        self.sources[NAME] = self.sources[NAME].replace('"0.2.5"', repr(version))

    def load(self, module: str = NAME) -> Any:
        return importlib.import_module(module)

    def forget(self) -> None:
        for name in [n for n in sys.modules if n == NAME or n.startswith(NAME + ".")]:
            del sys.modules[name]


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls at the same time, and return their results."""
    pool = ThreadPoolExecutor(len(calls))
    try:
        futures = [pool.submit(call) for call in calls]
        return [future.result(PATIENCE) for future in futures]
    finally:
        pool.shutdown(wait=False)


def negate(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return -stock(*args, **kwargs)


def add_hundred(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return stock(*args, **kwargs) + 100


def on(qualname: str, replacement: Callable[..., Any] | str = negate, **more: Any) -> Target:
    modules = more.pop("modules", (f"{NAME}.core",))
    return Target(modules, qualname, replacement, **more)


def fault(reproduce: Callable[[], str | None] = lambda: "seen", releases: str = "") -> Fault:
    """Return a fault that ``reproduce`` probes; it is not checked again after the patch."""

    def run(package: Any) -> str | None:
        del package
        return reproduce()

    def probe(package: Any) -> str | None:
        return run(package)

    found = Reproducer("a fault", run, probe)
    return Fault("fault", releases, "https://example.org/1", lambda: found)


def traced(reproduce: Callable[[Any], str | None]) -> Fault:
    """Return a fault of all releases, whose reproducer is its own probe."""
    found = Reproducer("a fault", reproduce, probe=reproduce)
    return Fault(reproduce.__name__, "", "", lambda: found)


def patch(name: str, *targets: Target, faults: Sequence[Fault] = (), **more: Any) -> Patch:
    return Patch(name, "a patch", tuple(faults) or (fault(),), targets, **more)


class Engine(_Engine):
    """An engine with the verbs as methods, as ``optax_dtypefix`` has them as functions."""

    apply, revert, disabled = verbs.apply, verbs.revert, verbs.disabled

    def is_applied(self, patch_id: str) -> bool:
        chosen = verbs.choose(self, (patch_id,))
        return any(decision_now(self, i).state is State.APPLIED for i in chosen)


def engine_of(*patches: Patch, settings: Settings | None = None, **others: Any) -> Engine:
    by_id = {p.id: p for p in patches}
    return Engine(NAME, tuple(by_id), by_id.__getitem__, settings or Settings(), TESTED, **others)


def start(engine: Engine) -> None:
    """Patch the fake package as ``import optax_dtypefix`` patches optax."""
    if engine.settings.enabled:
        after_import(NAME, engine.on_import, strict=engine.settings.strict)
