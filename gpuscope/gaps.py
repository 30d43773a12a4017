"""Idle gaps: when nothing ran on a device, what ended before and what started after.

::

kernel  ├────┤          ├───┤
h2d       ├─────┤           ├──────┤
gap             ├───────┤            before: h2d, after: kernel
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscope.batches import Batch
from gpuscope.intervals import number_alike, sum_by
from gpuscope.model.classes import CLASSES
from gpuscope.model.result import Gap, GapKind, Gaps, Neighbour
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities

Int64 = npt.NDArray[np.int64]

LARGEST = 5
"""How many gaps of a scope are listed one by one."""


class GapFigures:
    """The gaps of many entries, added batch by batch."""

    def __init__(self, trace: Trace, activities: Activities, entries: int) -> None:
        self._trace, self._activities = trace, activities
        self._kinds = len(CLASSES) ** 2
        self._sums: list[Int64] = []
        self._largest = np.empty((5, 0), np.int64)
        self._entries = entries
        self._ends: dict[int, tuple[int, int]] = {}
        self.between_ns = np.zeros(entries, np.int64)
        """Shape (entries,): idle time between the pieces of a time line that came in pieces."""

    def add_piece(self, entry: int, batch: Batch) -> None:
        """Add a piece of the one time line of `entry`, and the gap since the piece before."""
        kept = batch.lasting
        if not len(kept):
            return
        at = kept[int(batch.end[kept].argmax())]
        begin, row = int((batch.start - batch.shift)[kept[0]]), int(batch.rows[kept[0]])
        if entry in self._ends:
            reach, before = self._ends[entry]
            self.between_ns[entry] += begin - reach
            columns = (entry, begin - reach, reach, before, row)
            self._note(*(np.array([value], np.int64) for value in columns))
        self._ends[entry] = (int(batch.end[at] - batch.shift[at]), int(batch.rows[at]))
        self.add(batch)

    def add(self, batch: Batch) -> None:
        """Add the gaps between the operations of each group."""
        kept = batch.lasting
        if len(kept) < 2:
            return
        start, end = batch.start[kept], batch.end[kept]
        reach = np.maximum.accumulate(end)
        after = np.flatnonzero(start[1:] > reach[:-1]) + 1
        after = after[batch.group[kept[after]] == batch.group[kept[after - 1]]]
        # What reached so far first is what ended last.
        leader = np.zeros(len(end), np.int64)
        leads = np.flatnonzero(end[1:] > reach[:-1]) + 1
        leader[leads] = leads
        np.maximum.accumulate(leader, out=leader)
        before = leader[after - 1]
        entry = batch.entry[kept[after]]
        size = start[after] - reach[after - 1]
        begin = reach[after - 1] - batch.shift[kept[after]]
        before, after = batch.rows[kept[before]], batch.rows[kept[after]]
        self._note(entry, size, begin, before, after)

    def _note(self, entry: Int64, size: Int64, begin: Int64, before: Int64, after: Int64) -> None:
        """Add gaps: their entry, length and start, and the activities around each."""
        op_class = self._activities.op_class
        kind = op_class[before].astype(np.int64) * len(CLASSES) + op_class[after]
        keys, at = number_alike(entry * self._kinds + kind)
        self._sums.append(
            np.stack([keys, np.bincount(at, minlength=len(keys)), sum_by(size, at, len(keys))])
        )
        self._keep_largest(np.stack([entry, size, begin, before, after]))

    def _keep_largest(self, gaps: Int64) -> None:
        joined = np.concatenate([self._largest, gaps], axis=1)
        joined = joined[:, np.lexsort((joined[2], -joined[1], joined[0]))]
        first = np.searchsorted(joined[0], joined[0])
        self._largest = joined[:, np.arange(joined.shape[1]) - first < LARGEST]

    def results(self) -> list[Gaps]:
        """Return the gaps of every entry."""
        kinds: list[list[GapKind]] = [[] for _ in range(self._entries)]
        if self._sums:
            joined = np.concatenate(self._sums, axis=1)
            keys, at = number_alike(joined[0])
            counts, times = (sum_by(column, at, len(keys)) for column in joined[1:])
            for key, count, ns in zip(keys.tolist(), counts.tolist(), times.tolist(), strict=True):
                entry, kind = divmod(key, self._kinds)
                before, after = divmod(kind, len(CLASSES))
                kinds[entry].append(GapKind(CLASSES[before], CLASSES[after], count, ns))
        largest: list[list[Gap]] = [[] for _ in range(self._entries)]
        for entry, size, begin, before, after in self._largest.T.tolist():
            largest[entry].append(Gap(begin, size, self._operation(before), self._operation(after)))
        return [
            Gaps(
                count=sum(kind.count for kind in of_entry),
                total_ns=sum(kind.ns for kind in of_entry),
                kinds=tuple(sorted(of_entry, key=lambda kind: -kind.ns)),
                largest=tuple(listed),
            )
            for of_entry, listed in zip(kinds, largest, strict=True)
        ]

    def _operation(self, row: int) -> Neighbour:
        operations = self._trace.operations
        assert operations is not None
        a = self._activities
        return Neighbour(
            op_class=CLASSES[int(a.op_class[row])],
            name=self._trace.strings[int(operations.name[a.operation[row]])],
            stream=self._trace.streams[int(a.stream[row])].number if a.stream[row] >= 0 else None,
        )
