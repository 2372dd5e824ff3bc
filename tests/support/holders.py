"""Hold a function in each kind of object; each builder returns how to read the function again."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from typing import Any, Callable

Read = Callable[[], Any]


def in_dict(f: Any) -> Read:
    held = {"scale": f}
    return lambda: held["scale"]


def in_nested_dict(f: Any) -> Read:
    held = {"a": [{"b": f}]}
    return lambda: held["a"][0]["b"]


def in_ordered_dict(f: Any) -> Read:
    held = collections.OrderedDict(first=1, scale=f, last=2)
    return lambda: held["scale"] if list(held) == ["first", "scale", "last"] else None


def in_default_dict(f: Any) -> Read:
    held = collections.defaultdict(list, scale=f)
    return lambda: held["scale"]


def in_list(f: Any) -> Read:
    held = [1, f, f]
    return lambda: held[1] if held[1] is held[2] else None


def in_set(f: Any) -> Read:
    held = {f, 1}
    return lambda: next(value for value in held if value != 1)


def in_deque(f: Any) -> Read:
    held = collections.deque([f])
    return lambda: held[0]


def in_closure(f: Any) -> Read:
    return lambda: f


def in_default(f: Any) -> Read:
    def use(_: int = 1, given: Any = f) -> Any:
        return given

    return use


def in_keyword_default(f: Any) -> Read:
    def use(*, given: Any = f) -> Any:
        return given

    return use


def in_class_attribute(f: Any) -> Read:
    class Trainer:
        factory = f

        def use(self) -> Any:
            return self.factory.__func__

    Trainer().use()  # Python keeps what it found in a cache.
    return lambda: Trainer.factory if Trainer().use() is Trainer.factory else None


def in_static_method(f: Any) -> Read:
    class Trainer:
        factory = staticmethod(f)

    class Child(Trainer): ...

    assert Child().factory is f
    return lambda: Child().factory


def in_attribute(f: Any) -> Read:
    holder = types.SimpleNamespace(factory=f)
    return lambda: holder.factory


def in_object(f: Any) -> Read:
    class Trainer:
        def __init__(self) -> None:
            self.factory = f

    trainer = Trainer()
    return lambda: trainer.factory


def in_slot(f: Any) -> Read:
    class Trainer:
        __slots__ = ("empty", "factory")

    trainer = Trainer()
    trainer.factory = f  # type: ignore[attr-defined]
    return lambda: trainer.factory  # type: ignore[attr-defined]


def in_dataclass(f: Any) -> Read:
    @dataclasses.dataclass
    class Config:
        factory: Any = f

    config = Config()
    (field,) = dataclasses.fields(Config)

    def read() -> Any:
        found = {config.factory, Config().factory, Config.factory, field.default}
        return found.pop() if len(found) == 1 else found

    return read


def in_partial(f: Any) -> Read:
    held = [functools.partial(f, factor=3)]
    held[0].tag = "mine"  # type: ignore[attr-defined]
    return lambda: held[0].func if (held[0].tag, held[0].keywords) == ("mine", {"factor": 3}) else 0  # type: ignore[attr-defined]


def in_arguments_of_partial(f: Any) -> Read:
    held = functools.partial(map, f, key=f)
    return lambda: held.args[0] if held.keywords["key"] is held.args[0] else None


def in_partial_method(f: Any) -> Read:
    class Trainer:
        factory = functools.partialmethod(f, factor=3)

    return lambda: vars(Trainer)["factory"].func


def in_function_attribute(f: Any) -> Read:
    @functools.wraps(f)
    def mine(x: int) -> Any:
        return f(x)

    return lambda: mine.__wrapped__


def in_attribute_of_the_function(f: Any) -> Read:
    f.variants = [f]
    return lambda: f.variants[0]


def in_static_method_and_dict(f: Any) -> Read:
    method = staticmethod(f)
    before = {"factory": method}

    class Trainer:
        factory = method

    after = {"factory": method}
    return lambda: Trainer.factory if before == after else None


HOLDERS = [holder for name, holder in sorted(globals().items()) if name.startswith("in_")]
"""All builders."""
