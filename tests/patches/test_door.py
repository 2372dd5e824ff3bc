"""What optax builds is lifted at the class of transformations, whoever holds the builder."""

from __future__ import annotations

import functools
import gc
import inspect
import textwrap
import weakref
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import optax_dtypefix
from optax_dtypefix._contract.x64 import x64
from optax_dtypefix._diagnosis.scan.functions import table
from optax_dtypefix._tally import Tally
from optax_dtypefix.patches.door.arguments import array_in
from optax_dtypefix.patches.door.lifts import Lifts, merged
from optax_dtypefix.patches.door.rebuild import call_of, lifting_of, rebuild
from optax_dtypefix.patches.releases import TESTED
from optax_dtypefix.patches.wrapped import BUILDERS
from support.builders import builders, function_named
from support.processes import run

STALLED = """
    {first}
    import jax, jax.numpy as jnp

    params = jnp.ones(4, jnp.bfloat16)
    tx = {build}()
    state = tx.init(params)
    step = jax.jit(lambda state: tx.update(params, state, params))
    for _ in range(1500):
        updates, state = step(state)
    print(float(updates[0]) > 1.2)
    import optax_dtypefix
    print(optax_dtypefix.status()["bfloat16_moments"].state)
"""


def lines(script: str, **environment: str) -> list[str]:
    done = run("-c", textwrap.dedent(script), **environment)
    assert done.returncode == 0, done.stderr
    return [*done.stdout.split(), *done.stderr.splitlines()]


@pytest.mark.thorough
def test_a_name_that_was_copied_before_the_import_is_patched() -> None:
    first = (
        "from optax import scale_by_adam\n    "
        "held = frozenset([scale_by_adam])\n    "
        "import optax_dtypefix"
    )
    script = STALLED.format(first=first, build="next(iter(held))")
    assert lines(script)[:2] == ["False", "applied"]
    assert lines(script, OPTAX_DTYPEFIX="off")[0] == "True", "the fault is not there"


@pytest.mark.thorough
def test_where_the_file_of_a_patch_is_broken_stock_stays_and_the_record_says_so() -> None:
    first = (
        "import sys, optax_dtypefix, optax\n    "
        "sys.modules['optax_dtypefix.patches.door.lifts'] = None"
    )
    stalled, state, *warnings = lines(STALLED.format(first=first, build="optax.scale_by_adam"))
    assert (stalled, state) == ("True", "failed")
    assert any("bfloat16_moments" in line for line in warnings)


BROKEN = """
    import optax_dtypefix, optax
    import optax_dtypefix.patches.conditional as patch

    def replace(*_):
        raise ZeroDivisionError("in the patch")

    patch.replace = replace
    tx = optax.apply_if_finite(optax.scale(2.0), 3)
    updates, _ = tx.update(1.0, tx.init(1.0))
    print(updates, optax_dtypefix.status()["conditional"].state)
    optax.apply_if_finite(optax.scale(2.0), 3)
"""


def test_where_a_patch_cannot_lift_stock_stays_and_the_record_says_so() -> None:
    update, state, *warnings = lines(BROKEN)
    assert (update, state) == ("2.0", "failed")
    (warning,) = (line for line in warnings if "optax_dtypefix" in line.lower())
    assert "conditional (failed): ZeroDivisionError: in the patch" in warning


@pytest.mark.thorough
def test_in_strict_mode_a_patch_that_cannot_lift_raises() -> None:
    done = run("-c", textwrap.dedent(BROKEN), OPTAX_DTYPEFIX_STRICT="1")
    assert "OptaxDtypeFixError" in done.stderr
    assert done.returncode


def test_what_the_user_builds_is_left_alone() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params
        return grads, state

    tx = optax.GradientTransformation(lambda _: (), update)
    assert tx.update is update
    lifted = optax.scale_by_adam()
    functools.update_wrapper(update, lifted.update)  # With its module and qualified name.
    assert optax.GradientTransformation(lifted.init, update).update is update


WRAPPED = """
    import functools, optax

    built, stock = [], optax.GradientTransformation.__new__

    @functools.wraps(stock)
    def other(*args, **kwargs):
        built.append(args[0])
        return stock(*args, **kwargs)

    optax.GradientTransformation.__new__ = other
    import optax_dtypefix
    optax.scale_by_adam(), optax.identity()
    print(len(built))
"""


@pytest.mark.thorough
def test_a_wrapper_of_other_code_is_called_for_each_transformation() -> None:
    assert lines(WRAPPED, OPTAX_DTYPEFIX_ONLY="promotion")[0] == "2"


def test_an_init_of_the_user_may_close_over_anything() -> None:
    with optax_dtypefix.disabled():
        stock = optax.scale_by_adam()
    dtype = object()

    def init(params: Any) -> Any:
        assert dtype
        return stock.init(params)

    tx = optax.GradientTransformation(init, stock.update)
    assert tx.update is not stock.update
    state = tx.init(jnp.ones(3, jnp.bfloat16))
    _, after = tx.update(jnp.ones(3, jnp.bfloat16), state)
    assert after.nu.dtype == jnp.bfloat16


def test_the_lifting_of_a_lifted_transformation_are_lifted_once() -> None:
    tx = optax.scale_by_adam()
    again = optax.GradientTransformation(tx.init, tx.update)
    assert again.update is tx.update
    assert again.init is tx.init
    assert type(tx._replace(init=tx.init)) is type(tx)


MOMENTUM = optax.trace(0.9)

ARGUMENTS: dict[str, dict[str, Any]] = {
    "adaptive_grad_clip": {"clipping": 0.1},
    "clip_by_block_rms": {"threshold": 1.0},
    "clip_by_global_norm": {"max_norm": 1.0},
    "flatten": {"inner": MOMENTUM},
    "lookahead": {"fast_optimizer": MOMENTUM, "sync_period": 2, "slow_step_size": 0.5},
    "masked": {"inner": MOMENTUM, "mask": True},
    "multi_transform": {"transforms": {"all": MOMENTUM}, "param_labels": "all"},
    "partition": {"transforms": {"all": MOMENTUM}, "param_labels": "all"},
    "sam": {"optimizer": MOMENTUM, "adv_optimizer": MOMENTUM},
    "split_real_and_imaginary": {"inner": MOMENTUM},
    "add_noise": {"eta": 0.1, "gamma": 0.5},
    "apply_every": {"k": 2},
    "clip": {"max_delta": 1.0},
    "differentially_private_aggregate": {"l2_norm_clip": 1.0, "noise_multiplier": 1.0},
    "ema": {"decay": 0.9},
    "scale_by_madgrad": {"learning_rate": 0.1},
    "scale_by_rprop": {"learning_rate": 0.1},
    "scale_by_schedule": {"step_size_fn": lambda _: 0.1},
    "trace": {"decay": 0.9},
}


@pytest.mark.parametrize("name", BUILDERS)
def test_each_row_names_a_function_that_builds_what_is_lifted(name: str) -> None:
    """The name of the update says which function built it, on this release too."""
    if function_named(name) is None:
        gone = any(known.rpartition(".")[2] == name for known in table())
        assert gone or optax.__version__ != TESTED[-1], f"{name} is misspelt"
        pytest.skip("this release does not have it")
    if name not in builders("promotion"):
        pytest.skip("stock is not at fault on this release, or another patch lifts it")
    build: Any = builders("promotion")[name]
    if "chain" in name:
        build = functools.partial(
            build, *{"chain": [MOMENTUM], "named_chain": [("a", MOMENTUM)]}[name]
        )
    given = ARGUMENTS.get(name, {})
    if "noise" in name or "private" in name:
        keyed = "key" in inspect.signature(build).parameters
        given = {**given, "key" if keyed else "seed": 0}
    tx = build(**given)
    assert lifting_of(tx.update) is not None
    assert inspect.unwrap(tx.update).__qualname__.partition(".")[0] == name
    with optax_dtypefix.disabled():
        assert lifting_of(build(**given).update) is None


def test_an_integer_argument_stays_an_integer() -> None:
    """In float32 stock gets an int64 number of steps as int32, not as a float."""
    with x64():
        assert array_in(jnp.asarray(3, jnp.int64), jnp.dtype(jnp.float32)).dtype == jnp.int32
        assert array_in(jnp.asarray(3, jnp.float64), jnp.dtype(jnp.float32)).dtype == jnp.float32


def test_what_patches_asked_for_is_not_kept_for_ever() -> None:
    """Each ``disabled()`` and ``apply()`` may make another set of patches."""
    found = [weakref.ref(merged(((Lifts(), Tally()),))) for _ in range(1000)]
    gc.collect()
    assert sum(each() is not None for each in found) < 200


def test_an_init_that_no_patch_changes_stays_the_function_of_stock() -> None:
    tx = optax.sgd(0.1)
    rebuilt = rebuild(tx, call_of(optax.sgd, (0.1,), {}), tx.update)
    assert rebuilt.init is tx.init
