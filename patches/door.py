"""door: where optax builds a transformation of its own, the patches of its builder lift it.

``GradientTransformation`` is the class of every transformation. Its ``update`` says which function
built it: ``scale_by_adam.<locals>.update_fn`` is of ``scale_by_adam``. ``BUILDERS`` of
``wrapped.py`` names the patches of a builder. What the user builds is left alone, and so is a
transformation that is built from the parts of a lifted one.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from .._engine.release import Release, installed
from ._support.closures import is_of_optax
from ._support.layer import Layer
from ._support.rebuild import Call, parts_of_function
from .releases import TESTED
from .wrapped import BUILDERS

if TYPE_CHECKING:
    from .._engine.patch import Stock
    from .._tally import Tally


def __getattr__(patch_id: str) -> Any:
    """Return the replacement of ``GradientTransformation.__new__`` of a patch."""
    if patch_id.startswith("_"):
        raise AttributeError(patch_id)
    return functools.partial(_lift, patch_id)


def _lift(patch_id: str, tally: Tally, stock: Stock, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Build a transformation. If a row says so, add what the patch asks for."""
    update = args[1] if len(args) > 1 else kwargs.get("update")
    builder = str(getattr(update, "__qualname__", "")).partition(".")[0]
    if builder not in BUILDERS or not is_of_optax(update) or parts_of_function(update):
        # Optax builds some ten others for each of these: pass the other patches by.
        return getattr(stock, "__wrapped__", stock)(cls, *args, **kwargs)
    tx = stock(cls, *args, **kwargs)
    ask = _ask_of(patch_id, builder)
    if ask is None:
        return tx
    tally.reach()
    below = parts_of_function(tx.update)  # Of the patches that come after this one.
    with tally:
        layer = below.layer if below else Layer(tx, builder)
        ask.add_to(layer)
        return tx if below else layer.rebuild(Call(cls, *args, **kwargs))


@functools.cache
def _ask_of(patch_id: str, builder: str) -> Any:
    """Import what a patch asks for on this release; None if there is nothing."""
    for row in BUILDERS[builder]:
        where, _, releases = row.partition(" ")
        file, _, name = where.partition(":")
        if file.partition(".")[0] == patch_id and _release().within(releases):
            module = importlib.import_module(f"{__package__}.{file}")
            return getattr(module, name or "replace")
    return None


def _release() -> Release:
    found = installed(sys.modules["optax"], TESTED)
    return found if found.tested else found.as_later
