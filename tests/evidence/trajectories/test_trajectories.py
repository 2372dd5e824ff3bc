"""With the shim 100 float32 steps lead where they lead on stock optax 0.2.8, on every release.

``stock-0.2.8.jsonl`` has what ``runs.py`` printed there; ``nox -s record_trajectories`` writes it.
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
from support.processes import run, stdout_of

HERE = Path(__file__).parent
BOUND = 1e-6


@dataclasses.dataclass(frozen=True)
class Changed:
    """Where upstream changed an algorithm itself: earlier releases go another way.

    Attributes:
      name: of the transformation.
      releases: PEP 440 specifiers of those that do.
      why: what changed.
      bound: if it is nothing but rounding that grows, how far apart they may be in the end,
        relative to the length of the params; the first steps are the same then.
    """

    name: str
    releases: str
    why: str
    bound: float = np.inf


CHANGED = (
    Changed("adabelief", "<0.2.4", "an error was that of the last mean, now it is of this one"),
    Changed(
        "optimistic_gradient_descent",
        "<0.2.4",
        "the gradient before the first was 0, now it is the first: issue 1082",
    ),
    Changed("lbfgs", "<0.2.6", "the line search took other steps, to the same minimum"),
    Changed("noisy_sgd", "<0.2.5", "draws other random numbers"),
    Changed("contrib.dpsgd", "<0.2.5", "draws other random numbers"),
    # On one release, a start that differs by 2e-7 leads as far apart, and so does another jaxlib.
    Changed("contrib.mechanize", "", "its scale grows exponentially, and rounding with it", 1e-2),
)


@pytest.fixture(scope="session")
def here() -> dict[str, Any]:
    """What ``runs.py`` prints with the shim, by name."""
    printed = stdout_of(run("-m", "evidence.trajectories.runs"))
    return dict(map(json.loads, printed.splitlines()))


def distance(got: Any, expected: Any) -> float:
    got, expected = np.asarray(got), np.asarray(expected)
    return float(np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1.0))


def is_installed(name: str) -> bool:
    with contextlib.suppress(AttributeError):
        return bool(operator.attrgetter(name)(optax))
    return False


NEWEST: dict[str, Any] = dict(
    map(json.loads, (HERE / "stock-0.2.8.jsonl").read_text(encoding="utf-8").splitlines())
)


@pytest.mark.parametrize("name", NEWEST)
def test_the_trajectory_is_that_of_the_newest_release(name: str, here: Any) -> None:
    if not is_installed(name):
        assert name not in here
        pytest.skip(f"optax {optax.__version__} has none")
    # What is in both places goes by its name in optax itself.
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
