"""Hold the reproducers of faults, and decide on an untested release by their probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from .._engine.state import Decision, State
from .._errors import summarize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._engine.patch import Fault

Reproduce = Callable[[Any], Optional[str]]
"""``reproduce(package)``: runs public functions of the package, as a user would.

Returns None if the contract holds, else a description of the fault. May raise instead. The package
is an argument, not a global, because a program may delete the package and import it again.
"""


class NotInReleaseError(LookupError):
    """The release lacks a function that the reproducer needs, so it does not have the fault."""


class Reproducer(NamedTuple):
    """How to reproduce a fault.

    Attributes:
      summary: what a user sees, in one line.
      run: reproduces the fault on the current functions of the package, stock or patched.
      probe: a reproducer for untested releases and stock functions, which evaluates no more than
        shapes and dtypes: no FLOPs, no backend. None if there is no such reproducer.
    """

    summary: str
    run: Reproduce
    probe: Reproduce | None = None

    def reproduce(self, package: Any) -> str | None:
        """Run the reproducer. A release without the function that it needs has no fault."""
        try:
            return self.run(package)
        except NotInReleaseError:
            return None


def decide_by_probes(faults: Iterable[Fault], package: Any, untested: str) -> Decision:
    """Decide on a patch by the first of its faults that a probe finds in the stock package."""
    from .._contract.modes import default_modes  # Imports JAX, which a patch needs anyway.

    probed: list[Fault] = []
    for fault in faults:
        reproducer = fault.reproducer()
        if reproducer.run is reproducer.probe:
            probed.append(fault)
        if reproducer.probe is None:
            continue
        try:
            with default_modes():
                shows = reproducer.probe(package) is not None
        except NotInReleaseError:
            shows = False
        except (AttributeError, ImportError) as error:  # The probe does not know this release.
            return unsupported(f"{untested}; the probe could not run: {summarize(error)}")
        except Exception:  # Many faults show by raising.
            shows = True
        if shows:  # One fault is enough to know: tracing them all would hold up the import.
            reason = f"{untested}; the probe found: {fault.id}"
            return Decision(State.APPLIED, reason, probed=tuple(probed))
    return Decision(State.NOT_NEEDED, f"{untested}; the probe found no fault")


def verify_fix(decision: Decision, package: Any) -> Decision:
    """Return the decision on an applied patch, or ``unsupported`` if its faults remain.

    A replacement may not fit a release that it was never tested on.
    """
    from .._contract.modes import default_modes

    for fault in decision.probed:
        try:
            with default_modes():
                outcome = fault.reproducer().reproduce(package)
        except Exception as error:  # Raised by the patch, or by the fault: it is not fixed.
            outcome = summarize(error)
        if outcome is not None:
            return unsupported(f"{decision.reason}; the patch does not fix it: {outcome}")
    return decision


def unsupported(reason: str) -> Decision:
    """Return the decision on a patch that does not fit the release."""
    return Decision(State.UNSUPPORTED, reason, warn=True)
