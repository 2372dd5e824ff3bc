"""Read the pages, and run the Python code in them."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import jax
from packaging.version import Version

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FRACTION = re.compile(r"\d+\.\d+")


def read(page: Path) -> str:
    """Return the text of a page."""
    return page.read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the blocks of a page: ``python`` or ``text``, and what they contain."""
    return _BLOCK.findall(text)


def sections(text: str) -> dict[str, str]:
    """Return the text under each heading, that above the first one under an empty name."""
    parts = (part.partition("\n") for part in text.split("\n## ")[1:])
    return {"": text.partition("\n## ")[0], **{name: body for name, _, body in parts}}


def check_code(text: str, *, one_digit: bool = False) -> None:
    """Run the Python blocks, all in one namespace: each prints what the next block says.

    Args:
      text: of a page.
      one_digit: whether one digit of a fraction counts.
    """
    namespace: dict[str, Any] = {}
    printed = ""
    for kind, content in blocks(text):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(content, "page", "exec"), namespace)
            printed = stdout.getvalue()
        elif printed:
            # Further lines quote jax, whose older releases use other words.
            lines = None if Version(jax.__version__) >= Version("0.10") else 2
            got, wanted = (
                (_with_one_digit(of) if one_digit else of).splitlines()[:lines]
                for of in (printed, content)
            )
            assert got == wanted


def _with_one_digit(text: str) -> str:
    return _FRACTION.sub(lambda found: f"{float(found[0]):.1g}", text)
