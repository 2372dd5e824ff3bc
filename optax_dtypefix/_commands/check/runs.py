"""Run the optimizer in several processes, each with other patches."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ..worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .target import Target
    from .trees import Case

_WRITE_CASES = "optax_dtypefix._commands.check.process:write_cases"
_AT_ONCE = min(os.cpu_count() or 1, 8)


class Problem(NamedTuple):
    """One problem, found by the check of ``values`` or of ``dtypes``."""

    check: str
    kind: str
    where: str
    text: str


class Result(NamedTuple):
    """One case in one process. ``unfit`` says that it also fails on float32 params."""

    problems: tuple[Problem, ...] = ()
    unfit: bool = False

    def has_others_than(self, other: Result) -> bool:
        """Whether there is a problem, by kind and leaf, that the other result does not have."""
        return bool({p[:3] for p in self.problems} - {p[:3] for p in other.problems})


class Run(NamedTuple):
    """What one process found. ``failure`` says why there is no optimizer to check."""

    results: Mapping[Case, Result]
    report: Mapping[str, Any]
    failure: str | None


class Runner:
    """Start processes, some at a time."""

    def __init__(
        self, folder: str, target: Target, mode: str, progress: Callable[[int, int], None]
    ) -> None:
        """Start nothing yet.

        Args:
          folder: for the files of the processes.
          target: what to check.
          mode: ``x64`` or ``x32``.
          progress: called now and then with the numbers of finished and of all checks.
        """
        self._folder = folder
        self._arguments = (target.place, target.name, mode)
        self._progress = progress
        self._before = 0  # Finished checks of earlier calls.

    def run(self, ways: Mapping[str, Mapping[str, str]], cases: Sequence[Case]) -> dict[str, Run]:
        """Check all cases in one process for each way.

        Args:
          ways: variables to set, by name of the way; names differ from those of earlier calls.
          cases: what to check.

        Raises:
          WorkerError: a process wrote nothing.
        """
        total = self._before + len(ways) * len(cases)
        arguments = (*self._arguments, *(case.params for case in cases))
        with contextlib.ExitStack() as stack:
            workers: dict[str, Worker] = {}
            waiting = list(ways)
            while waiting or any(worker.running for worker in workers.values()):
                if waiting and sum(w.running for w in workers.values()) < _AT_ONCE:
                    name = waiting.pop(0)
                    worker = Worker(self._folder, name, _WRITE_CASES, arguments, ways[name])
                    workers[name] = stack.enter_context(worker)
                    continue
                lines = (worker.lines_so_far() - 1 for worker in workers.values())
                done = sum(min(max(n, 0), len(cases)) for n in lines)
                self._progress(self._before + done, total)
                time.sleep(0.05)
            self._before = total
            self._progress(total, total)
            return {name: _read(workers[name], cases) for name in ways}


def _read(worker: Worker, cases: Sequence[Case]) -> Run:
    entries = worker.entries()
    failure = next((entry["failure"] for entry in entries if "failure" in entry), None)
    report = [entry["report"] for entry in entries if "report" in entry][-1]
    found = [entry for entry in entries if "problems" in entry]
    results = {
        case: Result(tuple(Problem(**p) for p in entry["problems"]), entry["unfit"])
        for case, entry in zip(cases, found)
    }
    # The process may also have been killed.
    why = failure or f"no result: the process ended with code {worker.code}"
    missing = Result((Problem("dtypes", "error", "", why),), unfit=True)
    return Run({case: results.get(case, missing) for case in cases}, report, failure)
