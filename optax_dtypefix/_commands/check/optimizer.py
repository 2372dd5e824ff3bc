"""Find the optimizer that the user names as ``FILE.py:NAME`` or ``MODULE:NAME``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from ..._text import closest, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType


class OptimizerName(NamedTuple):
    """What to check: ``name`` in the file or module ``place``."""

    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


class OptimizerError(Exception):
    """There is no such transformation; the message says why, in one line."""


def parse_name(text: str) -> OptimizerName:
    """Read ``FILE.py:NAME`` or ``MODULE:NAME``; ``NAME`` may be dotted.

    Raises:
      ArgumentTypeError: the name is missing, or there is no such file.
    """
    place, colon, name = text.rpartition(":")
    if not (colon and place and name):
        example = text.strip(":") or "train.py"
        raise argparse.ArgumentTypeError(
            f"{text!r} does not name an optimizer. Write FILE.py:NAME or MODULE:NAME, such as "
            f"{example}:make_optimizer"
        )
    target = OptimizerName(place, name)
    if _is_file(target) and not os.path.isfile(place):
        folder, file = os.path.split(place)
        raise argparse.ArgumentTypeError(
            f"there is no file {place!r}.{_near(file, _scripts_in(folder))}"
        )
    return target


def load(target: OptimizerName) -> Callable[[], Any]:
    """Import the file or the module, and return a function that builds the transformation.

    A file is imported as a module and not as ``__main__``. Its folder, or the current one for a
    module, comes first on ``sys.path``.

    Raises:
      OptimizerError: there is no such transformation or factory, or it cannot be imported.
    """
    found: Any = _module(target)
    seen = target.place
    for part in target.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = [name for name in dir(found) if not name.startswith("_")]
            raise OptimizerError(f"{seen} has no {part!r}.{_near(part, known)}") from None
        seen = f"{seen}.{part}" if seen != target.place else f"{seen}:{part}"
    if _is_transformation(found):
        return lambda: found
    if not callable(found):
        raise OptimizerError(_no_transformation(target, f"has type {type(found).__name__}", found))
    required = _required_arguments(found)
    if required:
        raise OptimizerError(
            f"{target} needs arguments: {', '.join(required)}. Name a function that needs none, "
            f"such as `def make(): return {target.name}(...)`"
        )
    return lambda: _built(target, found)


def _built(target: OptimizerName, factory: Callable[[], Any]) -> Any:
    made = factory()
    if not _is_transformation(made):
        raise OptimizerError(_no_transformation(target, f"returns {type(made).__name__}", made))
    return made


def _is_transformation(found: Any) -> bool:
    methods = all(callable(getattr(found, name, None)) for name in ("init", "update"))
    return methods and not isinstance(found, type)


def _no_transformation(target: OptimizerName, what: str, found: Any) -> str:
    # As in flax, whose train states and optimizers hold the transformation as ``tx``.
    holds = _is_transformation(getattr(found, "tx", None)) and what.startswith("has")
    advice = f" Did you mean {f'{target}.tx'!r}?" if holds else ""
    return f"{target} {what}, not a transformation: it has no init and update.{advice}"


def _required_arguments(factory: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # Some functions written in C have no signature.
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _is_file(target: OptimizerName) -> bool:
    return target.place.endswith(".py") or os.path.basename(target.place) != target.place


def _scripts_in(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder or ".") if name.endswith(".py")]
    except OSError:
        return []


def _near(word: str, known: Sequence[str]) -> str:
    match = closest(word, known, cutoff=0.5)
    return f" Did you mean {match!r}?" if match else ""


def _module(target: OptimizerName) -> ModuleType:
    sys.argv[:] = [target.place]  # The program may read its options while it is imported.
    with _explained(target):
        if _is_file(target):
            path = os.path.realpath(target.place)
            sys.path.insert(0, os.path.dirname(path))
            return _module_of_file(path)
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(target.place)


def _module_of_file(path: str) -> ModuleType:
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules:  # Such as a file of the user that is called optax.py.
        name = f"_checked_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OptimizerError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # As for any import: its classes look for their module there.
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _explained(target: OptimizerName) -> Iterator[None]:
    """Turn whatever the import raises into one line."""
    try:
        yield
    except OptimizerError:
        raise
    except ModuleNotFoundError as error:
        if not _is_file(target) and f"{target.place}.".startswith(f"{error.name}."):
            raise OptimizerError(f"there is no module {error.name!r}") from None
        raise OptimizerError(_failed_import(target, error)) from None
    except SystemExit as error:
        raise OptimizerError(
            f"{target.place} cannot be imported: it exits with {error.code!r}. Guard what it runs "
            f"with `if __name__ == '__main__'`"
        ) from None
    except Exception as error:
        raise OptimizerError(_failed_import(target, error)) from None


def _failed_import(target: OptimizerName, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    file = os.path.realpath(target.place)
    ours = [frame for frame in frames if os.path.realpath(frame.filename) == file]
    line = f" (line {ours[-1].lineno})" if ours else ""
    relative = "relative import" in str(error) and _is_file(target)
    advice = ". It is part of a package: write MODULE:NAME" if relative else ""
    return f"{target.place} cannot be imported: {summarize(error)}{line}{advice}"
