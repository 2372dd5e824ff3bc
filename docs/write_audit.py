"""The audits of several releases, as one table and one picture.

Run as ``python docs/write_audit.py FOLDER FILE.json ...`` on what ``audit --json`` wrote for each;
it writes ``audit.md`` and ``audit.svg``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from optax_dtypefix._commands.audit.picture import draw
from optax_dtypefix._commands.audit.results import MODES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_WHAT = """\
Every public transformation of each release was measured in {regimes} regimes of dtypes and modes,
with the learning rate as a number, a schedule, an array and a numpy scalar, alone and inside
`MultiSteps`, `apply_if_finite` and `inject_hyperparams`: traced under `jit` and in `scan`, and run
once. A number is how many of these cells break the contract or raise; an update that is narrower
than on stock breaks it. In brackets: in the {same_dtypes} regimes in which params and gradients
have the same dtypes, where the state keeps its dtypes without `every_transform`, too.
"""


def main(folder: str, *paths: str) -> None:
    """Writes the table and the picture of these records."""
    records = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            records.append(json.load(file))
    for name, text in (("audit.svg", draw(records)), ("audit.md", "\n".join(_page(records)))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def _page(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "# The contract on every transformation, release by release"
    yield ""
    counts = {name: len(records[-1][name]) for name in ("regimes", "same_dtypes")}
    yield from _WHAT.format(**counts).splitlines()
    yield ""
    yield "| optax | jax | cells | stock | patched | with `every_transform` | by design |"
    yield "|---|---|---|---|---|---|---|"
    for record in records:
        broken = [
            f"{record['broken'][way]['all']} ({record['broken'][way]['same_dtypes']})"
            for way in MODES
        ]
        row = (record["optax_version"], record["jax_version"], str(record["cells"]), *broken)
        yield f"| {' | '.join((*row, str(len(record['by_design']))))} |"
    yield ""
    yield "![Share of broken cells, stock and patched, for each transformation](audit.svg)"
    yield ""
    yield "By design:"
    yield ""
    reasons: dict[str, set[str]] = {}
    for record in records:
        for cell, reason in record["by_design"].items():
            reasons.setdefault(reason, set()).add(cell.partition(",")[0])
    for reason, names in sorted(reasons.items()):
        # What is so by itself is so in a wrapper too.
        told = sorted(name for name in names if name.partition("(")[2].rstrip(")") not in names)
        yield f"- {', '.join(f'`{name}`' for name in told)}: {reason}."
    yield ""


if __name__ == "__main__":
    main(*sys.argv[1:])
