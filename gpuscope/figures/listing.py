"""Operations as a table: sorted, searched, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.figures.timeline import Timeline
from gpuscope.model.classes import CLASSES
from gpuscope.units import format_bytes, format_ns, format_rate

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

COLUMNS = ("start", "duration", "class", "name", "size", "rate", "stream")
"""What a table can be sorted by."""
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


def _rows(timeline: Timeline, number: int, low_ns: int, high_ns: int, pattern: str) -> Int64:
    """Return the operations of a trace that touch [low, high) and are named so."""
    placed = timeline.placed[number]
    ops = placed.operations
    low, high = low_ns - placed.shift_ns, high_ns - placed.shift_ns
    rows = np.arange(int(np.searchsorted(ops.start_ns, high)))
    keep = ops.end_ns[rows] > low
    if pattern:
        keep &= timeline.named(number, pattern)[ops.name[rows]]
    kept: Int64 = rows[keep]
    return kept


def listing(
    timeline: Timeline,
    low_ns: int,
    high_ns: int,
    *,
    pattern: str = "",
    sort: str = "start",
    descending: bool = False,
    most: int = 200,
) -> dict[str, Any]:
    """Return the first `most` operations in [low, high) in an order, as JSON.

    Raises
    ------
    KeyError
        There is no column `sort`.
    re.error
        The pattern is no regular expression.
    """
    total, best = 0, []
    for number, placed in enumerate(timeline.placed):
        if sort == "start" and not pattern and len(placed.operations):
            rows = placed.every.first_within(low_ns, high_ns, most, last=descending)
            begun = int(np.searchsorted(placed.every.start_ns, high_ns))
            total += begun - int(np.searchsorted(placed.ends_ns, low_ns, side="right"))
        else:
            rows = _rows(timeline, number, low_ns, high_ns, pattern)
            total += len(rows)
        key = _key(timeline, number, rows, sort)
        key = -key if descending else key
        some = np.argpartition(key, most)[:most] if len(key) > most else np.arange(len(key))
        best += [(float(key[at]), number, int(rows[at])) for at in some.tolist()]
    return {
        "total": total,
        "rows": [_values(timeline, number, row) for _, number, row in sorted(best)[:most]],
    }


def _key(timeline: Timeline, number: int, rows: Int64, sort: str) -> npt.NDArray[np.float64]:
    """Return what some operations are sorted by."""
    placed = timeline.placed[number]
    ops = placed.operations.take(rows)
    duration = ops.end_ns - ops.start_ns
    key: npt.NDArray[np.float64]
    if sort == "rate":
        key = ops.size_bytes / np.maximum(duration, 1)
        return key
    if sort == "name":
        return _alphabetical(placed.trace.strings, ops.name).astype(np.float64)
    column = {
        "start": ops.start_ns + placed.shift_ns,
        "duration": duration,
        "class": ops.op_class,
        "size": ops.size_bytes,
        "stream": ops.stream,
    }[sort]
    return column.astype(np.float64)


def _alphabetical(strings: tuple[str, ...], name: Int32) -> Int64:
    """Return the place of each name in the order of all."""
    used, code = np.unique(name, return_inverse=True)
    order = np.empty(len(used), np.int64)
    order[sorted(range(len(used)), key=lambda at: strings[used[at]])] = np.arange(len(used))
    return order[code]


def _values(timeline: Timeline, number: int, row: int) -> dict[str, Any]:
    placed = timeline.placed[number]
    ops = placed.operations
    start, end = (int(side[row]) + placed.shift_ns for side in (ops.start_ns, ops.end_ns))
    size = int(ops.size_bytes[row])
    rate = size * 1e9 / (end - start) if size and end > start else None
    return {
        "row": timeline.row_of_operation(number, row),
        "item": row,
        "start": start,
        "end": end,
        "name": timeline.short_name(number, int(ops.name[row])),
        "cells": [
            f"{start / 1e6:,.6f} ms",
            format_ns(end - start),
            CLASSES[ops.op_class[row]],
            timeline.short_name(number, int(ops.name[row])),
            format_bytes(size) if size else "",
            format_rate(rate) if rate else "",
            timeline.stream_label(number, row),
        ],
    }


def csv_rows(
    timeline: Timeline, low_ns: int, high_ns: int, pattern: str = ""
) -> Iterator[list[tuple[object, ...]]]:
    """Yield the operations in [low, high) in batches of exact rows, the header first."""
    yield [CSV_COLUMNS]
    for number, placed in enumerate(timeline.placed):
        ops, trace = placed.operations, placed.trace
        every = _rows(timeline, number, low_ns, high_ns, pattern)
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
