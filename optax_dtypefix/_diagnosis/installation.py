"""Find files of another version among those of this installation.

A wheel lists its files in ``files.json``, which ``setup.py`` writes. A clone has no such list: its
files change, and Git knows them. No file of a patch is imported.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..patches.catalogue import ABOUT, PATCHES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PACKAGE = __name__.partition(".")[0]
_FEW = 3


@functools.cache  # As the files were at the first question: an upgrade may replace them meanwhile.
def mixed_installation() -> str:
    """Say which files of this installation are not those of this version, and what to do.

    Returns:
      One line; empty if all files are those of this version.
    """
    listed = _list_of_wheel()
    wrong = [*(_impossible() if listed is None else _differences(listed))]
    if not wrong:
        return ""
    folder = sys.modules[_PACKAGE].__path__[0]
    few = ", ".join(wrong[:_FEW]) + (f" and {len(wrong) - _FEW} more" if wrong[_FEW:] else "")
    advice = (
        "`git status` in the clone names them: delete or restore them."
        if listed is None
        else f"Run `{sys.executable} -m pip uninstall optax-dtypefix`, delete {folder} and "
        f"`build/` in the clone, and install again."
    )
    return (
        f"Files in {folder} are not those of optax-dtypefix {__version__}: {few}. An installation "
        f"over another version leaves such files. {advice}"
    )


def _list_of_wheel() -> Mapping[str, str] | None:
    """Return by name the digests of the files; None in a clone, or in a program without files."""
    try:
        text = (importlib.resources.files(_PACKAGE) / "files.json").read_text("utf-8")
    except (OSError, TypeError, ValueError):
        return None
    found: Mapping[str, str] = json.loads(text)
    return found


def _differences(listed: Mapping[str, str]) -> Iterator[str]:
    files = dict(_files_in(importlib.resources.files(_PACKAGE), ""))
    for name in sorted({*listed, *(name for name in files if name.endswith((".py", ".pyc")))}):
        source = name[:-1] if name.endswith(".pyc") else name
        if source not in listed:
            yield f"{name} (added)"
        elif (
            name not in files and f"{name}c" not in files
        ):  # Some installations have bytecode only.
            yield f"{name} (missing)"
        elif name in files and name in listed and _digest(files[name].read_bytes()) != listed[name]:
            yield f"{name} (changed)"


def _files_in(folder: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for entry in folder.iterdir():
        if entry.is_file():
            yield prefix + entry.name, entry
        elif entry.name != "__pycache__":
            yield from _files_in(entry, f"{prefix}{entry.name}/")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()  # As in ``setup.py``.


def _impossible() -> Iterator[str]:
    """Find what no version has: a package beside a module of its name, or a patch without file."""
    for package in (_PACKAGE, f"{_PACKAGE}.patches"):
        for top in sys.modules[package].__path__:
            for path, folders, files in os.walk(top):
                for name in folders:
                    inside = os.path.join(path, name, "__init__.py")
                    if f"{name}.py" in files and os.path.exists(inside):
                        yield f"{os.path.relpath(inside, os.path.dirname(top))} (added)"
    with_file = (patch_id for patch_id in PATCHES if patch_id not in ABOUT)
    yield from (f"patches/{name}.py (missing)" for name in with_file if not _is_there(name))


def _is_there(patch_id: str) -> bool:
    """Whether the file of a patch can be found, in this clone: another one may be installed."""
    try:
        spec = importlib.util.find_spec(f"{_PACKAGE}.patches.{patch_id}")
    except ImportError:  # By a finder of the program.
        return False
    folder = sys.modules[f"{_PACKAGE}.patches"].__path__[0]
    return spec is not None and str(spec.origin).startswith(folder)
