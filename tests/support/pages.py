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


def check_code(text: str) -> None:
    """Run the Python blocks, all in one namespace: each prints what the next block says."""
    namespace: dict[str, Any] = {}
    printed = ""
    for kind, content in blocks(text):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(content, "page", "exec"), namespace)
            printed = stdout.getvalue()
        elif printed:
            assert _comparable(printed) == _comparable(content)


def _comparable(text: str) -> list[str]:
    """Return the lines that each release of jax prints.

    Older ones use other words from the third line on. They also draw other random params, so that
    one in bfloat16 may be rounded to the other neighbour: there one digit of a number counts.
    """
    if Version(jax.__version__) >= Version("0.10"):
        return text.splitlines()
    one_digit = _FRACTION.sub(lambda found: f"{float(found[0]):.1g}", text)
    return one_digit.splitlines()[:2]
