"""Operations as a table: sorted, searched, some at a time."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.figures.timeline import NO_STREAM, Timeline
from gpuscope.model.classes import CLASSES
from gpuscope.units import NS_PER_S, format_bytes, format_ns, format_rate

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

COLUMNS = {
    "start": "time",
    "duration": "time",
    "class": "text",
    "name": "text",
    "size": "size",
    "rate": "rate",
    "stream": "text",
    "device": "text",
}
"""What a table can be sorted and filtered by, and what the values of a column are."""
SIGNS: Mapping[str, Callable[[Any, float], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}
"""How numbers are compared; times are in ns, sizes in bytes, rates in bytes/s."""
HAS = "has"
"""The text of a column has another in it, in any case."""
CSV_COLUMNS = (
    "trace",
    "process",
    "device",
    "stream",
    "class",
    "name",
    "start_ns",
    "end_ns",
    "size_bytes",
)
_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Condition:
    """What the value of a column must be for a row to be kept."""

    column: str
    sign: str
    """One of SIGNS for numbers, HAS for texts."""
    value: Any

    @property
    def is_one(self) -> bool:
        """Whether there is such a column, and the value fits it."""
        kind = COLUMNS.get(self.column)
        if kind == "text":
            return self.sign == HAS and isinstance(self.value, str)
        number = isinstance(self.value, int | float) and math.isfinite(self.value)
        return kind is not None and self.sign in SIGNS and number


def shown_columns(timeline: Timeline) -> dict[str, str]:
    """Return the columns of a table: the device where there are several, as of several ranks."""
    several = sum(map(len, timeline.row_of_device)) > 1
    return {name: kind for name, kind in COLUMNS.items() if several or name != "device"}


def _rows(
    timeline: Timeline,
    number: int,
    low_ns: int,
    high_ns: int,
    pattern: str,
    conditions: Sequence[Condition] = (),
) -> Int64:
    """Return the operations of a trace that touch [low, high), are named so, and fit."""
    placed = timeline.placed[number]
    ops = placed.operations
    if not len(ops):
        return np.empty(0, np.int64)
    first, stop = placed.every.within(low_ns, high_ns)
    rows = np.arange(first, stop)
    keep = ops.end_ns[first:stop] > low_ns - placed.shift_ns
    if pattern:
        keep &= timeline.named(number, pattern)[ops.name[rows]]
    kept: Int64 = rows[keep]
    for condition in conditions:
        kept = kept[_fits(timeline, number, kept, condition)]
    return kept


def _fits(
    timeline: Timeline, number: int, rows: Int64, condition: Condition
) -> npt.NDArray[np.bool_]:
    """Return which of some operations meet a condition."""
    column, placed = condition.column, timeline.placed[number]
    fits: npt.NDArray[np.bool_]
    if condition.sign != HAS:
        key = _key(timeline, number, rows, column)
        fits = SIGNS[condition.sign](key, float(condition.value))
        return fits
    ops = placed.operations
    texts: Sequence[str]
    codes: npt.NDArray[Any]
    if column == "class":
        texts, codes = CLASSES, ops.op_class[rows]
    elif column == "name":
        texts, codes = placed.trace.strings, ops.name[rows]
    elif column == "device":
        devices = range(len(placed.trace.devices))
        texts = [timeline.device_label(number, device) for device in devices]
        codes = ops.device[rows]
    else:  # a stream of -1, none, is the last
        texts = [*(stream.label for stream in placed.trace.streams), NO_STREAM]
        codes = ops.stream[rows]
    wanted = condition.value.casefold()
    hits = np.array([wanted in text.casefold() for text in texts], np.bool_)
    fits = hits[codes]
    return fits


def listing(
    timeline: Timeline,
    low_ns: int,
    high_ns: int,
    *,
    pattern: str = "",
    conditions: Sequence[Condition] = (),
    sort: str = "start",
    descending: bool = False,
    most: int = 200,
) -> dict[str, Any]:
    """Return the first `most` operations in [low, high) in an order, as JSON.

    Raises
    ------
    KeyError
        There is no column `sort`.
    PatternError
        The pattern is no regular expression, or takes too long.
    """
    total, best = 0, []
    for number, placed in enumerate(timeline.placed):
        if sort == "start" and not (pattern or conditions) and len(placed.operations):
            rows = placed.every.first_within(low_ns, high_ns, most, last=descending)
            begun = int(np.searchsorted(placed.every.start_ns, high_ns))
            total += begun - int(np.searchsorted(placed.ends_ns, low_ns, side="right"))
        else:
            rows = _rows(timeline, number, low_ns, high_ns, pattern, conditions)
            total += len(rows)
        key = _key(timeline, number, rows, sort)
        key = -key if descending else key
        some = np.argpartition(key, most)[:most] if len(key) > most else np.arange(len(key))
        best += [(float(key[at]), number, int(rows[at])) for at in some.tolist()]
    best.sort()
    if sort == "name":  # their places in the order of each trace do not compare
        best.sort(key=lambda each: _name(timeline, *each[1:]), reverse=descending)
    return {
        "total": total,
        "rows": [values(timeline, number, row) for _, number, row in best[:most]],
    }


def _name(timeline: Timeline, number: int, row: int) -> str:
    """Return the whole name of an operation of a trace."""
    placed = timeline.placed[number]
    name: str = placed.trace.strings[placed.operations.name[row]]
    return name


def _key(timeline: Timeline, number: int, rows: Int64, sort: str) -> npt.NDArray[np.float64]:
    """Return what some operations are sorted by."""
    placed = timeline.placed[number]
    ops = placed.operations
    if sort == "name":
        return _alphabetical(placed.trace.strings, ops.name[rows]).astype(np.float64)
    if sort in ("duration", "rate"):
        duration = ops.end_ns[rows] - ops.start_ns[rows]
        if sort == "duration":
            return duration.astype(np.float64)
        rate: npt.NDArray[np.float64] = ops.size_bytes[rows] * NS_PER_S / np.maximum(duration, 1)
        return rate
    if sort == "start":
        return (ops.start_ns[rows] + placed.shift_ns).astype(np.float64)
    if sort == "stream":  # a stream of -1, none, is the last
        numbers = [*(stream.number for stream in placed.trace.streams), math.inf]
        of_stream: npt.NDArray[np.float64] = np.array(numbers, np.float64)[ops.stream[rows]]
        return of_stream
    if sort == "device":
        before = sum(len(each.trace.devices) for each in timeline.placed[:number])
        return (ops.device[rows] + before).astype(np.float64)
    columns: dict[str, npt.NDArray[Any]] = {"class": ops.op_class, "size": ops.size_bytes}
    return columns[sort][rows].astype(np.float64)


def _alphabetical(strings: tuple[str, ...], name: Int32) -> Int64:
    """Return the place of each name in the order of all."""
    used, code = np.unique(name, return_inverse=True)
    order = np.empty(len(used), np.int64)
    order[sorted(range(len(used)), key=lambda at: strings[used[at]])] = np.arange(len(used))
    return order[code]


def values(timeline: Timeline, number: int, row: int) -> dict[str, Any]:
    """Return an operation of a trace as a row of the table."""
    placed = timeline.placed[number]
    ops = placed.operations
    start, end = (int(side[row]) + placed.shift_ns for side in (ops.start_ns, ops.end_ns))
    size = int(ops.size_bytes[row])
    rate = size * 1e9 / (end - start) if size and end > start else None
    cells = {
        "start": f"{start / 1e6:,.6f} ms",
        "duration": format_ns(end - start),
        "class": CLASSES[ops.op_class[row]],
        "name": timeline.short_name(number, int(ops.name[row])),
        "size": format_bytes(size) if size else "",
        "rate": format_rate(rate) if rate else "",
        "stream": timeline.stream_label(number, row),
        "device": timeline.device_label(number, int(ops.device[row])),
    }
    return {
        "row": timeline.row_of_operation(number, row),
        "item": row,
        "start": start,
        "end": end,
        "name": cells["name"],
        "cells": [cells[name] for name in shown_columns(timeline)],
    }


def csv_rows(
    timeline: Timeline,
    low_ns: int,
    high_ns: int,
    pattern: str = "",
    conditions: Sequence[Condition] = (),
) -> Iterator[list[tuple[object, ...]]]:
    """Yield the operations in [low, high) in batches of exact rows, the header first."""
    yield [CSV_COLUMNS]
    for number, placed in enumerate(timeline.placed):
        ops, trace = placed.operations, placed.trace
        every = _rows(timeline, number, low_ns, high_ns, pattern, conditions)
        for first in range(0, len(every), _BATCH):
            rows = every[first : first + _BATCH]
            yield [
                (
                    trace.path,
                    trace.processes[process].pid,
                    trace.devices[device].number,
                    trace.streams[stream].number if stream >= 0 else None,
                    CLASSES[code],
                    trace.strings[name],
                    start,
                    end,
                    size,
                )
                for process, device, stream, code, name, start, end, size in zip(
                    *(
                        column[rows].tolist()
                        for column in (
                            ops.process,
                            ops.device,
                            ops.stream,
                            ops.op_class,
                            ops.name,
                            ops.start_ns,
                            ops.end_ns,
                            ops.size_bytes,
                        )
                    ),
                    strict=True,
                )
            ]
