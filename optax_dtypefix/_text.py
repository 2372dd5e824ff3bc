"""Write text for people: tables, short errors and suggestions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def suggest(
    word: object, known: Sequence[str], *, several: str = "Give each name separately."
) -> str:
    """Return ``Did you mean 'x'?`` if a known word is near, else list all known words.

    Args:
      word: an unknown word that the user wrote, or what stands in its place, such as a list.
      known: the valid words.
      several: advice for a word that looks like several.
    """
    text = str(word)
    if set(text) & set(" ,;"):
        return several
    match = closest(text, known, cutoff=0.5)
    return f"Did you mean {match!r}?" if match else f"Valid: {', '.join(known)}."


def closest(word: str, known: Sequence[str], *, cutoff: float) -> str | None:
    """Return the known word nearest to ``word``, or None if none is near."""
    import difflib  # Only an error needs it, so keep it out of ``import optax_dtypefix``.

    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), None)


def cut(text: str, limit: int) -> str:
    """Shorten a text to ``limit`` characters; the last one shows that some are missing."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def table(
    rows: list[tuple[str, ...]],
    width: int | None = None,
    paint: Callable[[str], str] = str,
    most_lines: int | None = None,
    least: Sequence[int] = (),
) -> list[str]:
    """Return the lines of a table with aligned columns; the first row is the heading.

    Args:
      rows: the cells.
      width: if given, wrap the last column to keep lines this short where possible.
      paint: adds colour to a cell, which is aligned already.
      most_lines: if given, cut the last column to so many lines; ``…`` shows that some are missing.
      least: the least widths of the first columns. Then the lines of some rows are the first of
        those of all.
    """
    if least:
        first = (cell.ljust(width) for cell, width in zip(rows[0], least))
        rows = [(*first, *rows[0][len(least) :]), *rows[1:]]
    if width is not None:
        rows = list(_wrapped(rows, width, most_lines))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if least:
        widths[-1] = len(rows[0][-1])
    rule = tuple("-" * width for width in widths)
    lines = [
        [cell.ljust(width) for cell, width in zip(row, widths)]
        for row in (rows[0], rule, *rows[1:])
    ]
    return ["  ".join(map(paint, cells)).rstrip() for cells in lines]


def _wrapped(
    rows: list[tuple[str, ...]], width: int, most_lines: int | None
) -> Iterator[tuple[str, ...]]:
    import textwrap  # Not at the top: see ``closest``.

    before = sum(max(map(len, column)) + 2 for column in list(zip(*rows))[:-1])
    room = max(width - before, 20)
    for *cells, last in rows:
        lines = textwrap.wrap(last, room, max_lines=most_lines, placeholder=" …") or [""]
        yield (*cells, lines[0])
        yield from (("",) * len(cells) + (line,) for line in lines[1:])


def html_table(rows: list[tuple[str, ...]]) -> str:
    """Return a table for notebooks; the first row is the heading. Cells are text, not HTML."""
    import html  # Not at the top: see ``closest``.

    def line(cells: tuple[str, ...], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells
        )

    body = "".join(f"<tr>{line(cells, 'td')}</tr>" for cells in rows[1:])
    return f"<table><thead><tr>{line(rows[0], 'th')}</tr></thead><tbody>{body}</tbody></table>"
