"""Write the figures of ``audit.md``, and ``audit.svg``: the audits of several releases.

Run ``python docs/write_audit.py FOLDER FILE.json ...``. Each file is the record of one release,
written by ``python -m evidence.audit --record FILE``, the oldest first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from evidence.audit.picture import draw
from evidence.audit.record import without_wrapped
from evidence.audit.results import MODES
from support.renew import read, renewed, row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_STILL_BROKEN = """
## Still broken

With the default patches, these combinations are broken:

"""


def main(folder: str, *paths: str) -> None:
    """Write the page and the picture of these records."""
    records = [json.loads(Path(path).read_text("utf-8")) for path in paths]
    above, _, below = read("audit.md").partition("\n## Broken by design\n")
    above, words = above.partition("\n## ")[0].rstrip("\n") + "\n", below.partition("\n- ")[0]
    page = renewed(
        above,
        records,
        ["".join(map(_row, records))],
        how_many="- in {settings} settings: ",
        in_brackets="only the {same_dtypes} settings",
        settings=records[-1]["settings"],
        same_dtypes=records[-1]["same_dtypes"],
    )
    broken = "".join(_still_broken(records))
    page += f"{_STILL_BROKEN}{broken}" if broken else ""
    page += f"\n## Broken by design\n{words}\n{''.join(_by_design(records))}"
    Path(folder, "audit.md").write_text(page, encoding="utf-8")
    Path(folder, "audit.svg").write_text(draw(records), encoding="utf-8")


def _row(record: Mapping[str, Any]) -> str:
    of_modes = (record["broken"][mode] for mode in MODES)
    broken = (f"{of['all']} ({of['same_dtypes']})" for of in of_modes)
    return row(record["optax"], record["jax"], record["combinations"], *broken, record["by_design"])


def _still_broken(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for record in records:
        for cell, message in record["still_broken"].items():
            found.setdefault(f"`{cell}`: {message}", []).append(record["optax"])
    return (f"- {line} ({', '.join(of)}).\n" for line, of in found.items())


def _by_design(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    reasons: dict[str, set[str]] = {}
    for record in records:
        for reason, names in record["reasons"].items():
            reasons.setdefault(reason, set()).update(names)
    for reason, among in sorted(reasons.items()):
        shown = ", ".join(f"`{name}`" for name in without_wrapped(among))
        yield f"- {shown}: {reason}.\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
