"""The Python code in the pages runs and prints what the pages say."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from packaging.version import Version

import optax_dtypefix

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", WITH_CODE, ids=[page.name for page in WITH_CODE])
def test_code_runs(page: Path) -> None:
    namespace: dict[str, Any] = {}
    printed = ""
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(text, str(page), "exec"), namespace)
            printed = stdout.getvalue()
        elif printed:
            # Further lines quote jax, whose older releases use other words.
            lines = None if Version(jax.__version__) >= Version("0.10") else 2
            assert printed.splitlines()[:lines] == text.splitlines()[:lines]


def test_pinned_versions_are_tested() -> None:
    module = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    names = ("_BEFORE_NUMPY_2", "MATCHING_JAX")
    module.body = [
        node
        for node in module.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names
    ]
    tested: dict[str, Any] = {}
    exec(compile(module, "noxfile.py", "exec"), tested)
    pinned = (ROOT / "docs" / "pinned.md").read_text(encoding="utf-8")
    blocks = [text.split() for _, text in BLOCK.findall(pinned) if "optax==" in text]
    assert len(blocks) == 2
    for optax, *others in blocks:
        jax_version, *held_back = tested["MATCHING_JAX"][optax.partition("==")[2]]
        own = f"optax-dtypefix=={optax_dtypefix.__version__}"
        assert others == [f"jax=={jax_version}", f"jaxlib=={jax_version}", *held_back, own]


def test_pages_with_code_are_found() -> None:
    assert {page.name for page in WITH_CODE} >= {"README.md", "contract.md"}
