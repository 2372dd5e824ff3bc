"""Find the optimizer that the user names as ``FILE.py:NAME`` or ``MODULE:NAME``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from ..._errors import summarize
from ..._text import closest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


_NO_TRANSFORMATION = "not a transformation: it has no init and update."
_FEW = 12
_ADVICE = " Name a transformation, or a function that returns one."


class OptimizerName(NamedTuple):
    """What to check: ``name`` in the file or module ``place``."""

    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"

    @property
    def in_file(self) -> bool:
        """Whether the place is a file, not a module."""
        return self.place.endswith(".py") or os.path.basename(self.place) != self.place


class OptimizerError(Exception):
    """There is no such transformation; the message says why, in one line."""


def parse_name(text: str) -> OptimizerName:
    """Read ``FILE.py:NAME`` or ``MODULE:NAME``; ``NAME`` may be dotted.

    Raises:
      ArgumentTypeError: the name is missing, or there is no such file.
    """
    place, _, name = text.rpartition(":")
    if not (place and name) or place.endswith(":"):
        raise argparse.ArgumentTypeError(
            f"{text!r} does not name an optimizer. Write FILE.py:NAME or MODULE:NAME, such as "
            f"{_completed(text)}"
        )
    optimizer = OptimizerName(place, name)
    if place.endswith(".ipynb"):
        raise argparse.ArgumentTypeError(
            f"{place!r} is a notebook. Write the optimizer into a file."
        )
    if not optimizer.in_file and not all(map(str.isidentifier, place.split("."))):
        raise argparse.ArgumentTypeError(f"{place!r} is neither a Python file nor a module.")
    if optimizer.in_file and not os.path.isfile(place):
        folder, file = os.path.split(place)
        scripts = [path.name for path in Path(folder).glob("*.py")]
        raise argparse.ArgumentTypeError(f"there is no file {place!r}.{near(file, scripts)}")
    return optimizer


def _completed(text: str) -> str:
    """Complete what the user wrote: a file, a module, a name or, as for pytest, ``FILE::NAME``."""
    place, _, name = text.strip(":").partition("::")
    if not name and not place.endswith(".py"):
        if "." in place:
            place, _, name = place.rpartition(".")
        elif not (os.path.exists(f"{place}.py") or os.path.isdir(place)):
            place, name = "", place
    return f"{place or 'train.py'}:{name or 'make_optimizer'}"


def load(optimizer: OptimizerName) -> Callable[[], Any]:
    """Import the file or the module, and return a function that builds the transformation.

    A file is imported as a module and not as ``__main__``. Its folder, or the current one for a
    module, comes first on ``sys.path``.

    Raises:
      OptimizerError: there is no such transformation or factory, or it cannot be imported.
    """
    found: Any = _module(optimizer)
    seen = optimizer.place
    for part in optimizer.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = [name for name in dir(found) if not name.startswith("_")]
            hint = near(part, known) or listed(_names_in(found))
            raise OptimizerError(f"{seen} has no {part!r}.{hint}") from None
        seen = f"{seen}.{part}" if seen != optimizer.place else f"{seen}:{part}"
    if _is_transformation(found):
        return lambda: found
    if not callable(found):
        # As in flax, whose train states and optimizers hold the transformation as ``tx``.
        holds = _is_transformation(getattr(found, "tx", None))
        advice = f" Did you mean {f'{optimizer}.tx'!r}?" if holds else _ADVICE
        what = f"has type {type(found).__name__}, {_NO_TRANSFORMATION}"
        raise OptimizerError(f"{optimizer} {what}{advice}")
    required = _required_arguments(found)
    if required:
        raise OptimizerError(
            f"{optimizer} needs arguments: {', '.join(required)}. Name a function that needs none, "
            f"such as `def make(): return {optimizer.name}(...)`"
        )
    return lambda: _built(optimizer, found)


def _built(optimizer: OptimizerName, factory: Callable[[], Any]) -> Any:
    try:
        made = factory()
    except SystemExit as error:
        raise OptimizerError(
            f"{optimizer} cannot be built: it exits with {error.code!r}. Name a function that "
            f"does not read the command line."
        ) from None
    if not _is_transformation(made):
        what = f"returns {type(made).__name__}, {_NO_TRANSFORMATION}"
        raise OptimizerError(f"{optimizer} {what}{_ADVICE}")
    return made


def _is_transformation(found: Any) -> bool:
    methods = all(callable(getattr(found, name, None)) for name in ("init", "update"))
    return methods and not isinstance(found, type)


def _required_arguments(factory: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(factory).parameters.values()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def near(word: str, known: Sequence[str]) -> str:
    """Return a sentence that asks whether the nearest name was meant, if one is near."""
    match = closest(word, known, cutoff=0.5)
    return f" Did you mean {match!r}?" if match else ""


def listed(names: Sequence[str]) -> str:
    """Return a sentence that lists the first of these names, if there are any."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f" It has: {', '.join(names[:_FEW])}{more}." if names else ""


def _names_in(found: Any) -> list[str]:
    """List what a module or class defines, without what it imports."""
    module = getattr(found, "__module__", getattr(found, "__name__", ""))
    return [
        name
        for name, value in getattr(found, "__dict__", {}).items()
        if not name.startswith("_")
        and (_is_transformation(value) or getattr(value, "__module__", "") == module)
    ]


def _module(optimizer: OptimizerName) -> ModuleType:
    place = optimizer.place
    sys.argv[:] = [place]  # The program may read its options while it is imported.
    file = os.path.realpath(place)
    sys.path.insert(0, os.path.dirname(file) if optimizer.in_file else os.getcwd())
    try:
        return _module_of_file(file) if optimizer.in_file else importlib.import_module(place)
    except SystemExit as error:
        raise OptimizerError(
            f"{place} cannot be imported: it exits with {error.code!r}. Move the code that "
            f"runs the program under `if __name__ == '__main__':`"
        ) from None
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and not optimizer.in_file and f"{place}.".startswith(f"{missing}."):
            raise OptimizerError(f"there is no module {missing!r}") from None
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if os.path.realpath(f.filename) == file]
        line = f" (line {lines[-1]})" if lines else ""
        relative = "relative import" in str(error) and optimizer.in_file
        advice = ". It is part of a package: write MODULE:NAME" if relative else ""
        why = f"{summarize(error)}{line}{advice}"
        raise OptimizerError(f"{place} cannot be imported: {why}") from None


def _module_of_file(path: str) -> ModuleType:
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules:  # Such as a file of the user that is called optax.py.
        name = f"_checked_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # As for any import: its classes look for their module there.
    spec.loader.exec_module(module)
    return module
