"""A wrapper behaves like the stock function, but is another object."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import pydoc
import types
import typing
import weakref
from typing import Any, NoReturn

import cloudpickle  # type: ignore[import-untyped]
import pytest

import optax_dtypefix
from optax_dtypefix._engine.wrapper import PatchedFunction, patched_in
from support.fakepackage import NAME, FakePackage, engine_of, negate, on, patch


def stock(x: float, *, factor: int = 2) -> float:
    """Multiplies."""
    return x * factor


class Box:
    def __init__(self, value: int = 3) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def get(self, extra: int = 0) -> int:
        """Gets."""
        return self.value + extra


@pytest.fixture
def wrapper(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = PatchedFunction(stock)
    made._self_set_layers([negate])
    monkeypatch.setitem(globals(), "stock", made)
    return made


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = PatchedFunction(vars(Box)["get"])
    made._self_set_layers([negate])
    monkeypatch.setattr(Box, "get", made)
    return made


def test_it_looks_like_stock(wrapper: Any) -> None:
    real = wrapper.__wrapped__
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__defaults__", "__code__"):
        assert getattr(wrapper, name) == getattr(real, name)
    assert isinstance(wrapper, types.FunctionType)
    assert inspect.isfunction(wrapper)
    assert callable(wrapper)
    assert inspect.signature(wrapper) == inspect.signature(real)
    assert inspect.getsource(wrapper) == inspect.getsource(real)
    assert inspect.unwrap(wrapper) is real
    assert typing.get_type_hints(wrapper) == typing.get_type_hints(real)
    assert "Multiplies." in pydoc.plain(pydoc.render_doc(wrapper))
    assert repr(wrapper) == f"<optax_dtypefix patch of {real!r}>"


def test_it_equals_only_itself(wrapper: Any) -> None:
    real = wrapper.__wrapped__
    assert wrapper == wrapper  # noqa: PLR0124
    assert not wrapper != wrapper  # noqa: PLR0124, SIM202
    assert wrapper != real
    assert real != wrapper
    assert not wrapper == real  # noqa: SIM201
    assert wrapper != PatchedFunction(real)
    assert hash(wrapper) == hash(wrapper) != hash(real)
    assert len({wrapper, real, PatchedFunction(real)}) == 3


def test_patched_methods_are_methods(method: Any) -> None:
    box, twin = Box(), Box()
    assert (box.get(), box.get(extra=1), Box.get(box, 1)) == (-3, -4, -4)
    assert Box.get is method
    assert type(box.get) is types.MethodType
    assert (box.get.__self__, box.get.__func__) == (box, method)
    assert box.get == box.get
    assert hash(box.get) == hash(box.get)
    assert box.get != twin.get  # As for stock methods: by identity of the instance.
    assert str(inspect.signature(box.get)) == "(extra: 'int' = 0) -> 'int'"
    assert "return self.value + extra" in inspect.getsource(box.get)
    assert (box.get.__name__, box.get.__doc__) == ("get", "Gets.")


def test_a_subclass_reaches_it_through_super(method: Any) -> None:
    class Sub(Box):
        def get(self, extra: int = 0) -> int:
            return super().get(extra) * 10

    assert Sub().get(1) == -40
    assert method(Sub(), 1) == -4


@pytest.mark.parametrize("module", [pickle, cloudpickle])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_pickles_by_name(wrapper: Any, method: Any, module: Any, protocol: int) -> None:
    def again(value: Any) -> Any:
        data = module.dumps(value, protocol=protocol)
        assert b"optax_dtypefix" not in data  # It must load where the shim is missing.
        return pickle.loads(data)

    assert again(wrapper) is wrapper
    assert again(method) is method
    bound = again(Box(7).get)
    assert bound.__func__ is method
    assert bound() == -7
    partial = again(functools.partial(wrapper, factor=3))
    assert partial.func is wrapper


@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_replaced_by_stock_it_pickles_as_stock(wrapper: Any, module: Any) -> None:
    real = globals()["stock"] = wrapper.__wrapped__
    again = pickle.loads(module.dumps(wrapper))
    assert not isinstance(again, PatchedFunction)
    assert again(5) == 10
    assert pickle.loads(pickle.dumps(wrapper)) is real


def test_copies_are_the_object_itself(wrapper: Any, method: Any) -> None:
    assert copy.copy(wrapper) is wrapper
    assert copy.deepcopy(wrapper) is wrapper
    assert copy.deepcopy({"f": [wrapper]})["f"][0] is wrapper
    bound: Any = copy.deepcopy(Box(7).get)
    assert (bound.__func__, bound()) == (method, -7)


def test_weak_references(wrapper: Any) -> None:
    assert weakref.ref(wrapper)() is wrapper
    assert weakref.WeakKeyDictionary({wrapper: 1})[wrapper] == 1
    lone = PatchedFunction(len)
    reference = weakref.ref(lone)
    del lone
    gc.collect()
    assert reference() is None


class Awkward:
    """A callable whose ``__wrapped__`` raises."""

    @property
    def __wrapped__(self) -> NoReturn:
        raise RuntimeError("do not touch")


def test_patched_in_sees_through_layers_and_survives_cycles(wrapper: Any) -> None:
    @functools.wraps(wrapper)
    def layer(x: float) -> Any:
        return wrapper(x)

    def cycle() -> None: ...

    cycle.__wrapped__ = cycle  # type: ignore[attr-defined]
    assert patched_in(layer) is wrapper
    assert patched_in(wrapper) is wrapper
    assert patched_in(cycle) is None
    assert patched_in(None) is None
    assert patched_in(Awkward()) is None


def test_original_returns_the_stock_function(package: FakePackage) -> None:
    pkg = package.load()
    scale, get = pkg.scale, vars(pkg.Box)["get"]
    engine = engine_of(patch("a", on("scale"), on("Box.get")))
    engine.apply()
    box = pkg.Box(3)
    assert optax_dtypefix.original(pkg.scale) is scale
    assert optax_dtypefix.original(pkg.Box.get) is get
    assert optax_dtypefix.original(box.get)(1) == 4
    assert optax_dtypefix.original(box.get).__self__ is box  # type: ignore[attr-defined]
    assert optax_dtypefix.original(functools.partial(pkg.scale, factor=3))(5) == 15
    assert optax_dtypefix.original(len) is len
    assert pickle.loads(pickle.dumps(pkg.scale)) is pkg.scale
    assert pkg.scale.__module__ == f"{NAME}.core"
