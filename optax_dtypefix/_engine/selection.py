"""Decide whether a patch is applied: by its table on a tested release, else by its probes."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from .._errors import summarize, warn_or_raise
from .locate import defining_module, module_elsewhere, parameters_of, unloaded_module
from .patch import NotInReleaseError
from .state import NOT_IMPORTED, State

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from .patch import Fault, Patch, Stock, Target
    from .release import Release


NOT_OPTED_IN = "opt-in: add it to OPTAX_DTYPEFIX_ENABLE"


class Decision(NamedTuple):
    """What to do with a patch, and why.

    Attributes:
      state: the state to record; ``applied`` means: apply ``targets``.
      reason: why, as text.
      targets: what to wrap.
      waits_for: a module to wait for; when that module is imported, decide again.
      warn: whether to warn the user, who wanted a patch that cannot be applied.
      probed: the faults whose abstract reproducers led to the decision. Once the patch is applied,
        the reproducers must find nothing.
    """

    state: State
    reason: str
    targets: tuple[Target, ...] = ()
    waits_for: str | None = None
    warn: bool = False
    probed: tuple[Fault, ...] = ()


def decide(
    patch: Patch,
    package: ModuleType,
    release: Release,
    *,
    opted_in: bool,
    strict: bool,
) -> Decision:
    """Decide on one patch that is not disabled.

    Args:
      patch: the patch.
      package: the package that the patch is for, imported.
      release: the installed release of the package.
      opted_in: whether the user named the patch, in the environment or in ``apply``.
      strict: whether a call that a replacement cannot serve raises.
    """
    if patch.opt_in and not opted_in:
        return Decision(State.DISABLED, NOT_OPTED_IN)
    targets = tuple(target for target in patch.targets if release.within(target.releases))
    absent = [target for target in targets if defining_module(target) is None]
    if patch.allow_missing_targets and not release.tested and len(absent) < len(targets):
        targets, absent = tuple(target for target in targets if target not in absent), []
    if absent or not targets:
        return _absent(absent, wanted=release.tested and bool(patch.faults_on(release)))
    installed = f"{package.__name__} {release}"
    if not release.tested:
        untested = f"{installed} is not a tested release"
        lacks = [name for target in targets for name in _lacks(target)]
        if lacks:
            names = ", ".join(dict.fromkeys(lacks))
            return _unsupported(f"{untested}; it lacks parameters that the patch needs: {names}")
        guarded = tuple(_guarded(target, strict=strict) for target in targets)
        # First those faults that such a release had last: to look for others takes time.
        likely = sorted(patch.faults, key=lambda fault: not release.within(fault.releases))
        return _by_probe(likely, package, untested, guarded)
    faults = patch.faults_on(release)
    if not faults:
        return Decision(State.NOT_NEEDED, f"{installed} has none of the faults of this patch")
    names = ", ".join(fault.id for fault in faults)
    return Decision(State.APPLIED, f"{installed} has: {names}", targets)


def _absent(targets: list[Target], *, wanted: bool) -> Decision:
    for target in targets:
        module = unloaded_module(target)
        if module is not None:
            return Decision(State.PENDING, f"{module} {NOT_IMPORTED}", waits_for=module)
    found = [(target, module_elsewhere(target)) for target in targets]
    gone = dict.fromkeys(target.qualname for target, module in found if module is None)
    has = [f"no {', '.join(gone)}"] if gone else []
    has += [f"{t.qualname} in {m}, not in {' or '.join(t.modules)}" for t, m in found if m]
    absent = "; ".join(dict.fromkeys(has)) or "none of the functions of this patch"
    return Decision(State.MISSING, f"this release has {absent}", warn=wanted)


def _by_probe(
    faults: Iterable[Fault], package: ModuleType, untested: str, targets: tuple[Target, ...]
) -> Decision:
    probed: list[Fault] = []
    for fault in faults:
        reproducer = fault.reproducer()
        probed += [fault] if reproducer.traces_only else []
        if reproducer.probe is None:
            continue
        try:
            shows = reproducer.probe(package) is not None
        except NotInReleaseError:
            shows = False
        except (AttributeError, ImportError) as error:  # The probe does not know this release.
            return _unsupported(f"{untested}; the probe could not run: {summarize(error)}")
        except Exception:  # Many faults show by raising.
            shows = True
        if shows:  # One fault is enough to know: tracing them all would hold up the import.
            reason = f"{untested}; the probe found: {fault.id}"
            return Decision(State.APPLIED, reason, targets, probed=tuple(probed))
    return Decision(State.NOT_NEEDED, f"{untested}; the probe found no fault")


def _lacks(target: Target) -> list[str]:
    known = target.known_parameters
    return sorted(known - set(parameters_of(target))) if known else []


def _guarded(target: Target, *, strict: bool) -> Target:
    """Hand calls on to stock that give a parameter which the replacement does not know."""
    known = target.known_parameters
    unknown = frozenset() if known is None else frozenset(parameters_of(target)) - known
    if not unknown:
        return target

    @functools.wraps(target.replacement)
    def replacement(stock: Stock, *args: Any, **kwargs: Any) -> Any:
        signature = inspect.signature(stock)
        given = signature.bind(*args, **kwargs).arguments  # Or the TypeError of stock.
        strange = [
            name
            for name in sorted(unknown & given.keys())
            if given[name] is not signature.parameters[name].default
        ]
        if not strange:
            return target.replacement(stock, *args, **kwargs)
        warn_or_raise(
            f"This call of {target.qualname} is not patched: the patch does not know these "
            f"arguments: {', '.join(strange)}. The stock function runs. Leave the arguments out, "
            f"or upgrade optax-dtypefix.",
            strict=strict,
        )
        return stock(*args, **kwargs)

    return target._replace(replacement=replacement)


def verify_fix(decision: Decision, package: ModuleType) -> Decision:
    """Return the decision on an applied patch, or ``unsupported`` if its faults remain.

    A replacement may not fit a release that it was never tested on.
    """
    for fault in decision.probed:
        try:
            outcome = fault.reproduce(package)
        except Exception as error:  # Raised by the patch, or by the fault: it is not fixed.
            outcome = summarize(error)
        if outcome is not None:
            return _unsupported(f"{decision.reason}; the patch does not fix it: {outcome}")
    return decision


def _unsupported(reason: str) -> Decision:
    return Decision(State.UNSUPPORTED, reason, warn=True)
