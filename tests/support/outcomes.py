"""Print the outcomes of reproducers as JSON.

``python -m support.outcomes NAME...`` runs the reproducers of the faults with these names, as in
``patch_id.fault_id``, with the patches that the environment asks for.
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


def faults() -> dict[str, Any]:
    """Return every fault of every patch by its name, in the order of the catalogue."""
    loaded = ((patch_id, patches.load(patch_id)) for patch_id in patches.IDS)
    return {f"{patch_id}.{fault.id}": fault for patch_id, patch in loaded for fault in patch.faults}


def main(names: list[str], *, alone: bool) -> None:
    warnings.simplefilter("ignore")  # Stock optax warns before it fails.
    known = faults()
    outcomes: dict[str, str | None] = {}
    for patch_id, of_patch in itertools.groupby(names, lambda name: name.partition(".")[0]):
        if alone:
            optax_dtypefix.revert()
            optax_dtypefix.apply(patch_id)
        for name in of_patch:
            try:
                outcomes[name] = known[name].reproduce(optax)
            except Exception as error:
                outcomes[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(outcomes))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main([name for name in arguments if name != "--alone"], alone="--alone" in arguments)
