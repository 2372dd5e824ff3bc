"""Look the optimizer up in the source of its file or module, before anything is imported."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from .optimizer import OptimizerError, listed, near

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .optimizer import OptimizerName

_DYNAMIC = {
    *("*", "__getattr__", "__dict__", "globals", "vars"),
    *("locals", "exec", "setattr", "modules", "f_globals"),
}
"""A file that has a star import, or one of these words, may bind any name."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # The import says what is wrong.
        return
    words = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(tree)}
    bound = set(_bound(ast.walk(tree)))
    if name in bound or not _DYNAMIC.isdisjoint(words | bound):
        return
    top = [*_at_the_top(tree)]
    known, defined = (
        [name for name in dict.fromkeys(_bound(nodes)) if name and name[0] != "_"]
        for nodes in (top, (node for node in top if not isinstance(node, ast.alias)))
    )
    raise OptimizerError(
        f"{optimizer.place} has no {name!r}.{near(name, known) or listed(defined)}"
    )


def _path_of(module: str) -> str | None:
    """Return the source of a module without importing it or its packages, if it can be found."""
    first, *parts = module.split(".")
    with _current_folder_first(), contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(first)
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


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    before = sys.path[:]
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def _is_submodule(name: str, path: str) -> bool:
    """Whether the name may be a module in the folder of a package."""
    folder, file = os.path.split(path)
    inside = (entry.partition(".")[0] for entry in os.listdir(folder or "."))
    return file == "__init__.py" and name in inside


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that syntax nodes bind."""
    for node in nodes:
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, _FUNCTIONS):
            yield node.name
        else:  # ``except ... as name``, ``case name`` and ``case {**rest}``.
            yield from (str(getattr(node, key, "")) for key in ("name", "rest"))


def _at_the_top(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes outside functions and classes."""
    waiting: list[ast.AST] = [tree]
    for node in waiting:
        yield node
        if not isinstance(node, _FUNCTIONS):
            waiting.extend(ast.iter_child_nodes(node))
