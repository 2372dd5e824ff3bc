"""Write small SVG pictures that follow the reader's light or dark mode."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH, MARGIN = 480, 12
"""Of each picture: on a phone, it shrinks by a quarter, and words of 12 pixels can be read."""

COLORS = {
    "page": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "black": ("#1f2328", "#0d1117"),
    "muted": ("#59636e", "#9da7b1"),
    "rule": ("#d8dee4", "#30363d"),
    "gray": ("#bcc4cd", "#545d68"),
    "silver": ("#818b98", "#768390"),
    "blue": ("#0969da", "#4493f8"),
    "green": ("#1a7f37", "#3fb950"),
    "amber": ("#9a6700", "#d9a520"),
    "red": ("#d1242f", "#ff6a61"),
}
"""Each color in light mode and in dark mode. Colors of text have a contrast of 4.5 to the page."""

CORNERS = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "left": ((-1.2, 0), (0.9, -1.1), (0.9, 1.1)),
    "right": ((1.2, 0), (-0.9, -1.1), (-0.9, 1.1)),
}
"""Of the marks that are no circles, for a radius of 1."""

_SHAPES = "text,rect,circle,polygon{fill:currentColor}path{fill:none;stroke:currentColor}"


class Svg:
    """A picture. Keyword arguments are SVG attributes, with ``_`` for ``-``."""

    def __init__(self, height: float, title: str, description: str = "") -> None:
        """Start a picture, with its title, and with what it shows for those who do not see it."""
        light, dark = (
            "".join(f".{name}{{color:{pair[mode]}}}" for name, pair in COLORS.items())
            for mode in (0, 1)
        )
        size = {"width": _number(WIDTH), "height": _number(height)}
        self._root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {size['width']} {size['height']}",
                **size,
                "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif",
                "font-size": "12",
                "role": "img",
            },
        )
        ElementTree.SubElement(self._root, "title").text = title
        if description:
            ElementTree.SubElement(self._root, "desc").text = description
        style = ElementTree.SubElement(self._root, "style")
        style.text = f"{_SHAPES}{light}@media (prefers-color-scheme:dark){{{dark}}}"
        self.rect(0, 0, WIDTH, height, "page")
        self.text(MARGIN, 24, title, font_size=16, font_weight="bold")

    def __str__(self) -> str:
        """Return the SVG text, one element a line."""
        ElementTree.indent(self._root, "")
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def rect(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Fill a rectangle."""
        self._add("rect", color, x=x, y=y, width=width, height=height)

    def circle(self, x: float, y: float, radius: float, color: str) -> None:
        """Fill a circle."""
        self._add("circle", color, cx=x, cy=y, r=radius)

    def mark(self, x: float, y: float, radius: float, color: str, shape: str = "circle") -> None:
        """Fill a mark. Its shape says what its color says, to readers who see no colors."""
        if shape == "circle":
            self.circle(x, y, radius, color)
        else:
            corners = ((x + radius * dx, y + radius * dy) for dx, dy in CORNERS[shape])
            points = " ".join(f"{_number(x)},{_number(y)}" for x, y in corners)
            self._add("polygon", color, points=points)

    def cross(self, x: float, y: float, color: str) -> None:
        """Draw a cross: there is no number to show."""
        for sign in (1, -1):
            self.line([(x - 4, y - sign * 4), (x + 4, y + sign * 4)], color, stroke_width=2)

    def line(
        self, points: Iterable[tuple[float, float]], color: str, **attributes: str | float
    ) -> None:
        """Draw a line through points."""
        d = "M" + " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._add("path", color, d=d, **attributes)

    def bars(
        self, bars: Iterable[tuple[float, float, float]], thickness: float, color: str
    ) -> None:
        """Draw horizontal bars as one element; a bar is its left end, its middle and its length."""
        d = "".join(f"M{_number(x)},{_number(y)}h{_number(length)}" for x, y, length in bars)
        self._add("path", color, d=d, stroke_width=thickness)

    def text(
        self, x: float, y: float, words: str, color: str = "ink", **attributes: str | float
    ) -> None:
        """Write words; ``y`` is their base line."""
        self._add("text", color, x=x, y=y, **attributes).text = words

    def legend(self, top: float, meanings: Iterable[Sequence[str]]) -> None:
        """Explain marks: color, words and perhaps a shape of each, in as many lines as it takes."""
        x: float = MARGIN
        for color, words, *shape in meanings:
            end = x + 16 + 6.6 * len(words)
            if end > WIDTH:
                x, end, top = MARGIN, end - x + MARGIN, top + 20
            self.mark(x + 5, top - 4, 5, color, *shape)
            self.text(x + 16, top, words)
            x = end + 14

    def _add(self, tag: str, color: str, **attributes: str | float) -> ElementTree.Element:
        written = {
            name.replace("_", "-"): value if isinstance(value, str) else _number(value)
            for name, value in attributes.items()
        }
        return ElementTree.SubElement(self._root, tag, {**written, "class": color})


class LogAxis(NamedTuple):
    """A logarithmic axis from left to right.

    Attributes:
      left: where ``low`` is.
      right: where ``high`` is.
      low: the first number.
      high: the last number.
    """

    left: float
    right: float
    low: float
    high: float

    def place(self, number: float) -> float:
        """Return where a number is; numbers beyond an end are at that end."""
        number = min(max(number, self.low), self.high)
        share = math.log(number / self.low) / math.log(self.high / self.low)
        return self.left + (self.right - self.left) * share

    def draw(self, svg: Svg, top: float, bottom: float, ticks: Sequence[float]) -> None:
        """Draw a line for each of some multiples, with its number below; that of 1 is darker."""
        for tick in ticks:
            x = self.place(tick)
            svg.line([(x, top), (x, bottom)], "muted" if tick == 1 else "rule")
            svg.text(x, bottom + 15, f"{tick:g}x", "muted", text_anchor="middle")


def _number(value: float) -> str:
    return f"{round(value, 1):g}"
