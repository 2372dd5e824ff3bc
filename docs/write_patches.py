"""Writes docs/patches/: a page for each patch, from the patch's own file.

Run as ``python docs/write_patches.py [FOLDER]``.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from optax_dtypefix._release import TESTED, Release
from optax_dtypefix.patches import IDS, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optax_dtypefix._patch import Patch


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
    if not patch.fixed_in:
        return f"It is needed up to {TESTED[-1]}, the newest release that was tested."
    return f"From optax {patch.fixed_in} on it is not needed."


def main(folder: str = "docs/patches") -> None:
    """Writes a page for each patch."""
    for patch_id in IDS:
        text = "\n".join(page(load(patch_id))) + "\n"
        (Path(folder) / f"{patch_id}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
