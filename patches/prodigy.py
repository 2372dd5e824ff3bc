"""prodigy: averages in stock's dtypes, scalars in float32 or wider, never float64 by accident.

Prodigy (Mishchenko and Defazio 2023, https://arxiv.org/abs/2306.06101) estimates the distance to
the solution. Up to 0.2.3, in 64-bit mode, ``beta ** count`` of a Python float and an int32 array is
float64, and state and updates follow. From 0.2.4 on a distance d in bfloat16 does not move by less
than d/256. And d is a quotient whose divisor, the sum of all gradients, is 0 as long as the
gradients are: 0/0 is nan, in every dtype and on every release. Stock runs as
``distance_estimates`` says.
"""

from __future__ import annotations

from .distance_estimates import replace  # noqa: F401  # For ``wrapped.py``.
