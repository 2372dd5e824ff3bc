"""Many threads at once: the import lock and ours do not deadlock."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from typing import Any, Callable

import pytest

from optax_dtypefix import State
from support import processes
from support.fakepackage import (
    NAME,
    PATIENCE,
    FakePackage,
    add_hundred,
    engine_of,
    fault,
    in_threads,
    on,
    patch,
    start,
)


@pytest.mark.thorough
def test_apply_revert_and_calls_race(package: FakePackage) -> None:
    pkg = package.load()
    stock = pkg.scale
    engine = engine_of(patch("a", on("scale")), patch("b", on("scale", add_hundred)))

    def turn(verb: Callable[..., None], *ids: str) -> Callable[[], None]:
        def turns() -> None:
            for _ in range(40):
                verb(*ids)

        return turns

    def rest() -> None:
        for _ in range(40):
            with engine.disabled("a"):
                engine.status()

    def call() -> set[int]:
        return {function(5) for _ in range(2000) for function in (pkg.scale, pkg.core.scale)}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        results = in_threads(
            turn(engine.apply), turn(engine.revert), turn(engine.apply, "b"), rest, call, call
        )
    finally:
        sys.setswitchinterval(before)
    assert results[-1] | results[-2] <= {10, -10, 110, -110}
    engine.apply()
    assert pkg.scale(5) == pkg.core.scale(5) == -110
    engine.revert()
    assert pkg.scale is pkg.core.scale is stock


def test_a_function_that_is_not_defined_yet_is_patched_when_its_module_is_imported(
    package: FakePackage, recwarn: pytest.WarningsRecorder
) -> None:
    """As if another thread called ``apply`` while this one executes the module."""
    late = f"{NAME}.extra.late"
    package.sources[late] = "apply()\n" + textwrap.dedent(package.sources[late])
    engine = engine_of(patch("a", on("late", modules=(late,))))
    start(engine)
    package.before_exec = lambda name: vars(sys.modules[name]).update(apply=engine.apply)
    package.load()
    assert package.load(late).late(5) == -5
    assert engine.status()["a"].state is State.APPLIED
    assert len(recwarn) == 1  # The call of apply() could not know.


def test_a_probe_that_imports_does_not_deadlock_with_a_hook(package: FakePackage) -> None:
    """One thread probes and needs a module; another imports that module and runs our hook."""
    package.release("99.0")
    package.sources[f"{NAME}.extra"] = "started.set(); probing.wait(10)"
    lazy = patch("lazy", on("late", modules=(f"{NAME}.extra.late",)))
    started, probing = threading.Event(), threading.Event()

    def probe() -> str:
        assert started.wait(PATIENCE)
        threading.Timer(0.05, probing.set).start()
        package.load(f"{NAME}.extra")  # Waits for the other thread, and its hook.
        return "seen"

    engine = engine_of(patch("probed", on("scale"), faults=[fault(probe)]), lazy)
    pkg = package.load()
    engine.apply("lazy")
    assert engine.status()["lazy"].state is State.PENDING

    def load() -> Any:
        return package.load(f"{NAME}.extra.late").late(5)

    package.before_exec = lambda name: vars(sys.modules[name]).update(
        started=started, probing=probing
    )
    _, late = in_threads(engine.apply, load)
    assert (late, pkg.scale(5)) == (-5, -10)


def test_a_slow_patch_does_not_block_other_threads(package: FakePackage) -> None:
    package.release("99.0")
    slow, go_on = threading.Event(), threading.Event()

    def probe() -> str:
        slow.set()
        assert go_on.wait(PATIENCE)
        return "seen"

    engine = engine_of(patch("slow", on("scale"), faults=[fault(probe)]), patch("b", on("shift")))
    pkg = package.load()

    def other() -> tuple[Any, Any]:
        assert slow.wait(PATIENCE)
        engine.apply("b")
        with engine.disabled("b"):
            inside = pkg.shift(1)
        engine.status()
        outside = pkg.shift(1)  # Only the thread of the probe sees stock.
        go_on.set()
        return inside, outside

    assert in_threads(lambda: engine.apply("slow"), other)[1] == (2, -2)
    assert (pkg.scale(5), pkg.shift(1)) == (-10, -2)


def test_a_probe_may_call_the_engine(package: FakePackage) -> None:
    """A probe may ask for the status, apply another patch, and import the package."""
    package.release("99.0")
    seen = []

    def probe() -> str:
        seen.append(engine.status()["b"].state)
        engine.apply("b")
        with engine.disabled():
            package.load()
        return "seen"

    engine = engine_of(patch("a", on("scale"), faults=[fault(probe)]), patch("b", on("shift")))
    start(engine)
    pkg = package.load()
    assert seen == [State.PENDING]
    assert (pkg.scale(5), pkg.shift(1)) == (-10, -2)


def test_a_revert_during_an_apply_wins(package: FakePackage) -> None:
    package.release("99.0")

    def probe() -> str:
        engine.revert("a")
        return "seen"

    engine = engine_of(patch("a", on("scale"), faults=[fault(probe)]))
    pkg = package.load()
    engine.apply()
    assert pkg.scale(5) == 10
    assert engine.status()["a"].reason == "reverted by the program"


FORKS = """
    import os, sys, threading
    from optax_dtypefix._engine import import_hook
    from support.fakepackage import FakePackage, engine_of, on, patch

    def children_that_answer(count):
        codes = []
        for _ in range(count):
            child = os.fork()
            if child == 0:
                import faulthandler
                faulthandler.dump_traceback_later(10, exit=True)
                engine.apply()
                import_hook.after_import("fakepkg.extra", id)
                os._exit(0 if pkg.scale(5) == -10 else 2)
            codes.append(os.waitpid(child, 0)[1])
            if codes[-1]:
                break
        return codes

    sys.setswitchinterval(1e-5)
    package = FakePackage()
    sys.meta_path.append(package)
    pkg = package.load()
    engine = engine_of(patch("a", on("scale")))
    over = threading.Event()

    def revert_and_apply():
        while not over.is_set():
            engine.revert()
            engine.apply()
            import_hook.after_import("fakepkg.extra", id)
            import_hook._hooks.clear()

    thread = threading.Thread(target=revert_and_apply)
    thread.start()
    print(set(children_that_answer(15)))
    over.set()
    thread.join()
    """


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_forked_beside_a_busy_thread_can_use_the_engine() -> None:
    done = processes.run("-W", "ignore", "-c", textwrap.dedent(FORKS), timeout=120)
    assert (done.stdout, done.stderr) == ("{0}\n", "")
