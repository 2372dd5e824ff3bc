"""What no patch can mend, because the transformation means it: by name, with the reason."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclasses.dataclass(frozen=True)
class Exemption:
    """Transformations that do not keep the contract in some regimes, by design.

    Attributes:
      names: of the transformations, without the module.
      reason: why, in words.
      regimes: in which regimes; in all if empty.
      inside: in which wrappers; as they are and in all of them if empty.
    """

    names: Collection[str]
    reason: str
    regimes: Collection[str] = ()
    inside: Collection[str] = ()

    def holds(self, name: str, inside: str, regime: str) -> bool:
        """Whether it is about this cell."""
        return (
            name.rpartition(".")[2] in self.names
            and (not self.regimes or regime in self.regimes)
            and (not self.inside or inside in self.inside)
        )


EXEMPTIONS = (
    Exemption(
        ("clip", "adopt", "scale_by_adopt", "sophia"),
        "clips between two bounds, and complex numbers have no order",
        ("complex",),
    ),
    Exemption(
        ("rprop", "scale_by_rprop", "sm3", "scale_by_sm3", "mechanize"),
        "compares numbers, and complex ones have no order",
        ("complex",),
    ),
    Exemption(
        ("madgrad", "scale_by_madgrad"),
        "takes the real cube root",
        ("complex",),
    ),
    Exemption(
        ("hutchinson_estimator_diag_hessian",),
        "differentiates along random real directions",
        ("complex",),
    ),
    Exemption(
        ("lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"),
        "searches along a line, on which an integer cannot move",
        ("integer leaf",),
    ),
    Exemption(
        ("measure_with_ema",),
        "returns a measurement in the place of updates",
        ("integer leaf",),
    ),
    Exemption(
        ("measure_with_ema",),
        "returns a measurement in the place of updates",
        inside=("MultiSteps", "apply_if_finite", "inject_hyperparams"),
    ),
    Exemption(
        ("dpsgd", "differentially_private_aggregate"),
        "takes a batch of gradients for each param, which the wrapper does not",
        inside=("MultiSteps", "apply_if_finite"),
    ),
)


def reason_for(name: str, inside: str, regime: str) -> str | None:
    """Why a cell does not keep the contract by design; None if it should keep it."""
    found = (e.reason for e in EXEMPTIONS if e.holds(name, inside, regime))
    return next(found, None)
