"""sums: functions that sum inside one call sum half precision in float32.

bfloat16 has 8 bits: 256 + 1 == 256, so a sum of ones stops at 256, and a mean of 4,096 ones that
are added one by one is 0.0625. In float16 the sum of squares overflows above 65504. Stock's
``skip_large_updates`` then skips every step of a ``MultiSteps``, for ever.

Here stock runs on float32 copies of the half-precision arguments, and the results have the dtypes
that stock gives them. So a float16 sum above 65504 that the user asks for is still infinite.
"""

from __future__ import annotations

from .._support.functions import in_float32, trees_in_float32  # noqa: F401  # For ``wrapped.py``.
