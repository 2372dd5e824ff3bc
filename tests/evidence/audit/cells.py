"""Write a line of JSON for every cell of the audit: broken rules, dtypes of updates, program.

``python -m evidence.audit.cells FILE [COMPILE.json]`` writes FILE. A program is the hash of the
module that jax gives to XLA. COMPILE.json is a list of cells, ``[[name, rate, inside, regime],
...]``: then only these are written, and the program is the hash of the one that XLA compiled.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import jax

from evidence.audit.cases import Case, cases
from evidence.audit.measure import measure, traced_step
from evidence.audit.regimes import REGIMES, Regime
from optax_dtypefix._diagnosis.import_optax import import_optax
from optax_dtypefix._errors import summarize
from support.compiled import without_metadata


def program(subject: Case, regime: Regime, *, compiled: bool) -> str:
    """Return init and one step of a transformation as text."""
    with regime.modes():
        traced = traced_step(subject, regime)
        inputs = traced.inputs
        structures = []

        def flat_init(inputs: list[Any]) -> list[Any]:
            leaves, structure = jax.tree_util.tree_flatten(traced.init(inputs))
            structures.append(structure)
            return leaves

        def flat_step(state: list[Any], inputs: list[Any]) -> list[Any]:
            return jax.tree_util.tree_leaves(traced.update(structures[0].unflatten(state), inputs))

        # JAX would put shapes into the state, and user-defined nodes take arrays only.
        state = jax.eval_shape(flat_init, inputs)
        lowered = [jax.jit(flat_init).lower(inputs), jax.jit(flat_step).lower(state, inputs)]
        if compiled:
            return "\n".join(anonymous(part.compile().as_text()) for part in lowered)
        return "\n".join(part.as_text() for part in lowered)


def anonymous(text: str) -> str:
    """Return a compiled program with its values numbered by their order."""
    names: dict[str, str] = {}
    return re.sub(
        r"%[\w.\-]+|\b\w+\.\d+(?=: )",  # In a signature names have no percent sign.
        lambda match: names.setdefault(match.group(), f"%{len(names)}"),
        without_metadata(text),
    )


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main(path: str, wanted: str = "") -> None:
    warnings.simplefilter("ignore")
    import_optax()
    cells = None
    if wanted:
        with open(wanted, encoding="utf-8") as file:
            cells = {tuple(cell) for cell in json.load(file)}
    with open(path, "w", encoding="utf-8") as file:
        for subject in cases():
            for regime in REGIMES:
                key = (subject.name, subject.rate, subject.inside, regime.name)
                if cells is not None and key not in cells:
                    continue
                entry: dict[str, Any] = {"cell": key, "broken": [], "program": None}
                if not wanted:
                    outcome = measure(subject, regime, eager=False)
                    entry |= {"broken": [*map(str, outcome.broken)], "updates": outcome.updates}
                if not entry["broken"]:
                    try:
                        entry["program"] = hashed(program(subject, regime, compiled=bool(wanted)))
                    except Exception as error:  # It accepts its own state only from init.
                        entry["broken"] = [summarize(error)]
                print(json.dumps(entry), file=file)


if __name__ == "__main__":
    main(*sys.argv[1:])
