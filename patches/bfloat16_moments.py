"""bfloat16_moments: moments in bfloat16 are rounded up and down, so that none stalls.

v += (1 - b2) (g^2 - v) does not move v by less than half a unit in its last place. bfloat16 has 8
bits. So with b2 = 0.999, v stalls as soon as g^2 / v is below 1 + 2^-9 / 0.001, about 3. For unit
gradients v stalls at 0.5, and updates are 1.4 times too large. v never falls: 0.999 v rounds to v.
So after large gradients, updates for small ones stay too small.

Here stock runs on float32 copies of the bfloat16 leaves, and its state is rounded back: up in some
steps and down in others, so that the mean over steps is right. The step counter in the state
decides, so each run gives the same bits. rmsprop, adagrad, sm3, adadelta, cocob and ``trace``, the
momentum of SGD, have no counter: there another counter of the chain decides, such as that of a
schedule, or else the element's own data. A moment whose dtype you ask for (``mu_dtype``,
``accumulator_dtype``) is rounded in the same way, for float32 params too.
"""

from __future__ import annotations

from .door.lifts import BFLOAT16, Lifts

replace = Lifts(BFLOAT16)
