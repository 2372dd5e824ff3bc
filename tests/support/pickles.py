"""Describe every transformation as a framework sees it: its signatures, its pickle, its program.

``python -m support.pickles FOLDER [hints]`` pickles all transformations of the installed optax with
cloudpickle, as Ray, Dask and submitit do, after it resolved type hints on request.
``python -m support.pickles FOLDER load`` loads them, and describes what it loaded. Both print JSON.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import typing
import warnings
from pathlib import Path
from typing import Any, Callable

import optax_dtypefix  # noqa: F401  # isort: skip  # First, as in a training script.

import cloudpickle  # type: ignore[import-untyped]
import jax
import optax

from optax_dtypefix._commands.audit.cases import Case, cases
from optax_dtypefix._commands.audit.measure import _extra_args, _trees
from optax_dtypefix._commands.audit.regimes import REGIMES
from optax_dtypefix._commands.import_optax import import_optax
from optax_dtypefix._engine.locate import defining_module, find
from optax_dtypefix.patches import IDS

BFLOAT16 = REGIMES[1]


def subjects() -> list[Case]:
    """List all transformations, and those inside a wrapper that wrap adam."""
    lookahead = Case("lookahead itself", lambda: optax.lookahead(optax.sgd(0.1), 2, 0.5))
    return [lookahead, *(c for c in cases() if c.rate in ("", "float", "schedule"))]


def signature(function: Callable[..., Any]) -> list[str]:
    """List names, kinds and defaults of the parameters."""
    return [
        f"{p.kind.name} {p.name} = {re.sub('0x[0-9a-f]+', '', repr(p.default))}"
        for p in inspect.signature(function).parameters.values()
    ]


def program(case: Case, tx: Any) -> str:
    """Return the program of a start and a step."""
    params, grads = _trees(case, BFLOAT16)
    extra_args = _extra_args(case, params, grads)
    static = {name: value for name, value in extra_args.items() if callable(value)}
    traced = {name: value for name, value in extra_args.items() if name not in static}

    def step(params: Any, grads: Any, traced: Any) -> Any:
        return tx.update(grads, tx.init(params), params, **traced, **static)

    if case.name == "lookahead itself":
        return ""
    try:
        return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(step)(params, grads, traced)))
    except Exception as error:  # As stock does with some params.
        return f"{type(error).__name__}: {error}"


def pickled(tx: Any, path: Path) -> int:
    """Pickle a transformation into a file. Return its size, or 0 if it cannot be loaded again."""
    try:
        data = cloudpickle.dumps(tx)
        cloudpickle.loads(data)
    except Exception:
        return 0
    path.write_bytes(data)
    return len(data)


def patched_functions() -> dict[str, list[str]]:
    """Return the signature of every function and method that a patch may replace."""
    patches = [importlib.import_module(f"optax_dtypefix.patches.{name}").PATCH for name in IDS]
    targets = {target for patch in patches for target in patch.targets}
    return {
        f"{module}:{target.qualname}": signature(find(module, target.qualname))
        for target in targets
        for module in [defining_module(target)]
        if module is not None and target.name not in {"__getattr__", "__new__"}
    }


def described(case: Case, path: Path, *, load: bool) -> dict[str, Any] | None:
    """Describe a transformation; None if there is no pickle of it to load."""
    if not load:
        tx = case.build()
    elif path.exists():
        tx = cloudpickle.loads(path.read_bytes())
    else:
        return None
    return {
        "size": 0 if load else pickled(tx, path),
        "init": signature(tx.init),
        "update": signature(tx.update),
        "program": "" if case.inside else program(case, tx),
    }


def main(folder: Path, *options: str) -> None:
    """Print what a process sees of all transformations."""
    import_optax()
    if "hints" in options:
        for function in (optax.stateless, optax.chain, optax.apply_updates):
            typing.get_type_hints(function)
    found: dict[str, Any] = {}
    for number, case in enumerate(subjects()):
        name = f"{case.name} {case.rate} {case.inside}".strip()
        path = folder / f"{number}.pickle"
        found[name] = described(case, path, load="load" in options)
    print(json.dumps({"transformations": found, "functions": patched_functions()}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), *sys.argv[2:])
