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
      passes_floats: whether stock keeps them beside Python numbers, if all leaves are floats.
    """

    passes_floats: bool = False

    def add_to(self, layer: Layer, tally: Tally) -> None:
        layer.fits_arguments = not layer.has_weak_arguments
        layer.passes_floats = self.passes_floats and layer.has_weak_arguments
        if layer.keep is None or layer.fits_arguments:
            super().add_to(layer, tally)


replace = _Rate()
passes_floats = _Rate(passes_floats=True)
no_integers = _Rate(cast_integers_to_float32)
