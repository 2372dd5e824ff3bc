"""The scripts in docs/recipes.md print what the page says, and stock optax gives NaN."""

from __future__ import annotations

import inspect

import jax
import optax
import pytest
from flax import nnx
from packaging.version import Version

from support.pages import ROOT, blocks, check_code, read, sections
from support.processes import STOCK, run, stdout_of

_, *RECIPES = sections(read(ROOT / "docs" / "recipes.md")).items()
WITH_A_STEP = RECIPES[:3]
OLD_FLAX = "model" not in inspect.signature(nnx.Optimizer.update).parameters


@pytest.mark.parametrize(("name", "text"), RECIPES)
def test_recipe_works(name: str, text: str) -> None:
    if name == "flax nnx" and OLD_FLAX:
        pytest.skip("the page is about flax 0.11 and later")
    if name == "orbax" and Version(optax.__version__) < Version("0.2.4"):
        pytest.skip("before optax 0.2.4, stock loses no digits of estim_lr")
    # Older releases draw other random params, so a bias may be rounded to the other neighbour.
    check_code(text, one_digit=Version(jax.__version__) < Version("0.10"))


@pytest.mark.parametrize(("name", "text"), WITH_A_STEP)
def test_recipe_gives_nan_on_stock(name: str, text: str) -> None:
    if name == "flax nnx" and OLD_FLAX:
        pytest.skip("the page is about flax 0.11 and later")
    (_, script), _ = blocks(text)
    assert "nan" in stdout_of(run("-W", "ignore", "-c", script, **STOCK))
