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

from .._engine.release import installed
from ._support.closures import is_of_optax
from ._support.layer import Layer
from ._support.rebuild import Call, parts_of
from .releases import TESTED
from .wrapped import BUILDERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._engine.patch import Stock
    from .._tally import Tally


def __getattr__(patch_id: str) -> Any:
    """Return the replacement of ``GradientTransformation.__new__`` of a patch.

    All that the patch asks for is imported now: if that fails, stock stays.
    """
    if patch_id.startswith("_"):
        raise AttributeError(patch_id)
    return functools.partial(_lift, dict(_asks_of(patch_id)))


def _lift(
    asks: dict[str, Any], tally: Tally, stock: Stock, cls: Any, *args: Any, **kwargs: Any
) -> Any:
    """Build a transformation. If there is a row for its builder, add what the patch asks for."""
    update = args[1] if len(args) > 1 else kwargs.get("update")
    builder = str(getattr(update, "__qualname__", "")).partition(".")[0]
    if builder not in BUILDERS or not is_of_optax(update):  # Nor is a function of ours.
        # Optax builds some ten others for each of these: pass the layers of other patches by.
        is_layer = type(stock) is functools.partial
        return (vars(stock)["__wrapped__"] if is_layer else stock)(cls, *args, **kwargs)
    tx = stock(cls, *args, **kwargs)
    if builder not in asks:
        return tx
    below = parts_of(tx)  # Of the patches that come after this one.
    layer = below.layer if below else Layer(tx, builder)
    asks[builder].add_to(layer, tally)
    return tx if below else layer.rebuild(Call(cls, *args, **kwargs))


def _asks_of(patch_id: str) -> Iterator[tuple[str, Any]]:
    """Yield the builders of a patch on this release, and what it asks for."""
    release = installed(sys.modules["optax"], TESTED)
    release = release if release.tested else release.as_later
    for builder, rows in BUILDERS.items():
        for row in rows:
            where, _, releases = row.partition(" ")
            file, _, name = where.partition(":")
            if file.partition(".")[0] == patch_id and release.within(releases):
                module = importlib.import_module(f"{__package__}.{file}")
                yield builder, getattr(module, name or "replace")
