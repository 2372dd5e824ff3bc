"""equinox flattens the closures of transformations, hashes them, and rebuilds them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from evidence.audit.cases import Case, cases
from evidence.audit.measure import traced_step
from evidence.audit.regimes import REGIMES
from optax_dtypefix._diagnosis.import_optax import import_optax
from support.thorough import of_each_kind

eqx = pytest.importorskip("equinox")

# Stock has deprecated functions, and calls such of jax.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

import_optax()
SUBJECTS = [s for s in cases() if not s.inside and s.rate in ("", "float")]
BFLOAT16 = REGIMES[1]
assert BFLOAT16.params == (jnp.bfloat16, jnp.bfloat16)


def rebuilt(tx: Any) -> Any:
    arrays, others = eqx.partition(eqx.internal.closure_to_pytree(tx), eqx.is_array)
    leaves, structure = jax.tree_util.tree_flatten(others)
    assert all(hash(leaf) is not None for leaf in (*leaves, structure))
    return eqx.combine(arrays, jax.tree_util.tree_unflatten(structure, leaves))


@pytest.mark.parametrize("subject", of_each_kind(SUBJECTS), ids=[s.name for s in SUBJECTS])
def test_a_rebuilt_transformation_works(subject: Case) -> None:
    if not hasattr(subject.build(), "_fields"):
        pytest.skip("a class with methods, which close over nothing")
    again = Case(subject.name, lambda: rebuilt(subject.build()), subject.rate)
    list(traced_step(again, BFLOAT16).step())  # Raises what the transformation raises.
