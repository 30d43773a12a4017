"""Level of detail: what a view of a row of the timeline needs, whatever the row holds.

A row holds intervals, each with a paint (a class of operations, a cause, ...). Near, each is a mark
of its own. Far out, a row is the share of every column of pixels that each paint covers, exact and
from running sums, so that nothing that ran is invisible and gaps stay visible; intervals that are
wide on the screen are marks then, too. ::

    intervals  ├┤├┤ ├┤├┤    ├──────────────────┤ ├┤
    columns    0.8  0.8  0  1  1  1  1  1  1  1  0.4
    marks                   ├──────────────────┤

A view costs a few binary searches for each column, and memory a few numbers for each interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import run_starts, stable_order

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]

FULL = 255
"""A column that is covered all the time."""
WIDE_COLUMNS = 4
"""An interval at least this wide is a mark of its own beside the columns."""
MAX_WIDE = 600
"""Such marks of one paint in one row; more there are only where intervals overlap."""
_STEP = 4
"""From one list of long intervals to the next, the shortest grows by this factor."""
_SAMPLE = 1_000
"""Intervals from which the length of most is told."""
_WORTH = 0.7
"""A list of long intervals is kept if it is shorter than the last by this factor."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Intervals to draw one by one: arrays of shape (n,)."""

    start_ns: Int64
    end_ns: Int64
    item: Int32
    """What it is: an index into the table that the row shows."""

    def __len__(self) -> int:
        return len(self.start_ns)


class Part:
    """The intervals of one paint in one row.

    Parameters
    ----------
    start_ns, end_ns, item
        Arrays of shape (n,), sorted by start; intervals may overlap.
    """

    def __init__(self, start_ns: Int64, end_ns: Int64, item: Int32) -> None:
        self.start_ns, self.end_ns, self.item = start_ns, end_ns, item
        reach = np.maximum.accumulate(end_ns)
        # Intervals that follow each other end in order: then one array serves for both.
        self._reach = end_ns if np.array_equal(reach, end_ns) else reach
        fresh = reach - start_ns
        np.subtract(reach[1:], np.maximum(start_ns[1:], reach[:-1]), out=fresh[1:])
        self._covered = np.cumsum(fresh)
        self._long = self._long_ones()

    def __len__(self) -> int:
        return len(self.start_ns)

    def _long_ones(self) -> list[tuple[int, Int32]]:
        """List the positions of the intervals longer than each of some lengths, lengths rising."""
        duration = self.end_ns - self.start_ns
        kept = np.arange(len(duration), dtype=np.int32)
        lists: list[tuple[int, Int32]] = []
        length = 1
        if len(duration) > _SAMPLE:
            # Lists of lengths that most intervals have are not worth keeping: begin beyond them.
            typical = np.quantile(duration[:: len(duration) // _SAMPLE], 1 - _WORTH)
            while length * _STEP <= typical:
                length *= _STEP
        while len(kept) > MAX_WIDE and length < 1 << 60:
            length *= _STEP
            fewer = kept[duration[kept] >= length]
            if len(fewer) < _WORTH * (len(lists[-1][1]) if lists else len(duration)):
                lists.append((length, fewer))
            kept = fewer
        return lists

    def within(self, low_ns: int, high_ns: int) -> tuple[int, int]:
        """Return the positions between which all intervals lie that touch [low, high)."""
        first = int(np.searchsorted(self._reach, low_ns, side="right"))
        return first, max(first, int(np.searchsorted(self.start_ns, high_ns)))

    def first_within(self, low_ns: int, high_ns: int, most: int, *, last: bool = False) -> Int64:
        """Return the positions of the first, or the last, `most` intervals that touch [low, high).

        Some at a time are looked at: what lies beyond is not touched.
        """
        first, stop = self.within(low_ns, high_ns)
        found: list[Int64] = []
        size = 4 * most
        while first < stop and sum(len(each) for each in found) < most:
            begin, end = (
                (max(first, stop - size), stop) if last else (first, min(stop, first + size))
            )
            rows = np.arange(begin, end)
            found.append(rows[self.end_ns[rows] > low_ns])
            first, stop = (first, begin) if last else (end, stop)
            size *= 4
        joined = np.concatenate(found[::-1] if last else found) if found else np.empty(0, np.int64)
        return joined[-most:] if last else joined[:most]

    def covered(self, time_ns: Int64) -> Int64:
        """Return how much time the intervals cover before each of some times."""
        return self._covered_by(np.searchsorted(self.start_ns, time_ns), time_ns)

    def _covered_by(self, begun: Int64, time_ns: Int64) -> Int64:
        """Return what is covered before each of some times; as many intervals begin before it."""
        last = np.maximum(begun - 1, 0)
        time = self._covered[last] - np.maximum(self._reach[last] - time_ns, 0)
        return np.where(begun > 0, time, 0)

    def columns(self, edges_ns: Int64) -> UInt8:
        """Return the covered share of each column between two edges, 0 to FULL.

        It is 0 only where nothing ran: an interval of no length counts, too.
        """
        begun = np.searchsorted(self.start_ns, edges_ns)
        share = np.diff(self._covered_by(begun, edges_ns)) * FULL
        size = np.diff(edges_ns)
        share = -(-share // size)
        shares: UInt8 = np.maximum(share, np.diff(begun) > 0).astype(np.uint8)
        return shares

    def marks(self, low_ns: int, high_ns: int, shortest_ns: int = 0) -> Marks:
        """Return the intervals that touch [low, high) and last `shortest_ns` or longer."""
        first, stop = self.within(low_ns, high_ns)
        long_ones = [rows for length, rows in self._long if length <= shortest_ns]
        if long_ones:
            begin, end = np.searchsorted(long_ones[-1], [first, stop])
            rows = long_ones[-1][begin:end]
        else:
            rows = np.arange(first, stop, dtype=np.int32)
        duration = self.end_ns[rows] - self.start_ns[rows]
        rows = rows[(self.end_ns[rows] > low_ns) & (duration >= shortest_ns)]
        if shortest_ns and len(rows) > MAX_WIDE:
            duration = self.end_ns[rows] - self.start_ns[rows]
            rows = np.sort(rows[np.argpartition(-duration, MAX_WIDE)[:MAX_WIDE]])
        return Marks(self.start_ns[rows], self.end_ns[rows], self.item[rows])


@dataclass(frozen=True, slots=True)
class RowView:
    """What to draw of one row."""

    columns: Mapping[int, UInt8]
    """Covered share of every column by paint; empty where every interval is a mark."""
    marks: Mapping[int, Marks]
    """By paint."""


def view(
    parts: Mapping[int, Part], low_ns: int, high_ns: int, column_ns: int, most: int
) -> RowView:
    """Return what to draw of a row in [low, high): all its intervals if there are at most `most`.

    Parameters
    ----------
    parts
        The row's intervals by paint.
    column_ns
        Width of a column; `low_ns` is the left edge of the first.
    """
    if sum(stop - first for first, stop in (p.within(low_ns, high_ns) for p in parts.values())) <= (
        most
    ):
        return RowView({}, {paint: part.marks(low_ns, high_ns) for paint, part in parts.items()})
    count = -(-(high_ns - low_ns) // column_ns)
    edges = low_ns + column_ns * np.arange(count + 1, dtype=np.int64)
    return RowView(
        {paint: part.columns(edges) for paint, part in parts.items()},
        {
            paint: part.marks(low_ns, high_ns, WIDE_COLUMNS * column_ns)
            for paint, part in parts.items()
        },
    )


def split(
    row: Int32, paint: Int32, start_ns: Int64, end_ns: Int64, item: Int32
) -> dict[int, dict[int, Part]]:
    """Sort intervals, arrays of shape (n,) by start, into parts by row and paint."""
    if not len(row):
        return {}
    paints = int(paint.max()) + 1
    key = row.astype(np.int64) * paints + paint
    order = stable_order(key)
    key = key[order]
    rows: dict[int, dict[int, Part]] = {}
    for begin, stop in pairwise([*run_starts(key).tolist(), len(key)]):
        number, code = divmod(int(key[begin]), paints)
        mine = order[begin:stop]
        rows.setdefault(number, {})[code] = Part(start_ns[mine], end_ns[mine], item[mine])
    return rows
