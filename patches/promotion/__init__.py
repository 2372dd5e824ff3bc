"""promotion: state and updates are not promoted to a dtype that no input has.

Most optimizers multiply a leaf by a scalar of their own, and JAX promotes: an int32 leaf times a
float is float32, a bfloat16 leaf times a float32 array is float32, and under x64 the float64 of
``1 - step**-0.8`` makes everything float64. ``jax_numpy_dtype_promotion="strict"`` raises instead.
Where stock keeps the dtypes of its inputs, nothing is cast and the program is stock's.
"""

from __future__ import annotations

from typing import Any

from ..._contract.dtypes import FLOATS, PyTree, array_dtypes
from ..._engine.patch import Stock
from .._support.combine import combine  # noqa: F401  # For ``wrapped.py``.
from .._support.keep_dtypes import (
    KeepDtypes,
    cast_integers_to_float32,
    cast_mixed_to_one_dtype,
    cast_to_one_dtype,
)

replace = KeepDtypes()
in_32_bits = KeepDtypes(in_32_bits=True)
in_one_dtype = KeepDtypes(cast_to_one_dtype, in_32_bits=True)
no_integers = KeepDtypes(cast_integers_to_float32)
no_integers_in_32_bits = KeepDtypes(cast_integers_to_float32, in_32_bits=True)
any_gradients = KeepDtypes(any_gradients=True)
any_gradients_in_32_bits = KeepDtypes(cast_to_one_dtype, in_32_bits=True, any_gradients=True)
any_gradients_in_one_dtype = KeepDtypes(cast_to_one_dtype, any_gradients=True)
around_another = KeepDtypes(around_another=True)
# Stock draws its directions in one dtype for all leaves. It runs in the user's mode: in 32-bit mode
# stock would draw other directions.
hessian = KeepDtypes(cast_mixed_to_one_dtype)
# The value of a loss in float32 makes updates float32.
promoted_by_loss = KeepDtypes(may_promote=True)


def bias_correction(stock: Stock, moment: PyTree, *args: Any, **kwargs: Any) -> PyTree:
    """Correct integers in float32: stock rounds the divisor to their dtype, and divides by 0.

    ``nadam`` corrects the gradients themselves.
    """
    if not FLOATS.issuperset(array_dtypes(moment) or (None,)):
        moment, _, _ = cast_integers_to_float32(moment, (), ())
    return stock(moment, *args, **kwargs)
