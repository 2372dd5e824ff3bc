"""The file of a patch is imported at the first call of a function that the patch wraps."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from typing import Any

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning, State
from optax_dtypefix._settings import Settings
from support import processes
from support.fakepackage import (
    NAME,
    PATIENCE,
    FakePackage,
    add_hundred,
    engine_of,
    in_threads,
    on,
    patch,
    start,
)

FILE = f"{NAME}_fixes"
SOURCE = """
    def negate(stock, *args, **kwargs):
        return -stock(*args, **kwargs)
    """
BROKEN = "raise ZeroDivisionError('in the file')"


@pytest.fixture
def file(package: FakePackage) -> Any:
    """Make the file of a patch importable, and forget it in the end."""
    package.sources[FILE] = SOURCE
    yield package
    sys.modules.pop(FILE, None)


def lazy(name: str = "a", function: str = "negate") -> Any:
    return patch(name, on("scale", f"{FILE}:{function}"), on("shift", f"{FILE}:{function}"))


def test_the_first_call_imports_the_file_and_no_later_one_does(file: FakePackage) -> None:
    imported: list[str] = []
    file.before_exec = imported.append
    engine = engine_of(lazy())
    start(engine)
    pkg = file.load()
    assert engine.is_applied("a")
    assert engine.status()["a"].targets == (f"{NAME}.core:scale", f"{NAME}.core:shift")
    assert FILE not in imported
    assert (pkg.scale(5), pkg.scale(5), pkg.shift(1)) == (-10, -10, -2)
    assert imported.count(FILE) == 1
    del sys.modules[FILE]
    assert pkg.scale(5) == -10
    assert imported.count(FILE) == 1


def test_a_layer_may_be_given_any_keyword(file: FakePackage) -> None:
    file.sources[f"{NAME}.core"] += """
        def keywords(**kwargs):
            return sorted(kwargs)
        """
    file.sources[FILE] = """
    def twice(stock, /, **kwargs):
        return 2 * stock(**kwargs)
    """
    engine = engine_of(patch("a", on("keywords", f"{FILE}:twice")))
    core = file.load().core
    engine.apply()
    assert core.keywords(self=1, stock=2, where=3) == ["self", "stock", "where"] * 2


@pytest.mark.parametrize(
    ("source", "reason"),
    [(BROKEN, "ZeroDivisionError: in the file"), ("", "AttributeError: module .* 'negate'")],
)
def test_where_the_import_fails_the_next_layer_runs(
    file: FakePackage, source: str, reason: str
) -> None:
    file.sources[FILE] = source
    engine = engine_of(lazy(), patch("b", on("scale", add_hundred)))
    start(engine)
    pkg = file.load()
    with pytest.warns(OptaxDtypeFixWarning, match=f"Could not apply a .failed.: {reason}") as seen:
        assert [pkg.scale(5), pkg.scale(5), pkg.shift(1)] == [110, 110, 2]
    assert len(seen) == 1
    status = engine.status()
    assert (status["a"].state, status["a"].targets) == (State.FAILED, ())
    assert status["b"].state is State.APPLIED


def test_the_warning_points_at_the_users_call(file: FakePackage) -> None:
    file.sources[FILE] = BROKEN
    start(engine_of(lazy()))
    pkg = file.load()
    with pytest.warns(OptaxDtypeFixWarning) as caught:
        exec(compile("\n\npkg.scale(5)", "script.py", "exec"), {"pkg": pkg})
    assert (caught[0].filename, caught[0].lineno) == ("script.py", 3)


def test_in_strict_mode_each_call_raises(file: FakePackage) -> None:
    file.sources[FILE] = BROKEN
    engine = engine_of(lazy(), settings=Settings(strict=True))
    start(engine)
    pkg = file.load()
    for function in (pkg.scale, pkg.scale, pkg.shift):
        with pytest.raises(OptaxDtypeFixError, match="ZeroDivisionError: in the file"):
            function(5)
    assert engine.status()["a"].state is State.FAILED
    with engine.disabled("a"):
        assert pkg.scale(5) == 10
    engine.revert("a")
    assert pkg.scale(5) == 10


@pytest.mark.parametrize("strict", [False, True])
def test_apply_tries_again(file: FakePackage, strict: bool) -> None:
    file.sources[FILE] = BROKEN
    engine = engine_of(lazy(), settings=Settings(strict=strict))
    start(engine)
    pkg = file.load()
    with pytest.raises(OptaxDtypeFixError) if strict else pytest.warns(OptaxDtypeFixWarning):
        pkg.scale(5)
    file.sources[FILE] = SOURCE
    engine.apply()
    assert engine.is_applied("a")
    assert pkg.scale(5) == -10


def test_an_error_of_the_replacement_is_no_failure_of_the_patch(file: FakePackage) -> None:
    file.sources[FILE] = """
    def negate(stock, *args):
        raise ImportError("of the replacement")
    """
    engine = engine_of(lazy())
    start(engine)
    for _ in range(2):
        with pytest.raises(ImportError, match="of the replacement"):
            file.load().scale(5)
    assert engine.is_applied("a")


def test_many_threads_may_make_the_first_call(file: FakePackage) -> None:
    imported = []

    def slowly(name: str) -> None:
        if name == FILE:
            imported.append(name)
            threading.Event().wait(0.1)

    file.before_exec = slowly
    start(engine_of(lazy("a"), lazy("b")))
    pkg = file.load()
    calls = [lambda: pkg.scale(5), lambda: pkg.shift(1)] * 6
    assert in_threads(*calls) == [10, 2] * 6
    assert imported == [FILE]


def test_threads_that_meet_a_broken_file_warn_once(file: FakePackage) -> None:
    file.sources[FILE] = BROKEN
    start(engine_of(lazy()))
    pkg = file.load()
    with pytest.warns(OptaxDtypeFixWarning) as seen:
        assert in_threads(*[lambda: pkg.scale(5)] * 8) == [10] * 8
    assert len(seen) == 1


def test_a_thread_that_imports_may_call(file: FakePackage) -> None:
    """One thread imports the file of a patch, another a module of the user that needs it."""
    importing, go_on = threading.Event(), threading.Event()
    user = f"{NAME}_user"
    file.sources[user] = f"import {NAME}\nvalue = {NAME}.scale(5)"

    def pause(name: str) -> None:
        if name == FILE:
            importing.set()
            assert go_on.wait(PATIENCE)

    file.before_exec = pause
    start(engine_of(lazy()))
    pkg = file.load()

    def second() -> Any:
        assert importing.wait(PATIENCE)
        threading.Timer(0.1, go_on.set).start()
        return file.load(user).value

    try:
        assert in_threads(lambda: pkg.scale(5), second) == [-10, -10]
    finally:
        sys.modules.pop(user, None)


FORK = f"""
    import os, sys, threading
    from support.fakepackage import FakePackage, engine_of, on, patch

    importing = threading.Event()
    def pause(name):
        if name == "{FILE}":
            importing.set()
            threading.Event().wait(0.3)

    package = FakePackage()
    sys.meta_path.append(package)
    package.sources["{FILE}"] = "def negate(stock, *args): return -stock(*args)"
    package.before_exec = pause
    pkg = package.load()
    engine_of(patch("a", on("scale", "{FILE}:negate"))).apply()
    thread = threading.Thread(target=pkg.scale, args=(5,))
    thread.start()
    importing.wait()
    child = os.fork()
    if child == 0:
        import faulthandler
        faulthandler.dump_traceback_later(10, exit=True)
        os._exit(0 if pkg.scale(5) == -10 else 2)
    thread.join()
    print(os.waitpid(child, 0)[1], pkg.scale(5))
    """


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_forked_during_the_import_can_call() -> None:
    done = processes.run("-W", "ignore", "-c", textwrap.dedent(FORK), timeout=60)
    assert (done.stdout, done.stderr) == ("0 -10\n", "")
