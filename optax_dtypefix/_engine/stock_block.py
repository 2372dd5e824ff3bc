"""The block in which some patches do not act, as a context manager and as a decorator."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Callable, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


class StockBlock(contextlib._GeneratorContextManager[None]):
    """Around a function, the block must end when the call returns, and not before it has run."""

    def __call__(self, func: _Function) -> _Function:
        """Give a function stock behaviour.

        Raises:
          TypeError: it is an ``async def``, or a generator: its code runs after the call.
        """
        later = (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
        if any(is_of_kind(func) for is_of_kind in later):
            name = getattr(func, "__qualname__", repr(func))
            raise TypeError(
                f"@optax_dtypefix.disabled() has no effect on {name}: a coroutine or a generator "
                f"runs after the call. Write `with optax_dtypefix.disabled():` inside it."
            )
        return super().__call__(func)
