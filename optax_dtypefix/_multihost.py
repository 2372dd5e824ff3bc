"""Check that all processes of a multi-host run have the same patches: different programs hang."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import TYPE_CHECKING

from . import __version__, _contract, patches
from ._api import status
from ._diagnosis.import_optax import import_optax
from ._engine.release import version_of
from ._engine.state import State
from ._errors import OptaxDtypeFixError, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Found = Mapping[str, tuple[str, str]]
    """By name what must be the same, and how a message shows it."""


def assert_same_on_all_processes() -> None:
    """Compare optax, jax and the patches of all processes; every process must call this.

    Call it once at the start, after ``jax.distributed.initialize()``. It imports optax: only then
    is known which patches are applied. It also imports the files of the patches, which else wait
    until a function is called: one that fails later would change one process alone. It sends one
    or two kilobytes to each process. With one process it does nothing.

    Raises:
      OptaxDtypeFixError: on every process, if any process differs from the first. The message lists
        each difference, and which processes have which value.
    """
    import jax

    if jax.process_count() == 1:
        return
    failure = None
    try:
        import_optax()
    except Exception as error:  # As in strict mode. The others wait for this process.
        failure = error
    own = json.dumps(_own(failure))
    differences = list(differences_of([json.loads(text) for text in _all(own)]))
    if differences:
        raise OptaxDtypeFixError(
            "Processes differ in packages or patches; they may compile different programs and "
            "deadlock:\n"
            + "\n".join(differences)
            + "\nUse the same packages and the same OPTAX_DTYPEFIX* variables in every process."
        )
    if failure:
        raise failure


def _own(failure: Exception | None) -> dict[str, tuple[str, str]]:
    """Return what must be the same: versions, and whether each patch counts in the digest."""
    report = status()
    same = {
        "optax-dtypefix": __version__,
        "optax": report.optax_version,
        "jax": report.jax_version,
        "jaxlib": version_of("jaxlib"),
        "import optax": summarize(failure) if failure else "works",
    }
    found = {name: (text, text) for name, text in same.items()}
    mixed = report.installation
    found["files"] = str(bool(mixed)), mixed or "of one version"
    broken = _import_files()
    found["import of files"] = broken, broken or "works"
    applied = report.applied
    for patch in report:
        reason = "" if patch.state is State.APPLIED else f" ({patch.reason})"
        found[f"patch {patch.id}"] = str(patch.id in applied), f"{patch.state}{reason}"
    return found


def _import_files() -> str:
    """Import all files that a step may need. Say which fails, and why."""
    for package in (_contract, patches):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                importlib.import_module(module.name)
            except Exception as error:
                return f"{module.name}: {summarize(error)}"
    return ""


def differences_of(everyone: Sequence[Found]) -> Iterator[str]:
    """Describe each difference: which processes have which value."""
    for name in dict.fromkeys(name for found in everyone for name in found):
        values = [found.get(name, ("", "unknown")) for found in everyone]
        if len({compared for compared, _ in values}) > 1:
            processes: dict[str, list[int]] = {}
            for process, (_, text) in enumerate(values):
                processes.setdefault(text, []).append(process)
            texts = (f"{_list(numbers)}: {text}" for text, numbers in processes.items())
            yield f"  {name}: {'; '.join(texts)}"


def _list(processes: Sequence[int]) -> str:
    few = ", ".join(map(str, processes[:4]))
    more = f" and {len(processes) - 4} more" if len(processes) > 4 else ""
    return f"process {few}{more}" if len(processes) == 1 else f"processes {few}{more}"


def _all(text: str) -> list[str]:
    """Return the texts of all processes, in order."""
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    own = np.frombuffer(text.encode(), np.uint8)
    lengths = np.ravel(process_allgather(np.asarray([own.size], np.int32)))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: own.size] = own
    rows = np.reshape(process_allgather(padded), (lengths.size, padded.size))
    return [
        np.asarray(row[:length], np.uint8).tobytes().decode() for row, length in zip(rows, lengths)
    ]
