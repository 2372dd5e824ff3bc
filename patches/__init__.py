"""The patches: ``catalogue.py`` and ``wrapped.py`` list them; the other files have the functions.

The tables are data: to read them imports neither JAX nor the file of a patch.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .catalogue import PATCHES

if TYPE_CHECKING:
    from .._engine.patch import Patch

IDS = tuple(PATCHES)


def load(patch_id: str) -> Patch:
    """Return what the tables say of a patch."""
    return _read_tables()[patch_id]


@functools.cache
def _read_tables() -> dict[str, Patch]:
    # Not at the top: a program that never imports optax needs no more than the ids.
    from .._engine.patch import read_patches
    from .wrapped import BUILDERS, MODULES, WRAPPED

    return read_patches(PATCHES, WRAPPED, MODULES, BUILDERS, folder=__name__)
