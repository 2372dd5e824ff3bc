"""Cut an audit to what the page and the picture show."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from evidence.audit.results import BY_DESIGN
from optax_dtypefix.patches.releases import TESTED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


def summarize(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Cut an audit, as ``--json`` prints it, to counts, reasons, and messages of what is broken.

    The picture shows each transformation of the newest release only.
    """
    reasons = collections.defaultdict[str, set[str]](set)
    for combination, reason in audit["by_design"].items():
        reasons[reason].add(combination.partition(",")[0])
    newest = audit["optax_version"] == TESTED[-1]
    return {
        "optax": audit["optax_version"],
        "jax": audit["jax_version"],
        "recorded_on": audit["recorded_on"],
        "settings": len(audit["regimes"]),
        "same_dtypes": len(audit["same_dtypes"]),
        "combinations": audit["cells"],
        "broken": audit["broken"],
        "still_broken": audit["still_broken"],
        "by_design": len(audit["by_design"]),
        "reasons": {reason: without_wrapped(reasons[reason]) for reason in sorted(reasons)},
        "verdicts": count_verdicts(audit["rows"]),
        "transformations": count_by_name(audit["rows"]) if newest else {},
    }


def without_wrapped(names: Collection[str]) -> list[str]:
    """Sort names, without those of a wrapper around a transformation that is listed alone."""
    return sorted(name for name in names if name.partition("(")[2].rstrip(")") not in names)


def count_by_name(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the verdicts of each transformation; leave out those that are by design alone."""
    by_name = collections.defaultdict[str, list[Any]](list)
    for row in rows:
        by_name[row["name"]].append(row)
    counts = {name: count_verdicts(of) for name, of in by_name.items()}
    return {name: found for name, found in counts.items() if found}


def count_verdicts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count the verdicts, but for what is by design."""
    text = "".join(row["cells"] for row in rows).replace(BY_DESIGN, "")
    return dict(sorted(collections.Counter(text).items()))
