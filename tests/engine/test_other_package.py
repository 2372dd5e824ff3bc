"""A patch may wrap a function of another package too, which a program may never import."""

from __future__ import annotations

import importlib
import pickle
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import pytest

import optax_dtypefix
from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning, State
from optax_dtypefix._engine.verbs import stock_of
from optax_dtypefix._engine.wrapper import PatchedFunction
from optax_dtypefix._settings import Settings
from support.fakepackage import NAME, Engine, engine_of, on, patch, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fakepackage import FakePackage

OTHER = "otherpkg"
PATH = f"{OTHER}._core:add"
SOURCES = {
    OTHER: "from otherpkg._core import add",
    f"{OTHER}._core": """
        def add(x, y):
            return x + y
        """,
}


@pytest.fixture(autouse=True)
def _other(package: FakePackage) -> Iterator[None]:
    package.sources.update(SOURCES)
    yield
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == OTHER]:
        del sys.modules[name]


def made(**settings: Any) -> Engine:
    targets = on("scale"), on("add", modules=(f"{OTHER}._core",))
    return engine_of(patch("a", *targets), settings=Settings(**settings))


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows whenever JAX's traces are dropped."""
    found: list[int] = []
    monkeypatch.setattr(jax, "clear_caches", lambda: found.append(1))
    return found


def test_it_is_wrapped_when_it_is_imported(package: FakePackage, forgotten: list[int]) -> None:
    engine = made(strict=True)
    start(engine)
    main = package.load()
    assert OTHER not in sys.modules
    assert engine.is_applied("a")
    assert main.scale(1) == -2
    before = engine.status()["a"]
    assert before.targets == (f"{NAME}.core:scale",)
    other = package.load(OTHER)
    assert other.add is importlib.import_module(f"{OTHER}._core").add
    assert other.add(1, 2) == -3
    after = engine.status()["a"]
    assert after.targets == (f"{NAME}.core:scale", PATH)
    assert (after.state, after.reason, after.reached) == (State.APPLIED, before.reason, 2)
    assert not forgotten, "nobody had a copy"


def test_of_two_packages_it_does_not_wait_for_the_first(package: FakePackage) -> None:
    package.sources["firstpkg"] = "def add(x, y): return x + y"
    first, second = (on("add", modules=(name,)) for name in ("firstpkg", f"{OTHER}._core"))
    engine = engine_of(patch("a", on("scale"), first, second))
    start(engine)
    package.load()
    other = package.load(OTHER)
    assert "firstpkg" not in sys.modules
    assert other.add(1, 2) == -3
    assert package.load("firstpkg").add(1, 2) == -3
    del sys.modules["firstpkg"]


def test_the_verbs_reach_it(package: FakePackage) -> None:
    engine = made(strict=True)
    start(engine)
    package.load()
    other = package.load(OTHER)
    wrapper, stock = other.add, stock_of(other.add)
    assert optax_dtypefix.original(wrapper) is stock
    assert pickle.loads(pickle.dumps(wrapper)) is wrapper
    with engine.disabled("a"):
        assert other.add(1, 2) == 3
    for _ in range(2):
        engine.revert()
        assert other.add is stock
        assert wrapper(1, 2) == 3
        engine.apply()
        assert other.add is wrapper
        assert wrapper(1, 2) == -3


@pytest.mark.parametrize("shim_first", [True, False])
def test_names_copied_before_are_rebound(
    package: FakePackage,
    forgotten: list[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    shim_first: bool,
) -> None:
    user: Any = ModuleType("user_module")
    monkeypatch.setitem(sys.modules, "user_module", user)
    stock = user.add = package.load(OTHER).add
    engine = made(strict=True)
    if shim_first:
        start(engine)
        package.load()
    else:
        package.load()
        start(engine)
    assert forgotten, "JAX may have traced the stock function"
    assert user.add is package.load(OTHER).add
    assert user.add(1, 2) == -3
    engine.revert()
    assert user.add is package.load(OTHER).add is stock


def test_one_without_the_function_is_no_fault(package: FakePackage) -> None:
    package.sources[f"{OTHER}._core"] = package.sources[OTHER] = ""
    engine = made(strict=True)
    start(engine)
    package.load()
    package.load(OTHER)
    engine.apply()
    assert engine.is_applied("a")
    assert engine.status()["a"].targets == (f"{NAME}.core:scale",)


def test_a_blocked_one_is_no_fault(package: FakePackage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, OTHER, None)
    engine = made(strict=True)
    start(engine)
    package.load()
    assert engine.is_applied("a")


def test_what_the_patch_needs_is_needed_all_the_same(package: FakePackage) -> None:
    package.load(OTHER)
    target = on("add", modules=(f"{OTHER}._core",))
    engine = engine_of(patch("a", on("gone"), target))
    start(engine)
    with pytest.warns(OptaxDtypeFixWarning, match="no gone"):
        package.load()
    assert engine.status()["a"].state is State.MISSING
    assert package.load(OTHER).add(1, 2) == 3


@pytest.mark.parametrize("how", ["reverted", "disabled"])
def test_a_patch_that_is_off_does_not_reach_it(package: FakePackage, how: str) -> None:
    engine = made(disable=frozenset("a") if how == "disabled" else frozenset())
    start(engine)
    package.load()
    engine.revert()
    other = package.load(OTHER)
    assert not isinstance(other.add, PatchedFunction)
    engine.apply()
    assert other.add(1, 2) == (3 if how == "disabled" else -3)


def test_it_can_be_imported_after_strict_mode_refused_the_package(package: FakePackage) -> None:
    target = on("add", modules=(f"{OTHER}._core",))
    patches = patch("a", on("scale"), target), patch("b", on("gone"))
    start(engine_of(*patches, settings=Settings(strict=True)))
    with pytest.raises(OptaxDtypeFixError):
        package.load()
    assert package.load(OTHER).add(1, 2) == 3


def test_a_second_import_is_patched_too(package: FakePackage) -> None:
    engine = made()
    start(engine)
    package.load()
    package.load(OTHER)
    forget()
    row = engine.status()["a"]
    assert (row.state, row.reason.split(";")[0]) == (
        State.FAILED,
        f"{PATH} was reloaded or removed",
    )
    assert package.load(OTHER).add(1, 2) == -3
    assert engine.is_applied("a")


def test_a_name_that_other_code_set_is_noticed(package: FakePackage) -> None:
    engine = made()
    start(engine)
    package.load()
    other = package.load(OTHER)
    wrapper = other.add
    other.add = stock_of(wrapper)
    assert f"{OTHER}.add was set back" in engine.status()["a"].reason
    engine.apply()
    assert other.add is wrapper

    def around(*args: Any) -> Any:
        return wrapper(*args)

    around.__wrapped__ = wrapper  # type: ignore[attr-defined]
    other.add = around
    with pytest.warns(OptaxDtypeFixWarning, match=rf"another library .* \({OTHER}\.add, now"):
        engine.revert()
    assert other.add(1, 2) == 3
