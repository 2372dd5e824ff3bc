"""Write the pages of the patches, their index and their navigation.

Run ``python docs/write_patches.py [FOLDER]``. Without a folder, the command writes docs/patches/
and mkdocs.yml of the repository. The text comes from the patch files and the catalogue, but
for what stands above the first table of a page, and for the headlines in the index: these are
written by hand, and stay.
tests/examples/test_patch_pages.py runs the examples.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from optax_dtypefix._diagnosis.report import upstream_of
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS, load
from optax_dtypefix.patches.catalogue import ABOUT
from optax_dtypefix.patches.releases import TESTED
from support.renew import DOCS, ROOT, read, renewed, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optax_dtypefix._engine.patch import Fault, Patch

PAGES = DOCS / "patches"


class Example(NamedTuple):
    """What is written by hand, in the page of a patch and in its row of the index.

    Attributes:
      headline: what goes wrong, in a few words.
      script: with the import of the shim.
      stock_prints: on the newest release with the fault.
      patched_prints: with the patch.
      fault: that the script shows.
      numbers_change: whether the patch changes numbers.
    """

    headline: str
    script: str
    stock_prints: str
    patched_prints: str
    fault: str
    numbers_change: str


def example_of(patch_id: str) -> Example:
    """Read the example of a patch."""
    row = re.compile(rf"^\| \[`{patch_id}`\][^|]*\| (.*?) \|", re.MULTILINE)
    written, index = PAGES / f"{patch_id}.md", PAGES / "index.md"
    if not written.exists():
        raise FileNotFoundError(
            f"{written} is missing: copy the page of another patch, and edit it"
        )
    above, _, _ = written.read_text(encoding="utf-8").partition("\n## ")
    headlines = row.findall(index.read_text(encoding="utf-8"))
    headline = headlines[0] if headlines else load(patch_id).summary
    blocks = re.findall(r"```\w+\n(.*?)\n```", above, re.DOTALL)
    faults = re.findall(r"\(fault `(\w+)` below\)", above)
    numbers = above.partition("**Do numbers change?** ")[2].strip()
    missing = [
        *(["the script, what stock prints and what the patch prints"] if len(blocks) != 3 else []),
        *(["'(fault `id` below)'"] if len(faults) != 1 else []),
        *(["'**Do numbers change?** ...'"] if not numbers else []),
    ]
    if missing:
        raise LookupError(f"{written} needs, above its first heading, {' and '.join(missing)}")
    return Example(headline, *blocks, *faults, numbers)


def about(patch_id: str) -> str:
    """Return what the docstring of the file of a patch says, or the catalogue."""
    if patch_id in ABOUT:
        return ABOUT[patch_id].strip()
    return inspect.getdoc(importlib.import_module(f"optax_dtypefix.patches.{patch_id}")) or ""


def page(patch: Patch) -> str:
    """Return the page of one patch."""
    heading, _, rest = markdown(about(patch.id)).partition("\n")
    example = example_of(patch.id)
    shown = [fault for fault in patch.faults if fault.id == example.fault]
    if not shown:
        raise LookupError(f"{patch.id}.md names `{example.fault}`, which is no fault of the patch")
    releases = affected(*shown)
    switch = "on" if patch.opt_in else "off"
    return f"""\
# {patch.id}

{sentence(patch.summary)}

```python
{example.script}
```

Without the patch, optax {releases[-1]} prints:

```text
{example.stock_prints}
```

With the import{f" and `OPTAX_DTYPEFIX_ENABLE={patch.id}`" if patch.opt_in else ""}:

```text
{example.patched_prints}
```

The script goes wrong on optax {ranges(releases)} (fault `{example.fault}` below).

**Do numbers change?** {example.numbers_change}

## Faults that the patch fixes

| fault | what goes wrong | releases |
|---|---|---|
{rows(map(cells_of, patch.faults))}
## How the patch works

{sentence(re.sub(rf"^{patch.id}( [(]opt-in[)])?: ", "", heading))}
{rest}

[Switch the patch {switch}](index.md#switch-a-patch-{switch})
"""


def cells_of(fault: Fault) -> tuple[str, ...]:
    """Return the cells of a fault."""
    return (f"`{fault.id}`", fault.reproducer().summary, ranges(affected(fault)))


def index() -> str:
    """Return the page that lists all patches."""
    table = rows(
        (
            f"[`{patch.id}`]({patch.id}.md){' (opt-in)' if patch.opt_in else ''}",
            example_of(patch.id).headline,
            ranges(affected(*patch.faults)),
            links(*upstream_of(patch)),
        )
        for patch in in_order()
    )
    return renewed(read("patches/index.md"), [], [table])


def in_order() -> list[Patch]:
    """Return all patches by name, the opt-in ones last."""
    return sorted(map(load, IDS), key=lambda patch: (patch.opt_in, patch.id))


def markdown(docstring: str) -> str:
    """Write code with single quotes, and make links of bare addresses."""
    return re.sub(r"(https://[^\s),;]*[^\s),;.])", r"<\1>", docstring.replace("``", "`"))


def sentence(text: str) -> str:
    """Start a text with a capital letter, unless that is a name, and end it with a full stop."""
    first = text[0].upper() if text.partition(" ")[0].isalpha() else text[0]
    return f"{first}{text[1:].rstrip('.')}."


def links(*upstream: str) -> str:
    """Link issues by their numbers."""
    given = [f"[{link.rpartition('/')[2]}]({link})" for link in upstream if link]
    return ", ".join(given) or "none found"


def affected(*faults: Fault) -> list[str]:
    """Give the tested releases that have one of the faults, the newest last."""
    return [
        release
        for release in TESTED
        if any(Release(release).within(fault.releases) for fault in faults)
    ]


def ranges(releases: Sequence[str]) -> str:
    """Join tested releases as text, each run of neighbours as a range."""
    runs: list[list[str]] = []
    for release in releases:
        if runs and TESTED.index(release) == TESTED.index(runs[-1][-1]) + 1:
            runs[-1].append(release)
        else:
            runs.append([release])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def navigation(text: str) -> str:
    """Renew the list of patch pages in the settings of the site."""
    before, heading, rest = text.partition("  - Patches:\n")
    others = [line for line in rest.splitlines(keepends=True) if "patches/" not in line]
    pages = [f"      - {patch.id}: patches/{patch.id}.md\n" for patch in in_order()]
    return "".join((before, heading, "      - All patches: patches/index.md\n", *pages, *others))


def main(folder: str = str(ROOT)) -> None:
    """Write all files."""
    pages = Path(folder) / "docs" / "patches"
    pages.mkdir(parents=True, exist_ok=True)
    for patch_id in IDS:
        (pages / f"{patch_id}.md").write_text(page(load(patch_id)), encoding="utf-8")
    (pages / "index.md").write_text(index(), encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (Path(folder) / "mkdocs.yml").write_text(navigation(settings), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
