"""Tell whether two programs compute the same, whatever the order of their equations."""

from __future__ import annotations

import itertools
import re
from typing import Any


def computed(program: Any) -> list[int]:
    """Return for each output of a jaxpr a hash of all that it is made of.

    The order and the names of the equations do not count, nor does what no output needs.
    """
    jaxpr = getattr(program, "jaxpr", program)  # Without its constants, if it is closed.
    known: dict[Any, int] = dict(zip(jaxpr.invars, itertools.count()))
    constants = map(str, getattr(program, "consts", ()))
    known.update(zip(jaxpr.constvars, map(hash, constants)))

    def read(atom: Any) -> int:
        return hash(str((atom.aval, atom))) if hasattr(atom, "val") else known[atom]

    def text(value: Any) -> Any:
        if hasattr(value, "eqns"):
            return tuple(computed(value))
        if isinstance(value, (list, tuple)):
            return tuple(map(text, value))
        return re.sub("0x[0-9a-f]+", "", str(value))

    for equation in jaxpr.eqns:
        if _is_cast_to_itself(equation):
            known[equation.outvars[0]] = read(equation.invars[0])
            continue
        parameters = [(name, text(value)) for name, value in sorted(equation.params.items())]
        made = hash((equation.primitive.name, *map(read, equation.invars), *parameters))
        for place, variable in enumerate(equation.outvars):
            known[variable] = hash((made, place, str(variable.aval)))
    return [*map(read, jaxpr.outvars)]


def _is_cast_to_itself(equation: Any) -> bool:
    """Check for a cast that XLA removes."""
    if equation.primitive.name != "convert_element_type":
        return False
    (before,), (after,) = equation.invars, equation.outvars
    return bool(before.aval.dtype == after.aval.dtype)
