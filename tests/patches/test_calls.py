"""The arguments of a patched transformation have the names of stock."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import pytest

import optax_dtypefix
from evidence.audit.cases import Case, cases
from evidence.audit.measure import _trees, extra_args_of
from evidence.audit.regimes import REGIMES
from optax_dtypefix._diagnosis.import_optax import import_optax
from support.thorough import of_each_kind

# Stock warns of deprecated functions.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

import_optax()
SUBJECTS = [s for s in cases() if not s.inside and s.rate in ("", "float")]
BFLOAT16 = REGIMES[1]


def names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.rule("C0")
@pytest.mark.parametrize("subject", of_each_kind(SUBJECTS), ids=[s.name for s in SUBJECTS])
def test_update_can_be_called_by_keyword(subject: Case) -> None:
    params, grads = _trees(subject, BFLOAT16)
    extra_args = extra_args_of(subject, params, grads)
    with optax_dtypefix.disabled():
        stock = subject.build()
        first = names(stock.update)[:2]
    if first[:1] in (["_"], ["args"]):
        pytest.skip("the stock function does not name its arguments")
    tx = subject.build()

    static = {name: value for name, value in extra_args.items() if callable(value)}
    traced = {name: value for name, value in extra_args.items() if name not in static}

    def step(params: Any, grads: Any, traced: Any) -> Any:
        named = dict(zip(first, (grads, tx.init(params))))
        return tx.update(**named, params=params, **traced, **static)

    jax.eval_shape(step, params, grads, traced)
