"""door: where optax builds a transformation of its own, the patches of its builder lift it.

``GradientTransformation`` is the class of every transformation. Its ``update`` says which function
built it: ``scale_by_adam.<locals>.update_fn`` is of ``scale_by_adam``. ``BUILDERS`` of
``wrapped.py`` names the patches of a builder. What the user builds is left alone, and so is a
transformation that is built from the parts of a lifted one.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import TYPE_CHECKING, Any

from ..._engine.release import installed
from ..._engine.when_called import load
from ..._errors import OptaxDtypeFixError
from ..releases import TESTED
from ..wrapped import BUILDERS
from .closures import class_of_optax, is_of_optax
from .rebuild import Call

if TYPE_CHECKING:
    from ..._engine.patch import Stock
    from ..._engine.release import Release
    from ..._engine.when_called import WhenCalled
    from .lifts import Asking

_PATCHES = __package__.rpartition(".")[0]


def replace(
    layers: tuple[WhenCalled, ...], stock: Stock, cls: Any, *args: Any, **kwargs: Any
) -> Any:
    """Build a transformation, and lift it as the applied patches of its builder ask.

    If that raises, the transformation of stock stays, and the last patch that asked fails.

    Args:
      layers: the applied patches, the outermost first.
      stock: ``GradientTransformation.__new__``.
      cls: of the transformation.
      *args: its parts.
      **kwargs: more of them.
    """
    tx = stock(cls, *args, **kwargs)
    update = args[1] if len(args) > 1 else kwargs.get("update")
    kind = class_of_optax(cls)
    plain = tx if kind is cls else kind._make(tx)
    lifted = _lifted(plain, layers, update, Call(kind, *args, **kwargs))
    if kind is not cls:
        lifted = tx._replace(**lifted._asdict())
    scope = getattr(update, "__globals__", {})
    module = sys.modules.get(scope.get("__name__", ""))
    if module is not None and module.__dict__ is not scope:  # Cloudpickle loads it.
        from ..._loaded_stock import report_stock

        report_stock(lifted)
    return lifted


def _lifted(tx: Any, layers: tuple[WhenCalled, ...], update: Any, call: Call) -> Any:
    # Not by ``builder_of``: this runs for each transformation.
    builder = str(getattr(update, "__qualname__", "")).partition(".")[0]
    patches = _patches_by_builder(layers).get(builder)
    if not patches or not is_of_optax(update):
        return tx
    try:
        asking = patches.asking or patches.load()
        if not asking.asked:
            return tx
        ask, tally = asking.asked[0]
        if callable(ask):  # It has the builder for itself.
            return ask(tx, call, tally)
        return patches.lift(tx, call, asking) if patches.lift else tx
    except OptaxDtypeFixError:  # In strict mode the file of a patch cannot be imported.
        raise
    except Exception as error:  # Stock has built it: the fault is ours.
        patches.acting[-1].failed(error)
        return tx


class _Patches:
    """The patches of a builder, and what they ask for, once their files are imported.

    Attributes:
      builder: the name of the function.
      ids: of all its patches.
      places: what those that are applied ask for, the innermost first.
      acting: the same patches.
      asking: what they ask for; None until all files are imported.
      lift: lifts a transformation.
    """

    def __init__(self, builder: str, applied: dict[str, WhenCalled], release: Release) -> None:
        self.builder, self.ids = builder, set[str]()
        self.places: list[str] = []
        self.acting: list[WhenCalled] = []
        self.asking: Asking | None = None
        self.lift: Any = None
        for row in reversed(BUILDERS[builder]):
            where, _, releases = row.partition(" ")
            patch_id = where.partition(":")[0]
            self.ids.add(patch_id)
            if patch_id in applied and release.within(releases):
                self.places.append(where)
                self.acting.append(applied[patch_id])

    def load(self) -> Asking:
        """Import what the patches ask for. Where that fails, stock stays, or other patches."""
        self.lift = load(f"{__name__}.lift:lift", self._fail)
        found = [_load(*row) for row in zip(self.places, self.acting)]
        asked = tuple((ask, p.tally) for ask, p in zip(found, self.acting) if ask is not None)
        from .lifts import LIFTS, NOTHING, Asking

        off = self.ids - {patch.patch_id for patch in self.acting}
        opted_out = (LIFTS[patch_id].narrow for patch_id in off & {*_MOMENTS})
        asking = Asking(self.builder, asked, NOTHING.union(*opted_out))
        self.asking = asking if len(asked) == len(found) else None
        return asking

    def _fail(self, error: Exception) -> None:
        """Say that no patch acts: what all of them need cannot be imported."""
        for patch in self.acting:
            patch.failed(error)


_MOMENTS = ("bfloat16_moments", "float16_eps")
"""The patches without which stock runs on its own leaves, in the dtypes that they lift."""


def _load(layer: str, patch: WhenCalled) -> Any:
    """Import what a layer of ``BUILDERS`` asks for; return None if that fails."""

    def function(place: str) -> Any:
        return load(f"{_PATCHES}.{place}", patch.failed)

    lifts = load(f"{__name__}.lifts:LIFTS", patch.failed)
    ask = lifts and lifts.get(layer)
    if lifts is None or ask is None:
        return lifts and function(layer if ":" in layer else f"{layer}:replace")
    given = {
        name: function(getattr(ask, name)) for name in ("wide", "change") if getattr(ask, name)
    }
    if None in given.values():
        return None
    return dataclasses.replace(ask, **given) if given else ask


@functools.lru_cache(maxsize=8)  # Few sets of patches are applied in a program.
def _patches_by_builder(layers: tuple[WhenCalled, ...]) -> dict[str, _Patches]:
    applied = {layer.patch_id: layer for layer in layers}
    release = installed(sys.modules["optax"], TESTED)
    release = release if release.tested else release.as_later
    found = {builder: _Patches(builder, applied, release) for builder in BUILDERS}
    return {builder: patches for builder, patches in found.items() if patches.acting}
