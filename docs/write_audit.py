"""Write ``audit.md`` and ``audit.svg``: the audits of several releases.

Run ``python docs/write_audit.py FOLDER FILE.json ...``. Each file is the record of one release,
written by ``python -m evidence.audit --record FILE``, the oldest first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from evidence.audit.picture import draw
from evidence.audit.record import without_wrapped
from evidence.audit.results import MODES
from support.recorded import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_HEAD = """\
# The dtype contract, on every transformation

{recorded_on}

Stock optax breaks the [dtype contract](contract.md) on every release. The picture shows how often,
and what the patches fix, on an old, a middle and the newest release. `nox -t full` checks all.

![Share of combinations: right on stock, fixed by the patches](audit.svg)

We measured every public transformation of each release:

- in {settings} settings: dtypes of params and gradients, and modes of JAX;
- with the learning rate as a float, a schedule, an array and a numpy scalar;
- alone, and inside `MultiSteps`, `apply_if_finite` and `inject_hyperparams`;
- traced under `jit` and in `scan`. With a float learning rate, each transformation also ran once.

The table counts these combinations, and those that break the contract, raise, or have an update
narrower than on stock. The number in brackets counts only the {same_dtypes} settings in which
gradients have the dtypes of their params.

| optax | jax | combinations | stock | patched | by design |
|---|---|---|---|---|---|"""

_STILL_BROKEN = """
## Still broken

With the default patches, these combinations are broken:
"""

_BY_DESIGN = """
## Broken by design

No patch fixes these. The last column of the table counts them; the other columns do not.
"""


def main(folder: str, *paths: str) -> None:
    """Write the page and the picture of these records."""
    records = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            records.append(json.load(file))
    for name, text in (("audit.svg", draw(records)), ("audit.md", "\n".join(_page(records)))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def _page(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield _HEAD.format_map({**records[-1], "recorded_on": sentence(records)})
    for record in records:
        broken = [
            f"{record['broken'][mode]['all']} ({record['broken'][mode]['same_dtypes']})"
            for mode in MODES
        ]
        row = (record["optax"], record["jax"], record["combinations"], *broken, record["by_design"])
        yield f"| {' | '.join(map(str, row))} |"
    still_broken: dict[str, list[str]] = {}
    for record in records:
        for cell, message in record["still_broken"].items():
            still_broken.setdefault(f"`{cell}`: {message}", []).append(record["optax"])
    if still_broken:
        yield _STILL_BROKEN
        yield from (f"- {line} ({', '.join(of)})." for line, of in still_broken.items())
    yield _BY_DESIGN
    reasons: dict[str, set[str]] = {}
    for record in records:
        for reason, names in record["reasons"].items():
            reasons.setdefault(reason, set()).update(names)
    for reason, among in sorted(reasons.items()):
        shown = ", ".join(f"`{name}`" for name in without_wrapped(among))
        yield f"- {shown}: {reason}."
    yield ""


if __name__ == "__main__":
    main(*sys.argv[1:])
