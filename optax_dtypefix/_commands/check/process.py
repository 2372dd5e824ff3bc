"""The worker process of ``check``: measure the user's optimizer on the optax of this process."""

from __future__ import annotations

import json
import re
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..._api import status
from ..._contract.check import check
from ..._contract.dtypes import leaves
from ..._contract.shrink import shrunk_shapes
from ..._contract.values import check_values
from ..._text import summarize
from ..import_optax import import_optax
from .target import Target, TargetError, load
from .trees import Leaf, Tree, in_float32, map_leaves, parse_params

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_REFUSED = re.compile(r"unexpected keyword argument '(\w+)'")


def write_cases(path: str, place: str, name: str, mode: str, *params: str) -> None:
    """Measure the optimizer on each of these params; write one JSON line for each.

    Args:
      path: file to write. The first and the last line have the report of the patches. A line with
        ``failure`` says that there is no optimizer, and why.
      place: file or module of the optimizer.
      name: its name there.
      mode: ``x64`` or ``x32``.
      *params: as text, see ``parse_params``.
    """
    warnings.simplefilter("ignore")  # The optimizer is measured, not its style.
    import_optax()
    if mode == "x64":
        jax.config.update("jax_enable_x64", True)
    with open(path, "w", encoding="utf-8") as file:

        def write(**fields: Any) -> None:
            print(json.dumps(fields), file=file, flush=True)

        write(report=status().as_dict())
        try:
            build = load(Target(place, name))
            for text in params:
                write(**_measured(build, parse_params(text)))
        except TargetError as error:
            write(failure=str(error))
            return
        write(report=status().as_dict())


def _measured(build: Callable[[], Any], tree: Tree) -> dict[str, Any]:
    try:
        tx = build()
    except TargetError:
        raise
    except Exception as error:  # Some faults show while the optimizer is built.
        return {"problems": [_problem("dtypes", "build", "", summarize(error))], "unfit": True}
    params = _abstract(tree)
    extra_args = _extra_args(tx, params)
    dtypes = check(tx, params, **extra_args)
    small = _shrunk(tx, params)  # ``check_values`` cannot, if it is given a function.
    values = check_values(tx, small, **_extra_args(tx, small))
    found: list[tuple[str, Any]] = [("values", problem) for problem in values]
    if dtypes.error is not None:  # The values have the same error.
        found = [pair for pair in found if pair[1].kind != "error"]
    found += [("dtypes", problem) for problem in dtypes]
    return {
        "problems": [_problem(of, p.kind, p.where, str(p)) for of, p in found],
        # The default params are not those of the user: his optimizer may look for other names.
        "unfit": dtypes.error is not None and _raises(build(), _abstract(in_float32(tree))),
    }


def _abstract(tree: Tree) -> Any:
    def array(leaf: Leaf) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, jax.numpy.dtype(leaf.dtype))

    return map_leaves(array, tree)


def _shrunk(tx: Any, params: Any) -> Any:
    shapes = shrunk_shapes(tx, params, params)
    return jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(shapes[leaf.shape], leaf.dtype), params
    )


def _raises(tx: Any, params: Any) -> bool:
    return check(tx, params, **_extra_args(tx, params)).error is not None


def _extra_args(tx: Any, params: Any) -> Mapping[str, Any]:
    """Find the extra arguments that ``update`` needs by trying: its errors name them."""
    offered = {
        **dict.fromkeys(("value", "loss"), jax.eval_shape(loss, params)),
        "grad": params,
        **dict.fromkeys(("value_fn", "obj_fn"), loss),
        "grad_fn": lambda params, *_: jax.grad(loss)(params),
    }
    given: dict[str, Any] = {}
    refused: set[str] = set()
    for _ in range(2 * len(offered)):
        error = check(tx, params, **given).error
        if error is None:
            return given
        refused.update(_REFUSED.findall(str(error)))
        wanted = {name for name in offered if re.search(rf"\b{name}\b", str(error))}
        chosen = {*given, *wanted} - refused
        if chosen == set(given):
            break
        given = {name: offered[name] for name in chosen}
    return {}


def loss(params: Any) -> Any:
    """Sum the squares in the dtype that the leaves promote to, also in strict promotion mode."""
    with jax.numpy_dtype_promotion("standard"):
        return sum(jnp.sum(jnp.square(jnp.abs(leaf))) for leaf in leaves(params))


def _problem(of: str, kind: str, where: str, text: str) -> dict[str, str]:
    return {"check": of, "kind": kind, "where": where, "text": text}
