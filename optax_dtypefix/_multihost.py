"""Check that all processes of a multi-host run have the same patches: different programs hang."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ._api import status
from ._engine.release import version_of
from ._errors import OptaxDtypeFixError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def assert_same_on_all_processes() -> None:
    """Compare optax, jax and the patches of all processes; every process must call this.

    Call it once at the start, after ``jax.distributed.initialize()``. It sends one or two kilobytes
    to each process. With one process it does nothing.

    Raises:
      OptaxDtypeFixError: on every process, if any process differs from the first. The message lists
        each difference, and which processes have which value.
    """
    differences = list(differences_of([json.loads(text) for text in _all(json.dumps(_own()))]))
    if differences:
        raise OptaxDtypeFixError(
            "Processes differ in packages or patches; they may compile different programs and "
            "deadlock:\n"
            + "\n".join(differences)
            + "\nUse the same packages and the same OPTAX_DTYPEFIX* variables in every process."
        )


def _own() -> dict[str, str]:
    """Return the versions and patch states that must be the same, by their names in a message."""
    report = status()
    packages = ("optax-dtypefix", "jaxlib")
    found = {package: version_of(package) for package in packages}
    found["optax"], found["jax"] = report.optax_version, report.jax_version
    found.update({f"patch {patch.id}": f"{patch.state} ({patch.reason})" for patch in report})
    return found


def differences_of(everyone: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Describe each difference: which processes have which value."""
    for name in dict.fromkeys(name for found in everyone for name in found):
        holders: dict[str, list[int]] = {}
        for process, found in enumerate(everyone):
            holders.setdefault(found.get(name, "unknown"), []).append(process)
        if len(holders) > 1:
            values = (f"{_list(processes)}: {value}" for value, processes in holders.items())
            yield f"  {name}: {'; '.join(values)}"


def _list(processes: Sequence[int]) -> str:
    few = ", ".join(map(str, processes[:4]))
    more = f" and {len(processes) - 4} more" if len(processes) > 4 else ""
    return f"process {few}{more}" if len(processes) == 1 else f"processes {few}{more}"


def _all(text: str) -> list[str]:
    """Return the texts of all processes, in order."""
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return [text]
    from jax.experimental.multihost_utils import process_allgather

    own = np.frombuffer(text.encode(), np.uint8)
    lengths = np.ravel(process_allgather(np.asarray([own.size], np.int32)))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: own.size] = own
    rows = np.reshape(process_allgather(padded), (lengths.size, padded.size))
    return [
        np.asarray(row[:length], np.uint8).tobytes().decode() for row, length in zip(rows, lengths)
    ]
