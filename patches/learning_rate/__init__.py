"""learning_rate: a strongly typed learning rate or weight decay does not change dtypes.

A Python number is weakly typed: 0.1 times a bfloat16 leaf is bfloat16. A float32 array or a NumPy
scalar is strong: the product is float32, or float64 under x64. Here the product is computed in the
dtype of the rate, at most float32 for leaves that are not wider, and rounded to the dtype of the
leaf.

``sm3`` and ``optimistic_adam`` do arithmetic with their learning rate when they are built, or
refuse a schedule. Here both accept one. In ``sm3`` the schedule scales the output of
``scale_by_sm3``, with the state of ``scale_by_schedule``. ``optimistic_adam`` is built from stock
in each step with the rate of that step, so its state is stock's.
"""

from __future__ import annotations

import dataclasses

from ..._tally import Tally
from .._support.keep_dtypes import KeepDtypes, cast_integers_to_float32
from .._support.layer import Layer


@dataclasses.dataclass(eq=False, repr=False)
class _Rate(KeepDtypes):
    """Keep dtypes beside an argument that is an array, or a schedule.

    Attributes:
      passes_floats: beside Python numbers stock keeps floats, if these trees have the same ones.
    """

    passes_floats: tuple[str, ...] = ()

    def add_to(self, layer: Layer, tally: Tally) -> None:
        is_weak = layer.has_weak_arguments
        layer.fits_arguments = not is_weak
        layer.passes_floats = self.passes_floats if is_weak else ()
        if layer.keep is None or layer.fits_arguments:
            super().add_to(layer, tally)


replace = _Rate()
scale = _Rate(passes_floats=("updates",))
add_decayed_weights = _Rate(passes_floats=("updates", "params"))
no_integers = _Rate(cast_integers_to_float32)
