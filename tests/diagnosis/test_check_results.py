"""What ``check`` concludes from its processes: the patches that are needed, and the text."""

from __future__ import annotations

from typing import Any

import pytest

from optax_dtypefix._diagnosis.check_command.optimizer import OptimizerError, OptimizerName
from optax_dtypefix._diagnosis.check_command.params import default_params, parse_dtypes
from optax_dtypefix._diagnosis.check_command.results import (
    OptimizerCheck,
    ParamsCheck,
    found_by,
    refuse_unfit,
)
from optax_dtypefix._diagnosis.processes import Written
from optax_dtypefix._errors import summarize

HALF = default_params("bfloat16")


def problems(*texts: str, where: str = "updates['w']") -> list[dict[str, str]]:
    return [
        {"check": "values", "kind": text, "where": where, "text": f"{text} of a leaf"}
        for text in texts
    ]


def checked_params(stock: Any, patched: Any, *at_work: str) -> ParamsCheck:
    return ParamsCheck(HALF, {"problems": stock}, {"problems": patched, "at_work": [*at_work]})


@pytest.mark.parametrize(
    ("stock", "patched", "needs"),
    [
        (problems("nan"), [], ["a"]),
        (problems("nan", "off"), problems("off"), ["a"]),
        (problems("nan"), problems("nan", where="updates['b']"), ["a"]),
        (problems("nan"), problems("nan"), []),
        ([], [], []),
        ([], problems("nan"), []),
    ],
)
def test_patches_are_named_where_they_solve_a_problem(stock: Any, patched: Any, needs: Any) -> None:
    assert checked_params(stock, patched, "a").needs == needs


def test_the_rounding_of_params_is_named_where_it_moves_params() -> None:
    off, stuck = problems("off"), problems("params", where="params['w']")
    at_work = ("a", "stochastic_rounding")
    assert checked_params(off, [], *at_work).needs == ["a"]
    assert checked_params(stuck, [], *at_work).needs == ["stochastic_rounding"]
    assert checked_params(off + stuck, [], *at_work).needs == [*at_work]
    assert checked_params(off + stuck, stuck, *at_work).needs == ["a"]


def test_params_that_do_not_move_get_advice() -> None:
    stuck = problems("params", where="params['s']")
    *_, advice, _ = text_of(checked_params(stuck, stuck))
    assert advice == (
        "The state has no step counter, and gradients repeat: use a schedule as learning rate, "
        "or optax_dtypefix.master_weights(tx)."
    )


def test_a_killed_process_leaves_a_problem() -> None:
    written = Written([{"report": {}}, {"problems": [], "unfit": False, "at_work": []}], -9)
    first, second = found_by(written, 2)
    assert first["problems"] == []
    assert second["problems"][0]["text"] == "no result: the process ended with code -9"


def test_a_process_that_ends_in_the_factory_is_no_matter_of_params() -> None:
    written = Written([{"building": True}], 3)
    ended = found_by(written, 1)[0]
    name = OptimizerName("train.py", "make")
    check = ParamsCheck(parse_dtypes("bfloat16")[0], ended, ended)
    with pytest.raises(OptimizerError) as error:
        refuse_unfit(name, check)
    assert "cannot be built, stock or patched: no result: the process ended with code 3" in str(
        error.value
    )
    assert "params" not in str(error.value)


def test_an_error_without_a_text_has_its_name() -> None:
    class NoTextError(Exception):
        def __str__(self) -> str:
            raise AssertionError

    assert summarize(NoTextError()) == "NoTextError"


def text_of(*checks: ParamsCheck, verbose: bool = False) -> list[str]:
    report = {"optax_version": "0.2.5", "jax_version": "0.6.2", "patches": []}
    found = OptimizerCheck(OptimizerName("train.py", "make"), report, checks)
    return [*found.rows(verbose=verbose), *found.conclusion.splitlines()]


def test_params_are_three_lines() -> None:
    check = checked_params(problems("nan"), [], "inject_hyperparams")
    assert text_of(check) == [
        "make, bfloat16",
        "  stock    nan of a leaf",
        "  patched  ok             needs: inject_hyperparams",
        "",
        "optax 0.2.5, jax 0.6.2: affected; fixed in bfloat16.",
        "Not checked: half-precision params that your program adds up itself, as p + u. "
        "These are rounded to nearest, and stall: use optax.apply_updates.",
    ]


def test_verbose_shows_every_problem() -> None:
    check = checked_params(problems("nan", "off", "inf"), problems("off", "inf"), "a")
    short, long = (text_of(check, verbose=verbose) for verbose in (False, True))
    assert short[1] == "  stock    nan of a leaf (2 more problems: -v)"
    assert short[2] == "  patched  off of a leaf (1 more problem: -v)"
    assert short[3] == "           needs: a"
    assert long[1:4] == [
        "  stock    nan of a leaf",
        "           off of a leaf",
        "           inf of a leaf",
    ]


@pytest.mark.parametrize(
    ("kind", "preserves"),
    [("state", True), ("updates", True), ("scan", True), ("float64", False), ("stalls", False)],
)
def test_a_problem_that_stays_has_a_next_step(kind: str, preserves: bool) -> None:
    one = problems(kind)
    _, *advice = text_of(checked_params(one, one))[4:]
    assert advice[-1] == "What to do about each problem: `python -m optax_dtypefix check --help`."
    assert any("optax_dtypefix.preserve_dtypes(tx)" in line for line in advice) == preserves
    assert "preserve_dtypes" not in "".join(text_of(checked_params(one, [])))


def test_worse_than_stock_is_not_called_affected() -> None:
    one = problems("nan")
    lines = text_of(checked_params([], one), checked_params(one, one))
    (conclusion,) = [line for line in lines if line.startswith("optax 0.2.5")]
    assert conclusion.endswith(
        ": affected; broken by the patches (please report it) in bfloat16; the same on "
        "stock and patched optax in bfloat16."
    )
