"""Count what a compiled program costs on an accelerator, from XLA's text of it.

XLA gives no such counts for a GPU. On a TPU it also counts what stays in the fast memory of the
chip, and arrays that are fetched there before a kernel needs them, twice.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_ROW = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d+|pred)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(r"(?:body|calls|to_apply)=%?([\w.\-]+)")
_TIMES = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_COLLECTIVE = re.compile(
    r" (?:all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)

_FREE = (
    *("after-all", "async-done", "async-start", "bitcast", "constant", "get-tuple-element"),
    *("iota", "parameter", "partition-id", "tuple"),
)
"""What only names arrays, or starts or ends what is counted elsewhere."""
_FETCHES = ("copy-done", "slice-done")
_SLICES = ("dynamic-slice", "gather", "slice")
_VIEWS = ("bitcast", "reshape")
_NO_KERNEL = "ConcatBitcast"


class Cost(NamedTuple):
    """What a program costs in one step, on each device."""

    moved: int
    """Bytes that kernels read from the memory of the device, and write to it."""
    kernels: int
    """Kernels that are launched."""

    def plus(self, other: Cost, times: int = 1) -> Cost:
        """Add another cost, as many times as it is paid."""
        return Cost(self.moved + times * other.moved, self.kernels + times * other.kernels)


class _Row(NamedTuple):
    """An instruction."""

    result: str
    opcode: str
    operands: list[str]
    line: str


_Program = dict[str, dict[str, _Row]]


def cost_of(text: str, *, numbers_are_free: bool) -> Cost:
    """Count the cost of a program.

    Args:
      text: the compiled program, as ``as_text()`` gives it.
      numbers_are_free: whether the device computes single numbers without a kernel, as a TPU does.
    """
    return _cost(_computations(text), "ENTRY", numbers_are_free)


def collectives_in(text: str) -> int:
    """Count the messages between devices."""
    return len(_COLLECTIVE.findall(text))


def _computations(text: str) -> _Program:
    """Return the instructions of each computation by name; ``ENTRY`` is the first to run."""
    found: _Program = {}
    rows: dict[str, _Row] = {}
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            rows = found["ENTRY" if head[1] else head[2]] = {}
        elif row := _ROW.match(line):
            operands = re.findall(r"%([\w.\-]+)", row[4].partition(")")[0])
            rows[row[1]] = _Row(row[2], row[3], operands, line)
    return found


def _cost(program: _Program, name: str, numbers_are_free: bool) -> Cost:
    rows, cost = program[name], Cost(0, 0)
    for row in rows.values():
        called = _CALLED.search(row.line)
        inside = called and called[1] in program and row.opcode in ("async-start", "call", "while")
        if called and inside:
            times = _TIMES.search(row.line)
            more = _cost(program, called[1], numbers_are_free)
            cost = cost.plus(more, int(times[1]) if times else 1)
        elif row.opcode == "conditional":
            branches = re.findall(r"(?<=[%{ ])[\w.\-]+", _branches(row.line))
            costs = [_cost(program, branch, numbers_are_free) for branch in branches]
            cost = cost.plus(max(costs))
        elif not (row.opcode in _FREE or row.opcode.endswith("-start") or _NO_KERNEL in row.line):
            types = [rows[name].result for name in row.operands if name in rows]
            single = all(_size(type_) <= 8 for type_ in (row.result, *types))
            is_kernel = row.opcode not in _FETCHES and not (numbers_are_free and single)
            cost = cost.plus(Cost(_moved(program, rows, row), int(is_kernel)))
    return cost


def _branches(line: str) -> str:
    """Return the names of the computations that a conditional chooses from."""
    several = re.search(r"branch_computations=\{(.*?)\}", line)
    two = re.findall(r"(?:true|false)_computation=(%?[\w.\-]+)", line)
    return f" {several[1] if several else ' '.join(two)}"


def _moved(program: _Program, rows: dict[str, _Row], row: _Row) -> int:
    """Count the bytes that a kernel reads and writes. What it slices, it does not read whole."""
    written, operands = _size(row.result, in_memory=True), row.operands
    if row.opcode.endswith("-done"):  # Each array is read where its message or copy starts.
        operands = rows[operands[0]].operands[:1]
    part = row.opcode in _SLICES or row.opcode.endswith("-done")
    read = 0
    for name in dict.fromkeys(operands):
        bytes_ = _size(rows[name].result, in_memory=True) if name in rows else 0
        if row.opcode == "fusion":
            called = _CALLED.search(row.line)
            inside = program.get(called[1], {}) if called else {}
            bytes_ = min(bytes_, _read_of(inside, operands.index(name), bytes_))
        read += min(bytes_, _size(row.result)) if part else bytes_
    return written + read


def _read_of(inside: dict[str, _Row], place: int, whole: int) -> int:
    """Count the bytes that a fusion reads of an operand."""
    names = [name for name, row in inside.items() if f" parameter({place})" in row.line]
    read = 0
    while names:
        name = names.pop()
        for user, row in inside.items():
            if name not in row.operands:
                continue
            if row.opcode in _VIEWS:
                names.append(user)
            elif row.opcode in _SLICES:
                read += _size(row.result)
            else:
                return whole
    return read


def _size(type_: str, *, in_memory: bool = False) -> int:
    """Count the bytes of all arrays in a type.

    Args:
      type_: such as ``(bf16[8,128]{1,0}, s32[]{:S(6)})``.
      in_memory: whether to leave out what is in another space than the memory of the device.
    """
    return sum(
        max(int(re.sub(r"\D", "", kind) or 8) // 8, 1)
        * math.prod(map(int, filter(None, shape.split(","))))
        for kind, shape, layout in _ARRAY.findall(type_)
        if not (in_memory and "S(" in layout)
    )
