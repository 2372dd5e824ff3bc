"""float16_eps: moments of float16 gradients are computed in float32 and stay finite.

An update like m / (sqrt(v) + eps) needs eps > 0 and the squares of small gradients. The smallest
number of float16 is 6e-8 and the largest is 65504. So eps = 1e-8 is 0, the square of a gradient of
1e-4 is 0, and the square of 256 is inf. Then 0/0 is nan, g/0 is inf, and g/inf freezes a parameter
for good.

Here stock runs on float32 copies of the float16 leaves, and its state is rounded back as
``bfloat16_moments`` says; first moments to nearest below 6e-5. A positive moment that divides is at
least 6e-8: an update for a tiny gradient may be too small. A moment above 65504, from gradients
that stay above 256, is kept at 65504: an update is then too large by up to |g| / 256.
``float32_moments`` avoids both.
"""

from __future__ import annotations

from .door.lifts import FLOAT16, Lifts

replace = Lifts(FLOAT16)
