"""Interval arithmetic: pure NumPy, int64 nanoseconds, half open.

A set of intervals is two int64 arrays ``start`` and ``end`` of shape (n,), ``start <= end``.
*Disjoint* means sorted, none empty, none touching: what :func:`union` returns. ::

    rows      ├────┤  ├──┤          0..5  3..8  10..12
                 ├───┤
    union     ├──────┤ ├──┤         0..8  10..12

Figures of many independent timelines ("groups") are computed in one pass by laying the timelines
end to end on one :class:`Axis`, so that nothing loops over groups or events in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Disjoint = tuple[Int64, Int64]
"""Starts and ends of disjoint intervals."""

BLOCK_ROWS = 1 << 16
"""Rows handled at once: so few that what is made on the way stays in the processor's cache."""
_DENSE = 1 << 16
"""A table of so many values is always worth it."""
EXACT_FLOAT = 1 << 53
"""Whole numbers below this are exact in float64: sums by `np.bincount`, and places of events."""
_INT64_END = 1 << 63
_SAMPLE = 4096
"""Times that tell a fine clock."""


def union(start: Int64, end: Int64) -> Disjoint:
    """Merge intervals in any order; overlapping and touching ones become one.

    >>> [side.tolist() for side in union(np.array([3, 0, 10]), np.array([8, 5, 12]))]
    [[0, 10], [8, 12]]
    """
    some = end > start
    if not some.all():
        start, end = start[some], end[some]
    if len(start) > 1 and (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    return union_sorted(start, end)


def union_sorted(start: Int64, end: Int64) -> Disjoint:
    """Merge intervals that are sorted by start and not empty.

    What is disjoint already is returned as it is.
    """
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.empty(len(start), np.bool_)
    opens[0] = True
    np.greater(start[1:], reach[:-1], out=opens[1:])
    if opens.all():
        return start, end
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(start)) - 1
    return start[first], reach[last]


def added(start: Int64, end: Int64, reach: int | None = None) -> tuple[Int64, int]:
    """Return the time that each interval adds to what those before it cover, and their last end.

    The intervals are sorted by start; those before the first ended at `reach`, if there are any.
    Adding up the times gives the length of the union, also where it is worked out in parts.

    >>> times, reach = added(np.array([0, 3]), np.array([5, 8]))
    >>> times.tolist(), added(np.array([4, 10]), np.array([6, 12]), reach)[0].tolist()
    ([5, 3], [0, 2])
    """
    top = np.maximum.accumulate(end)
    low = start.copy()
    if reach is not None:
        np.maximum(top, reach, out=top)
        low[0] = max(low[0], reach)
    np.maximum(start[1:], top[:-1], out=low[1:])
    return np.maximum(end - low, 0), int(top[-1])


def common_step(start: Int64, end: Int64) -> int:
    """Return the greatest common step of some times, from the first start; 1 for none.

    >>> common_step(np.array([3, 9]), np.array([7, 21]))
    2
    """
    step = 0
    for part in (slice(None, _SAMPLE), slice(_SAMPLE, None)):
        for times in (start, end):
            step = int(np.gcd.reduce(times[part] - start[:1], initial=step))
        if step == 1:
            break
    return max(1, step)


def length(intervals: Disjoint) -> int:
    """Return the total length of disjoint intervals."""
    return int((intervals[1] - intervals[0]).sum())


def intersect(a: Disjoint, b: Disjoint) -> Disjoint:
    """Return the time that two disjoint sets share."""
    edges = coverage((a, b))
    both = edges.mask == 3
    return union_sorted(edges.start[both], edges.end[both])


def subtract(a: Disjoint, b: Disjoint) -> Disjoint:
    """Return the time of `a` that `b` does not cover."""
    edges = coverage((a, b))
    only = edges.mask == 1
    return union_sorted(edges.start[only], edges.end[only])


def gaps(intervals: Disjoint) -> Disjoint:
    """Return the time between disjoint intervals, from the first to the last."""
    start, end = intervals
    return end[:-1], start[1:]


@dataclass(frozen=True, slots=True)
class Coverage:
    """A line cut where the set of active parts changes; stretches with none active left out.

    Arrays of shape (n,), sorted; bit i of ``mask`` is set where part i is active.
    """

    start: Int64
    end: Int64
    mask: npt.NDArray[np.uint32]


def coverage(parts: Sequence[Disjoint]) -> Coverage:
    """Cut the line at every boundary of up to 31 disjoint sets and say which cover each piece."""
    bits = max(1, (len(parts) - 1).bit_length())
    keys = np.concatenate(
        [(side << bits) | index for index, part in enumerate(parts) for side in part]
        or [np.empty(0, np.int64)]
    )
    keys.sort()
    time = keys >> bits
    toggles = np.left_shift(np.uint32(1), (keys & ((1 << bits) - 1)).astype(np.uint32))
    mask = np.bitwise_xor.accumulate(toggles) if len(toggles) else toggles
    keep = (time[1:] > time[:-1]) & (mask[:-1] != 0)
    return Coverage(time[:-1][keep], time[1:][keep], mask[:-1][keep])


def depth(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return the times at which the number of active intervals changes, and that number after.

    Empty intervals count nowhere. At equal times ends come before starts, so that intervals that
    touch are not active together. Shapes (m,), with possibly repeated times; the last depth is 0.
    """
    some = end > start
    keys = np.concatenate([end[some] << 1, (start[some] << 1) | 1])
    keys.sort()
    return keys >> 1, np.cumsum(((keys & 1) << 1) - 1)


class Cover:
    """Answers how much of any stretch of time a disjoint set covers."""

    def __init__(self, part: Disjoint) -> None:
        self._start, self._end = part
        self._before = np.concatenate(([0], np.cumsum(self._end - self._start)))

    def within(self, start: Int64, end: Int64) -> Int64:
        """Return the time covered within each [start, end): shaped as these."""
        return self._until(end) - self._until(start)

    def _until(self, time: Int64) -> Int64:
        """Return the time that the set covers before each time."""
        begun = np.searchsorted(self._start, time, side="right")
        last = np.maximum(begun - 1, 0)
        if not len(self._start):
            return np.zeros_like(time)
        to_come = np.maximum(self._end[last] - time, 0)
        return self._before[begun] - np.where(begun > 0, to_come, 0)


@dataclass(frozen=True, slots=True)
class Axis:
    """Many timelines laid end to end, a free nanosecond apart.

    Attributes
    ----------
    shift
        Shape (groups,): what to add to a group's times to get positions on the axis.
    begin
        Shape (groups,), increasing: where each group begins on the axis.
    """

    shift: Int64
    begin: Int64

    @classmethod
    def lay_out(cls, earliest: Int64, latest: Int64) -> Axis:
        """Lay out groups that live within [earliest, latest]: arrays of shape (groups,)."""
        sizes = latest - earliest + 1
        begin = np.cumsum(sizes) - sizes
        return cls(begin - earliest, begin)

    @classmethod
    def of_runs(cls, start: Int64, end: Int64, first: Int64) -> Axis:
        """Lay out groups whose intervals lie together, those of each from `first` on."""
        return cls.lay_out(np.minimum.reduceat(start, first), np.maximum.reduceat(end, first))

    def edges(self, position: Int64) -> Int64:
        """Return where each group begins in sorted positions, and their number: (groups + 1,)."""
        return np.append(np.searchsorted(position, self.begin), len(position))

    def group_at(self, position: Int64) -> Int64:
        """Return the group in which each position lies; positions are sorted and on the axis."""
        if not len(self.begin):
            return np.zeros(len(position), np.int64)
        return numbered(self.edges(position))


def run_starts(key: npt.NDArray[Any]) -> Int64:
    """Return where each run of equal values begins.

    >>> run_starts(np.array([7, 7, 3, 7])).tolist()
    [0, 2, 3]
    """
    begins = np.empty(len(key), np.bool_)
    begins[:1] = True
    np.not_equal(key[1:], key[:-1], out=begins[1:])
    return np.flatnonzero(begins)


def running_max(group: npt.NDArray[Any], value: Int64) -> tuple[Int64, Int64]:
    """Return the position and value of the largest `value` so far in each run of `group`.

    Rows of one group lie together; a value of -1 is no value.
    """
    position, reach = np.empty(len(value), np.int64), np.empty(len(value), np.int64)
    if not len(value):
        return position, reach
    high, low = int(value.max()), int(value.min())
    if low < 0:
        low = int(value.min(initial=high, where=value >= 0))
    # Each run is lifted above the one before, so that one running maximum serves for all.
    step = max(high - low, 0) + 2
    top = last = lift = 0
    for begin in range(0, len(value), BLOCK_ROWS):
        part = slice(begin, begin + BLOCK_ROWS)
        own, found, at = value[part], reach[part], position[part]
        opens = np.zeros(len(own), np.int64)
        opens[0] = begin > 0 and group[begin] != group[begin - 1]
        opens[1:] = group[part][1:] != group[part][:-1]
        shift = lift + np.cumsum(opens) * step
        lifted = np.where(own < 0, 0, own - (low - 1)) + shift
        np.maximum.accumulate(lifted, out=found)
        np.maximum(found, top, out=found)
        at[:] = np.where(lifted == found, np.arange(begin, begin + len(own)), 0)
        at[0] = max(int(at[0]), last)
        np.maximum.accumulate(at, out=at)
        top, last, lift = int(found[-1]), int(at[-1]), int(shift[-1])
        found -= shift
        nothing = found <= 0
        at[nothing] = -1
        found += low - 1
        found[nothing] = -1
    return position, reach


def expanded(first: Int64, stop: Int64) -> Int64:
    """Return all positions from each `first` to its `stop`, one after the other.

    >>> expanded(np.array([7, 3]), np.array([9, 4])).tolist()
    [7, 8, 3]
    """
    sizes = stop - first
    begin = np.cumsum(sizes) - sizes
    positions: Int64 = np.arange(int(sizes.sum())) + np.repeat(first - begin, sizes)
    return positions


def spread(values: npt.NDArray[Any], sizes: Int64) -> npt.NDArray[Any]:
    """Repeat each value as often as its size says; a single value takes no memory.

    The result must not be written to.
    """
    return np.broadcast_to(values, sizes[0]) if len(values) == 1 else np.repeat(values, sizes)


def stable_order(key: npt.NDArray[Any]) -> Int64:
    """Return a stable order by an integer key; keys from 0 below 65536 take a radix sort."""
    if len(key) and int(key.min()) >= 0 and int(key.max()) < 1 << 16:
        key = key.astype(np.uint16)
    return np.argsort(key, kind="stable")


def order_by(key: npt.NDArray[Any], *then: Int64) -> Int64:
    """Return a stable order by `key`, then by the other columns.

    Quick where rows of one key already are in the order of the others.
    """
    order = stable_order(key)
    ordered = key.take(order)
    tied = ordered[1:] == ordered[:-1]
    for column in then:
        values = column.take(order)
        if (tied & (values[1:] < values[:-1])).any():
            return np.lexsort((*then[::-1], key))
        tied &= values[1:] == values[:-1]
    return order


def numbered(edges: Int64) -> Int64:
    """Return the number of the part that each row lies in; parts lie between successive edges."""
    return np.repeat(np.arange(len(edges) - 1), np.diff(edges))


def sum_between(values: npt.NDArray[Any], edges: Int64) -> Int64:
    """Sum integers, or count what is true, between successive edges: shape (len(edges) - 1,).

    >>> sum_between(np.array([5, 2, 4]), np.array([0, 2, 2, 3])).tolist()
    [7, 0, 4]
    """
    total = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=total[1:])
    return np.diff(total[edges])


class Grouping:
    """Sums many columns by the same key, exactly.

    >>> Grouping(np.array([1, 0, 1]), 3).sum(np.array([5, 2, 4])).tolist()
    [2, 9, 0]
    """

    def __init__(self, key: npt.NDArray[Any], count: int) -> None:
        """Keys are integers from 0 below `count`."""
        self._order = stable_order(key)
        ordered = key.take(self._order)
        self._first = run_starts(ordered)
        self._present = ordered[self._first]
        self._count = count

    def sum(self, values: npt.NDArray[Any]) -> Int64:
        """Sum integers, or count what is true: shape (..., rows), and of the sums (..., count)."""
        sums = np.zeros((*values.shape[:-1], self._count), np.int64)
        if len(self._first):
            ordered = values.take(self._order, axis=-1)
            sums[..., self._present] = np.add.reduceat(
                ordered, self._first, axis=-1, dtype=np.int64
            )
        return sums


def sum_by(values: npt.NDArray[Any], group: npt.NDArray[Any], count: int) -> Int64:
    """Sum integer `values` by `group`, exactly: shape (count,)."""
    values = np.asarray(values, np.int64)
    if not len(values):
        return np.zeros(count, np.int64)
    low, high = int(values.min()), int(values.max())
    most = max(abs(low), abs(high)) * len(values)
    fits = low >= 0 and most < _INT64_END and int(values.sum()) < EXACT_FLOAT
    if most < EXACT_FLOAT or fits:
        return np.bincount(group, weights=values, minlength=count).astype(np.int64)
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, values)
    return sums


def distinct(index: npt.NDArray[Any]) -> list[int]:
    """Return the distinct values of a column of indices, sorted; -1 and the like may be among them.

    >>> distinct(np.array([2, 0, 2, -1]))
    [-1, 0, 2]
    """
    low = int(index.min(initial=0))
    values: list[int] = np.flatnonzero(np.bincount(index - low if low else index)).tolist()
    return [value + low for value in values]


def number_alike(key: npt.NDArray[Any]) -> tuple[Int64, Int64]:
    """Return the distinct values of a key, and each row's position among them.

    Without a sort where the values lie close together.
    """
    top = int(key.max(initial=0)) + 1
    if top > max(_DENSE, 4 * len(key)) or int(key.min(initial=0)) < 0:
        values, at = np.unique(key, return_inverse=True)
        return values, at
    present = np.zeros(top, np.bool_)
    present[key] = True
    position = np.cumsum(present) - 1
    return np.flatnonzero(present), position[key]


def number_rows(columns: Sequence[Int64]) -> tuple[Int64, Int64]:
    """Give equal rows equal numbers: the number of each row, and the first row of each number.

    Numbers follow the order of the rows, column by column.

    >>> [each.tolist() for each in number_rows([np.array([7, 7, 3]), np.array([2, 1, 1])])]
    [[2, 1, 0], [2, 1, 0]]
    """
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        # The values begin at -1, unless the trace is damaged.
        values, at = number_alike(column + 1)
        code = number_alike(code * len(values) + at)[1]
    first = np.empty(int(code.max(initial=-1)) + 1, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return code, first
