"""With the shim, 100 float32 steps on any release end where they end on the newest stock optax.

``nox -s record_trajectories`` writes the output of ``runs.py`` to ``stock-RELEASE.jsonl``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from optax_dtypefix._engine.release import Release
from support.processes import CACHE, run, stdout_of

HERE = Path(__file__).parent
BOUND = 1e-6


@dataclasses.dataclass(frozen=True)
class Changed:
    """An algorithm that upstream changed, so that earlier releases end elsewhere.

    Attributes:
      name: the transformation.
      releases: PEP 440 specifiers of the releases that end elsewhere.
      why: the change.
      bound: if only rounding errors grow, the largest distance at the end, relative to the length
        of the params; the first steps are the same then.
    """

    name: str
    releases: str
    why: str
    bound: float = np.inf


CHANGED = (
    Changed("adabelief", "<0.2.4", "the error was relative to the last mean, now to this one"),
    Changed(
        "optimistic_gradient_descent",
        "<0.2.4",
        "the gradient before the first was 0, now it is the first one: issue 1082",
    ),
    Changed("lbfgs", "<0.2.6", "the line search took other steps to the same minimum"),
    Changed("noisy_sgd", "<0.2.5", "draws other random numbers"),
    Changed("contrib.dpsgd", "<0.2.5", "draws other random numbers"),
    # A start that differs by 2e-7, or another jaxlib, ends as far apart on one release.
    Changed("contrib.mechanize", "", "its scale and rounding errors grow exponentially", 1e-2),
)


@pytest.fixture(scope="session")
def here() -> dict[str, Any]:
    """Return what ``runs.py`` prints with the shim, by name."""
    printed = stdout_of(run("-m", "evidence.trajectories.runs", *NEWEST, **CACHE))
    return dict(map(json.loads, printed.splitlines()))


def distance(got: Any, expected: Any) -> float:
    got, expected = np.asarray(got), np.asarray(expected)
    return float(np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1.0))


def is_installed(name: str) -> bool:
    with contextlib.suppress(AttributeError):
        return bool(operator.attrgetter(name)(optax))
    return False


(RECORD,) = HERE.glob("stock-*.jsonl")
NEWEST: dict[str, Any] = dict(map(json.loads, RECORD.read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("name", NEWEST)
def test_the_trajectory_ends_as_on_the_newest_release(name: str, here: Any) -> None:
    if not is_installed(name):
        assert name not in here
        pytest.skip(f"optax {optax.__version__} has no {name}")
    # A function in optax and optax.contrib has its name in optax.
    reached = here[name] if name in here else here[name.removeprefix("contrib.")]
    early, late = map(distance, reached, NEWEST[name])
    release = Release(optax.__version__)
    changed = [entry for entry in CHANGED if entry.name == name and release.within(entry.releases)]
    if changed and changed[0].bound == np.inf:
        assert max(early, late) > BOUND, changed[0].why
    elif changed:
        assert early <= BOUND
        assert late <= changed[0].bound
    else:
        assert max(early, late) <= BOUND
