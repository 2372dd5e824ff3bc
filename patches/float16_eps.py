"""float16_eps: moments of float16 gradients are computed in float32 and stay finite.

An update like m / (sqrt(v) + eps) needs eps > 0 and the squares of small gradients. The smallest
number of float16 is 6e-8 and the largest is 65504. So eps = 1e-8 is 0, the square of a gradient of
1e-4 is 0, and the square of 256 is inf. Then 0/0 is nan, g/0 is inf, and g/inf freezes a parameter
for good. bfloat16 has the exponents of float32: see ``bfloat16_moments``.

Here stock runs on float32 copies of the float16 leaves. Its state is rounded back: the user chose
how much memory the state takes. A step may add less to a moment than float16 can hold: rounded to
nearest, the moment would stop, and rounded up, it would drift up. So it is rounded up in some steps
and down in others, and its mean over steps is right. The step counter in the state decides, so each
run gives the same bits. First moments are rounded in the same way, but to nearest below 6e-5.
rmsprop, adagrad, sm3, adadelta and cocob have no counter: all data of the step decide there. A
positive moment that divides is at least 6e-8: an update for a tiny gradient may be too small. A
moment above 65504, from gradients that stay above 256, is kept at 65504: an update is then too
large by up to |g| / 256; on stock it is zero for ever. ``float32_moments`` avoids both.

This patch does not change norms of whole trees or the scalars of parameter-free optimizers.
"""

from __future__ import annotations

from ._support.layer import InFloat32, is_float16

replace = InFloat32(is_float16)
