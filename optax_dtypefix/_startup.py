"""Import the shim when optax is imported, in every Python of an environment.

The file that ``activate`` writes runs this source when Python starts. So it imports nothing then,
and a broken shim, or a malformed variable, concerns only a process that imports optax.
"""

import os
import sys


class _BeforeOptax:
    """Wait in ``sys.meta_path`` for the first import of optax."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        del path, target
        by_program = name == "optax_dtypefix" or "optax_dtypefix" in sys.modules
        if not (by_program or name == "optax" or sys.modules.get("optax") is not None):
            return None
        # A new list: removal in place would make a search in another thread skip a finder.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        if by_program:
            return None
        if name != "optax":
            _say("optax is not patched: another import hook loaded it; call optax_dtypefix.apply()")
            return None
        _import_the_shim()
        import importlib.util

        return importlib.util.find_spec(name)  # The shim's finder comes first now.


def install() -> None:
    """Wait for the first import of optax, once: in a virtual environment Python runs this twice."""
    if not any(type(finder).__name__ == _BeforeOptax.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeOptax())


def _import_the_shim() -> None:
    try:
        import optax_dtypefix  # noqa: F401
    except Exception as error:
        # A malformed variable stops the program, as it does after ``import optax_dtypefix``.
        malformed = type(error).__name__ == "OptaxDtypeFixError"
        if malformed or os.environ.get("OPTAX_DTYPEFIX_STRICT") == "1":
            raise
        _say(f"optax is not patched: {type(error).__name__}: {error}")


def _say(message: str) -> None:
    if sys.stderr is not None:  # It is None under ``pythonw``.
        print(f"optax-dtypefix: {message}", file=sys.stderr)
