"""Import the shim when Python starts, then run the next ``sitecustomize`` on the path.

``run`` puts this folder first on PYTHONPATH, so that Python imports this module when it starts. The
``.pth`` file that ``activate`` writes executes it by its path. If the shim cannot be imported, that
concerns only a process that imports optax.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _Failure:
    """Report on ``import optax`` why the shim could not be imported."""

    def __init__(self, error):  # type: ignore[no-untyped-def]
        self.error = error
        # A malformed variable stops the program, as it does after ``import optax_dtypefix``.
        malformed = type(error).__name__ == "OptaxDtypeFixError"
        self.stops = malformed or os.environ.get("OPTAX_DTYPEFIX_STRICT") == "1"

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        del path, target
        if name == "optax" and self.stops:
            raise self.error
        if name == "optax" and sys.stderr is not None:  # It is None under ``pythonw``.
            why = f"{type(self.error).__name__}: {self.error}"
            advice = "For the traceback, run `python -m optax_dtypefix status`."
            print(f"optax-dtypefix: optax is not patched: {why}. {advice}", file=sys.stderr)


# Last: this may be site-packages, and must hide no standard module.
sys.path.append(os.path.dirname(os.path.dirname(_FOLDER)))
try:
    import optax_dtypefix  # noqa: F401
except Exception as error:
    sys.meta_path.insert(0, _Failure(error))  # type: ignore[no-untyped-call]
finally:
    sys.path.pop()

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
