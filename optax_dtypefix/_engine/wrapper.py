"""Wrap a stock function in a way that is safe for JAX's caches.

``wrapt.FunctionWrapper`` forwards ``==`` and ``hash`` to the function it wraps, and JAX's trace
caches honour equality: after ``jit(stock)``, ``jit(wrapped)`` would return the stock trace. Here a
wrapper equals only itself. wrapt forwards everything else (name, docstring, signature, source,
attributes) to the stock function.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from typing import TYPE_CHECKING, Any, Callable, no_type_check

import wrapt

from .._tally import THREAD
from .locate import find
from .when_called import build

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .patch import Replacement


class PatchedFunction(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """The one wrapper of a target; the patches that share the target are its layers.

    With no layers it behaves like the stock function. References that we cannot rebind (in
    closures, for example) still follow ``revert`` and ``disabled``.
    """

    # Not annotated: a wrapper would have the annotations, in place of those of stock.
    _self_layers = ()  # type: tuple[Replacement, ...]
    _self_attribute = _self_call = None  # type: Any
    _self_called = False

    @no_type_check  # typeguard would read ``self.__class__``, which the proxy cannot forward yet.
    def __init__(self, attribute: Callable[..., Any]) -> None:
        # ``__new__`` is a staticmethod, which Python 3.9 cannot call directly.
        stock = attribute.__func__ if isinstance(attribute, staticmethod) else attribute
        super().__init__(stock, self._self_dispatch)
        self._self_attribute, self._self_call = attribute, stock

    def _self_set_layers(self, replacements: Iterable[Replacement]) -> bool:
        """Stack the replacements on the stock function, the first one outermost.

        Returns:
          Whether that is a change of a function that was called: JAX may have traced it.
        """
        layers = tuple(replacements)
        if layers == self._self_layers:
            return False
        self._self_layers = layers
        call = stock = self.__wrapped__
        if layers and stock.__name__ == "__new__":
            call, layers = functools.partial(build, layers, stock), ()
        for replacement in reversed(layers):
            if call is not stock:
                # A layer sees the layer below it with the name and signature of the stock function.
                functools.update_wrapper(call, stock)
            call = functools.partial(replacement, call)
        self._self_call = call  # One assignment: a concurrent call sees the old or the new stack.
        return self._self_called

    def _self_dispatch(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        del instance  # __get__ binds with a plain method: the instance is args[0].
        self._self_called = True
        call = wrapped if THREAD.stock_only else self._self_call
        try:
            return call(*args, **kwargs)
        except Exception as error:
            from .._tracebacks import hide_our_frames  # Few calls fail.

            hide_our_frames(error)
            raise

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # wrapt would return a new bound wrapper with wrapt's equality. A plain method compares and
        # pickles by this object and the instance, as stock methods do.
        # An instance does not bind ``__new__``, a staticmethod.
        is_bound = instance is not None and not isinstance(self._self_attribute, staticmethod)
        return types.MethodType(self, instance) if is_bound else self

    # By identity, as any object; wrapt forwards them.
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    def __copy__(self) -> PatchedFunction:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PatchedFunction:
        return self

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        """Pickle the qualified name; without optax_dtypefix, a process loads stock from it."""
        name: str = self.__wrapped__.__qualname__
        if find(self.__wrapped__.__module__, name) is self:
            return name
        # Reverted, or wrapped by other code: the name no longer leads here. Pickle a call that
        # returns stock, ``itemgetter(0)((stock,))``, and needs nothing of ours to be loaded.
        return operator.itemgetter(0), ((self.__wrapped__,),)

    def __repr__(self) -> str:
        return f"<optax_dtypefix patch of {self.__wrapped__!r}>"


def patched_in(function: Any) -> PatchedFunction | None:
    """Find our wrapper in a chain of ``__wrapped__``, inside any wrappers of other code."""
    try:
        found = inspect.unwrap(function, stop=lambda inside: type(inside) is PatchedFunction)
    except Exception:  # A foreign wrapper whose attribute access fails, or a cycle.
        return None
    return found if type(found) is PatchedFunction else None
