"""Both ways of running the cases, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def stock_and_patched() -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``runs.py`` prints on stock and on patched optax."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
    running = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("runs.py"))],
            env={**inherited, **variables, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for variables in ({"OPTAX_DTYPEFIX": "off"}, {})
    ]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    stock, patched = map(json.loads, outputs)
    return stock, patched
