"""Tell PyInstaller, by the entry point ``pyinstaller40``, where our hook is."""

from __future__ import annotations

import os


def hook_dirs() -> list[str]:
    """List the folders that hold hooks of PyInstaller."""
    return [os.path.dirname(__file__)]
