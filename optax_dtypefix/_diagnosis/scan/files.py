"""Find Python files and notebooks, and parse what may use optax in them."""

from __future__ import annotations

import ast
import bisect
import json
import os
import re
import textwrap
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._text import closest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SUFFIXES = (".py", ".ipynb")
_OF_OTHERS = ("__pycache__", "node_modules", "site-packages")
_MOST_CODE = 2_000_000
"""Characters: a syntax tree takes some 200 times as much memory."""

_MAGIC = re.compile(r"(?P<indent>\s*)([\w.,\s]+=\s*)?([%!?]|[\w.]+\?).*")
"""A line for IPython: a magic, a shell command, what is assigned from one, or a question."""

_TIMED = re.compile(
    r"\s*([\w.,\s]+=\s*)?%{1,2}(time|timeit|prun|memit)\s+"
    r"(-[nrpvslTD]\s*\S+\s+|-[-\w]+\s+)*(?P<code>.*)"
)
"""A magic that runs the Python code that follows it, and its options."""

_NOT_PYTHON = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|prun\b|memit\b)")
_DTYPES = re.compile(rb"\b(bfloat16|float16|float32|float64|complex64|complex128)\b")
_MENTIONS = re.compile(rb"optax|apply_updates|apply_gradients|nnx\b.*Optimizer|OptaxSolver")
_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


class Parsed(NamedTuple):
    """What a file consists of.

    Attributes:
      tree: all of its code that can be parsed.
      problems: why the file, or a cell of the notebook, cannot be parsed.
      cells: for each cell of a notebook, the number of lines before the cell.
      dtypes: float dtypes that it names, if it mentions optax; float32 if it names none.
    """

    tree: ast.Module
    problems: tuple[str, ...] = ()
    cells: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()

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
                raise FileNotFoundError(f"there is no file or folder {path!r}.{_near(path)}")
            yield path
        for folder, folders, names in os.walk(path):
            folders[:] = [
                name
                for name in sorted(folders)
                if not name.startswith(".")
                and name not in _OF_OTHERS
                and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            ]
            found = (os.path.join(folder, n) for n in sorted(names) if n.endswith(_SUFFIXES))
            # To open a named pipe waits for another program.
            yield from (os.path.normpath(name) for name in found if os.path.isfile(name))


def _near(path: str) -> str:
    """Ask whether the file or folder with the nearest name was meant, if one is near."""
    folder, name = os.path.split(path)
    known = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    match = closest(name, known, cutoff=0.5)
    return f" Did you mean {os.path.join(folder, match)!r}?" if match else ""


def parse(path: str) -> Parsed:
    """Parse a file. If it mentions neither optax nor what calls it, it counts as empty."""
    try:
        if not os.path.isfile(path) and not path.startswith("/dev/"):  # As in ``<(git show ...)``.
            raise SyntaxError("it is not a regular file")
        with open(path, "rb") as file:
            text = file.read()
        if not _MENTIONS.search(text):
            return Parsed(ast.Module([], []))
        is_notebook = path.endswith(".ipynb")
        parsed = _notebook(_code_cells(json.loads(text))) if is_notebook else Parsed(_tree(text))
        dtypes = {match.decode() for match in _DTYPES.findall(text)} or {"float32"}
        return parsed._replace(dtypes=tuple(sorted(dtypes)))
    except (OSError, LookupError, AttributeError, TypeError, *_ERRORS) as error:
        return Parsed(ast.Module([], []), (_reason(error),))


def _code_cells(notebook: Any) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _notebook(sources: list[str]) -> Parsed:
    """Parse the cells one by one: what IPython accepts and Python does not spoils one cell."""
    whole, problems, cells, lines = ast.Module([], []), [], [], 0
    for number, source in enumerate(sources, 1):
        cells.append(lines)
        try:
            whole.body += ast.increment_lineno(_cell(source), lines).body
        except _ERRORS as error:
            problems.append(f"cell {number}: {_reason(error)}")
        lines += source.count("\n") + 1
    return Parsed(whole, tuple(problems), tuple(cells))


def _cell(source: str) -> ast.Module:
    """Parse a cell. A line that Python refuses and IPython accepts is replaced."""
    lines = [] if _NOT_PYTHON.match(source) else textwrap.dedent(source).split("\n")
    while True:
        try:
            return _tree("\n".join(lines))
        except SyntaxError as error:
            number = (error.lineno or 0) - 1
            magic = _MAGIC.fullmatch(lines[number]) if 0 <= number < len(lines) else None
            if magic is None:
                raise
            timed = _TIMED.fullmatch(lines[number] + " ")
            end = number
            while timed is None and lines[end].endswith("\\") and end + 1 < len(lines):
                end += 1  # A shell command goes on in the next line.
            lines[number] = magic["indent"] + ((timed and timed["code"].strip()) or "pass")
            lines[number + 1 : end + 1] = [""] * (end - number)


def _tree(text: str | bytes) -> ast.Module:
    if len(text) > _MOST_CODE:
        raise SyntaxError(f"it has {len(text):,} characters of code; {_MOST_CODE:,} are the limit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of invalid escapes, which are not ours to report.
        return ast.parse(text)


def _reason(error: Exception) -> str:
    if not isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    return f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
