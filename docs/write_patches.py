"""Writes what the patches' own files say of them: a page for each, and the lists of all.

That is docs/patches/, the table in README.md and the pages in mkdocs.yml. Run as ``python
docs/write_patches.py [FOLDER]``, with a folder to write to in place of the repository.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches import IDS, TESTED, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optax_dtypefix._engine.patch import Patch

ROOT = Path(__file__).parents[1]


def page(patch: Patch) -> Iterator[str]:
    """The lines of one page."""
    # A docstring is text in which links and code stand as in Markdown, but for its quotes.
    docstring = inspect.getdoc(importlib.import_module(f"optax_dtypefix.patches.{patch.id}")) or ""
    heading, _, rest = docstring.replace("``", "`").partition("\n")
    yield f"# {patch.id}"
    yield ""
    said = heading.partition(": ")[2] or heading
    yield said[0].upper() + said[1:]
    yield from rest.splitlines()
    yield ""
    yield "## What stock optax does wrong"
    yield ""
    yield "| fault | what you see | releases | upstream |"
    yield "|---|---|---|---|"
    for fault in patch.faults:
        number = fault.upstream.rpartition("/")[2]
        link = f"[{number}]({fault.upstream})" if number else "none found"
        releases = in_words(
            [release for release in TESTED if Release(release).within(fault.releases)]
        )
        yield f"| `{fault.id}` | {fault.summary} | {releases} | {link} |"
    yield ""
    yield until_when(patch)
    yield ""
    yield "## Switching it off" if not patch.opt_in else "## Switching it on"
    yield ""
    yield "```sh"
    variable = "ENABLE" if patch.opt_in else "DISABLE"
    yield f"OPTAX_DTYPEFIX_{variable}={patch.id} python train.py"
    yield "```"
    yield ""
    verb = "apply" if patch.opt_in else "revert"
    yield f'In Python: `optax_dtypefix.{verb}("{patch.id}")`, before the optimizer is built.'
    yield ""
    yield "## What it wraps"
    yield ""
    names = dict.fromkeys(target.qualname for target in patch.targets)
    yield ", ".join(f"`{name}`" for name in names)


def in_words(releases: Sequence[str]) -> str:
    """Tested releases, as ranges where they follow on one another."""
    parts: list[list[str]] = []
    for release in releases:
        if parts and TESTED.index(release) == TESTED.index(parts[-1][-1]) + 1:
            parts[-1].append(release)
        else:
            parts.append([release])
    return ", ".join(f"{p[0]} to {p[-1]}" if len(p) > 1 else p[0] for p in parts)


def until_when(patch: Patch) -> str:
    """From which release on it is not needed any more."""
    fixed_in = patch.fixed_in(list(map(Release, TESTED)))
    if not fixed_in:
        return f"It is needed up to {TESTED[-1]}, the newest release that was tested."
    return f"From optax {fixed_in} on it is not needed."


def readme(text: str) -> str:
    """The README with a row for each patch, those that are opt-in last."""
    rows = ["| id | what stock optax does wrong | releases | upstream |", "|---|---|---|---|"]
    for patch in sorted(map(load, IDS), key=lambda patch: patch.opt_in):
        name = f"[`{patch.id}`](docs/patches/{patch.id}.md){' (opt-in)' if patch.opt_in else ''}"
        affected = [release for release in TESTED if patch.faults_on(Release(release))]
        links = [f"[{link.rpartition('/')[2]}]({link})" for link in patch.upstream]
        cells = (name, patch.summary, in_words(affected), ", ".join(links) or "none found")
        rows.append(f"| {' | '.join(cells)} |")
    before, _, rest = text.partition(rows[0])
    _, end, after = rest.partition("\n\n")
    return "".join((before, "\n".join(rows), end, after))


def navigation(text: str) -> str:
    """The settings of mkdocs with a page for each patch."""
    before, heading, rest = text.partition("  - Patches:\n")
    others = [line for line in rest.splitlines(keepends=True) if "patches/" not in line]
    pages = [f"      - {patch_id}: patches/{patch_id}.md\n" for patch_id in IDS]
    return "".join((before, heading, *pages, *others))


def main(folder: str = str(ROOT)) -> None:
    """Writes all of it."""
    (Path(folder) / "docs" / "patches").mkdir(parents=True, exist_ok=True)
    for patch_id in IDS:
        write(Path(folder) / "docs" / "patches" / f"{patch_id}.md", "\n".join(page(load(patch_id))))
    for name, renewed in (("README.md", readme), ("mkdocs.yml", navigation)):
        write(Path(folder) / name, renewed((ROOT / name).read_text(encoding="utf-8")))


def write(file: Path, text: str) -> None:
    """A text with one newline at its end."""
    file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
