"""Who imports ``_diagnosis``: a few doors of the shim, and no program that only trains."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import optax
import pytest

import optax_dtypefix
import optax_dtypefix.patches
from optax_dtypefix.patches.releases import TESTED
from support.scripts import run

if TYPE_CHECKING:
    from collections.abc import Iterator

WING = "_diagnosis"

DOORS = {
    "optax_dtypefix/__init__.py": "public names, imported on first use",
    "optax_dtypefix/_commands": "the commands",
    "optax_dtypefix/_api.py": "the type of what ``status()`` returns",
    "optax_dtypefix/_multihost.py": "``assert_same_on_all_processes()``, which imports optax",
    "optax_dtypefix/_record.py": "the type of what ``status()`` returns",
    "optax_dtypefix/_engine/engine.py": "``status()``",
    "optax_dtypefix/_engine/patch.py": "reproducers, for the probes of untested releases",
    "optax_dtypefix/_engine/untested.py": "these probes",
}
"""What may name the wing, and for what."""


def code_that_names_the_wing() -> Iterator[str]:
    """Yield the files outside of it that import it, or hold its name in a text."""
    for package in (optax_dtypefix, optax_dtypefix.patches):
        root = Path(package.__path__[0])
        name = package.__name__.replace(".", "/")
        for file in root.rglob("*.py"):
            inside = file.relative_to(root)
            tree = ast.parse(file.read_text("utf-8"))
            if WING not in inside.parts and any(map(names_the_wing, ast.walk(tree))):
                yield f"{name}/{inside.as_posix()}"


def names_the_wing(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return WING in f"{node.module}".split(".")
    # A docstring has line breaks.
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and "\n" not in text and WING in text.split(".")


def test_the_shim_knows_the_wing_by_these_doors() -> None:
    used = {
        door
        for file in code_that_names_the_wing()
        for door in ([door for door in DOORS if file.startswith(door)] or [file])
    }
    assert used == set(DOORS)


@pytest.mark.thorough
@pytest.mark.skipif(optax.__version__ not in TESTED, reason="probes need the reproducers")
def test_a_training_program_never_enters(tmp_path: Path) -> None:
    script = f"""
        import jax, jax.numpy as jnp, optax
        import optax_dtypefix

        params = {{"w": jnp.ones((3, 2), jnp.bfloat16)}}

        def two_steps(tx):
            state = tx.init(params)
            for _ in range(2):
                updates, state = tx.update(params, state, params)
            return optax.apply_updates(params, updates)

        def train(tx):  # What is traced loads what is run, and need not be compiled.
            jax.eval_shape(lambda: two_steps(tx))

        injected = optax.inject_hyperparams(optax.adamw)(1e-3)
        jax.jit(lambda: two_steps(optax.adamw(1e-3)))()
        train(optax.chain(optax.clip_by_global_norm(1.0), injected))
        train(optax.MultiSteps(optax.adam(1e-3), 2))
        train(optax_dtypefix.preserve_dtypes(optax.sgd(1e-3)))
        train(optax_dtypefix.master_weights(optax.sgd(1e-3)))
        with optax_dtypefix.disabled("multi_steps"):
            train(optax.MultiSteps(optax.sgd(1e-3), 2))
        optax_dtypefix.revert()
        train(optax.adam(1e-3))
        optax_dtypefix.apply()
        print(*[name for name in sys.modules if "{WING}" in name])
        str(optax_dtypefix.status()), optax_dtypefix.status().as_json()
        print(*[name for name in sys.modules if "{WING}" in name])
        optax_dtypefix.check
        print("{WING}.check" in str([*sys.modules]))
        """
    entered = " ".join(f"optax_dtypefix.{WING}{name}" for name in ("", ".installation", ".report"))
    assert run(tmp_path, script) == f"\n{entered}\nTrue\n"
