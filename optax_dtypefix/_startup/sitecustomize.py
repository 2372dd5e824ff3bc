"""Import the shim when Python starts, then run the next ``sitecustomize`` on the path.

``run`` puts this folder first on PYTHONPATH, so that Python imports this module when it starts. The
``.pth`` file that ``activate`` writes has a copy of the code, and gives it ``STRICT`` and
``FILE``, its path. If the shim cannot be imported, that concerns only a process that imports optax.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident  # ``threading`` loads more modules.

TYPE_CHECKING = False  # Python has not imported ``typing`` yet.
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_STRICT = "OPTAX_DTYPEFIX_STRICT"


def _given(suffix: str) -> str:
    return os.environ.get("OPTAX_DTYPEFIX" + suffix, "").strip()


class OptaxIsNotPatched:
    """Report on ``import optax`` why the shim could not be imported."""

    def __init__(self, error: Exception) -> None:
        advice = "For the traceback, run `python -m optax_dtypefix status`."
        gone = isinstance(error, ModuleNotFoundError) and error.name == "optax_dtypefix"
        if gone and "FILE" in globals():
            advice = f"Install optax-dtypefix again, or delete {globals()['FILE']}"
        self.problem = f"optax is not patched: {type(error).__name__}: {error}. {advice}"
        self.on = _given("") != "off"
        # A malformed variable stops the program, as it does after ``import optax_dtypefix``.
        malformed = type(error).__name__ == "OptaxDtypeFixError"
        self.error = error if malformed else RuntimeError(self.problem)
        self.stops = malformed or bool(_given("_REQUIRE")) or (self.on and _given("_STRICT") == "1")
        self.searching: set[int] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find optax with the finders that come after this one, and let its import raise."""
        thread = get_ident()
        if name != "optax" or thread in self.searching:  # A finder may ask all finders.
            return None
        self.searching.add(thread)
        try:
            others = sys.meta_path[sys.meta_path.index(self) + 1 :]
            searches = (getattr(other, "find_spec", None) for other in others)
            found = (search(name, path, target) for search in searches if search)
            spec = next(filter(None, found), None)
        finally:
            self.searching.remove(thread)
        if spec is None:
            return None
        if self.stops:
            spec.loader, spec.loader_state = _refusal(), self.error
            return spec
        if self.on and sys.stderr is not None:  # It is None under ``pythonw``.
            print(f"optax-dtypefix: {self.problem}", file=sys.stderr)
        return None


def _refusal() -> Any:
    """Return a loader of a module that raises: a finder that raises shows frames of importlib."""
    from importlib.machinery import SourceFileLoader

    class Refusal(SourceFileLoader):
        def get_code(self, fullname):  # type: ignore[no-untyped-def]
            code = "raise __spec__.loader_state.with_traceback(None)"
            return compile(code, f"<{fullname} is not patched>", "exec")

    return Refusal("optax", __file__)


_before = os.environ.get(_STRICT)
if globals().get("STRICT") == "1" and not _given("_STRICT"):
    os.environ[_STRICT] = "1"
# Python reads the .pth files of a virtual environment twice. Only the last outcome counts.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != OptaxIsNotPatched.__name__]
# Last: this may be site-packages, and must hide no standard module.
sys.path.append(os.path.dirname(os.path.dirname(_FOLDER)))
try:
    import optax_dtypefix  # noqa: F401
except Exception as error:
    if "optax" in sys.modules:  # Imported by an earlier .pth file: nothing will ask us for it.
        raise
    sys.meta_path.insert(0, OptaxIsNotPatched(error))
finally:
    sys.path.pop()
    os.environ.pop(_STRICT, None)  # The program, and what it starts, have their own environment.
    if _before is not None:
        os.environ[_STRICT] = _before

if __name__ == "sitecustomize":
    # Nothing in ``sys.path`` and ``sys.modules`` shows the program that we were here.
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    _own = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = _own  # Python looks for it after the import.
