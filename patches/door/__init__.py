"""door: where optax builds a transformation of its own, the patches of its builder lift it.

``GradientTransformation`` is the class of every transformation. Its ``update`` says which function
built it: ``scale_by_adam.<locals>.update_fn`` is of ``scale_by_adam``. ``BUILDERS`` of
``wrapped.py`` names the patches of a builder. What the user builds is left alone, and so is a
transformation that is built from the parts of a lifted one.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, cast

from ..._engine.release import installed
from ..._engine.when_called import load
from ..._errors import OptaxDtypeFixError
from ..._loaded_stock import report_stock
from ..releases import TESTED
from ..wrapped import BUILDERS
from .closures import is_of_optax
from .rebuild import Call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..._engine.patch import Stock
    from ..._tally import Tally
    from .lifts import Asking


class _Patch(NamedTuple):
    """A patch that lifts transformations.

    Attributes:
      places: where it has what it asks for, by builder.
      tally: counts what it does.
      failed: to be called if it is broken.
    """

    places: dict[str, str]
    tally: Tally
    failed: Callable[[Exception], None]


def __getattr__(patch_id: str) -> Any:
    """Return the replacement of ``GradientTransformation.__new__`` of a patch."""
    if patch_id.startswith("_"):
        raise AttributeError(patch_id)
    return functools.partial(_lift, dict(_places_of(patch_id)))


def _lift(
    places: dict[str, str],
    tally: Tally,
    failed: Callable[[Exception], None],
    stock: Stock,
    cls: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Build a transformation, and lift it as the patches of its builder ask, the innermost first.

    The first patch that is called does so for all: a chain is built in each step of some programs.
    """
    update = args[1] if len(args) > 1 else kwargs.get("update")
    # Not by ``builder_of``: this runs for each transformation.
    builder = str(getattr(update, "__qualname__", "")).partition(".")[0]
    known = getattr(stock, "_patches_below", None) or _look_below(
        stock, _Patch(places, tally, failed)
    )
    optax_own, asking_for = known
    tx = optax_own(cls, *args, **kwargs)
    scope = getattr(update, "__globals__", {})
    module = sys.modules.get(scope.get("__name__", ""))
    if module is not None and module.__dict__ is not scope:  # Cloudpickle loads it.
        report_stock(tx)
    asking = asking_for.get(builder)
    if not asking or not asking.patches or not is_of_optax(update):
        return tx
    return _rebuild(tx, builder, Call(cls, *args, **kwargs), asking)


def _rebuild(tx: Any, builder: str, call: Call, asking: _Asking) -> Any:
    """Return a transformation as patches ask for it, the innermost first.

    If that raises, the transformation of stock stays, and the last patch that asked fails.
    """
    try:
        loaded = asking.loaded or asking.load(builder)
        if not loaded.asked:
            return tx
        ask, tally = loaded.asked[0]
        if callable(ask):  # It has the builder for itself.
            return ask(tx, call, tally)
        from .lift import lift  # Not at the top: it imports JAX.

        return lift(tx, call, loaded)
    except OptaxDtypeFixError:  # In strict mode the file of a patch cannot be imported.
        raise
    except Exception as error:  # Stock has built it: the fault is ours.
        asking.patches[-1].failed(error)
        return tx


class _Asking:
    """The patches of a builder, and what they ask for, once their files are imported.

    Attributes:
      patches: the innermost first.
      loaded: what they ask for; None until all files are imported.
    """

    def __init__(self, patches: list[_Patch]) -> None:
        self.patches = patches
        self.loaded: Asking | None = None

    def load(self, builder: str) -> Asking:
        """Import what the patches ask for. Where that fails, stock stays, or other patches."""
        found = [(load(p.places[builder], p.failed), p.tally) for p in self.patches]
        asked = tuple((ask, tally) for ask, tally in found if ask is not None)
        from .lifts import OPTED_OUT, Asking

        ids = {re.split("[ :]", row)[0] for row in BUILDERS[builder]}
        on = {patch.places[builder].partition(":")[0].rpartition(".")[2] for patch in self.patches}
        off = (OPTED_OUT.get(patch_id, ()) for patch_id in ids - on)
        loaded = Asking(builder, asked, frozenset[Any]().union(*off))
        if len(asked) == len(found):
            self.loaded = loaded
        return loaded


def _look_below(stock: Any, own: _Patch) -> tuple[Any, dict[str, _Asking]]:
    """Return optax's own function, and by builder the patches, the innermost first.

    Both are kept with the layer below, unless the file of a patch is broken.
    """
    found, layers = [], stock
    while type(layers) is functools.partial:
        found.append(cast("Any", layers.func).load())
        (layers,) = layers.args
    below = (_Patch(*replacement.args) for replacement in reversed(found) if replacement)
    patches = [*below, own]
    asking = {n: _Asking([p for p in patches if n in p.places]) for n in BUILDERS}
    known = layers, asking
    if found and all(found):
        stock._patches_below = known
    return known


_PATCHES = __package__.rpartition(".")[0]


def _places_of(patch_id: str) -> Iterator[tuple[str, str]]:
    """Yield the builders of a patch on this release, and the place of what it asks for."""
    release = installed(sys.modules["optax"], TESTED)
    release = release if release.tested else release.as_later
    for builder, rows in BUILDERS.items():
        for row in rows:
            where, _, releases = row.partition(" ")
            file, _, name = where.partition(":")
            if file == patch_id and release.within(releases):
                yield builder, f"{_PATCHES}.{file}:{name or 'replace'}"
