from __future__ import annotations

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.
