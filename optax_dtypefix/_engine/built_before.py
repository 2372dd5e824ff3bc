"""Find what was built before the patches were applied: it stays stock.

``scale_by_adam(...)`` returns functions that are defined inside it, and a later patch of
``scale_by_adam`` does not reach these. Their names tell which function built them.
"""

from __future__ import annotations

import functools
import gc
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .._errors import warn_or_raise
from .rebinding import dict_of, loaded_modules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from .application import Patches
    from .patch import Target

_CONTAINERS = (tuple, list, dict, functools.partial, MethodType)
_OURS = __name__.partition(".")[0]


def find_built(package: str, builders: Collection[str]) -> WeakSet[Any]:
    """Return the functions in the transformations of a program that some builders returned.

    A transformation is a named tuple of the package. What the package itself made does not count.

    Args:
      package: its name.
      builders: names of functions and classes of the package.
    """
    gc.collect()  # What nobody can reach is in nobody's way.
    own = {id(part) for part in parts_of([*map(dict_of, loaded_modules(package))], package)}
    kinds = {kind for kind in _subclasses(tuple) if _is_of(package, *kind.__mro__)}
    # Not by ``gc.get_objects``: who holds all objects breaks what other threads build, such as
    # ``tuple(generator)``, which raises SystemError: https://github.com/python/cpython/issues/39117
    built = [value for value in gc.get_referrers(*kinds) if type(value) in kinds]
    parts = parts_of([tx for tx in built if id(tx) not in own], package)
    return WeakSet(p for p in parts if id(p) not in own and _is_built(p, package, builders))


def report_built(engine: Patches, targets: Sequence[Target]) -> None:
    """Warn of what some targets built before they were wrapped; in strict mode, raise."""
    if engine.built_before is None:
        builders = {i for t in targets for i in (t.qualname.partition(".")[0], *t.builds)}
        engine.built_before = find_built(engine.package, builders)
    names = sorted({*map(builder_of, engine.built_before)})
    if names:
        warn_or_raise(
            f"Built before the patches were applied, and still stock: {', '.join(names)}. Build "
            f"these optimizers again, or import optax_dtypefix first.",
            strict=engine.settings.strict,
        )


def parts_of(tx: Any, package: str) -> list[Any]:
    """List a transformation and what it holds: in closures, containers and objects of optax."""
    parts: dict[int, Any] = {}
    pending = [tx]
    while pending:
        value = pending.pop()
        kind = type(value)
        if id(value) in parts or issubclass(kind, type):
            continue
        parts[id(value)] = value
        if kind is FunctionType:
            pending += gc.get_referents(*(value.__closure__ or ()))
            pending += value.__defaults__ or ()
            pending += (value.__kwdefaults__ or {}).values()
        elif _is_of(_OURS, kind) and getattr(value, "lifting", None):
            pending += value.lifting.users  # The rest of it runs as if it were built here.
        elif issubclass(kind, _CONTAINERS) or _is_of(package, kind) or _is_of(_OURS, kind):
            pending += gc.get_referents(value)
    return [*parts.values()]


def builder_of(function: Any) -> str:
    """Return the first part of the qualified name: the function or class that defines it."""
    return str(function.__qualname__).partition(".")[0]


def _subclasses(kind: type) -> Iterator[type]:
    direct: list[type] = type.__subclasses__(kind)
    for subclass in direct:
        yield subclass
        yield from _subclasses(subclass)


def _is_built(function: Any, package: str, builders: Collection[str]) -> bool:
    """Return whether a builder defines a function inside, or a method that was bound before."""
    inside = type(function) is FunctionType and "<locals>" in function.__qualname__
    # A method may be one of our wrapper.
    bound = type(function) is MethodType and type(function.__func__) is FunctionType
    return (inside or bound) and builder_of(function) in builders and _is_of(package, function)


def _is_of(package: str, *definitions: Any) -> bool:
    return any(str(d.__module__).partition(".")[0] == package for d in definitions)
