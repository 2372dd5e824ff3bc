"""door: where optax builds a transformation of its own, the patches of its builder lift it.

``GradientTransformation`` is the class of every transformation. Its ``update`` says which function
built it: ``scale_by_adam.<locals>.update_fn`` is of ``scale_by_adam``. ``BUILDERS`` of
``wrapped.py`` names the patches of a builder. What the user builds is left alone, and so is a
transformation that is built from the parts of a lifted one.

The ways to run stock in other dtypes:

=====================================  ==============  ===============  ==========  =============
way                                    stock is given  in which dtypes  mode        state after
=====================================  ==============  ===============  ==========  =============
``KeepDtypes``, by ``Layer``           trees           the user's (1)   32-bit (2)  cast back
``InFloat32``, by ``Layer``            trees           16 bits widened  the user's  rounded
``distance_estimates``, ``prodigy``    lists of reals  one, >= 32 bits  32-bit      cast back (3)
line searches                          lists of reals  one, >= 32 bits  the user's  cast back (3)
``schedule_free``                      trees           16 bits widened  the user's  cast back (3)
``inject_hyperparams``                 one number      hyperparameters  the user's  stock's
``sums.in_float32``                    trees           16 bits widened  the user's  none
=====================================  ==============  ===============  ==========  =============

(1) One dtype for all, if stock needs that. (2) If stock computes in float64 in 64-bit mode. (3)
Scalars are float32 or wider. "Rounded" is by ``round_moments``, which ``cast_back`` calls as well.

Lists, where stock builds trees of its own, or where a complex leaf becomes a pair: a user-defined
node need not accept either. Trees, where stock's state has fields of unknown structure.
"""

from __future__ import annotations

import functools
import operator
import sys
from typing import TYPE_CHECKING, Any, Callable, cast

from ..._engine.release import installed
from ..._engine.when_called import load
from ..._errors import OptaxDtypeFixError
from ..._loaded_stock import report_stock
from ..releases import TESTED
from ..wrapped import BUILDERS
from .closures import is_filled, is_of_optax
from .layer import Layer
from .rebuild import Call, in_place_of, is_in_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..._engine.patch import Stock
    from ..._tally import Tally

    _Patch = tuple[dict[str, str], Tally, Callable[[Exception], None]]
    """Where a patch has what it asks for, by builder; its tally; what to call if it is broken."""


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
    known = getattr(stock, "_patches_below", None) or _look_below(stock, (places, tally, failed))
    optax_own, asking_for = known
    tx = optax_own(cls, *args, **kwargs)
    scope = getattr(update, "__globals__", {})
    module = sys.modules.get(scope.get("__name__", ""))
    if module is not None and module.__dict__ is not scope:  # Cloudpickle loads it.
        report_stock(tx)
    asking = asking_for.get(builder)
    if not asking or not is_of_optax(update):
        return tx
    lift = functools.partial(_rebuild, tx, builder, Call(cls, *args, **kwargs), asking)
    if "dill" not in sys.modules:  # It loads a function of ours as one of optax, with empty cells.
        return lift()
    return tx if is_in_place(update) else lift() if is_filled(update) else _lift_later(tx, lift)


def _rebuild(tx: Any, builder: str, call: Call, asking: list[_Patch]) -> Any:
    """Return a transformation as patches ask for it, the innermost first.

    If that raises, the transformation of stock stays, and the last patch that asked fails.
    """
    layer = None
    try:
        for places, tally, failed in asking:
            ask = _LOADED.get(places[builder]) or _load(places[builder], failed)
            if callable(ask):  # It has the builder for itself.
                return ask(tx, call, tally)
            if ask is not None:
                layer = layer or Layer(tx, builder)
                ask.add_to(layer, tally)
        return layer.rebuild(call) if layer else tx
    except OptaxDtypeFixError:  # In strict mode the file of a patch cannot be imported.
        raise
    except Exception as error:  # Stock has built it: the fault is ours.
        failed(error)
        return tx


def _look_below(stock: Any, own: _Patch) -> tuple[Any, dict[str, list[_Patch]]]:
    """Return optax's own function, and by builder the patches, the innermost first.

    Both are kept with the layer below, unless the file of a patch is broken.
    """
    found, layers = [], stock
    while type(layers) is functools.partial:
        found.append(cast("Any", layers.func).load())
        (layers,) = layers.args
    patches = [*(replacement.args for replacement in reversed(found) if replacement), own]
    asking = {name: [of for of in patches if name in of[0]] for name in BUILDERS}
    known = layers, asking
    if found and all(found):
        stock._patches_below = known
    return known


def _lift_later(tx: Any, lift: functools.partial[Any]) -> Any:
    """Lift what dill loads at its first call: dill builds it, and fills the closures later."""
    lifted, call = functools.cache(lift), lift.args[2]

    def init_fn(*args: Any, **kwargs: Any) -> Any:
        return lifted().init(*args, **kwargs)

    def update_fn(*args: Any, **kwargs: Any) -> Any:
        return lifted().update(*args, **kwargs)

    parts = {"init": init_fn, "update": update_fn}
    return tx._replace(
        **{
            name: in_place_of(getattr(tx, name), function, call, operator.attrgetter(name))
            for name, function in parts.items()
        }
    )


_PATCHES = __package__.rpartition(".")[0]

_LOADED: dict[str, Any] = {}
"""What patches ask for, by its place: imported when optax builds what it is for."""


def _load(place: str, failed: Callable[[Exception], None]) -> Any:
    """Import what a patch asks for; None if that fails: stock stays."""
    ask = load(place, failed)
    if ask is not None:
        _LOADED[place] = ask
    return ask


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
