"""Batches of groups laid on one axis, and sums over them by any key.

Figures that look at every operation of a scope start from here: rows of engine operations only,
ordered by group and start, on an :class:`~gpuscope.intervals.Axis` on which starts never fall.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import (
    Axis,
    added,
    number_alike,
    order_by,
    run_starts,
    running_max,
    spread,
    stable_order,
    sum_by,
)
from gpuscope.model.classes import ENGINE_CODES, KERNEL_CODES
from gpuscope.model.tables import in_classes
from gpuscope.scopes import Activities, Groups

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

_CHUNK_ROWS = 250_000
"""Operations of a device handled at once, where it is idle often enough to cut it so."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The engine operations of some groups: arrays of shape (m,), but where noted."""

    rows: Int64
    """Indices into the activities."""
    group: Int64
    """Number of each row's group."""
    entry: Int64
    """Entry of each row."""
    start: Int64
    """Position on the axis, never falling."""
    end: Int64
    shift: Int64
    """What to subtract from a position to get the time on the trace's clock."""
    span_ns: Int64
    """Shape (entries,): time from the first lasting operation to the last, summed over groups."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lasting(self) -> Int64:
        """Positions of the rows that take any time."""
        return np.flatnonzero(self.end > self.start)

    def take(self, kept: Int64) -> Batch:
        """Return some of the rows, by position; the spans stay."""
        names = ("rows", "group", "entry", "start", "end", "shift")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

    @classmethod
    def of(cls, activities: Activities, groups: Groups, entries: int) -> Batch:
        """Lay out groups; `entries` is the number of entries there are."""
        group = groups.group_of_rows()
        engine = in_classes(activities.op_class[groups.rows], ENGINE_CODES)
        rows = groups.rows
        if not engine.all():
            kept = np.flatnonzero(engine)
            rows, group = rows.take(kept), group.take(kept)
        start, end = activities.start_ns.take(rows), activities.end_ns.take(rows)
        if not len(rows):
            return cls(rows, group, group, start, end, start, np.zeros(entries, np.int64))
        first = run_starts(group)
        axis = Axis.of_runs(start, end, first)
        sizes = np.diff(np.append(first, len(rows)))
        shift = spread(axis.shift, sizes)
        span = spans(start, end, first)
        entry = spread(groups.entry[group[first]], sizes)
        start += shift
        end += shift
        return cls(
            rows=rows,
            group=group,
            entry=entry,
            start=start,
            end=end,
            shift=shift,
            span_ns=sum_by(span, entry[first], entries),
        )


def spans(start: Int64, end: Int64, first: Int64) -> Int64:
    """Return the time from the first lasting row to the last of each group; they begin at `first`.

    Times are not negative.
    """
    some = end > start
    far = np.iinfo(np.int64).max
    begin = np.minimum.reduceat(np.where(some, start, far), first)
    finish = np.maximum.reduceat(np.where(some, end, -1), first)
    return np.where(finish >= 0, finish - begin, 0)


def device_batches(
    activities: Activities, groups: Groups, entries: int
) -> Iterator[tuple[int, Batch]]:
    """Cut the time line of each device where it is idle, into batches of bounded size.

    Yields the entry of the device with each batch. Gaps between batches are in none of them.
    """
    closes = np.append(groups.first[1:], len(groups.rows))[: len(groups)]
    for entry, low, high in zip(groups.entry.tolist(), groups.first, closes, strict=True):
        rows = groups.rows[low:high]
        rows = rows[in_classes(activities.op_class[rows], ENGINE_CODES)]
        one = np.zeros(1, np.int64)
        for piece in cut_where_idle(activities, rows):
            yield entry, Batch.of(activities, Groups(piece, one, one + entry, one - 1), entries)


def cut_where_idle(activities: Activities, rows: Int64) -> Iterator[Int64]:
    """Cut rows, sorted by start, where none of them is active: into pieces of bounded size.

    Longer ones where something always is.
    """
    if not len(rows):
        return
    begin, reach = 0, int(activities.start_ns[rows[0]])
    for low in range(0, len(rows), _CHUNK_ROWS):
        part = rows[low : low + _CHUNK_ROWS]
        top = np.maximum.accumulate(activities.end_ns[part])
        np.maximum(top, reach, out=top)
        idle = activities.start_ns[part] > np.concatenate([[reach], top[:-1]])
        first = int(idle.argmax())
        if idle[first]:
            yield rows[begin : low + first]
            begin = low + first
        reach = int(top[-1])
    yield rows[begin:]


class KeySums:
    """Count, bytes, work and busy time by (entry, key), over batches."""

    def __init__(self, keys: int) -> None:
        """`keys` is the number of keys; a key is an integer below it."""
        self._keys = keys
        self._parts: list[Int64] = []

    def add(self, batch: Batch, key: Int64, size_bytes: Int64, rows: Int64 | None = None) -> None:
        """Add the rows of a batch, or some of them by position; shared time counts once as busy.

        `key` and `size_bytes` have a value for each row of the batch.
        """
        full = batch.entry * self._keys + key
        if rows is not None:
            full = full.take(rows)
        if not len(full):
            return
        order = stable_order(full)
        full = full.take(order)
        at = order if rows is None else rows.take(order)
        start, end = batch.start.take(at), batch.end.take(at)
        first = run_starts(full)
        sizes = np.diff(np.append(first, len(full)))
        axis = Axis.of_runs(start, end, first)
        shift = np.repeat(axis.shift, sizes)
        busy, _ = added(start + shift, end + shift)
        amounts = (size_bytes.take(at), end - start, busy)
        self._parts.append(
            np.stack([full[first], sizes, *(np.add.reduceat(each, first) for each in amounts)])
        )

    def by_entry(self, entries: int) -> list[list[tuple[int, int, int, int, int]]]:
        """Return, an entry, its rows (key, count, bytes, work_ns, busy_ns) in the order of keys."""
        found: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(entries)]
        if not self._parts:
            return found
        joined = np.concatenate(self._parts, axis=1)
        full, at = number_alike(joined[0])
        sums = [sum_by(column, at, len(full)) for column in joined[1:]]
        for slot, *values in zip(full.tolist(), *(each.tolist() for each in sums), strict=True):
            count, size, work, busy = values
            found[slot // self._keys].append((slot % self._keys, count, size, work, busy))
        return found


def own_starts(op_class: UInt8, stream: Int32, start: Int64, end: Int64) -> Int64:
    """Return from when on each operation does work of its own; arrays are alike in shape.

    A kernel that starts before the kernel before it in its stream has ended (programmatic dependent
    launch) is one link of a chain with it: until then it waits. Where none is, `start` is returned.
    """
    kernels = np.flatnonzero(in_classes(op_class, KERNEL_CODES) & (stream >= 0))
    kernels = kernels[order_by(stream[kernels], start[kernels])]
    lane, begin, finish = stream[kernels], start[kernels], end[kernels]
    follows = lane[1:] == lane[:-1]
    if not (follows & (begin[1:] < finish[:-1])).any():
        return start
    own = start.copy()
    reach = running_max(lane, finish)[1]
    linked = 1 + np.flatnonzero(follows)
    waits = kernels[linked]
    own[waits] = np.minimum(np.maximum(start[waits], reach[linked - 1]), end[waits])
    return own
