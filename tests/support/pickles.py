"""Describe every transformation as a framework sees it: its signatures, its pickle, its program.

``python -m support.pickles pickle FOLDER [NAME...]`` pickles all transformations of the installed
optax, or those named, into a folder with cloudpickle, as Ray, Dask and submitit do. With ``load``
in place of ``pickle`` it loads what it wrote in a new process. Both print JSON.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import sys
import typing
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import cloudpickle  # type: ignore[import-untyped]
import jax
import numpy as np
import optax

from evidence.audit.cases import Case, cases
from evidence.audit.measure import _trees, extra_args_of
from evidence.audit.regimes import REGIMES
from optax_dtypefix._diagnosis.import_optax import import_optax
from optax_dtypefix._engine.locate import defining_module, find
from optax_dtypefix.patches import IDS, load

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

BFLOAT16 = REGIMES[1]
LOOKAHEAD = "lookahead itself"  # The case named lookahead is wrapped in functions of its own.


def subjects(only: Collection[str]) -> dict[str, Case]:
    """Return all transformations, and wrapped ones, or those with these names."""
    found = {name_of(case): case for case in _every()}
    return {name: case for name, case in found.items() if not only or name in only}


def _every() -> Iterator[Case]:
    """adam stands for what may be inside a wrapper; fromage and sgd for what follows a schedule."""
    yield Case(LOOKAHEAD, lambda: optax.lookahead(optax.sgd(0.1), 2, 0.5))
    yield Case("wide link", lambda: optax.chain(optax.scale(np.float32(0.01)), optax.adam(0.1)))
    for case in cases():
        rated = case.rate in ("", "float") or (
            case.rate == "schedule" and case.name in ("adam", "fromage", "sgd")
        )
        if rated and (not case.inside or case.name == "adam"):
            yield case


def name_of(case: Case) -> str:
    return " ".join(filter(None, (case.name, case.rate, case.inside)))


def signature(function: Callable[..., Any]) -> list[str]:
    """List names, kinds and defaults of the parameters."""
    return [
        f"{p.kind.name} {p.name}" + ("" if p.default is p.empty else f" = {_text(p.default)}")
        for p in inspect.signature(function).parameters.values()
    ]


def _text(value: Any) -> str:
    return re.sub("0x[0-9a-f]+", "", str(value))


def program(case: Case, tx: Any) -> str:
    """Return the program of a start and a step."""
    params, grads = _trees(case, BFLOAT16)
    extra_args = extra_args_of(case, params, grads)
    static = {name: value for name, value in extra_args.items() if callable(value)}
    traced = {name: value for name, value in extra_args.items() if name not in static}

    def step(params: Any, grads: Any, traced: Any) -> Any:
        return tx.update(grads, tx.init(params), params, **traced, **static)

    return _text(jax.make_jaxpr(step)(params, grads, traced))


def pickled(tx: Any) -> bytes:
    """Pickle a transformation; return nothing if it cannot be loaded again."""
    try:
        data: bytes = cloudpickle.dumps(tx)
        cloudpickle.loads(data)
    except Exception:
        return b""
    return data


def patched_functions() -> dict[str, list[str]]:
    """Return the signature of every function and method that a patch may replace."""
    return {
        f"{module}:{target.qualname}": signature(find(module, target.qualname))
        for patch_id in IDS
        for target in load(patch_id).targets
        for module in [defining_module(target)]
        if module is not None and target.name not in {"__getattr__", "__new__"}
    }


def described(name: str, case: Case, tx: Any) -> dict[str, Any]:
    traceable = not case.inside and name != LOOKAHEAD and case.rate != "schedule"
    traceable = traceable and os.environ.get("OPTAX_DTYPEFIX") != "off"  # Stock raises.
    return {
        "init": signature(tx.init),
        "update": signature(tx.update),
        "program": program(case, tx) if traceable else "",
    }


def resolve_hints() -> None:
    """Resolve type hints, as tools do. From then on, some types cannot be pickled by value."""
    for function in (optax.stateless, optax.chain, optax.apply_updates):
        with contextlib.suppress(NameError):  # Old releases name types that are not imported.
            typing.get_type_hints(function)


def pickle_all(folder: Path, only: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pickle all transformations, twice, and describe them."""
    built = {name: (case, case.build()) for name, case in subjects(only).items()}
    before = {name: len(pickled(tx)) for name, (_, tx) in built.items()}
    resolve_hints()
    for name, (case, tx) in built.items():
        data = pickled(tx)
        (folder / f"{name}.pickle").write_bytes(data)
        sizes = {"before hints": before[name], "after hints": len(data)}
        yield name, {"sizes": sizes, **described(name, case, tx)}


def load_all(folder: Path, only: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Load all pickles that stock could load, and describe what they give."""
    for name, case in subjects(only).items():
        data = (folder / f"{name}.pickle").read_bytes()
        if data:
            yield name, described(name, case, cloudpickle.loads(data))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    import_optax()
    jax.devices()  # Before there is a backend, the number of devices is not known.
    way, folder, *only = sys.argv[1:]
    found = dict((load_all if way == "load" else pickle_all)(Path(folder), only))
    print(json.dumps({"transformations": found, "functions": patched_functions()}))
