"""Import the shim when Python starts. If that fails, say why on ``import optax``.

``run`` calls this from ``sitecustomize``. ``activate`` writes a copy into site-packages, with the
call at its end. The copy names no folder: Python finds the shim as any program does.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident  # ``threading`` loads more modules.

TYPE_CHECKING = False  # Python has not imported ``typing`` yet.
if TYPE_CHECKING:
    from typing import Any

_STRICT = "OPTAX_DTYPEFIX_STRICT"


def import_at_start(file: str = "", *, strict: bool = False) -> None:
    """Import the shim. A failure concerns only a process that imports optax.

    Args:
      file: the file of ``activate`` that calls this, if one does.
      strict: whether ``OPTAX_DTYPEFIX_STRICT`` counts as 1 unless it is set.
    """
    # That of ``activate`` has failed, if this is ``run``. Only the last outcome counts.
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != OptaxIsNotPatched.__name__]
    try:
        _import(strict=strict)
    except Exception as error:
        if "optax" in sys.modules:  # Imported by a .pth file: nothing will ask us for it.
            raise
        sys.meta_path.insert(0, OptaxIsNotPatched(error, file, strict=strict))


def _import(*, strict: bool) -> None:
    before = os.environ.get(_STRICT)
    if strict and not _variable("_STRICT"):
        os.environ[_STRICT] = "1"
    try:
        import optax_dtypefix  # noqa: F401
    finally:  # The program, and what it starts, have their own environment.
        os.environ.pop(_STRICT, None)
        if before is not None:
            os.environ[_STRICT] = before


def _variable(suffix: str) -> str:
    return os.environ.get("OPTAX_DTYPEFIX" + suffix, "").strip()


class OptaxIsNotPatched:
    """Report on ``import optax`` why the shim could not be imported."""

    def __init__(self, error: Exception, file: str, *, strict: bool) -> None:
        self.file = file
        self.strict = strict
        self.on = _variable("") != "off"
        wanted = _variable("_STRICT") or ("1" if strict else "0")
        self.must = bool(_variable("_REQUIRE")) or (self.on and wanted == "1")
        self.searching: set[int] = set()
        self.note(error)

    def note(self, error: Exception) -> None:
        """Keep why the import failed."""
        advice = "For the traceback, run `python -m optax_dtypefix status`."
        self.gone = isinstance(error, ModuleNotFoundError) and error.name == "optax_dtypefix"
        if self.gone and self.file:
            start = os.path.splitext(self.file)[0]
            advice = f"Install optax-dtypefix again, or delete {start}.pth and {start}.py"
        self.problem = f"optax is not patched: {type(error).__name__}: {error}. {advice}"
        # A malformed variable stops the program, as it does after ``import optax_dtypefix``.
        malformed = type(error).__name__ == "OptaxDtypeFixError"
        self.error = error if malformed else RuntimeError(self.problem)
        self.stops = malformed or self.must

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find optax with the finders that come after this one, and let its import raise."""
        thread = get_ident()
        if name != "optax" or thread in self.searching:  # A finder may ask all finders.
            return None
        self.searching.add(thread)
        try:
            if self.gone and self.is_there_now():
                from importlib.util import find_spec

                return find_spec(name)  # The finder of the shim is the first one now.
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

    def is_there_now(self) -> bool:
        """Import the shim from where Python found nothing yet, such as a base environment."""
        try:
            _import(strict=self.strict)
        except Exception as error:
            self.note(error)
            return False
        return True


def _refusal() -> Any:
    """Return a loader of a module that raises: a finder that raises shows frames of importlib."""
    from importlib.machinery import SourceFileLoader

    class Refusal(SourceFileLoader):
        def get_code(self, fullname):  # type: ignore[no-untyped-def]
            code = "raise __spec__.loader_state.with_traceback(None)"
            return compile(code, f"<{fullname} is not patched>", "exec")

    return Refusal("optax", __file__)
