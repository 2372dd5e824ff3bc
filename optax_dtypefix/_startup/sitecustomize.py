"""Import the shim when Python starts, then run the next ``sitecustomize`` on the path.

``run`` puts this folder first on PYTHONPATH, so that Python imports this module when it starts.
"""

from __future__ import annotations

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))

# Last: this may be site-packages, and must hide no standard module.
sys.path.append(os.path.dirname(os.path.dirname(_FOLDER)))
try:
    import optax_dtypefix  # noqa: F401
finally:
    sys.path.pop()
    # Nothing in ``sys.path`` and ``sys.modules`` shows the program that we were here.
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
_own = sys.modules.pop(__name__)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
    sys.modules[__name__] = _own  # Python looks for it after the import.
