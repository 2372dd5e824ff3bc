"""The worker process of ``check``: check the user's optimizer on the optax of this process."""

from __future__ import annotations

import os
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..._api import status
from ..._contract.dtypes import leaves, tree_map
from ..._errors import summarize
from ..check import check, line_of
from ..import_optax import import_optax
from ..processes import counts_so_far, lines_to, patches_at_work
from ..stalls import find_stalls
from .optimizer import OptimizerError, OptimizerName, load
from .params import Leaf, in_float32, parse_params

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..result import Check

_BUILD_LIMIT = 300.0
"""Seconds that the import of the user's file and the first call of the factory may take."""

_ASKED_BY = {"grads": "batch dimension"}
"""What the error says that asks for an argument, if that is not its name."""

_REFUSED = re.compile(r"unexpected keyword argument '(\w+)'")


def write_findings(path: str, place: str, name: str, mode: str, *params: str) -> None:
    """Check the optimizer on each of these params; write one JSON line for each.

    Args:
      path: file to write. The first and the last line have the report of the patches. A line with
        ``failure`` says that there is no optimizer, and why.
      place: file or module of the optimizer.
      name: its name there.
      mode: ``x64`` or ``x32``.
      *params: as text, see ``parse_params``.
    """
    warnings.simplefilter("ignore")  # The optimizer is checked, not its style.
    import_optax()
    if mode == "x64":
        jax.config.update("jax_enable_x64", True)
    with lines_to(path) as write:
        write(report=status().as_dict())
        optimizer = OptimizerName(place, name)

        def give_up() -> None:
            write(failure=f"{optimizer} cannot be built within {_BUILD_LIMIT:.0f} seconds")
            os._exit(1)

        timer = threading.Timer(_BUILD_LIMIT, give_up)
        timer.daemon = True
        timer.start()

        built: set[str] = set()  # The file may build it when loaded, or the factory only once.

        def build() -> Any:
            write(building=True)  # The last line, if the process ends here.
            before = counts_so_far()
            tx = factory()
            built.update(patches_at_work(before))
            timer.cancel()
            write(building=False)
            return tx

        before = counts_so_far()
        try:
            factory = load(optimizer)
            built.update(patches_at_work(before))
            for text in params:
                before = counts_so_far()
                found = findings(build, text)
                reached = built.union(patches_at_work(before))
                write(**found, at_work=[patch_id for patch_id in before if patch_id in reached])
        except OptimizerError as error:
            write(failure=str(error))
        write(report=status().as_dict())


def findings(build: Callable[[], Any], params_text: str) -> dict[str, Any]:
    """Check dtypes and values on such params.

    Returns:
      ``problems``; ``unfit``: whether the optimizer raises on float32 params too; and ``notes``.
    """
    try:
        problems, notes = _findings(build, params_text)
    except SystemExit as error:  # By ``init`` or ``update``.
        problems = [_problem("dtypes", "error", "", f"exits with {error.code!r}{line_of(error)}")]
        notes = ()
    fails = [p for p in problems if p["check"] == "dtypes" and p["kind"] in ("build", "error")]
    # The default params are not those of the user: the optimizer may look for other names.
    single = in_float32(params_text)
    unfit = bool(fails) and (single == params_text or findings(build, single)["unfit"])
    return {"problems": problems, "unfit": unfit, "notes": notes}


def _findings(
    build: Callable[[], Any], params_text: str
) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    try:
        tx = build()
    except OptimizerError:
        raise
    except Exception as error:  # Some faults show while the optimizer is built.
        return [_problem("dtypes", "build", "", summarize(error) + line_of(error))], ()
    params = tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype)),
        parse_params(params_text),
        is_leaf=lambda node: isinstance(node, Leaf),
    )
    extra_args, dtypes = checked(tx, params)
    problems = [_problem("dtypes", each.kind, each.where, str(each)) for each in dtypes]
    notes: dict[str, None] = {}
    if dtypes.error is None:  # Values would have the same error.
        values = find_stalls(tx, params, extra_args, notes)
        problems += [_problem("values", each.kind, each.where, each.message) for each in values]
    return problems, tuple(notes)


def checked(tx: Any, params: Any) -> tuple[dict[str, Any], Check]:
    """Check the dtypes with the extra arguments that ``update`` needs: its errors name them."""
    offered = {
        **dict.fromkeys(("value", "loss"), jax.eval_shape(loss, params)),
        "grad": params,
        **dict.fromkeys(("value_fn", "obj_fn"), loss),
        "grad_fn": lambda params, *_: jax.grad(loss)(params),
        # Gradients of single examples, as DP-SGD wants them.
        "grads": tree_map(lambda p: jax.ShapeDtypeStruct((4, *p.shape), p.dtype), params),
    }
    without = found = check(tx, params)
    given: dict[str, Any] = {}
    refused: set[str] = set()
    while found.error is not None:
        error = str(found.error)
        refused.update(_REFUSED.findall(error))
        asked = {name: _ASKED_BY.get(name, name) for name in offered}
        wanted = {name for name, words in asked.items() if re.search(rf"\b{words}\b", error)}
        chosen = {*given, *wanted} - refused
        if chosen == set(given):
            return {}, without
        given = {name: offered[name] for name in chosen}
        found = check(tx, params, **given)
    return given, found


def loss(params: Any) -> Any:
    """Sum the squares in the dtype that the leaves promote to, also in strict promotion mode."""
    with jax.numpy_dtype_promotion("standard"):
        return sum(jnp.sum(jnp.square(jnp.abs(leaf))) for leaf in leaves(params))


def _problem(of: str, kind: str, where: str, text: str) -> dict[str, str]:
    return {"check": of, "kind": kind, "where": where, "text": text}
