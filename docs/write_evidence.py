"""Write the table of docs/evidence.md: which tests hold each rule of the contract.

Run ``python docs/write_evidence.py``. A test names its rules: ``@pytest.mark.rule("C1")``, or
``pytestmark`` for all tests of a file.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.recorded import ROOT
from support.renew import DOCS, read, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = ROOT / "tests"
HEAD = "| rule | tests in `python -m pytest` | of these, more rows in `.ci/run` |\n|---|---|---|\n"


def rules() -> dict[str, str]:
    """Return the rules of the contract: for each number, its sentence in bold."""
    return dict(re.findall(r"^\*\*(C\d): (.*?)\.\*\*", read("contract.md"), re.MULTILINE))


def marks(nodes: list[ast.expr]) -> dict[str, tuple[str, ...]]:
    """Return the names of marks, with their arguments."""
    found = {}
    for node in (each for top in nodes for each in getattr(top, "elts", [top])):
        arguments = getattr(node, "args", [])
        name = ast.unparse(getattr(node, "func", node)).removeprefix("pytest.mark.")
        found[name] = tuple(a.value for a in arguments if isinstance(a, ast.Constant))
    return found


def marked() -> Iterator[tuple[str, str, bool, bool]]:
    """Yield a rule of a test, its file, whether the test, and whether any there, is thorough."""
    for file in sorted(TESTS.glob("*/test_*.py")):
        text, of_file = file.read_text("utf-8"), dict[str, tuple[str, ...]]()
        tree, more = ast.parse(text), "thorough" in text
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                of_file = marks([node.value])
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                of_test = marks(node.decorator_list)
                for rule in (*of_file.get("rule", ()), *of_test.get("rule", ())):
                    name = file.relative_to(TESTS).as_posix()
                    yield rule, name, "thorough" in {**of_file, **of_test}, more


def table() -> dict[str, tuple[list[str], list[str]]]:
    """Return for each rule the files that the README's command runs, and those with more tests."""
    found: dict[str, tuple[list[str], list[str]]] = {rule: ([], []) for rule in rules()}
    for rule, file, thorough, more in marked():
        for column, wanted in enumerate((not thorough, more)):
            if wanted and file not in found[rule][column]:
                found[rule][column].append(file)
    return found


def page() -> str:
    """Return the page with a new table."""
    sentences, listed = rules(), (lambda files: ", ".join(f"`{file}`" for file in files) or "-")
    new = rows(
        (f"{rule}: {sentences[rule]}", *map(listed, files)) for rule, files in table().items()
    )
    before, _, after = read("evidence.md").partition(HEAD)
    return before + HEAD + new + re.sub(r"\A(?:\|.*\n)*", "", after)


if __name__ == "__main__":
    (DOCS / "evidence.md").write_text(page(), encoding="utf-8")
