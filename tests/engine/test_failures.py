"""A patch that fails breaks neither the other patches nor the user's import."""

from __future__ import annotations

import re
from typing import Any, Callable, NoReturn

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning, State
from optax_dtypefix._engine.patch import Patch
from optax_dtypefix._settings import Settings
from optax_dtypefix.patches.releases import TESTED
from support.fakepackage import NAME, Engine, FakePackage, engine_of, fault, on, patch, start

GOOD = patch("good", on("scale"))


def loader(broken: Callable[[], Patch]) -> Callable[[str], Patch]:
    return lambda patch_id: GOOD if patch_id == "good" else broken()


def raising() -> NoReturn:
    raise ZeroDivisionError("on load\nand pages of detail")


CASES = {
    "raises on load": (raising, State.FAILED, r"ZeroDivisionError: on load$"),
    "vanished target": (
        lambda: patch("bad", on("shift"), on("gone")),
        State.MISSING,
        "this release has no gone",
    ),
    "vanished class": (lambda: patch("bad", on("Gone.get")), State.MISSING, "no Gone.get"),
    "vanished module": (
        lambda: patch("bad", on("f", modules=(f"{NAME}.none", f"{NAME}.core.deeper"))),
        State.MISSING,
        "no f",
    ),
    "bad specifier": (
        lambda: patch("bad", on("shift"), faults=[fault(releases="newer than 3")]),
        State.FAILED,
        "KeyError: 'newer than '",
    ),
    "no function": (
        lambda: patch("bad", on("shift"), on("Box.size")),
        State.FAILED,
        "fakepkg.core:Box.size is neither a function nor a method",
    ),
    "no plain method": (
        lambda: patch("bad", on("shift"), on("Box.of")),
        State.FAILED,
        "fakepkg.core:Box.of is neither",
    ),
}


@pytest.mark.parametrize("first", ["shim", "package"])
@pytest.mark.parametrize("case", CASES)
def test_a_bad_patch_is_reported_and_the_others_apply(
    package: FakePackage, case: str, first: str
) -> None:
    broken, state, reason = CASES[case]
    engine = Engine(NAME, ("bad", "good"), loader(broken), Settings(), TESTED)
    shim_first: list[Callable[[], object]] = [lambda: start(engine), package.load]
    before, last = shim_first if first == "shim" else reversed(shim_first)
    before()
    with pytest.warns(OptaxDtypeFixWarning, match=f"Could not apply bad .{state}") as caught:
        last()
    assert len(caught) == 1
    pkg = package.load()
    assert engine.status()["bad"].state is state
    assert re.search(reason, engine.status()["bad"].reason)
    assert (pkg.scale(5), pkg.shift(1)) == (-10, 2)
    assert engine.is_applied("good")
    assert not engine.is_applied("bad")


@pytest.mark.parametrize("case", CASES)
def test_strict_mode_raises_and_still_applies_the_others(package: FakePackage, case: str) -> None:
    broken, _, reason = CASES[case]
    engine = Engine(NAME, ("bad", "good"), loader(broken), Settings(strict=True), TESTED)
    pkg = package.load()
    with pytest.raises(OptaxDtypeFixError, match=reason.rstrip("$")):
        engine.apply()
    assert (pkg.scale(5), pkg.shift(1)) == (-10, 2)


def test_strict_mode_stops_the_import_each_time(package: FakePackage) -> None:
    engine = Engine(NAME, ("bad",), loader(raising), Settings(strict=True), TESTED)
    start(engine)
    for _ in range(2):  # As in a notebook, or a library that catches the error.
        with pytest.raises(OptaxDtypeFixError, match="set OPTAX_DTYPEFIX_DISABLE=bad"):
            package.load()


def test_in_strict_mode_a_disabled_id_raises_after_the_others_apply(package: FakePackage) -> None:
    settings = Settings(strict=True, disable=frozenset({"off"}))
    engine = engine_of(patch("off", on("scale")), GOOD, settings=settings)
    package.load()
    with pytest.raises(OptaxDtypeFixError, match="Patch 'off' was not applied"):
        engine.apply("off", "good")
    assert engine.is_applied("good")


def test_in_strict_mode_importing_a_pending_module_raises(package: FakePackage) -> None:
    lazy = patch("lazy", on("late", modules=(f"{NAME}.extra.late",)))
    engine = engine_of(patch("bad", on("gone")), lazy, settings=Settings(strict=True))
    package.load()
    with pytest.raises(OptaxDtypeFixError, match="bad"):
        engine.apply()
    assert engine.status()["lazy"].state is State.PENDING
    with pytest.raises(OptaxDtypeFixError, match="bad"):
        package.load(f"{NAME}.extra.late")


@pytest.mark.parametrize("first", ["shim", "package"])
def test_a_bug_in_the_engine_does_not_break_the_import(
    package: FakePackage, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    engine = engine_of(GOOD)

    def defect(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("a defect", args, kwargs)

    monkeypatch.setattr(engine.points, "refresh", defect)
    steps: list[Callable[[], object]] = [lambda: start(engine), package.load]
    before, last = steps if first == "shim" else reversed(steps)
    before()
    with pytest.warns(OptaxDtypeFixWarning, match="Could not patch .* RuntimeError: .'a defect'"):
        last()
    assert package.load().shift(1) == 2


def test_a_failed_patch_can_be_applied_again(package: FakePackage) -> None:
    attempts: list[Callable[[], Patch]] = [raising, lambda: patch("bad", on("shift"))]
    engine = Engine(NAME, ("bad",), lambda _: attempts.pop(0)(), Settings(), TESTED)
    pkg = package.load()
    with pytest.warns(OptaxDtypeFixWarning):
        engine.apply()
    engine.apply()
    assert engine.is_applied("bad")
    assert pkg.shift(1) == -2


def test_a_failure_warns_once_when_several_modules_load(package: FakePackage) -> None:
    lazy = patch("lazy", on("late", modules=(f"{NAME}.extra.late",)))
    engine = engine_of(patch("bad", on("gone")), lazy)
    start(engine)
    with pytest.warns(OptaxDtypeFixWarning, match="bad") as caught:
        package.load(f"{NAME}.extra.late")  # This imports its two parents first.
    assert len(caught) == 1
    assert engine.is_applied("lazy")


def test_an_exception_of_a_replacement_reaches_the_caller_unchanged(package: FakePackage) -> None:
    def failing(stock: Callable[..., Any], *args: Any) -> NoReturn:
        raise KeyError(stock, args)

    engine = engine_of(patch("a", on("scale", failing)))
    start(engine)
    with pytest.raises(KeyError):
        package.load().scale(5)
    with engine.disabled():
        assert package.load().scale(5) == 10


@pytest.mark.usefixtures("package")
def test_the_warning_points_at_the_users_line() -> None:
    engine = engine_of(patch("bad", on("gone")))
    start(engine)
    with pytest.warns(OptaxDtypeFixWarning) as caught:
        exec(compile(f"\n\nimport {NAME}", "script.py", "exec"), {"__name__": "__main__"})
    assert (caught[0].filename, caught[0].lineno) == ("script.py", 3)


def test_warnings_as_errors_do_not_break_the_import(
    package: FakePackage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(patch("bad", on("gone")), GOOD)
    start(engine)
    pkg = package.load()  # pytest runs with warnings as errors.
    assert pkg.scale(5) == -10
    assert "this release has no gone" in caplog.text
    caplog.clear()


def test_a_missing_function_without_a_fault_does_not_warn(package: FakePackage) -> None:
    engine = engine_of(patch("a", on("gone"), faults=[fault(releases="<0.2")]))
    package.load()
    engine.apply()
    assert engine.status()["a"].state is State.MISSING


def test_the_getattr_of_a_module_is_not_called(package: FakePackage) -> None:
    package.sources[f"{NAME}.core"] += """
        def __getattr__(name):
            raise (AttributeError if name.startswith("__") else RuntimeError)(name)
        """
    engine = engine_of(patch("a", on("Gone.get"), faults=[fault(releases="<0.2")]), GOOD)
    start(engine)
    assert package.load().scale(5) == -10
    assert engine.status()["a"].state is State.MISSING
