"""Cut what was measured of one release to what docs/benchmarks.md shows: medians and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

FACTS = ("optax", "jax", "recorded_on", "python", "device", "machine")


def summarize(measured: Mapping[str, Any], common: Collection[str]) -> dict[str, Any]:
    """Return a record. Each time is a list of three: the median, between the quartiles.

    Args:
      measured: everything that was measured.
      common: names of the steps with which the page begins, which are kept in any case.
    """
    imports, scale = measured["imports"], measured["scale"]
    return {
        **{fact: measured[fact] for fact in FACTS},
        "counts": count(measured["steps"]),
        "imports": {name: found for name, found in imports.items() if name != "late"},
        "late": imports["late"],
        "calls": measured["calls"],
        "scale": {name: [stock, scale["patched"][name]] for name, stock in scale["stock"].items()},
        "steps": steps(measured["steps"], common),
    }


def count(measured: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count steps: all, those that run, with stock's program, with fewer and more traces, ..."""
    measured = list(measured)
    ways = [(found["ways"]["stock"], found["ways"]["patched"]) for found in measured]
    both = [pair for pair in ways if not any("raises" in way for way in pair)]
    return {
        "steps": len(ways),
        "run": len(both),
        "run_patched_only": sum("raises" in a and "raises" not in b for a, b in ways),
        "same": sum(stock["program"] == patched["program"] for stock, patched in both),
        **{
            key: [
                sum(stock[key] > patched[key] for stock, patched in both),
                sum(stock[key] < patched[key] for stock, patched in both),
            ]
            for key in ("traces", "state_bytes_later")
        },
        "float64": [sum(way["float64"] for way in of) for of in zip(*both)],
    }


def steps(measured: Iterable[Mapping[str, Any]], common: Collection[str]) -> list[dict[str, Any]]:
    """Return the steps whose program is not stock's for each number of params, and common ones."""
    rows: dict[str, dict[str, Any]] = {}
    for found in measured:
        row = rows.setdefault(
            found["step"],
            {
                "step": found["step"],
                "patch": found["patch"],
                "common": found["step"] in common,
                "times": {},
            },
        )
        row["times"][f"{found['size']:.0e}".replace("e+0", "e")] = time(found)
    return [
        row
        for row in rows.values()
        if row["common"] or {*map(str, row["times"].values())} != {"same"}
    ]


def time(found: Mapping[str, Any]) -> Any:
    """Return the ratio to stock, seconds if stock raises, or why there are none.

    Returns:
      ``same`` if the program is stock's, ``raises`` if the patched step raises, and ``dies`` if
      XLA ends the process.
    """
    stock, patched = (found["ways"][way] for way in ("stock", "patched"))
    if "raises" in patched:
        return "dies" if patched["raises"] == "the process died" else "raises"
    if patched["program"] == stock.get("program"):
        return "same"
    if "raises" in stock:
        return {"seconds": found["step_s"]["patched"]}
    return {"ratio": found["ratio"]}
