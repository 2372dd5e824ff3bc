"""Put new figures into a page of ``docs/``: its prose is written there by hand, and stays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from support.recorded import ROOT, sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Table = Iterable[Iterable[object]]

DOCS = ROOT / "docs"
_TABLE = re.compile(r"^(\|.*\|\n\|[-| ]+\|\n)(?:\|.*\n)*", re.MULTILINE)


def read(page: str) -> str:
    """Return a page of ``docs/``."""
    return (DOCS / page).read_text("utf-8")


def row(*cells: object) -> str:
    """Format a line of a table."""
    return f"| {' | '.join(map(str, cells))} |\n"


def rows(table: Table) -> str:
    """Format the lines of a table."""
    return "".join(row(*cells) for cells in table)


def renewed(
    page: str, records: Iterable[Mapping[str, Any]], tables: Sequence[str], **figures: object
) -> str:
    """Return a page with the version of its records, new tables and new figures.

    Args:
      page: the page.
      records: what it shows.
      tables: the lines below the head of each table, in the order of the page.
      **figures: sentences as in ``"at {x} of {y} steps"``, by any name, and the values in them.
    """
    pending = iter(tables)
    page = re.sub(r"^Recorded on .*$", sentence(records), page, count=1, flags=re.MULTILINE)
    page, found = _TABLE.subn(lambda match: match[1] + next(pending), page)
    assert found == len(tables), f"the page has {found} tables, and {len(tables)} are measured"
    for words in (each for each in figures.values() if "{" in str(each)):
        pattern = re.sub(r"\\\{\w+\\\}", ".*?", re.escape(str(words)))
        page, found = re.subn(pattern, lambda _, of=words: str(of).format(**figures), page)
        assert found == 1, f"the page no longer says: {words}"
    return page
