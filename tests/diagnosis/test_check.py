from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_dtypefix
from optax_dtypefix import Check, Violation, master_weights, preserve_dtypes
from optax_dtypefix._contract.x64 import x64
from support.nodes import Converting
from support.transformations import drifting
from support.trees import tree_map

needs_extra_args = pytest.mark.skipif(
    not hasattr(optax, "GradientTransformationExtraArgs"),
    reason="extra arguments came with optax 0.1.5",
)


def transformation(update: Any, init: Any = None) -> Any:
    return optax.GradientTransformation(
        init or (lambda params: tree_map(jnp.zeros_like, params)), update
    )


def shapes(dtype: Any) -> Any:
    return {"w": jax.ShapeDtypeStruct((3,), dtype)}


def kinds(report: Any) -> list[str]:
    return [violation.kind for violation in report]


def test_a_transformation_that_keeps_dtypes_is_ok() -> None:
    report = optax_dtypefix.check(optax.adam(1e-3), shapes(jnp.bfloat16))
    assert report.ok
    assert str(report) == "dtypes: ok; values: not checked, see `optax-dtypefix check --help`"
    report.raise_if_broken()


def test_a_change_of_dtype_is_described() -> None:
    report = optax_dtypefix.check(drifting(), shapes(jnp.bfloat16))
    assert kinds(report) == ["state", "updates", "scan", "cond"]
    assert "state['w']: changes from bfloat16[3] to float32[3]" in str(report)
    assert "updates['w']: float32, wider than bfloat16 (gradient bfloat16, param bfloat16)" in str(
        report
    )
    with pytest.raises(optax_dtypefix.OptaxDtypeFixError, match="changes from bfloat16"):
        report.raise_if_broken()


def test_a_change_of_weak_type_is_found() -> None:
    def init(params: Any) -> Any:
        del params
        return jnp.asarray(0.0)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return grads, state + jnp.float32(1.0)

    report = optax_dtypefix.check(transformation(update, init), shapes(jnp.float32))
    assert "changes from weak float32[] to float32[]" in str(report)


def test_a_change_of_structure_is_found() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return grads, {"more": state}

    report = optax_dtypefix.check(transformation(update), shapes(jnp.float32))
    assert kinds(report) == ["structure", "scan", "cond"]


def test_float64_inside_is_found_unless_an_input_has_it() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return tree_map(lambda g: (g.astype(jnp.float64) * 2).astype(g.dtype), grads), state

    with x64():
        tx = transformation(update)
        assert kinds(optax_dtypefix.check(tx, shapes(jnp.float32))) == ["float64"]
        assert optax_dtypefix.check(tx, shapes(jnp.float64)).ok


def test_an_exception_is_reported_with_its_line_and_its_cause() -> None:
    # Not in site-packages, as after ``pip install --user``.
    code = compile("def fail(): raise KeyError('lost')", "/home/me/lib/jax/numpy.py", "exec")
    of_jax: dict[str, Any] = {"__name__": "jax.numpy"}
    exec(code, of_jax)

    def update(*_: Any) -> Any:
        of_jax["fail"]()

    report = optax_dtypefix.check(transformation(update), shapes(jnp.float32))
    assert kinds(report) == ["error"]
    line = update.__code__.co_firstlineno + 1
    assert str(report) == f"error: KeyError: 'lost' ({__file__}:{line})"
    assert isinstance(report.error, KeyError)
    with pytest.raises(optax_dtypefix.OptaxDtypeFixError) as raised:
        report.raise_if_broken()
    assert raised.value.__cause__ is report.error


@needs_extra_args
def test_extra_arguments_may_be_shapes_and_functions() -> None:
    def update(grads: Any, state: Any, params: Any = None, *, value: Any, value_fn: Any) -> Any:
        return tree_map(lambda g: g * (value + value_fn(params)), grads), state

    tx = optax.GradientTransformationExtraArgs(lambda params: params, update)
    value = jax.ShapeDtypeStruct((), jnp.float32)
    found = optax_dtypefix.check(
        tx, shapes(jnp.float32), value=value, value_fn=lambda params: params["w"].sum()
    )
    assert found.ok, found


def test_arrays_count_by_their_shapes() -> None:
    for dtype in (np.float32, np.float64):
        assert optax_dtypefix.check(optax.adam(1e-3), {"w": np.ones(3, dtype)}).ok


def test_wider_gradients_are_checked() -> None:
    given = shapes(jnp.bfloat16), shapes(jnp.float32)
    assert optax_dtypefix.check(optax.adam(1e-3), *given).ok
    own = drifting()
    assert "state" in kinds(optax_dtypefix.check(own, *given))
    assert optax_dtypefix.check(optax_dtypefix.preserve_dtypes(own), *given).ok


@pytest.mark.thorough
def test_70_billion_parameters_are_checked_as_shapes() -> None:
    layer = {
        "attention": jax.ShapeDtypeStruct((4, 8192, 8192), jnp.bfloat16),
        "mlp": jax.ShapeDtypeStruct((3, 8192, 28672), jnp.bfloat16),
        "norm": jax.ShapeDtypeStruct((2, 8192), jnp.bfloat16),
    }
    params = {f"layer{i}": layer for i in range(80)}
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(params))
    assert size > 70e9
    before = {id(array) for array in jax.live_arrays()}
    assert optax_dtypefix.check(optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 4), params).ok
    assert {id(array) for array in jax.live_arrays()} <= before


def test_updates_of_another_structure_are_found() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return {"b": grads["b"]}, state

    params = {
        "a": jax.ShapeDtypeStruct((3,), jnp.bfloat16),
        "b": jax.ShapeDtypeStruct((3,), jnp.float32),
    }
    (found,) = optax_dtypefix.check(transformation(update, lambda _: ()), params)
    assert (found.kind, found.where) == ("updates", "")
    assert "{'b': *}" in found.message


def test_float64_scalars_are_not_reported() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        correction = 1 - 0.9 ** (state + 1)  # float64 in 64-bit mode.
        return tree_map(lambda g: g / correction.astype(g.dtype), grads), state + 1

    with x64():
        tx = transformation(update, lambda _: jnp.zeros([], jnp.int32))
        assert optax_dtypefix.check(tx, shapes(jnp.float32)).ok


def test_int64_that_no_input_has_is_found() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return grads, state + 1

    with x64():
        tx = transformation(update, lambda _: jnp.zeros([], jnp.int64))
        report = optax_dtypefix.check(tx, shapes(jnp.float32))
        assert kinds(report) == ["int64"]
        assert "int64[] in the state, but no input is int64" in str(report)
        assert optax_dtypefix.check(tx, shapes(jnp.int64)).ok


def test_a_node_that_accepts_only_arrays() -> None:
    params = {"w": Converting(jnp.ones((3,), jnp.bfloat16))}
    assert optax_dtypefix.check(optax.adam(0.1), params).ok

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return tree_map(lambda g: g.astype(jnp.float32), grads), state

    (found,) = optax_dtypefix.check(transformation(update), params)
    assert found.kind == "updates"


def test_a_notebook_shows_a_table_and_a_short_line() -> None:
    kept = Check(())
    assert repr(kept) == f"<Check: {kept}>"
    assert str(kept) in ElementTree.fromstring(kept._repr_html_()).itertext()
    violations = [Violation("state", f"[{i}]<x>", "turns " * 40) for i in range(3)]
    broken = Check(tuple(violations))
    assert repr(broken).startswith("<Check: 3 violations, first state[0]<x>: turns turns")
    assert repr(Check((violations[0],))).startswith("<Check: 1 violation, first ")
    assert len(repr(broken)) == 100
    root = ElementTree.fromstring(broken._repr_html_())
    rows = [[cell.text for cell in row] for row in root.iter("tr")]
    assert rows[0] == ["kind", "where", "message"]
    assert rows[1:] == [[found.kind, found.where, found.message] for found in violations]


@pytest.mark.parametrize("wrap", [preserve_dtypes, master_weights])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (optax.adam, "Did you mean {}(optax.adam(...))?"),
        (optax.MultiSteps, "optax.MultiSteps is a class. Did you mean {}(optax.MultiSteps(...))?"),
        ({"w": 1}, "Pass an object that has `init` and `update`"),
    ],
    ids=["function", "class", "params"],
)
def test_a_wrapper_refuses_what_is_no_transformation(wrap: Any, wrong: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message.format(wrap.__name__))):
        wrap(wrong)


def test_editors_know_what_the_wrappers_return() -> None:
    for wrap in (preserve_dtypes, master_weights):
        types = wrap.__annotations__
        assert types["tx"] == "optax.GradientTransformation"
        assert types["return"] == "optax.GradientTransformationExtraArgs"


def test_the_name_of_a_function_has_no_original() -> None:
    with pytest.raises(TypeError, match=r"'adam' is not a function. Write original.optax.adam.\."):
        optax_dtypefix.original("adam")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((optax.adam, shapes(jnp.float32)), r"Did you mean check\(optax\.adam\(\.\.\.\), params\)"),
        ((optax.MultiSteps, shapes(jnp.float32)), r"Did you mean check\(optax\.MultiSteps\("),
        ((shapes(jnp.float32), optax.sgd(0.1)), "arguments are swapped"),
        ((optax.sgd(0.1), None), "params is None"),
        ((optax.sgd(0.1), {}), "params has no arrays"),
        (("adam", shapes(jnp.float32)), "'adam' is not a gradient transformation"),
        (
            (lambda _: 0.1, shapes(jnp.float32)),
            r"is not a gradient transformation\. Pass an object",
        ),
    ],
)
def test_wrong_arguments_get_advice(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        optax_dtypefix.check(*arguments)


def test_missing_extra_arguments_are_named() -> None:
    def update(grads: Any, state: Any, params: Any = None, *, value: Any, loss: Any) -> Any:
        del params, value, loss
        return grads, state

    found = optax_dtypefix.check(transformation(update), shapes(jnp.float32))
    call = "check(tx, params, value=..., loss=...)"
    assert f"The update needs value and loss: call {call}." in str(found)


def test_a_model_with_functions_gets_advice() -> None:
    found = optax_dtypefix.check(optax.adam(0.1), {"w": jnp.ones(3), "activation": jnp.tanh})
    assert "eqx.filter" in str(found)
