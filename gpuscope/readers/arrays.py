"""The columns of an export joined, sorted, kept small and looked up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import BLOCK_ROWS
from gpuscope.model.tables import ApiCalls, MpiCalls, Operations, Ranges, SyncRecords, Table
from gpuscope.readers.database import Columns
from gpuscope.readers.numbering import LARGE_LOOKUP

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Value = npt.NDArray[Any] | int
"""A column: an array, or the one value of all rows."""
Arrays = dict[str, npt.NDArray[Any]]
Part = dict[str, Value]
_AnyTable = TypeVar("_AnyTable", bound=Table)
_Timed = TypeVar("_Timed", Operations, ApiCalls, Ranges, MpiCalls, SyncRecords)

_PEEK = 64
"""Rows looked at first to see that a column is not constant."""


def joined(parts: Sequence[Arrays]) -> Arrays | None:
    """Join the columns of several parts, which are used up; None where there is no part."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]}


def merged(parts: Sequence[Part]) -> tuple[Operations, Int64]:
    """Join the parts, which are used up, and sort the rows by (start, end), stable.

    Each column is written once, to where its rows belong. A column with one value throughout takes
    no memory, and must not be written to.

    Returns
    -------
    operations
        The rows of all parts.
    place
        Shape (n,): where each row of the parts, in their order, went.
    """
    starts = np.concatenate([part["start_ns"] for part in parts])
    order = _order(starts, np.concatenate([part["end_ns"] for part in parts]))
    place = np.empty(len(starts), np.int64)
    place[order] = np.arange(len(starts))
    edges = np.cumsum([0, *(np.size(part["start_ns"]) for part in parts)]).tolist()
    places = [place[low:high] for low, high in pairwise(edges)]
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, empty in Operations.empty().columns().items():
        values = [part.pop(name) for part in parts]
        only = None if name == "flags" else _one_value(values)
        if only is not None:
            columns[name] = np.broadcast_to(np.array(only, empty.dtype), len(starts))
            continue
        column = columns[name] = np.empty(len(starts), empty.dtype)
        for where, value in zip(places, values, strict=True):
            column[where] = value
    return Operations(**columns), place


def _one_value(values: Sequence[Value]) -> int | None:
    """Return the one value of a column given in parts; None where there are several, or none."""
    found = set()
    for value in values:
        if isinstance(value, np.ndarray):
            if not len(value):
                continue
            first = value[0]
            if (value[:_PEEK] != first).any() or (value != first).any():
                return None
            value = int(first)
        found.add(value)
    return found.pop() if len(found) == 1 else None


def compact(table: _AnyTable | None) -> _AnyTable | None:
    """Keep one value of each column that has only one; such a column must not be written to."""
    if table is None:
        return None
    columns = table.columns()
    for name, column in columns.items():
        only = _one_value([column])
        if only is not None:
            columns[name] = np.broadcast_to(np.array(only, column.dtype), len(column))
    return type(table)(**columns)


def _order(start: Int64, end: Int64) -> Int64:
    """Return the rows in the order of (start, end), stable."""
    order = np.argsort(start, kind="stable")
    in_order = start[order]
    tied = np.flatnonzero(in_order[1:] == in_order[:-1])
    if (end[order[tied + 1]] < end[order[tied]]).any():
        return np.lexsort((end, start))
    return order


def by_time(table: _Timed) -> _Timed:
    """Sort by (start, end), stable; a table in order is returned as it is."""
    start, end = table.start_ns, table.end_ns
    ordered = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] >= end[:-1]))
    return table if ordered.all() else table.take(_order(start, end))


def rows_by_correlation(api: ApiCalls | None) -> Callable[[Int32, Int64], Int32]:
    """Return the lookup from (process, correlation) to the row of the call in `api`, -1 if none.

    Where several calls share an id, the one that started first counts: it is the outermost.
    """
    if not api:
        return lambda process, correlation: np.full(len(process), -1, np.int32)
    processes = int(api.process.max()) + 1
    low, high = int(api.correlation.min()), int(api.correlation.max())
    width = high - low + 1
    if width * processes <= max(LARGE_LOOKUP, 4 * len(api)):
        table = np.full(width * processes, -1, np.int32)
        for end in range(len(api), 0, -BLOCK_ROWS):
            part = slice(max(end - BLOCK_ROWS, 0), end)
            slot = api.process[part].astype(np.int64) * width + (api.correlation[part] - low)
            table[slot[::-1]] = np.arange(end - 1, part.start - 1, -1, dtype=np.int32)

        def look_up(process: Int32, correlation: Int64) -> Int32:
            inside = (correlation >= max(low, 0)) & (correlation <= high) & (process < processes)
            slots = process.astype(np.int64) * width + (correlation - low)
            return np.where(inside, table[np.where(inside, slots, 0)], -1).astype(np.int32)

        return look_up

    order = np.lexsort((np.arange(len(api)), api.correlation, api.process))
    sorted_process, sorted_id = api.process[order], api.correlation[order]
    bounds = np.searchsorted(sorted_process, np.arange(processes + 1))

    def search(process: Int32, correlation: Int64) -> Int32:
        found = np.full(len(process), -1, np.int32)
        for number in range(processes):
            mine = np.flatnonzero((process == number) & (correlation >= 0))
            part = sorted_id[bounds[number] : bounds[number + 1]]
            if not len(part) or not len(mine):
                continue
            at = np.minimum(np.searchsorted(part, correlation[mine]), len(part) - 1)
            hit = part[at] == correlation[mine]
            found[mine[hit]] = order[bounds[number] + at[hit]]
        return found

    return search


def tuples(table: Columns | None) -> list[tuple[int, ...]]:
    """Return the rows of a small table; none where there is no table."""
    if table is None:
        return []
    return list(zip(*(column.tolist() for column in table.values()), strict=True))
