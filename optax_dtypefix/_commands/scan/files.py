"""Find Python files and notebooks, and parse what may use optax in them."""

from __future__ import annotations

import ast
import bisect
import json
import os
import re
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SUFFIXES = (".py", ".ipynb")
_OF_OTHERS = ("__pycache__", "node_modules", "site-packages")
_MAGIC = re.compile(r"^(\s*)([%!]|.*\?\s*$).*", re.MULTILINE)
_NOT_PYTHON = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|prun\b)")
_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


class Parsed(NamedTuple):
    """What a file consists of.

    Attributes:
      tree: all of its code that can be parsed.
      problems: why the file, or a cell of the notebook, cannot be parsed.
      cells: for each cell of a notebook, the number of lines before the cell.
    """

    tree: ast.Module
    problems: tuple[str, ...] = ()
    cells: tuple[int, ...] = ()

    def place(self, line: int) -> str:
        """Return the place of a line: ``31``, or ``cell 3:2`` for a notebook."""
        cell = bisect.bisect_left(self.cells, line)
        return f"cell {cell}:{line - self.cells[cell - 1]}" if cell else str(line)


def files_in(paths: Iterable[str]) -> Iterator[str]:
    """Yield files, and the Python files and notebooks of folders, but for environments.

    Raises:
      FileNotFoundError: there is no such file or folder.
    """
    for path in paths:
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise FileNotFoundError(f"there is no file or folder {path!r}")
            yield path
        for folder, folders, names in os.walk(path):
            folders[:] = [
                name
                for name in sorted(folders)
                if not name.startswith(".")
                and name not in _OF_OTHERS
                and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            ]
            found = (os.path.join(folder, name) for name in sorted(names))
            yield from (os.path.normpath(name) for name in found if name.endswith(_SUFFIXES))


def parse(path: str) -> Parsed:
    """Parse a file. A file that never mentions optax is not parsed, and counts as empty."""
    try:
        with open(path, "rb") as file:
            text = file.read()
        if b"optax" not in text:
            return Parsed(ast.Module([], []))
        if path.endswith(".ipynb"):
            return _notebook(["".join(cell["source"]) for cell in _code_cells(json.loads(text))])
        return Parsed(_tree(text))
    except (OSError, LookupError, AttributeError, TypeError, *_ERRORS) as error:
        return Parsed(ast.Module([], []), (_reason(error),))


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _notebook(sources: list[str]) -> Parsed:
    """Parse the cells one by one: what IPython accepts and Python does not spoils one cell."""
    whole, problems, cells, lines = ast.Module([], []), [], [], 0
    for number, source in enumerate(sources, 1):
        cells.append(lines)
        text = "" if _NOT_PYTHON.match(source) else _MAGIC.sub(r"\1pass", source)
        try:
            whole.body += ast.increment_lineno(_tree(text), lines).body
        except _ERRORS as error:
            problems.append(f"cell {number}: {_reason(error)}")
        lines += text.count("\n") + 1
    return Parsed(whole, tuple(problems), tuple(cells))


def _tree(text: str | bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of invalid escapes, which are not ours to report.
        return ast.parse(text)


def _reason(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    return f"{type(error).__name__}: {error}"
