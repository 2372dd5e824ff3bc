"""The same patches on every process of a multi-host run: different programs would hang."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ._api import status
from ._engine.release import version_of
from ._errors import OptaxDtypeFixError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def assert_same_on_all_processes() -> None:
    """Compares optax, jax and the patches of all processes; every process has to call it.

    Call it once at the start, after ``jax.distributed.initialize()``. It sends a kilobyte or two to
    each process. With one process there is nothing to compare.

    Raises:
      OptaxDtypeFixError: on every process, if any differs from the first. The message names the
        processes, and what they have.
    """
    differences = list(differences_of([json.loads(text) for text in _all(json.dumps(_own()))]))
    if differences:
        raise OptaxDtypeFixError(
            "the processes of this run would compile different programs, and wait for each other:\n"
            + "\n".join(differences)
            + "\nGive all of them the same packages and the same OPTAX_DTYPEFIX* variables."
        )


def _own() -> dict[str, str]:
    """What has to be the same, by what it is called in a message."""
    report = status()
    packages = ("optax-dtypefix", "jaxlib")
    found = {package: version_of(package) for package in packages}
    found["optax"], found["jax"] = report.optax_version, report.jax_version
    found.update({f"patch {patch.id}": f"{patch.state} ({patch.reason})" for patch in report})
    return found


def differences_of(everyone: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Says, thing by thing, which processes have what; nothing where all agree."""
    for name in dict.fromkeys(name for found in everyone for name in found):
        holders: dict[str, list[int]] = {}
        for process, found in enumerate(everyone):
            holders.setdefault(found.get(name, "unknown"), []).append(process)
        if len(holders) > 1:
            said = (f"{_words(processes)}: {value}" for value, processes in holders.items())
            yield f"  {name}: {'; '.join(said)}"


def _words(processes: Sequence[int]) -> str:
    few = ", ".join(map(str, processes[:4]))
    more = f" and {len(processes) - 4} more" if len(processes) > 4 else ""
    return f"process {few}{more}" if len(processes) == 1 else f"processes {few}{more}"


def _all(text: str) -> list[str]:
    """The text of every process, in order."""
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
