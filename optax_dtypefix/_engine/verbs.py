"""What a program can do with the patches of a package: ``optax_dtypefix.apply`` and the others."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from .._errors import warn_or_raise
from .._text import suggest
from .import_hook import is_imported
from .lock import LOCK
from .state import REVERTED, UNDECIDED
from .wrapper import PatchedFunction

if TYPE_CHECKING:
    from collections.abc import Generator

    from .application import Patches
    from .engine import Engine

_Function = TypeVar("_Function", bound=Callable[..., Any])


def choose(patches: Patches, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the named ids without those that are removed, or all if none is named.

    Raises:
      ValueError: unknown id; the message names the nearest one.
    """
    for patch_id in ids:
        if patch_id in (*patches.removed,):  # A list has no hash.
            warn_or_raise(f"Patch {patch_id!r} {patches.removed[patch_id]}", strict=False)
        elif patch_id not in patches.ids:
            raise ValueError(f"Unknown patch {patch_id!r}. {suggest(patch_id, patches.ids)}")
    return tuple(i for i in ids if i in patches.ids) if ids else patches.ids


def apply(engine: Engine, *ids: str) -> None:
    """Apply the named patches, or all that the settings want. Idempotent."""
    chosen = choose(engine, ids)
    with LOCK:
        for patch_id in chosen:
            slot = engine.slots[patch_id]
            slot.requested |= bool(ids)
            if not slot.is_applied:  # Decide and warn again.
                slot.decision = UNDECIDED
    if is_imported(engine.package):
        engine.apply_waiting(chosen)
    for patch_id in chosen if ids else ():
        disabled_reason = engine.settings.disabled_reason(patch_id)
        if disabled_reason is not None:
            warn_or_raise(
                f"Patch {patch_id!r} was not applied: {disabled_reason}. Change the variable and "
                f"start the program again.",
                strict=engine.settings.strict,
            )


def revert(patches: Patches, *ids: str) -> None:
    """Take the named patches out, or all. Idempotent."""
    chosen = choose(patches, ids)
    with patches.change() as foreign:
        for patch_id in chosen:
            patches.slots[patch_id].decision = REVERTED
    if foreign:
        warn_or_raise(
            f"Cannot fully revert: another library wrapped the patched function "
            f"({'; '.join(foreign)}). That wrapper now calls the stock function. To restore the "
            f"function itself, remove the wrapper and call optax_dtypefix.revert() again.",
            strict=patches.settings.strict,
        )


def disabled(patches: Patches, *ids: str) -> StockBlock:
    """Run the ``with`` block with stock behaviour, in all threads. Nests."""
    return StockBlock(_without, (patches, ids), {})


def _without(patches: Patches, ids: tuple[str, ...]) -> Generator[None, None, None]:
    block = choose(patches, ids)
    patches.blocks.append(block)
    try:  # Around the entry too, which Ctrl-C may interrupt.
        with patches.change():
            pass
        yield
    finally:
        with patches.change():
            patches.blocks.remove(block)


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


def stock_of(function: Any) -> Any:
    """Return the stock function behind a patched one, its bound method or its partial."""
    if isinstance(function, PatchedFunction):
        return function.__wrapped__
    if type(function) is types.MethodType and isinstance(function.__func__, PatchedFunction):
        return types.MethodType(function.__func__.__wrapped__, function.__self__)
    if type(function) is functools.partial and isinstance(function.func, PatchedFunction):
        return functools.partial(function.func.__wrapped__, *function.args, **function.keywords)
    return function
