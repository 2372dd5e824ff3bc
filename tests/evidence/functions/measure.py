"""Print as JSON in which problems each patch changes public functions of the installed optax.

``python -m evidence.functions.measure [NAME ...]``, in ``tests/``, traces each function with all
default patches, with none, and with some of them. Where stock is right, a patch changes nothing
that is computed: so what a patch changes is a fault of stock. A function counts for what it does
itself, not for what a transformation does that it is given.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any, Callable

import optax_dtypefix  # isort: skip  # First, as in a training script.

import jax
import jax.numpy as jnp
import optax

from evidence.audit.cases import RATES, Case, cases, public_transformations, required, takes_another
from evidence.audit.measure import traced_step
from evidence.audit.regimes import REGIMES, Regime
from evidence.functions.calls import available
from evidence.functions.computed import computed
from optax_dtypefix._diagnosis.processes import counts_so_far, patches_at_work
from optax_dtypefix._diagnosis.scan.functions import KINDS
from optax_dtypefix.patches import IDS
from support.functions import find
from support.transformations import drifting
from support.trees import tree_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_KINDS = {
    "f32": "any dtype",
    "bf16": "bfloat16",
    "f16": "float16",
    "mixed": "mixed dtypes",
    "wider": "gradients wider than params",
    "integer leaf": "integers",
    "complex": "complex numbers",
    "all complex": "complex numbers",
    "f32 x64": "64-bit mode",
    "f64 x64": "64-bit mode",
    "strict": "strict promotion",
    "f64 grads": "gradients wider than params",
}
"""By the names of the regimes."""

_ARRAY = "array hyperparameters"
_FOR_ARRAYS = ("bf16", "f32 x64")
_HYPERPARAMETERS = {"scale": "step_size", "add_decayed_weights": "weight_decay"}
_IMPLIED = {
    "any dtype": set(KINDS),
    "bfloat16": {"mixed dtypes"},
}
"""What a kind implies, and the table leaves out."""

_GENERAL_FIRST = ("promotion", *reversed(IDS))
"""The order in which patches are left out: of two that fix a fault, the special one stays."""

_OF_MOMENTS = {"bfloat16_moments", "float16_eps"}
"""``promotion`` fixes their faults too, where it runs a function in one dtype."""

_CHAINS = "promotion"
"""A chain rounds once, by this patch; each transformation would round as well without it."""

Kinds = dict[str, set[str]]
"""For each patch, the kinds of problems in which it changes something."""


Measured = dict[str, dict[str, list[str]]]
"""For each function and patch, the kinds of problems."""


def measured(*only: str) -> Measured:
    """Measure all public functions, or those named."""
    warnings.simplefilter("ignore")  # Deprecated functions warn.
    found: dict[str, Kinds] = {}
    for case in cases(only):
        if case.inside:
            continue
        kinds = found.setdefault(case.name, {})
        other = takes_another(public_transformations()[case.name])
        without = _of_inner() if other else {}
        if case.rate in ("array", "numpy"):
            _add(kinds, _of_case(case, _FOR_ARRAYS), without, call_it=_ARRAY)
        else:
            _add(kinds, _of_case(case), without)
        if case.name in _HYPERPARAMETERS:
            _add(kinds, _of_case(_with_array(case.name), _FOR_ARRAYS), call_it=_ARRAY)
        if case.name == "fromage":  # Up to 0.2.5 its annotation is a number.
            _add(kinds, _of_case(_with_schedule(case.name)))
        if other in ("inner", "opt"):
            _add(kinds, _of_case(_around_drifting(case.name, other)))
    for call, case in _with_more_state(only):
        found[call] = {}
        _add(found[call], _of_case(case), without=found[case.name])
    of_params = {regime.name for regime in REGIMES if regime.same_dtypes}.intersection(_KINDS)
    for path, call in available(*only).items():
        program = jax.make_jaxpr(call)
        found[path] = _kinds(of_params, lambda regime, of=program: (of(tree_of(*regime.params)),))
    return {name: _without_implied(kinds) for name, kinds in found.items()}


def functions() -> dict[str, Callable[..., Any]]:
    """Return all functions that are measured, by name."""
    return {**public_transformations(), **{path: find(path) for path in available()}}


@functools.cache
def _of_inner() -> Kinds:
    """Measure what is given to a function that takes another transformation."""
    kinds = _of_case(Case("adam", lambda: optax.adam(0.1)))
    _add(kinds, _of_case(Case("sgd", lambda: optax.sgd(0.1))))
    return kinds


def _add(kinds: Kinds, more: Kinds, without: Kinds | None = None, call_it: str = "") -> None:
    for patch, of_patch in more.items():
        known = kinds.setdefault(patch, set())
        new = of_patch - known - (without or {}).get(patch, set())
        known.update({call_it} if call_it and new else new)


def _with_more_state(only: Collection[str]) -> Iterator[tuple[str, Case]]:
    """Yield calls that turn on a part that is off by default, as in ``sgd(momentum=0.9)``.

    Yield each as ``sgd(learning_rate, momentum=)``: where the argument stands, and its name. It
    counts if a number in place of None adds a state.
    """
    tree = tree_of(jnp.float32)
    for name, function in public_transformations().items():
        parameters = [*inspect.signature(function).parameters.values()]
        off = [each for each in parameters if each.default is None and _may_be_a_number(each.name)]
        if not off or (only and name not in only):
            continue
        usual = _states(Case(name, functools.partial(_build, function)), tree)
        for argument in off:
            case = Case(name, functools.partial(_build, function, **{argument.name: 0.9}))
            if usual and (_states(case, tree) or usual) != usual:
                places = [*_before(argument, parameters), f"{argument.name}="]
                yield f"{name}({', '.join(places)})", case


def _before(argument: inspect.Parameter, parameters: Iterable[inspect.Parameter]) -> list[str]:
    if argument.kind is argument.KEYWORD_ONLY:
        return ["*"]
    return [each.name for each in itertools.takewhile(lambda each: each != argument, parameters)]


def _may_be_a_number(name: str) -> bool:
    return name != "learning_rate" and "mask" not in name  # The first is in all other calls.


def _build(function: Callable[..., Any], **more: Any) -> Any:
    return function(**{**required(function), **more})


def _states(case: Case, tree: Any) -> Any:
    """Return the structure of the first state, or None if there is no such transformation."""
    try:
        return jax.tree_util.tree_structure(jax.eval_shape(case.build().init, tree))
    except Exception:  # A number may make no sense there.
        return None


def _with_array(name: str) -> Case:
    function = public_transformations()[name]
    return Case(name, lambda: function(**{_HYPERPARAMETERS[name]: jnp.float32(0.1)}))


def _with_schedule(name: str) -> Case:
    function = public_transformations()[name]
    return Case(name, lambda: function(RATES["schedule"]()))


def _around_drifting(name: str, parameter: str) -> Case:
    """Give a wrapper a transformation that changes dtypes, as one of a user may."""
    function = public_transformations()[name]
    arguments = {**required(function), parameter: drifting()}
    return Case(name, lambda: function(**arguments))


def _of_case(case: Case, regimes: Collection[str] = tuple(_KINDS)) -> Kinds:
    def trace(regime: Regime) -> tuple[Any, ...]:
        step = traced_step(case, regime)
        init, state = jax.make_jaxpr(step.init, return_shape=True)(step.inputs)
        return init, jax.make_jaxpr(step.update)(state, step.inputs)

    return _kinds(regimes, trace)


def _kinds(regimes: Collection[str], trace: Callable[[Regime], tuple[Any, ...]]) -> Kinds:
    """Trace a function in some regimes, and see which patches change the program."""
    found: Kinds = {}
    for regime in REGIMES:
        program, before = functools.partial(_program, regime, trace), counts_so_far()
        if regime.name not in regimes or (patched := program()) is None:
            continue  # Such a call makes no sense, with or without patches.
        idle = {*IDS}.difference(patches_at_work(before))
        if patched != (stock := program(without=IDS)):
            alone = {p for p in _OF_MOMENTS - idle if program(without={*IDS} - {p}) != stock}
            needed = _needed(patched, program, idle)
            if needed > {_CHAINS} and _dtypes(program(without={_CHAINS})) == _dtypes(patched):
                needed -= {_CHAINS}
            for patch in needed | alone:
                found.setdefault(patch, set()).add(_KINDS[regime.name])
    return found


def _dtypes(programs: Any) -> list[str] | None:
    return programs and [dtypes for _, dtypes in programs]


def _needed(patched: Any, program: Callable[..., Any], idle: set[str]) -> set[str]:
    """Return the patches that make this program, of which none can be left out."""
    needed = {*IDS}
    for some in (idle, *({patch} for patch in _GENERAL_FIRST)):
        if some & needed and program(without={*IDS} - (needed - some)) == patched:
            needed -= some
    return needed


def _program(
    regime: Regime, trace: Callable[[Regime], tuple[Any, ...]], without: Collection[str] = ()
) -> Any:
    """Return what the programs compute, and their weak types; None if there is no trace."""
    jax.clear_caches()
    suspended = optax_dtypefix.disabled(*without) if without else contextlib.nullcontext()
    try:
        with suspended, regime.modes():
            programs = trace(regime)
    except Exception:
        return None
    return [(computed(program), str(program.out_avals)) for program in programs]


def _without_implied(kinds: Kinds) -> dict[str, list[str]]:
    shown = {}
    for patch, of_patch in kinds.items():
        implied = {other for kind in of_patch for other in _IMPLIED.get(kind, ()) if other != kind}
        if of_patch:
            shown[patch] = sorted(of_patch - implied)
    return shown


if __name__ == "__main__":
    print(json.dumps(measured(*sys.argv[1:])))
