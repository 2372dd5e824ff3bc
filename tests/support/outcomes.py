"""Print the outcomes of reproducers as JSON, and how often their patches were reached meanwhile.

``python -m support.outcomes all NAME...`` runs the reproducers of the faults with these names, as
in ``patch_id.fault_id``, with the patches that the environment asks for. For each name it prints
the outcome, and how often the patch of that fault was reached. ``all,alone`` does so for all
patches together, and then for each patch alone.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

import optax

from optax_dtypefix import patches
from optax_dtypefix._api import get_engine

if TYPE_CHECKING:
    from collections.abc import Iterator


@functools.cache
def faults() -> dict[str, Any]:
    """Return every fault of every patch by its name, in the order of the catalogue."""
    loaded = ((patch_id, patches.load(patch_id)) for patch_id in patches.IDS)
    return {f"{patch_id}.{fault.id}": fault for patch_id, patch in loaded for fault in patch.faults}


def reached(patch_id: str) -> int:
    """Return how often a patch was reached so far; ``status()`` is slow."""
    return get_engine().slots[patch_id].tally.reached


def outcome_of(name: str) -> tuple[str | None, int]:
    """Run one reproducer."""
    patch_id, _, _ = name.partition(".")
    before = reached(patch_id)
    try:
        outcome = faults()[name].reproducer().reproduce(optax)
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    return outcome, reached(patch_id) - before


def alone(names: list[str]) -> Iterator[tuple[str, tuple[str | None, int]]]:
    """Run each reproducer while all patches but its own are disabled."""
    for patch_id, of_patch in itertools.groupby(names, lambda name: name.partition(".")[0]):
        with optax_dtypefix.disabled(*(other for other in patches.IDS if other != patch_id)):
            for name in of_patch:
                yield name, outcome_of(name)


def main(ways: str, *names: str) -> None:
    warnings.simplefilter("ignore")  # Stock optax warns before it fails.
    outcomes = {"all": {name: outcome_of(name) for name in names}}
    if ways == "all,alone":
        outcomes["alone"] = dict(alone([*names]))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
