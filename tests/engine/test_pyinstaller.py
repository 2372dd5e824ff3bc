"""PyInstaller finds the hook, and the hook names every module that is loaded by name."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from optax_dtypefix.patches import IDS
from optax_dtypefix.patches.catalogue import ABOUT


def test_the_hook_names_every_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect_submodules(package: str) -> list[str]:
        path = importlib.import_module(package).__path__
        return [package, *(found.name for found in pkgutil.walk_packages(path, f"{package}."))]

    hooks: Any = ModuleType("PyInstaller.utils.hooks")
    hooks.collect_submodules, hooks.copy_metadata = collect_submodules, lambda name: [(name, name)]
    for name in ("PyInstaller", "PyInstaller.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)

    entries = importlib.metadata.distribution("optax-dtypefix").entry_points
    (entry,) = [entry for entry in entries if entry.group == "pyinstaller40"]
    assert entry.name == "hook-dirs"
    (folder,) = entry.load()()
    found = runpy.run_path(str(Path(folder) / "hook-optax_dtypefix.py"))
    needed = {f"optax_dtypefix.patches.{patch_id}" for patch_id in IDS if patch_id not in ABOUT}
    needed |= {
        "optax_dtypefix.patches.door.lifts",
        "optax_dtypefix._diagnosis.check",
        "optax_dtypefix._contract.preserve",
    }
    assert needed <= set(found["hiddenimports"])
    assert ("jax", "jax") in found["datas"]
