"""Write the figures of docs/upstream.md from the records in docs/upstream/.

Run ``python docs/write_upstream.py``. ``nox -s upstream`` writes the records.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from packaging.version import Version

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.renew import DOCS, read, renewed, rows

COLUMNS = ("optax", "jax", "tests", "patched", "opt-ins", "stock")


def main() -> None:
    """Read the records and write the page."""
    records = [json.loads(file.read_text("utf-8")) for file in DOCS.glob("upstream/*.json")]
    records.sort(key=lambda record: Version(record["optax"]))
    table = rows([record[name] for name in COLUMNS] for record in records)
    failing = sorted({name for record in records for name in record["only_with_the_shim"]})
    listed = "".join(f"- `{name}`\n" for name in failing) or "- none\n"
    page = re.sub(r"(?:^- .*\n)+", listed, read("upstream.md"), flags=re.MULTILINE)
    (DOCS / "upstream.md").write_text(renewed(page, records, [table]), encoding="utf-8")


if __name__ == "__main__":
    main()
