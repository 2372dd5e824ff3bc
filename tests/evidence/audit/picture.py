"""Draw the audit: how much is right on stock, and how much with the patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evidence.audit.results import BROKEN, FIXED, KEPT
from support.svg import MARGIN, WIDTH, Svg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Counts = Mapping[str, int]

_KEY = {
    KEPT: ("gray", "ink", "stock optax is right"),
    FIXED: ("blue", "page", "fixed"),
    BROKEN: ("red", "page", "still wrong"),
}
"""For each verdict: the color of its bar, the color of words on that bar, and the meaning."""

_TOTAL, _LINE = 22, 16
_RELEASES, _NAMES = 70, 234
"""Where bars start: behind the names of releases, and of transformations."""
_CONTRIB = "contrib."


def draw(records: Sequence[Mapping[str, Any]]) -> str:
    """Draw the share of measured cells with each verdict.

    Args:
      records: of several releases, the oldest first, from ``evidence.audit.record.summarize``. The
        picture shows all transformations of each release together, and each transformation of the
        newest.

    Returns:
      SVG text.
    """
    newest = records[-1]["transformations"]
    rows = _rows(newest)
    details = 92 + _TOTAL * len(records)
    svg = Svg(details + 44 + _LINE * len(rows), "How often does optax keep your dtypes?")
    totals: list[Counts] = [record["verdicts"] for record in records]
    occurs = [_KEY[verdict] for verdict in _KEY if any(verdict in total for total in totals)]
    svg.legend(48, [(color, words) for color, _, words in occurs])
    for index, (record, total) in enumerate(zip(records, totals)):
        y = 92 + _TOTAL * index
        svg.text(_RELEASES - 8, y + 4, record["optax"], text_anchor="end")
        _draw_bar(svg, (_RELEASES, y), total, _TOTAL - 4)
    heading = f"Each transformation, on optax {records[-1]['optax']}"
    svg.text(MARGIN, details + 20, heading, font_size=14, font_weight="bold")
    for line, (label, name) in enumerate(rows):
        y = details + 44 + _LINE * line
        weight = "normal" if name else "bold"
        svg.text(_NAMES - 8, y + 4, label, text_anchor="end", font_weight=weight)
        if name:
            _draw_bar(svg, (_NAMES, y), newest[name], _LINE - 4)
    return str(svg)


def _draw_bar(svg: Svg, place: tuple[float, float], counts: Counts, thickness: float) -> None:
    """Draw a bar with a part for each verdict; in thick ones, write the share of large parts."""
    start, y = place
    shown = WIDTH - MARGIN - start
    for verdict, (color, on_it, _) in _KEY.items():
        length = shown * counts.get(verdict, 0) / sum(counts.values())
        if length:
            svg.bars([(start, y, length)], thickness, color)
        if thickness > _LINE and length > 0.08 * shown:
            words = f"{length / shown:.0%}"
            svg.text(start + length / 2, y + 4, words, on_it, text_anchor="middle")
        start += length


def _rows(names: Mapping[str, Counts]) -> list[tuple[str, str]]:
    """Label and name of each line; ``optax.contrib`` comes last, under a heading of its own."""
    names_in_order = sorted(names, key=str.lower)
    contrib = [(n[len(_CONTRIB) :], n) for n in names_in_order if n.startswith(_CONTRIB)]
    rest = [(name, name) for name in names_in_order if not name.startswith(_CONTRIB)]
    return [*rest, ("optax.contrib", ""), *contrib] if contrib else rest
