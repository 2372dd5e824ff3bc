"""Every transformation keeps the contract: in any dtypes, nodes and states, called in any way.

One test looks at a transformation in all regimes, so its name shows what is broken, and the message
shows where. All of it is traced, and nothing is compiled. ``evidence/audit`` does so for wrappers
around each of them too, and compares the compiled programs.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from packaging.version import Version

import optax_dtypefix
from evidence.audit.cases import RATES, Case, cases
from evidence.audit.known_exceptions import reason_for, reason_to_narrow
from evidence.audit.measure import _trees, extra_args_of, traced_step
from evidence.audit.regimes import REGIMES, Regime
from optax_dtypefix._diagnosis.import_optax import import_optax
from optax_dtypefix._diagnosis.scan.functions import faults_of
from optax_dtypefix._engine.release import Release
from optax_dtypefix.patches.wrapped import BUILDERS, WRAPPED
from support.contract import Step, broken, narrower, one_step, program
from support.nodes import Converting, Matrix
from support.thorough import of_each_kind, one_of
from support.transformations import averaging, drifting
from support.trees import leaves, tree_map
from support.user_calls import wrappers

if TYPE_CHECKING:
    from collections.abc import Iterator

# Stock warns of deprecated functions.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

import_optax()
RELEASE = Release(optax.__version__, tested=True)
WRAPPED_NAMES = {name.partition(" ")[0].partition(".")[0] for of in WRAPPED.values() for name in of}
NAMES = {*BUILDERS, *WRAPPED_NAMES, "dog", "dowg", "muon", "noisy_sgd", "sgd", "sophia"}
"""Of functions that the patches change, and of those around one that is not public."""
EVERY = [case for case in cases() if not case.inside]
PUBLIC = [case for case in EVERY if case.rate in ("", "float")]
PLAIN = [case for case in PUBLIC if case.name.rpartition(".")[2] in NAMES]
OTHER_RATES = [case for case in EVERY if case.rate in RATES.keys() - {"float"}]
RATED = [case for case in OTHER_RATES if case.name.rpartition(".")[2] in NAMES]
LINKS = {
    *("chain", "named_chain", "masked", "multi_transform", "partition", "lookahead"),
    *("inject_hyperparams", "inject_hyperparams(schedule)", "apply_every in a chain"),
}
"""In these, the state of a user's transformation has the dtypes that it has on stock."""
USERS = [
    Case(f"{name} of {inner}", lambda wrap=wrap, build=build: wrap(build()))
    for name, wrap in wrappers().items()
    for inner, build in (("drifting", drifting), ("a mean", lambda: averaging(np.int32(0))))
    if name not in LINKS
]

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
BY_NAME = {
    regime.name: regime
    for regime in (
        *REGIMES,
        Regime("halves", (BF16, F16)),
        Regime("bf16 strict", (BF16, BF16), strict=True),
        Regime("f32 and f64 x64", (F32, jnp.float64), x64=True),
    )
}


def by_case(subjects: list[Case], thorough: Callable[[list[Case]], list[Any]] = list) -> Any:
    ids = [f"{case.name} {case.rate.replace('float', '')}".strip() for case in subjects]
    return pytest.mark.parametrize("case", thorough(subjects), ids=ids)


def but_one_of_eight(first: int) -> Callable[[list[Case]], list[Any]]:
    return lambda subjects: one_of(8, subjects, first)


SAME = ("mixed", "f16", "halves", "integer leaf", "integer matrix", "all complex", "bf16 strict")
WIDE = ("f32 x64", "bf16 x64", "f32 and f64 x64")
OTHER_GRADIENTS = ("wider", "f16 grads", "int8 grads")
REGIMES_OF_ALL = (*SAME, *WIDE, *OTHER_GRADIENTS)


def excepted(case: Case, regime: str) -> bool:
    return reason_for(case.name, case.rate, "", regime, optax.__version__) is not None


def step_of(case: Case, regime: Regime) -> Step:
    params, grads = _trees(case, regime)
    return one_step(case.build(), params, grads, extra_args_of(case, params, grads))


def on_stock(case: Case, regime: Regime) -> Step | None:
    """Return the step on stock, or None where it raises."""
    try:
        with optax_dtypefix.disabled():
            return step_of(case, regime)
    except Exception:
        return None


def problems(case: Case, regime: Regime) -> Iterator[str]:
    """Yield what breaks C1 to C3 in one regime, and updates that lose what stock's have."""
    params, grads = _trees(case, regime)
    try:
        step = step_of(case, regime)
    except Exception as error:
        if on_stock(case, regime) is not None:
            yield f"{type(error).__name__}, and stock runs"
        return
    yield from broken(step, params, grads)
    if reason_to_narrow(case.name, case.rate, "", regime.name, optax.__version__) is None:
        yield from narrower(step, params, grads, lambda: on_stock(case, regime))


def assert_in_all(case: Case, names: Any, check: Callable[[Case, Regime], Iterator[str]]) -> None:
    found = {}
    for regime in (BY_NAME[name] for name in names if not excepted(case, name)):
        with regime.modes():
            if broken_here := list(check(case, regime)):
                found[regime.name] = broken_here
    assert found == {}


@pytest.mark.rule("C0", "C1", "C2", "C3")
@pytest.mark.parametrize(
    ("case", "regimes"),
    [
        pytest.param(
            *(case, REGIMES_OF_ALL[(index + part) % 2 :: 2]),
            id=case.name + " in others" * part,
            marks=[pytest.mark.thorough] * part,
        )
        for index, case in enumerate(PLAIN)
        for part in range(2)
    ],
)
def test_keeps_the_contract(case: Case, regimes: tuple[str, ...]) -> None:
    """The README's command looks at each transformation in every other regime."""
    assert_in_all(case, regimes, problems)


@pytest.mark.rule("C1", "C2", "C3")
@by_case(RATED, but_one_of_eight(0))
def test_a_learning_rate_of_any_type_keeps_the_contract(case: Case) -> None:
    assert_in_all(case, ("mixed", "f32 x64"), problems)


@pytest.mark.rule("C1", "C2", "C3", "C7")
@by_case(USERS)
def test_around_a_transformation_of_the_users_it_keeps_the_contract(case: Case) -> None:
    assert_in_all(case, ("mixed", "integer leaf", "bf16 strict"), problems)


@pytest.mark.rule("C6")
@by_case(PLAIN, but_one_of_eight(1))
def test_a_state_restored_from_stock_keeps_its_dtypes(case: Case) -> None:
    """Stock has scalars in the dtype of the params."""
    if reason_for(case.name, case.rate, "", "bf16", optax.__version__) is not None:
        pytest.skip("breaks the contract by design")
    params, grads = _trees(case, BY_NAME["bf16"])
    extra = extra_args_of(case, params, grads)
    tx = case.build()

    def narrow(leaf: Any) -> Any:
        return leaf.astype(BF16) if getattr(leaf, "dtype", None) == F32 else leaf

    def restored(params: Any) -> Any:
        return tree_map(narrow, tx.init(params))

    step = one_step(SimpleNamespace(init=restored, update=tx.update), params, grads, extra)
    assert [dtype for _, dtype, _ in step.after] == [dtype for _, dtype, _ in step.before]


@pytest.mark.rule("C7")
@pytest.mark.parametrize("node", [Converting, Matrix])
@by_case([case for case in PLAIN if not case.extra_args], but_one_of_eight(2))
def test_nodes_may_convert_and_check_their_children(case: Case, node: Any) -> None:
    """The step has the dtypes of that of a plain tree, so no node is given a shape, or a copy."""
    regime = BY_NAME["bf16"]
    params, grads = _trees(case, regime)

    def in_nodes(tree: Any) -> Any:
        return {"w": node(tree["w"]), "b": Converting(tree["b"])}

    def in_a_tree_of_nodes() -> Step:
        tx = case.build()

        def update(grads: Any, state: Any, params: Any) -> Any:
            updates, state = tx.update(in_nodes(grads), state, in_nodes(params))
            return {name: leaves(node)[0] for name, node in updates.items()}, state

        inside = optax.GradientTransformation(lambda params: tx.init(in_nodes(params)), update)
        return one_step(inside, params, grads)

    try:
        with optax_dtypefix.disabled():
            in_a_tree_of_nodes()
    except Exception:
        pytest.skip("stock itself puts something else into nodes")
    assert in_a_tree_of_nodes()[1:] == step_of(case, regime)[1:]


@pytest.mark.rule("C5")
@by_case(PLAIN)
def test_float32_runs_the_program_of_stock(case: Case) -> None:
    faults = faults_of(f"optax.{case.name}", RELEASE)
    if any("any dtype" in kinds for kinds in faults.values()):
        pytest.skip("stock is at fault")
    params, grads = _trees(case, BY_NAME["f32"])
    extra = extra_args_of(case, params, grads)
    with optax_dtypefix.disabled():
        stock = program(case.build(), params, grads, extra)
    assert program(case.build(), params, grads, extra) == stock


@pytest.mark.rule("C6")
@by_case(PLAIN, but_one_of_eight(3))
def test_a_new_state_has_the_leaves_of_stock(case: Case) -> None:
    """So checkpoints are exchanged. Only statistics, which have other shapes, may be wider."""
    if case.name == "MultiSteps" and Version(optax.__version__) < Version("0.2.8"):
        pytest.skip("its accumulators are float32, as in 0.2.8")
    for regime in (BY_NAME["bf16"], BY_NAME["f32"]):
        stock, new = on_stock(case, regime), step_of(case, regime)
        if stock is None:
            continue
        assert new.structures[0] == stock.structures[0]
        shapes = [param.shape for param in leaves(regime.trees()[0])]
        for (shape, dtype, _), before, after in zip(new.before, stock.before, stock.after):
            assert shape == before[0]
            # Or the dtype that the first step gives the leaf on stock.
            assert dtype in (before[1], after[1]) or shape not in shapes


@pytest.mark.rule("C1")
@by_case([case for case in USERS if case.name.endswith("a mean")])
def test_a_number_that_starts_as_an_integer_becomes_what_it_is_on_stock(case: Case) -> None:
    regime = BY_NAME["f32"]
    stock, step = on_stock(case, regime), step_of(case, regime)
    for was, (_, dtype, _) in zip(stock.after if stock else (), step.after):
        assert jnp.issubdtype(dtype, jnp.inexact) or not jnp.issubdtype(was[1], jnp.inexact)
    assert step.after == step.before


@pytest.mark.rule("C0")
@by_case(PUBLIC, of_each_kind)
def test_update_can_be_called_by_the_names_of_stock(case: Case) -> None:
    params, grads = _trees(case, BY_NAME["bf16"])
    extra = extra_args_of(case, params, grads)
    with optax_dtypefix.disabled():
        first = list(inspect.signature(case.build().update).parameters)[:2]
    if first[:1] in (["_"], ["args"]):
        pytest.skip("the stock function does not name its arguments")
    tx = case.build()
    static = {name: value for name, value in extra.items() if callable(value)}
    traced = {name: value for name, value in extra.items() if name not in static}

    def step(params: Any, grads: Any, traced: Any) -> Any:
        named = dict(zip(first, (grads, tx.init(params))))
        return tx.update(**named, params=params, **traced, **static)

    jax.eval_shape(step, params, grads, traced)


@pytest.mark.rule("C0")
@by_case(PUBLIC, of_each_kind)
def test_a_transformation_that_equinox_rebuilt_works(case: Case) -> None:
    """It flattens the closures of transformations, hashes them, and rebuilds them."""
    eqx = pytest.importorskip("equinox")
    if not hasattr(case.build(), "_fields"):
        pytest.skip("a class with methods, which close over nothing")

    def rebuilt() -> Any:
        closures = eqx.internal.closure_to_pytree(case.build())
        arrays, others = eqx.partition(closures, eqx.is_array)
        flat, structure = jax.tree_util.tree_flatten(others)
        assert all(hash(leaf) is not None for leaf in (*flat, structure))
        return eqx.combine(arrays, jax.tree_util.tree_unflatten(structure, flat))

    again = Case(case.name, rebuilt, case.rate)
    list(traced_step(again, BY_NAME["bf16"]).step())  # Raises what the transformation raises.
