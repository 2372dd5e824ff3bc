"""Write the pages of the patches, their index and their navigation.

Run ``python docs/write_patches.py [FOLDER]``. Without a folder, the command writes docs/patches/
and mkdocs.yml of the repository. The text comes from the patch files, but for what stands above the
first table of a page, and for the headlines in the index: these are written by hand, and stay.
tests/examples/test_patch_pages.py runs the examples.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS, load
from optax_dtypefix.patches.releases import TESTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optax_dtypefix._engine.patch import Fault, Patch

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "patches"

ABOVE_THE_TABLE = """\
# All patches

Each page starts with a script that goes wrong without the patch, and says whether numbers change.

| id | what goes wrong | releases | issue |
|---|---|---|---|"""

BELOW_THE_TABLE = """
## Switch a patch off

```sh
OPTAX_DTYPEFIX_DISABLE=multi_steps python train.py
```

In Python, call `optax_dtypefix.revert("multi_steps")` before you build the optimizer.

To round params in half precision to nearest,
[switch off two](../contract.md#how-params-in-half-precision-are-rounded).

## Switch a patch on

An opt-in patch acts only if you name it:

```sh
OPTAX_DTYPEFIX_ENABLE=float32_moments python train.py
```

In Python, call `optax_dtypefix.apply("float32_moments")` before you build the optimizer.

[All variables](../control.md#variables)"""


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
    if not headlines:
        raise LookupError(f"{index} has no row for {patch_id}: copy another row, and edit it")
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
    return Example(headlines[0], *blocks, *faults, numbers)


def page(patch: Patch) -> Iterator[str]:
    """Give the lines of the page of one patch."""
    docstring = inspect.getdoc(importlib.import_module(f"optax_dtypefix.patches.{patch.id}")) or ""
    heading, _, rest = markdown(docstring).partition("\n")
    yield f"# {patch.id}"
    yield ""
    yield sentence(patch.summary)
    yield ""
    yield from demonstration(patch)
    yield ""
    yield "## Faults that the patch fixes"
    yield ""
    yield "| fault | what goes wrong | releases |"
    yield "|---|---|---|"
    for fault in patch.faults:
        cells = (f"`{fault.id}`", fault.reproducer().summary, ranges(affected(fault)))
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "## How the patch works"
    yield ""
    yield sentence(re.sub(rf"^{patch.id}( \(opt-in\))?: ", "", heading))
    yield from rest.splitlines()
    yield ""
    switch = "on" if patch.opt_in else "off"
    yield f"[Switch the patch {switch}](index.md#switch-a-patch-{switch})"
    if not patch.opt_in:
        yield ""
        yield "[Which of my files are affected?](../control.md#which-of-my-files-are-affected)"


def demonstration(patch: Patch) -> Iterator[str]:
    """Give the lines with the example, both outputs, and whether numbers change."""
    example = example_of(patch.id)
    shown = [fault for fault in patch.faults if fault.id == example.fault]
    if not shown:
        raise LookupError(f"{patch.id}.md names `{example.fault}`, which is no fault of the patch")
    fault = shown[0]
    yield "```python"
    yield from example.script.splitlines()
    yield "```"
    yield ""
    yield f"Without the patch, optax {affected(fault)[-1]} prints:"
    yield ""
    yield "```text"
    yield from example.stock_prints.splitlines()
    yield "```"
    yield ""
    switch = f" and `OPTAX_DTYPEFIX_ENABLE={patch.id}`" if patch.opt_in else ""
    yield f"With the import{switch}:"
    yield ""
    yield "```text"
    yield from example.patched_prints.splitlines()
    yield "```"
    yield ""
    yield f"The script goes wrong on optax {ranges(affected(fault))} (fault `{fault.id}` below)."
    yield ""
    yield f"**Do numbers change?** {example.numbers_change}"


def index() -> Iterator[str]:
    """Give the lines of the page that lists all patches."""
    yield from ABOVE_THE_TABLE.splitlines()
    for patch in in_order():
        name = f"[`{patch.id}`]({patch.id}.md){' (opt-in)' if patch.opt_in else ''}"
        wrong = example_of(patch.id).headline
        cells = (name, wrong, ranges(affected(*patch.faults)), links(*patch.upstream))
        yield f"| {' | '.join(cells)} |"
    yield from BELOW_THE_TABLE.splitlines()


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
        write(pages / f"{patch_id}.md", page(load(patch_id)))
    write(pages / "index.md", index())
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    write(Path(folder) / "mkdocs.yml", navigation(settings).splitlines())


def write(file: Path, lines: Iterator[str] | Sequence[str]) -> None:
    """Write lines, with one newline at the end."""
    file.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
