"""Look the optimizer up in the source of its file or module, before anything is imported."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import symtable
import warnings
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from .optimizer import OptimizerError, listed, near

if TYPE_CHECKING:
    from .optimizer import OptimizerName

_DYNAMIC = re.compile(
    rb"\b(globals|vars|locals|exec|setattr|sys\.modules|f_globals|__dict__|__getattr__)\b"
    rb"|modules\s*\[|import\s*\*"
)
"""A file that has one of these words may bind any name."""


def refuse_missing(optimizer: OptimizerName) -> None:
    """Raise if the source binds no such name: to import it may take long.

    Where only an import can tell, do nothing.

    Raises:
      OptimizerError: there is no such module, or no such name in it.
    """
    path = optimizer.place if optimizer.in_file else _path_of(optimizer.place)
    name = optimizer.name.partition(".")[0]
    if path is None or name.startswith("__"):
        return
    try:
        if _is_submodule(name, path):
            return
        source = Path(path).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            symbols = symtable.symtable(source, path, "exec").get_symbols()  # type: ignore[arg-type]
    except (OSError, SyntaxError, ValueError, RecursionError):  # The import says what is wrong.
        return
    imported = [symbol.get_name() for symbol in symbols if symbol.is_imported()]
    # ``global`` in a function binds a name of the module.
    others = [s.get_name() for s in symbols if s.is_assigned() or s.is_declared_global()]
    if name in [*imported, *others] or _DYNAMIC.search(source):
        return
    hint = near(name, [*others, *imported]) or listed([each for each in others if each[0] != "_"])
    raise OptimizerError(f"{optimizer.place} has no {name!r}.{hint}")


def _path_of(module: str) -> str | None:
    """Return the source of a module without importing it or its packages, if it can be found."""
    first, *parts = module.split(".")
    with contextlib.suppress(ImportError, ValueError):
        spec = PathFinder.find_spec(first, [os.getcwd()]) or importlib.util.find_spec(first)
        if spec is None:
            scripts = [path.stem for path in Path().glob("*.py")]
            raise OptimizerError(f"there is no module {first!r}.{near(first, scripts)}")
        for part in parts:
            if spec is None or spec.submodule_search_locations is None:
                return None
            name = f"{spec.name}.{part}"
            spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            return spec.origin
    return None


def _is_submodule(name: str, path: str) -> bool:
    """Whether the name may be a module in the folder of a package."""
    folder, file = os.path.split(path)
    inside = (entry.partition(".")[0] for entry in os.listdir(folder or "."))
    return file == "__init__.py" and name in inside
