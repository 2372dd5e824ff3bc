"""Compare stock and patched optax: the same cells from several processes."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from evidence.audit.known_exceptions import reason_for, reason_to_narrow
from optax_dtypefix._diagnosis.processes import STOCK_AND_PATCHED, run_workers
from optax_dtypefix._text import suggest, table
from support.processes import QUICKLY_ANYWHERE
from support.recorded import this_code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

MODES = ("stock", "patched")
"""Stock optax, and the patches of the environment."""

KEPT, FIXED, BROKEN, BY_DESIGN = ".", "+", "x", "-"
LEGEND = (
    f"{KEPT} stock keeps the contract   {FIXED} fixed   {BROKEN} broken   {BY_DESIGN} by design"
)
_NO_RESULT = ("error: ", "no outcome: ")
"""How messages begin if a transformation returns nothing."""
_NARROWED = "narrowed: "
_WRITE_CELLS = "evidence.audit.process:write_cells"


@dataclasses.dataclass(frozen=True)
class Row:
    """One case, with ``messages`` of each mode, by regime, where the case is broken."""

    optax_version: str
    name: str
    rate: str
    inside: str
    messages: Mapping[str, Mapping[str, str]]

    def verdict(self, regime: str) -> str:
        """Judge a cell. If patched optax is worse than stock, only ``NARROWED`` excuses it."""
        broken = {mode: regime in self.messages[mode] for mode in MODES}
        if self._worse(regime):
            return BROKEN
        if not any(broken.values()):
            return KEPT
        if self.known_exception(regime) is not None:
            return BY_DESIGN
        return BROKEN if broken["patched"] else FIXED

    def known_exception(self, regime: str) -> str | None:
        """Return why a cell is broken by design, if it is."""
        broken = any(regime in self.messages[mode] for mode in MODES)
        if not broken:
            return None
        cell = (self.name, self.rate, self.inside, regime, self.optax_version)
        return self._reason_to_narrow(regime) or reason_for(*cell)

    def _worse(self, regime: str) -> bool:
        stock, excused = self.messages["stock"].get(regime), self._reason_to_narrow(regime)
        return any(
            worse(stock, message)
            for message in self._said(regime)
            if not (excused and message.startswith(_NARROWED))
        )

    def _reason_to_narrow(self, regime: str) -> str | None:
        if not any(message.startswith(_NARROWED) for message in self._said(regime)):
            return None
        return reason_to_narrow(self.name, self.rate, self.inside, regime, self.optax_version)

    def _said(self, regime: str) -> list[str]:
        return [self.messages[mode][regime] for mode in MODES if regime in self.messages[mode]]

    @property
    def title(self) -> str:
        """The case as text, such as ``MultiSteps(adam), schedule``."""
        call = f"{self.inside}({self.name})" if self.inside else self.name
        return f"{call}, {self.rate}" if self.rate not in ("", "float") else call


@dataclasses.dataclass(frozen=True)
class Audit:
    """The results of all processes."""

    report: Mapping[str, Any]
    regimes: tuple[str, ...]
    same_dtypes: frozenset[str]
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether no cell is broken, except by design."""
        return not any(verdict == BROKEN for _, _, verdict in self._cells())

    def broken(self, mode: str, *, same_dtypes: bool = False) -> int:
        """Count the cells that are broken in one mode, without those that are broken by design.

        Args:
          mode: one of :data:`MODES`.
          same_dtypes: only count regimes in which gradients have the dtypes of their params.
        """
        return sum(
            regime in row.messages[mode] and verdict != BY_DESIGN
            for row, regime, verdict in self._cells()
            if not same_dtypes or regime in self.same_dtypes
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything; each row has one letter for each regime."""
        return {
            "optax_version": self.report["optax_version"],
            "jax_version": self.report["jax_version"],
            "recorded_on": this_code(),
            "regimes": list(self.regimes),
            "same_dtypes": sorted(self.same_dtypes),
            "legend": LEGEND,
            "cells": len(self.rows) * len(self.regimes),
            "broken": {
                mode: {"all": self.broken(mode), "same_dtypes": self.broken(mode, same_dtypes=True)}
                for mode in MODES
            },
            "rows": [
                {
                    "name": row.name,
                    "rate": row.rate,
                    "inside": row.inside,
                    "cells": "".join(map(row.verdict, self.regimes)),
                }
                for row in self.rows
            ],
            "still_broken": {f"{r.title}, {x}": _message(r, x) for r, x in self._with(BROKEN)},
            "by_design": {
                f"{r.title}, {x}": str(r.known_exception(x)) for r, x in self._with(BY_DESIGN)
            },
        }

    def as_json(self) -> str:
        """Return ``as_dict`` as JSON text, with one line a row."""
        record = self.as_dict()
        rows = ",\n".join(f"  {json.dumps(row)}" for row in record.pop("rows"))
        head = json.dumps(record, indent=1)[:-2]
        return f'{head},\n "rows": [\n{rows}\n ]\n}}'

    def as_text(self) -> str:
        """Return one line a case, and the broken cells."""
        rows = [(row.title, *map(row.verdict, self.regimes)) for row in self.rows]
        heading = ("transformation", *self.regimes)
        said = [f"{r.title}, {x}: {_message(r, x)}" for r, x, _ in self._cells() if _message(r, x)]
        release = f"optax {self.report['optax_version']}, jax {self.report['jax_version']}"
        lines = [release, "", *table([heading, *rows]), "", LEGEND, "", *said, ""]
        return "\n".join([*lines, *self._conclusion()])

    def _conclusion(self) -> Iterator[str]:
        total = len(self.rows) * len(self.regimes)
        yield f"Broken cells of {total} (in brackets: gradients have the dtypes of their params):"
        for mode in MODES:
            yield f"  {mode:16}{self.broken(mode):6} ({self.broken(mode, same_dtypes=True)})"
        for row, regime in self._with(BROKEN):
            yield f"Broken: {row.title}, {regime}: {_message(row, regime)}"

    def _cells(self) -> Iterator[tuple[Row, str, str]]:
        for row in self.rows:
            for regime in self.regimes:
                yield row, regime, row.verdict(regime)

    def _with(self, wanted: str) -> Iterator[tuple[Row, str]]:
        return ((row, regime) for row, regime, verdict in self._cells() if verdict == wanted)


def audit(only: Sequence[str]) -> Audit:
    """Measure every transformation of the installed optax, in one process a mode.

    Args:
      only: names of transformations; all if empty.

    Raises:
      NoOptaxError: optax cannot be imported there.
      LookupError: a name is no transformation of the installed optax; the message suggests one.
    """
    variables = {
        mode: {**QUICKLY_ANYWHERE, **of_mode} for mode, of_mode in STOCK_AND_PATCHED.items()
    }
    written = run_workers(_WRITE_CELLS, only, variables)
    found = {mode: worker.entries for mode, worker in written.items()}
    header = found["patched"][0]
    for name in only:
        if name not in header["known"]:
            raise LookupError(f"unknown transformation {name!r}. {suggest(name, header['known'])}")
    return Audit(
        header["report"],
        tuple(header["regimes"]),
        frozenset(header["same_dtypes"]),
        tuple(_rows(found)),
    )


def worse(stock: str | None, patched: str) -> bool:
    """Return whether patched optax is worse than stock in a cell that patched optax breaks (C0).

    Args:
      stock: the message of stock optax, if stock breaks the cell too.
      patched: the message of patched optax.
    """
    if stock is None:
        return True
    return patched.startswith((*_NO_RESULT, _NARROWED)) and not stock.startswith(_NO_RESULT)


def narrowed(stock: Sequence[str], patched: Sequence[str]) -> str | None:
    """Describe an update that cannot hold the numbers of the same update on stock (C2).

    Args:
      stock: the dtype of each update on stock, cut to its bound; empty if stock raises.
      patched: the same on patched optax.
    """
    import jax.numpy as jnp

    for was, now in zip(stock, patched):
        if was != now and str(jnp.promote_types(was, now)) != now:
            return f"{_NARROWED}an update is {now}, and {was} on stock"
    return None


def _rows(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Row]:
    by_key = {
        mode: {(e["name"], e["rate"], e["inside"]): e for e in entries[1:]}
        for mode, entries in found.items()
    }
    header = found["patched"][0]
    regimes, optax_version = header["regimes"], header["report"]["optax_version"]
    ended: dict[str, Any] = {
        "broken": {regime: ["no outcome: the process ended"] for regime in regimes},
        "updates": {regime: [] for regime in regimes},
    }
    for key in dict.fromkeys(key for rows in by_key.values() for key in rows):
        entries = {mode: by_key[mode].get(key, ended) for mode in MODES}
        excused = {x for x in regimes if reason_to_narrow(*key, x, optax_version)}
        messages = {
            mode: dict(_first_messages(entries["stock"], entry, excused))
            for mode, entry in entries.items()
        }
        yield Row(optax_version, *key, messages)


def _first_messages(
    stock: Mapping[str, Any], entry: Mapping[str, Any], excused: Collection[str]
) -> Iterator[Any]:
    """Yield the worst message of each regime that has one."""
    for regime, broken in entry["broken"].items():
        lost = [*filter(None, [narrowed(stock["updates"][regime], entry["updates"][regime])])]
        said = [*broken, *lost] if regime in excused else [*lost, *broken]
        if said:
            yield regime, said[0]


def _message(row: Row, regime: str) -> str:
    said = {mode: row.messages[mode].get(regime) for mode in MODES}
    message = said["patched"] or said["stock"] or ""
    return " ".join(message.split())
