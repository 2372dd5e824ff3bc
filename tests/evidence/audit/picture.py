"""Draw the audit: how much is right on stock, how much by default, how much with the opt-in."""

from __future__ import annotations

import collections
import operator
from typing import TYPE_CHECKING, Any

from evidence.audit.results import BROKEN, BY_DESIGN, FIXED, KEPT, OPT_IN
from support.svg import Svg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Counts = collections.Counter[str]
    Columns = Sequence[tuple[str, Mapping[str, Counts]]]

_KEY = {
    KEPT: ("gray", "ink", "stock optax is right"),
    FIXED: ("blue", "page", "fixed by default"),
    OPT_IN: ("amber", "black", "fixed only by every_transform (opt-in)"),
    BROKEN: ("red", "page", "still wrong"),
}
"""For each verdict: the color of its bar, the color of words on that bar, and the meaning."""

_WIDTH, _MARGIN, _NAMES, _LINE, _TOTAL = 830, 12, 190, 14, 20
_NARROW = 5
"""At most this many columns fit twice beside each other."""
_CONTRIB = "contrib."


def draw(records: Sequence[Mapping[str, Any]]) -> str:
    """Draw the share of measured cells with each verdict: in all, and for each transformation.

    Args:
      records: the output of ``python -m evidence.audit --json``. One record is drawn by regime.
        Several are drawn by release, at most five of them, from the first to the last.

    Returns:
      SVG text.
    """
    columns = _by_regime(records[0]) if len(records) == 1 else _by_release(records)
    rows = _rows({name for _, counts in columns for name in counts})
    blocks = 2 if len(columns) <= _NARROW else 1
    lines = -(-len(rows) // blocks)
    details = 74 + _TOTAL * len(columns)
    top = details + (54 if blocks == 2 else 94)
    svg = Svg(
        _WIDTH, top + _LINE * lines + _MARGIN, "Which optax transformations keep their dtypes"
    )
    title = "How often do updates and optimizer state keep their dtypes?"
    svg.text(_MARGIN, 24, title, font_size=15, font_weight="bold")
    _draw_totals(svg, columns, "" if len(records) == 1 else "optax ")
    svg.text(_MARGIN, details + 22, "Each transformation", font_weight="bold")
    svg.text(_MARGIN + 130, details + 22, "(blank: nothing to measure)", "muted")
    width = (_WIDTH - 2 * _MARGIN) / blocks
    for block, start in enumerate(range(0, len(rows), lines)):
        place = (_MARGIN + block * width, top, width)
        _draw_block(svg, place, columns, rows[start : start + lines])
    return str(svg)


def _draw_totals(svg: Svg, columns: Columns, before: str) -> None:
    totals = [sum(counts.values(), collections.Counter()) for _, counts in columns]
    left, shown = 100, _WIDTH - _MARGIN - 100
    x: float = _MARGIN
    for verdict, bars in _bars([(left, 78 + _TOTAL * i, shown, c) for i, c in enumerate(totals)]):
        color, on_it, words = _KEY[verdict]
        svg.rect(x, 38, 12, 12, color)
        svg.text(x + 18, 48, words)
        x += 40 + 6.6 * len(words)
        svg.bars(bars, _TOTAL - 4, color)
        for start, y, length in bars:
            if length > 0.025 * shown:
                share = f"{length / shown:.0%}"
                svg.text(start + length / 2, y + 4, share, on_it, text_anchor="middle")
    for index, (title, _) in enumerate(columns):
        svg.text(left - 8, 82 + _TOTAL * index, before + title, text_anchor="end")


def _draw_block(
    svg: Svg, place: tuple[float, float, float], columns: Columns, rows: Sequence[tuple[str, str]]
) -> None:
    """Draw some rows; a place is left, top and width."""
    left, top, width = place
    turned = len(columns) > _NARROW
    cell = (width - _NAMES) / len(columns)
    places = []
    for index, (title, counts) in enumerate(columns):
        x = left + _NAMES + index * cell
        turn = {"transform": f"rotate(-40 {x:.0f} {top - 12})"} if turned else {}
        svg.text(x, top - 12, title, "muted", **turn)
        for line, (_, name) in enumerate(rows):
            if name in counts:
                places.append((x, top + _LINE * line, cell - 4, counts[name]))
    for verdict, bars in _bars(places):
        svg.bars(bars, _LINE - 4, _KEY[verdict][0])
    for line, (label, name) in enumerate(rows):
        weight = "normal" if name else "bold"
        x, y = left + _NAMES - 6, top + _LINE * line + 4
        svg.text(x, y, label, text_anchor="end", font_size=10, font_weight=weight)


def _bars(
    places: Sequence[tuple[float, float, float, Counts]],
) -> Iterator[tuple[str, list[tuple[float, float, float]]]]:
    """For each verdict that occurs, its part of each place; a place is x, y, length and counts."""
    bars: dict[str, list[tuple[float, float, float]]] = {verdict: [] for verdict in _KEY}
    for x, y, length, counts in places:
        start = x
        for verdict in filter(counts.__getitem__, _KEY):
            part = length * counts[verdict] / sum(counts.values())
            bars[verdict].append((start, y, part))
            start += part
    return ((verdict, found) for verdict, found in bars.items() if found)


def _by_release(records: Sequence[Mapping[str, Any]]) -> Columns:
    drawn = min(_NARROW, len(records))
    chosen = [records[round(i * (len(records) - 1) / (drawn - 1))] for i in range(drawn)]
    return [(r["optax_version"], _counts(r["rows"], lambda cells: cells)) for r in chosen]


def _by_regime(record: Mapping[str, Any]) -> Columns:
    return [
        (regime, _counts(record["rows"], operator.itemgetter(index)))
        for index, regime in enumerate(record["regimes"])
    ]


def _counts(rows: Sequence[Mapping[str, Any]], part: Callable[[str], str]) -> dict[str, Counts]:
    """Count the verdicts of each transformation. Leave out what is so by design."""
    counts: dict[str, Counts] = {}
    for row in rows:
        verdicts = part(row["cells"]).replace(BY_DESIGN, "")
        counts.setdefault(row["name"], collections.Counter()).update(verdicts)
    return counts


def _rows(names: set[str]) -> list[tuple[str, str]]:
    """Label and name of each line; ``optax.contrib`` comes last, under a heading of its own."""
    names_in_order = sorted(names, key=str.lower)
    contrib = [(n[len(_CONTRIB) :], n) for n in names_in_order if n.startswith(_CONTRIB)]
    rest = [(name, name) for name in names_in_order if not name.startswith(_CONTRIB)]
    return [*rest, ("optax.contrib", ""), *contrib] if contrib else rest
