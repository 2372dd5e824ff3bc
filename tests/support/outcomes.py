"""Print the outcomes of reproducers as JSON, and what their patches changed meanwhile.

``python -m support.outcomes NAME...`` runs the reproducers of the faults with these names, as in
``patch_id.fault_id``, with the patches that the environment asks for. For each name it prints the
outcome, and how often the patch of that fault says that it changed something.
With ``--alone`` each patch acts alone while its own faults are reproduced.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from typing import Any

import optax_dtypefix  # isort: skip  # First, as in a training script.

import optax

from optax_dtypefix import patches
from optax_dtypefix._engine_instance import ENGINE


def faults() -> dict[str, Any]:
    """Return every fault of every patch by its name, in the order of the catalogue."""
    loaded = ((patch_id, patches.load(patch_id)) for patch_id in patches.IDS)
    return {f"{patch_id}.{fault.id}": fault for patch_id, patch in loaded for fault in patch.faults}


def changes(patch_id: str) -> int:
    """Return how often a patch changed something so far; ``status()`` is slow."""
    return sum(ENGINE._slots[patch_id].tally.changed.values())


def main(names: list[str], *, alone: bool) -> None:
    warnings.simplefilter("ignore")  # Stock optax warns before it fails.
    known = faults()
    outcomes: dict[str, tuple[str | None, int]] = {}
    for patch_id, of_patch in itertools.groupby(names, lambda name: name.partition(".")[0]):
        if alone:
            optax_dtypefix.revert()
            optax_dtypefix.apply(patch_id)
        for name in of_patch:
            before = changes(patch_id)
            try:
                outcome = known[name].reproduce(optax)
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            outcomes[name] = outcome, changes(patch_id) - before
    print(json.dumps(outcomes))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main([name for name in arguments if name != "--alone"], alone="--alone" in arguments)
