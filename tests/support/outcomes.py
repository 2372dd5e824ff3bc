"""Prints the outcome of every fault's demonstration as JSON.

``python -m support.outcomes`` runs with the patches that the environment asks for. With ``alone``
each patch acts alone while its own faults are reproduced.
"""

from __future__ import annotations

import json
import sys
import warnings

import optax_dtypefix  # isort: skip  # First, as in a training script.

import optax

from optax_dtypefix import patches


def main(*, alone: bool) -> None:
    warnings.simplefilter("ignore")  # Stock optax warns before it fails.
    outcomes: dict[str, str | None] = {}
    for patch_id in patches.IDS:
        if alone:
            optax_dtypefix.revert()
            optax_dtypefix.apply(patch_id)
        for fault in patches.load(patch_id).faults:
            try:
                outcome = fault.reproduce(optax)
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            outcomes[f"{patch_id}.{fault.id}"] = outcome
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(alone=sys.argv[1:] == ["alone"])
