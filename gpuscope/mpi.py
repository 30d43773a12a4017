"""MPI against the GPU: how long the host sat in calls while the device was busy, or was idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import (
    Axis,
    Cover,
    Disjoint,
    distinct,
    run_starts,
    sum_by,
    union,
    union_sorted,
)
from gpuscope.model.classes import CODE, ENGINE_CODES
from gpuscope.model.result import MpiFigures
from gpuscope.model.tables import in_classes
from gpuscope.scopes import Activities, Entry, Groups

Int64 = npt.NDArray[np.int64]


class MpiSums:
    """Time in MPI calls of many entries, added group by group."""

    def __init__(self, activities: Activities, entries: Sequence[Entry]) -> None:
        self._activities = activities
        self._device = np.array([entry.device for entry in entries], np.int64)
        self._sums = np.zeros((3, len(entries)), np.int64)
        self._covers: dict[int, Cover] = {}

    def add(self, groups: Groups) -> None:
        """Add the calls of each group: those made in the range, or by the device's process."""
        a, n = self._activities, len(self._device)
        group = groups.group_of_rows()
        mine = np.flatnonzero(a.op_class[groups.rows] == CODE["mpi"])
        rows, group = groups.rows[mine], group[mine]
        if not len(rows):
            return
        self._sums[0] += np.bincount(groups.entry[group], minlength=n)
        start, end = a.start_ns[rows], a.end_ns[rows]
        first = run_starts(group)
        axis = Axis.of_runs(start, end, first)
        shift = np.repeat(axis.shift, np.diff(np.append(first, len(rows))))
        begin, finish = union(start + shift, end + shift)
        at = axis.group_at(begin)
        entry = groups.entry[group[first[at]]]
        self._sums[1] += sum_by(finish - begin, entry, n)
        begin, finish = begin - axis.shift[at], finish - axis.shift[at]
        for device in distinct(self._device[entry]):
            part = np.flatnonzero(self._device[entry] == device)
            busy = self._cover(device).within(begin[part], finish[part])
            self._sums[2] += sum_by(busy, entry[part], n)

    def _cover(self, device: int) -> Cover:
        if device not in self._covers:
            self._covers[device] = Cover(self._busy(device))
        return self._covers[device]

    def _busy(self, device: int) -> Disjoint:
        a = self._activities
        engine = in_classes(a.op_class, ENGINE_CODES) & (a.device == device)
        rows = np.flatnonzero(engine & (a.end_ns > a.start_ns))
        return union_sorted(a.start_ns[rows], a.end_ns[rows])

    def results(self) -> list[MpiFigures | None]:
        """Return the figures of every entry, None where no call was made."""
        return [
            MpiFigures(count, busy, gpu_busy, busy - gpu_busy) if count else None
            for count, busy, gpu_busy in self._sums.T.tolist()
        ]
