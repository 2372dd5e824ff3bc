"""The workflows pin each action to a commit, and call sessions and tags that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.name for path in WORKFLOWS])
def test_actions_are_pinned_and_sessions_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    used = re.findall(r"uses: (\S+)@(\S+)(.*)", text)
    assert used
    assert [row for row in used if not re.fullmatch(r"[0-9a-f]{40}", row[1])] == []
    assert all(version.startswith(" # v") for *_, version in used), "say which version it is"
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text("utf-8"), re.M)
    assert {*re.findall(r"nox --session (\w+)", text)} <= {*sessions}


def test_both_lists_of_sessions_are_those_of_nox() -> None:
    noxfile = (ROOT / "noxfile.py").read_text("utf-8")
    tags = {
        tag for row in re.findall(r"tags=\[(.*?)\]", noxfile) for tag in re.findall(r'"(\w+)"', row)
    }
    assert tags == {"quick", "ci", "full", "figures"}
    assert "nox --list --json --tags full" in WORKFLOWS[0].read_text("utf-8")
    assert "list ci |" in (ROOT / ".ci" / "run").read_text("utf-8")
