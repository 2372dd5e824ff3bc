from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import optax_dtypefix  # noqa: F401  # isort: skip  # The tests of this folder run under the shim.

import hypothesis
import pytest

_ANY = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("few", max_examples=8, derandomize=True, **_ANY)
hypothesis.settings.register_profile("many", max_examples=2000, **_ANY)
hypothesis.settings.load_profile("few")


@functools.cache
def _outcome_of(
    script: str, arguments: tuple[str, ...], variables: tuple[tuple[str, str], ...]
) -> Any:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPTAX_DTYPEFIX")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *arguments],
        env={**inherited, **dict(variables), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def outcome_of() -> Any:
    """Runs a script of this folder in a process of its own, once; gives the JSON that it prints.

    Stock and patched functions never share a process here, so they cannot share a trace.
    """

    def run(script: str, *arguments: str, **variables: str) -> Any:
        return _outcome_of(script, arguments, tuple(sorted(variables.items())))

    return run
