"""Find the patches that an optimizer needs, by leaving some out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ..._engine.state import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .runs import Run, Runner
    from .trees import Case

_DISABLE = "OPTAX_DTYPEFIX_DISABLE"


class Needs(NamedTuple):
    """The patches that one case needs.

    Attributes:
      all_of: without any of these, a problem comes back.
      one_of: one of these is needed too; each is enough.
      some_of: more than one of these is needed too.
    """

    all_of: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    some_of: tuple[str, ...] = ()

    def __str__(self) -> str:
        some = f"some of {', '.join(self.some_of)}" if self.some_of else ""
        return ", and ".join(filter(None, (", ".join(self.all_of), " or ".join(self.one_of), some)))


def find_needs(runner: Runner, patched: Run, fixed: Sequence[Case]) -> dict[Case, Needs]:
    """Leave out each patch that changed something. Two may do the same: then try each alone.

    Args:
      runner: starts the processes.
      patched: the run with all patches.
      fixed: the cases in which the patches solve a problem.

    Raises:
      WorkerError: a process wrote nothing.
    """
    applied = [p for p in patched.report["patches"] if p["state"] == State.APPLIED.value]
    candidates = [patch["id"] for patch in applied if patch["changed"]]
    unchanged = [patch["id"] for patch in applied if patch["reached"] and not patch["changed"]]
    runs: dict[frozenset[str], Run] = {}

    def leave_out(sets: Iterable[Iterable[str]]) -> None:
        new = sorted({frozenset(ids) for ids in sets} - runs.keys(), key=sorted)
        ways = {f"run {len(runs) + i}": _without(ids) for i, ids in enumerate(new)}
        runs.update(zip(new, runner.run(ways, fixed).values()))

    def suffice(case: Case, left_out: Iterable[str]) -> bool:
        run = runs[frozenset(left_out)]
        return not run.results[case].has_others_than(patched.results[case])

    leave_out([*([i] for i in candidates), *([unchanged] if unchanged else [])])
    if unchanged and not all(suffice(case, unchanged) for case in fixed):
        leave_out([i] for i in unchanged)
        candidates += unchanged
    needs = {}
    rest = {}
    others = {}  # All patches but those that are needed for sure.
    for case in fixed:
        alone = tuple(i for i in candidates if not suffice(case, [i]))
        needs[case] = Needs(all_of=alone)
        rest[case] = [i for i in candidates if i not in alone]
        others[case] = {patch["id"] for patch in applied} - {*alone}
    # If one patch is left, it was left out already. With none at all, optax is stock.
    unsure = [case for case in fixed if len(rest[case]) > 1]
    leave_out(others[case] for case in unsure if needs[case].all_of)
    unsure = [c for c in unsure if not (needs[c].all_of and suffice(c, others[c]))]
    leave_out(others[case] - {patch_id} for case in unsure for patch_id in rest[case])
    for case in unsure:
        enough = tuple(i for i in rest[case] if suffice(case, others[case] - {i}))
        some = () if enough else tuple(rest[case])
        needs[case] = needs[case]._replace(one_of=enough, some_of=some)
    return needs


def _without(left_out: Iterable[str]) -> dict[str, str]:
    return {_DISABLE: ",".join(filter(None, (os.environ.get(_DISABLE), *sorted(left_out))))}
