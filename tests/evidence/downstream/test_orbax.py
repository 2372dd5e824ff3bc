"""orbax: a checkpoint written without the shim is restored with it, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import processes
from support.processes import PATCHED, STOCK, stdout_of


def run(*arguments: str, **variables: str) -> Any:
    done = processes.run("-m", "evidence.downstream.training", *arguments, **variables)
    return json.loads(stdout_of(done).splitlines()[-1])


@pytest.mark.parametrize(
    ("before", "after"), [(STOCK, PATCHED), (PATCHED, STOCK)], ids=["from stock", "to stock"]
)
def test_training_resumes(before: Any, after: Any, tmp_path: Path) -> None:
    """In float32, where stock is right, a resumed run gives the values of an uninterrupted one."""
    path = str(tmp_path)
    whole = run("float32", "6", **before)
    run("float32", "3", "--save", path, **before)
    resumed = run("float32", "3", "--restore", path, **after)
    assert len(whole) >= 5
    for name, params in whole.items():
        assert resumed[name] == pytest.approx(params, rel=1e-6), name


def test_a_restored_leaf_keeps_its_saved_dtype(tmp_path: Path) -> None:
    saved = run("bfloat16", "1", "--save", str(tmp_path), "--dtypes", **STOCK)
    assert saved != run("bfloat16", "1", "--dtypes", **PATCHED)
    assert run("bfloat16", "2", "--restore", str(tmp_path), "--dtypes", **PATCHED) == saved
