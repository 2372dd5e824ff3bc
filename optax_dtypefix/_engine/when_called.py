"""Import the file of a patch when a function that the patch wraps is called for the first time."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any, Callable

from .._tally import THREAD
from .import_hook import put_back
from .lock import LOADING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .._tally import Tally
    from .patch import Target

_PACKAGE = sys.modules[__name__.partition(".")[0]]


class WhenCalled:
    """Stand for the replacement of a target, and import it at the first call.

    If that fails, stock or the next layer runs, and the patch is reverted. In strict mode each call
    tries again.

    Args:
      patch_id: the patch that replaces it.
      target: says where the replacement is.
      tally: counts the calls.
      failed: called with the error of an import, in the thread that calls. What it raises reaches
        the caller.
    """

    def __init__(
        self, patch_id: str, target: Target, tally: Tally, failed: Callable[[Exception], None]
    ) -> None:
        replacement = target.replacement
        self.patch_id, self.target, self.tally, self.failed = patch_id, target, tally, failed
        self._replacement = None if isinstance(replacement, str) else replacement
        self._counts = target.name != "__getattr__"  # To read a name from a module is no call.

    def __call__(self, stock: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._counts and not THREAD.paused:
            self.tally.reached += 1  # Not by ``reach``: one call less in each eager step.
        replacement = self._replacement or self.load()
        return replacement(stock, *args, **kwargs) if replacement else stock(*args, **kwargs)

    def load(self) -> Callable[..., Any] | None:
        """Return the replacement, or None if its import fails."""
        if not self._replacement:
            self._replacement = load(str(self.target.replacement), self.failed)
        return self._replacement


def build(layers: Sequence[Any], stock: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the one replacement of ``__new__`` for all patches of a class.

    It is called with the layers, and counts for each patch the objects that it changes.
    """
    for layer in layers:
        if replacement := layer.load():
            return replacement(layers, stock, *args, **kwargs)
    return stock(*args, **kwargs)


def load(where: str, failed: Callable[[Exception], None]) -> Any:
    """Import what stands at ``module:name``; return None if that fails."""
    module, _, name = where.partition(":")
    try:
        with LOADING, _package_in_place():
            return getattr(importlib.import_module(module), name)
    except Exception as error:
        failed(error)
        return None


@contextlib.contextmanager
def _package_in_place() -> Iterator[None]:
    """Let modules of this package be imported, also where strict mode refused its own import."""
    refused = _PACKAGE.__name__ not in sys.modules
    sys.modules.setdefault(_PACKAGE.__name__, _PACKAGE)
    put_back()
    try:
        yield
    finally:
        if refused:
            del sys.modules[_PACKAGE.__name__]
