"""List what no patch can fix, because the transformation works that way, with reasons."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from optax_dtypefix._engine.release import Release

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclasses.dataclass(frozen=True)
class KnownException:
    """Transformations that break the contract in some regimes, by design.

    Attributes:
      names: names of the transformations, without the module.
      reason: why, as text.
      regimes: the regimes; all if empty.
      inside: the wrappers; all, and none, if empty.
      rates: the kinds of learning rate; all if empty.
      releases: PEP 440 specifiers of the optax releases; all if empty.
    """

    names: Collection[str]
    reason: str
    regimes: Collection[str] = ()
    inside: Collection[str] = ()
    rates: Collection[str] = ()
    releases: str = ""

    def covers(self, name: str, rate: str, inside: str, regime: str, optax_version: str) -> bool:
        """Return whether this entry covers the cell."""
        return (
            name.rpartition(".")[2] in self.names
            and (not self.regimes or regime in self.regimes)
            and (not self.inside or inside in self.inside)
            and (not self.rates or rate in self.rates)
            and Release(optax_version).within(self.releases)
        )


_COMPLEX = ("complex", "all complex")

KNOWN_EXCEPTIONS = (
    KnownException(
        ("clip", "adopt", "scale_by_adopt", "sophia"),
        "clips between two bounds, and complex numbers have no order",
        _COMPLEX,
    ),
    KnownException(
        ("rprop", "scale_by_rprop", "sm3", "scale_by_sm3", "mechanize"),
        "compares numbers, and complex ones have no order",
        _COMPLEX,
    ),
    KnownException(
        ("momo", "momo_adam"),
        "takes the larger of two numbers, and complex ones have no order",
        _COMPLEX,
        releases="<0.2.5",
    ),
    KnownException(
        ("dadapt_adamw", "prodigy", "momo", "momo_adam", "dog", "dowg"),
        "compares or divides by real numbers: for complex params it is as on stock",
        _COMPLEX,
    ),
    KnownException(
        ("lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"),
        "compares or divides by real numbers: for complex params it is as on stock",
        _COMPLEX,
        releases="<0.2.5",
    ),
    KnownException(
        ("madgrad", "scale_by_madgrad"),
        "takes the real cube root",
        _COMPLEX,
    ),
    KnownException(
        ("hutchinson_estimator_diag_hessian",),
        "differentiates along random real directions",
        _COMPLEX,
    ),
    KnownException(
        ("sophia", "hutchinson_estimator_diag_hessian"),
        "draws its directions as stock does, in float64 under x64",
        ("f32 x64", "bf16 x64"),
    ),
    KnownException(
        ("sophia",),
        "needs the objective for a step, and init has none: a moment of integers is an integer",
        ("integer leaf", "integer matrix"),
    ),
    KnownException(
        ("lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"),
        "searches along a line, and integers cannot move along it",
        ("integer leaf", "integer matrix"),
    ),
    KnownException(
        (
            *("identity", "freeze", "set_to_zero", "stateless", "stateless_with_tree_map"),
            *("zero_nans", "scale_by_sign", "centralize", "add_decayed_weights", "scale_by_muon"),
        ),
        "passes integers on unchanged",
        ("int8 grads",),
    ),
    KnownException(
        ("snapshot",),
        "passes integers on unchanged",
        ("int8 grads",),
        inside=("", "apply_if_finite"),
    ),
    KnownException(
        ("snapshot",),
        "keeps what the user's function returns for the gradients, and starts with the params",
        ("wider", "narrower", "f16 grads", "f64 grads", "int8 grads"),
        inside=("", "inject_hyperparams"),
    ),
    KnownException(
        (
            *("adafactor", "scale_by_factored_rms", "sm3", "scale_by_sm3"),
            *("galore", "scale_by_galore", "muon"),
        ),
        "puts more than arrays into user-defined nodes",
        ("nodes",),
    ),
    KnownException(
        ("scale_by_muon",),
        "puts more than arrays into user-defined nodes",
        ("nodes",),
        releases="==0.2.6",
    ),
    KnownException(
        ("measure_with_ema",),
        "returns a measurement in place of updates",
    ),
    KnownException(
        ("dpsgd", "differentially_private_aggregate"),
        "takes a batch of gradients for each param, and the wrapper does not",
        inside=("MultiSteps", "apply_if_finite"),
    ),
    KnownException(
        ("reduce_on_plateau",),
        "needs the loss, and the wrapper takes no extra arguments in this release",
        inside=("inject_hyperparams",),
        releases="==0.1.8",
    ),
    KnownException(
        ("schedule_free_adamw", "schedule_free_sgd"),
        "refuses a learning rate of 0, and cannot compare a traced one with 0",
        inside=("inject_hyperparams",),
        releases="==0.2.3",
    ),
)

NARROWED = (
    # ``wide_gradients``, a fault of ``inject_hyperparams``. A test shows that the updates of stock
    # 0.2.8 are as narrow.
    KnownException(
        (
            *("schedule_free", "schedule_free_adamw", "schedule_free_sgd"),
            "hutchinson_estimator_diag_hessian",
        ),
        "has updates as narrow as on stock 0.2.8: older stock's are as wide as the gradients",
        ("wider", "f64 grads"),
        inside=("inject_hyperparams",),
        releases="<0.2.8",
    ),
)
"""Where updates of patched optax may be narrower than those of stock."""


DIFFERENT = (
    KnownException(
        ("schedule_free_sgd",),
        "computes averaging weights in the dtype of the gradients, stock in that of the params",
        ("f64 grads",),
        releases=">=0.2.4",
    ),
    KnownException(
        ("inject_hyperparams", "inject_stateful_hyperparams", "mechanize"),
        "reads its counter elsewhere, so the operands of cond have another order",
        ("f32 x64", "f64 x64"),
        inside=("apply_if_finite",),
    ),
    KnownException(
        ("scale_by_muon",),
        "divides by the bias correction in float32; stock by 0, the bias correction in int8",
        ("int8 grads",),
    ),
)
"""Where a program is not that of stock, and ``functions.json`` names no problem."""


def reason_for(*cell: str) -> str | None:
    """Return why a cell breaks the contract by design, or None if it must keep the contract.

    Args:
      *cell: name, rate, wrapper, regime, version of optax; so in the functions below.
    """
    return _reason(KNOWN_EXCEPTIONS, *cell)


def reason_to_narrow(*cell: str) -> str | None:
    """Return why an update may be narrower than on stock, or None if it must not be."""
    return _reason(NARROWED, *cell)


def reason_to_differ(*cell: str) -> str | None:
    """Return why a program may differ from that of stock, or None if it must not."""
    return _reason(DIFFERENT, *cell)


def _reason(entries: tuple[KnownException, ...], *cell: str) -> str | None:
    return next((entry.reason for entry in entries if entry.covers(*cell)), None)
