"""``scan`` lists calls that ask for moments in half precision: these stall in every dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optax_dtypefix._diagnosis.scan.results import scan
from optax_dtypefix._engine.release import Release

if TYPE_CHECKING:
    from pathlib import Path

NEWEST = Release("0.2.8", tested=True)
IMPORTS = "import functools\nimport jax.numpy as jnp, optax\nD = jnp.bfloat16\n"


def uses_in(folder: Path, call: str) -> list[str]:
    """Return what is listed of one call for float32 params."""
    (folder / "train.py").write_text(f"{IMPORTS}tx = {call}\n", encoding="utf-8")
    found = scan([str(folder)], [NEWEST], ["float32"])
    return [str(use).partition("train.py:4: ")[2] for use in found.uses]


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("optax.trace(0.99, accumulator_dtype=jnp.bfloat16)", "trace(accumulator_dtype=)"),
        ('optax.adamw(1e-3, mu_dtype="bfloat16")', "adamw(mu_dtype=)"),
        ("optax.lion(1e-3, mu_dtype=jnp.float16)", "lion(mu_dtype=)"),
        ('optax.adamw(1e-3, mu_dtype=jnp.dtype("bfloat16"))', "adamw(mu_dtype=)"),
        ("functools.partial(optax.adamw, mu_dtype=jnp.bfloat16)", "adamw(mu_dtype=)"),
        ('optax.inject_hyperparams(optax.adamw)(1e-3, mu_dtype="bfloat16")', "adamw(mu_dtype=)"),
        ("optax.trace(0.99, False, jnp.bfloat16)", "trace"),
        (
            "optax.sgd(1e-3, momentum=0.9, accumulator_dtype=jnp.bfloat16)",
            "sgd(accumulator_dtype=)",
        ),
        (
            "optax.adafactor(1e-3, momentum=0.9, dtype_momentum=jnp.bfloat16)",
            "adafactor(dtype_momentum=)",
        ),
    ],
)
def test_a_half_precision_literal_counts_in_float32(tmp_path: Path, call: str, shown: str) -> None:
    expected = f"optax.{shown}: faults in any dtype on 0.2.8 (bfloat16_moments)"
    assert uses_in(tmp_path, call) == [expected]


@pytest.mark.parametrize("value", ["D", "config.dtype", "jnp.bfloat16 if D else None", "of('x')"])
def test_what_may_be_half_precision_is_said_with_the_condition(tmp_path: Path, value: str) -> None:
    condition = "any dtype if mu_dtype is half precision"
    expected = f"optax.adamw(mu_dtype=): faults in {condition} on 0.2.8 (bfloat16_moments)"
    assert uses_in(tmp_path, f"optax.adamw(1e-3, mu_dtype={value})") == [expected]


@pytest.mark.parametrize(
    "call",
    [
        "optax.adamw(1e-3, mu_dtype=jnp.float32)",
        'optax.adamw(1e-3, mu_dtype="float32")',
        "optax.adamw(1e-3, mu_dtype=None)",
        "optax.adamw(1e-3, 0.9)",
        "optax.sgd(1e-3, accumulator_dtype=jnp.bfloat16)",  # Without momentum it has no moment.
        "optax.adafactor(1e-3, dtype_momentum=jnp.bfloat16)",
        "optax.tree_utils.tree_cast(1, jnp.bfloat16)",
    ],
)
def test_other_calls_have_no_fault_in_float32(tmp_path: Path, call: str) -> None:
    assert uses_in(tmp_path, call) == []


def test_a_literal_is_a_fault_in_the_usual_dtype(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f'{IMPORTS}a = optax.adam(1e-3)\nb = optax.adam(1e-3, mu_dtype="bfloat16")\nx = "float32"\n'
        "y = jnp.float32\n",
        encoding="utf-8",
    )
    found = scan([str(tmp_path)], [NEWEST])
    assert [use.arguments for use in found.uses] == [[], ["mu_dtype"]]
    assert [use.is_in({"any dtype"}) for use in found.uses] == [False, True]
