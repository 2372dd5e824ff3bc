"""``scan`` reads calls: what other libraries call, what is set, and what is given as a literal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optax_dtypefix._diagnosis.scan.results import scan
from optax_dtypefix._engine.release import Release

if TYPE_CHECKING:
    from pathlib import Path

NEWEST = Release("0.2.8", tested=True)


def found_in(folder: Path, source: str, dtype: str = "bfloat16") -> dict[str, list[str]]:
    """Return by function the patches that it needs."""
    (folder / "train.py").write_text(source, encoding="utf-8")
    found = scan([str(folder)], [NEWEST], [dtype])
    assert found.unresolved == []
    return {use.function: [*use.faults["0.2.8"]] for use in found.uses}


@pytest.mark.parametrize(
    ("source", "function"),
    [
        (
            "from flax import nnx\nopt = nnx.Optimizer(model, tx, wrt=nnx.Param)\nopt.update(g)",
            "flax.nnx.Optimizer.update",
        ),
        ("from flax.nnx import Optimizer as O\nopt = O(model, tx)", "flax.nnx.Optimizer.update"),
        (
            "state = state.apply_gradients(grads=grads)",
            "flax.training.train_state.TrainState.apply_gradients",
        ),
        ("import equinox as eqx\nm = eqx.apply_updates(m, u)", "equinox.apply_updates"),
        ("import jaxopt\nsolver = jaxopt.OptaxSolver(loss, tx)", "jaxopt.OptaxSolver.update"),
        ("from equinox import apply_updates\nm = apply_updates(m, u)", "equinox.apply_updates"),
    ],
)
def test_other_libraries_that_add_updates_up_are_listed(
    tmp_path: Path, source: str, function: str
) -> None:
    assert found_in(tmp_path, source) == {function: ["stochastic_rounding"]}
    assert found_in(tmp_path, source, "float32") == {}


@pytest.mark.parametrize(
    "source",
    [
        "optimizer.apply_gradients(zip(grads, variables))",  # Of keras.
        "import equinox as eqx\nm = eqx.filter_jit(f)\n",
        "from flax import nnx\nmodel = nnx.Linear(2, 3)",
        "import optax\noptax.x = optax.identity",
        "import optax\noptax.apply_updates = mine",
        "import optax\ndel optax.adam",
    ],
)
def test_what_is_not_used_is_not_listed(tmp_path: Path, source: str) -> None:
    assert found_in(tmp_path, source) == {}


@pytest.mark.parametrize(
    ("call", "may_be_an_array"),
    [
        ("optax.sgd(1e-3)", False),
        ("optax.sgd(learning_rate=-1 / 3, nesterov=True)", False),
        ("optax.sgd(rate)", True),
        ("optax.sgd(jnp.float32(1e-3))", True),
        ("optax.sgd(*given)", True),
        ("optax.sgd(**given)", True),
        ("functools.partial(optax.sgd, 1e-3)", True),
        ("optax.inject_hyperparams(optax.sgd)(1e-3)", True),
    ],
)
def test_a_literal_is_no_array(tmp_path: Path, call: str, may_be_an_array: bool) -> None:
    found = found_in(tmp_path, f"import functools, optax\ntx = {call}")
    assert ("learning_rate" in found.get("optax.sgd", ())) == may_be_an_array
