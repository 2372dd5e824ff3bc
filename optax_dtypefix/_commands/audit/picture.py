"""The audit as a picture: a row a transformation, a column a regime or a release."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from .results import BROKEN, BY_DESIGN, KEPT, OPT_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_CELL, _LINE, _LEFT, _TOP, _GAP = 14, 11, 210, 96, 46
_NONE = "#f2f2f2"
_SHADES = ("#cfe8cf", "#fde0c5", "#f8b58b", "#ef8354", "#d64933", "#a4161a")
"""From no cell broken to all of them."""


def draw(records: Sequence[Mapping[str, Any]]) -> str:
    """Draws what stock and what patched optax break, side by side.

    Args:
      records: what ``audit --json`` wrote. One has a column a regime, several a column a release.

    Returns:
      SVG text.
    """
    columns = list(_by_regime(records[0])) if len(records) == 1 else list(_by_release(records))
    names = sorted({name for _, shares in columns for name in shares["stock"]}, key=str.lower)
    panel = len(columns) * _CELL
    width = _LEFT + 2 * panel + _GAP + 20
    svg = ElementTree.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        width=str(width),
        height=str(_TOP + len(names) * _LINE + 40),
        attrib={"font-family": "sans-serif", "font-size": "9"},
    )
    _rect(svg, 0, 0, width, _TOP + len(names) * _LINE + 40, fill="#ffffff")
    for panel_index, way in enumerate(("stock", "patched")):
        left = _LEFT + panel_index * (panel + _GAP)
        _text(svg, left, 14, f"{way} optax", **{"font-size": "13"})
        for index, (title, _) in enumerate(columns):
            x, y = left + index * _CELL + 10, _TOP - 6
            _text(svg, x, y, title, transform=f"rotate(-60 {x} {y})")
        for line, name in enumerate(names):
            y = _TOP + line * _LINE
            if panel_index == 0:
                _text(svg, _LEFT - 6, y + 9, name, **{"text-anchor": "end"})
            for start, end, color in _runs([_shade(s[way].get(name)) for _, s in columns]):
                _rect(svg, left + start * _CELL, y, (end - start) * _CELL, _LINE - 1, fill=color)
    _legend(svg, _TOP + len(names) * _LINE + 24)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _by_release(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for record in records:
        yield record["optax_version"], _shares(record["rows"], lambda marks: marks)


def _by_regime(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, regime in enumerate(record["regimes"]):
        yield regime, _shares(record["rows"], operator.itemgetter(index))


def _shares(
    rows: Sequence[Mapping[str, Any]], part: Callable[[str], str]
) -> dict[str, dict[str, float]]:
    """For each way and transformation the share of broken cells; those by design do not count."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        count = counts.setdefault(row["name"], [0, 0, 0])
        for verdict, stock in zip(part(row["cells"]), part(row["stock"])):
            if verdict != BY_DESIGN:
                count[0] += 1
                count[1] += stock != KEPT
                count[2] += verdict in (BROKEN, OPT_IN)
    return {
        way: {name: count[index] / count[0] for name, count in counts.items() if count[0]}
        for index, way in ((1, "stock"), (2, "patched"))
    }


def _shade(share: float | None) -> str:
    if share is None:
        return _NONE
    return _SHADES[0] if share == 0 else _SHADES[1 + min(int(share * 5), 4)]


def _runs(colors: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Neighbours of one color as one: the file is a tenth as large."""
    start = 0
    for index in range(1, len(colors) + 1):
        if index == len(colors) or colors[index] != colors[start]:
            yield start, index, colors[start]
            start = index


def _legend(svg: ElementTree.Element, y: int) -> None:
    words = ("kept", "broken: up to 1/5 of the cells", "2/5", "3/5", "4/5", "more")
    x = _LEFT
    for word, color in (*zip(words, _SHADES),):
        _rect(svg, x, y - 8, 10, 10, fill=color)
        _text(svg, x + 14, y, word)
        x += 26 + 5 * len(word)
    _rect(svg, x, y - 8, 10, 10, fill=_NONE)
    _text(svg, x + 14, y, "not in this release")


def _rect(svg: ElementTree.Element, *box: int, fill: str) -> None:
    named = dict(zip(("x", "y", "width", "height"), map(str, box)))
    ElementTree.SubElement(svg, "rect", {**named, "fill": fill})


def _text(svg: ElementTree.Element, x: int, y: int, words: str, **more: str) -> None:
    ElementTree.SubElement(svg, "text", {"x": str(x), "y": str(y), **more}).text = words
