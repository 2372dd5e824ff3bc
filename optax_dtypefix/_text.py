"""Write text for people: tables, short errors and suggestions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def suggest(word: str, known: Sequence[str], *, apart: str = "each by itself") -> str:
    """``did you mean 'x'?`` if something is near, else the whole list.

    Args:
      word: what the user wrote.
      known: what may be written.
      apart: how several are written, if it looks like several.
    """
    if set(word) & set(" ,;"):
        return f"if these are several, name them {apart}"
    match = closest(word, known, cutoff=0.5)
    return f"did you mean {match!r}?" if match else f"valid: {', '.join(known)}"


def closest(word: str, known: Sequence[str], *, cutoff: float) -> str | None:
    import difflib  # Only an error needs it: kept out of the import.

    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), None)


def summarize(error: Exception) -> str:
    """Type and first line of an error: JAX's go on for pages."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def table(rows: list[tuple[str, ...]], width: int | None = None) -> list[str]:
    """Lines of a table with aligned columns; the first row is the heading.

    Args:
      rows: the cells.
      width: if given, the last column is wrapped so that lines are no longer, as far as it can be.
    """
    if width is not None:
        rows = list(_wrapped(rows, width))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rule = tuple("-" * width for width in widths)
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in (rows[0], rule, *rows[1:])
    ]


def _wrapped(rows: list[tuple[str, ...]], width: int) -> Iterator[tuple[str, ...]]:
    import textwrap  # Here only: kept out of the import.

    before = sum(max(map(len, column)) + 2 for column in list(zip(*rows))[:-1])
    for *cells, last in rows:
        lines = textwrap.wrap(last, max(width - before, 20)) or [""]
        yield (*cells, lines[0])
        yield from (("",) * len(cells) + (line,) for line in lines[1:])


def terminal_width() -> int:
    """Return the columns of the terminal, or plenty where there is none."""
    import shutil  # Here only: kept out of the import.

    return shutil.get_terminal_size((120, 24)).columns
