"""Level of detail: the marks that a view of a trace needs, at most a few thousand.

Each lane holds the operations of one stream. Near, every operation is a mark. Far out, operations
of one lane and class that lie closer than a pixel become one block with its busy share, so that
nothing that ran is invisible and a block in which gaps dominate does not look solid. Blocks are
prepared once, at steps of four in gap width; a view picks the finest step that a pixel can show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]

MAX_MARKS = 1_500
"""Marks that a browser repaints at once (Plotly: about 60 ms a thousand bars)."""
PIXELS = 1_200
"""Width of the view that marks are made for."""
_STEP = 4
_FIRST_GAP_NS = 1_000


@dataclass(frozen=True, slots=True)
class Marks:
    """What to draw: arrays of shape (n,)."""

    start_ns: Int64
    end_ns: Int64
    lane: Int32
    op_class: UInt8
    busy_ns: Int64
    """Time in which something ran; of a single operation its duration."""
    count: Int64
    """Operations in the mark."""
    row: Int64
    """Index of the operation, or of the first one of a block."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice) -> Marks:
        """Return the marks selected by a mask, an index array or a slice."""
        return Marks(*(getattr(self, name)[rows] for name in Marks.__slots__))


@dataclass(frozen=True, slots=True)
class _Level:
    gap_ns: int
    """Operations of a lane and class that are closer than this are one mark."""
    marks: Marks
    """Sorted by start."""
    reach_ns: Int64
    """Latest end so far: what a view that begins at t needs starts where this exceeds t."""


class Pyramid:
    """The marks of a trace at every level of detail.

    Parameters
    ----------
    start_ns, end_ns, lane, op_class, row
        The operations, arrays of shape (n,), sorted by start.
    """

    def __init__(
        self, start_ns: Int64, end_ns: Int64, lane: Int32, op_class: UInt8, row: Int64
    ) -> None:
        marks = Marks(
            start_ns, end_ns, lane, op_class, end_ns - start_ns, np.ones_like(start_ns), row
        )
        self._levels = [_level(0, marks)]
        by_lane = marks.take(np.lexsort((start_ns, op_class, lane)))
        gap = _FIRST_GAP_NS
        while len(by_lane) > MAX_MARKS and gap < 1 << 60:
            merged = _merge(by_lane, gap)
            if len(merged) < 0.7 * len(self._levels[-1].marks):
                self._levels.append(
                    _level(gap, merged.take(np.argsort(merged.start_ns, kind="stable")))
                )
            by_lane = merged
            gap *= _STEP

    def view(self, low_ns: int, high_ns: int, lanes: Sequence[int] | None = None) -> Marks:
        """Return the marks that touch [low, high), at most MAX_MARKS, on `lanes` (default all).

        The detail is that of a screen PIXELS wide.
        """
        pixel = max(1, (high_ns - low_ns) // PIXELS)
        finest = max(i for i, level in enumerate(self._levels) if level.gap_ns <= pixel)
        for level in self._levels[finest:]:
            first = int(np.searchsorted(level.reach_ns, low_ns, side="right"))
            stop = int(np.searchsorted(level.marks.start_ns, high_ns))
            if stop - first <= 4 * MAX_MARKS or level is self._levels[-1]:
                break
        marks = level.marks.take(slice(first, stop))
        marks = marks.take(marks.end_ns > low_ns)
        if lanes is not None:
            marks = marks.take(np.isin(marks.lane, lanes))
        if len(marks) <= MAX_MARKS:
            return marks
        marks = marks.take(np.lexsort((marks.start_ns, marks.op_class, marks.lane)))
        gaps = np.sort(_gaps(marks))
        # As many blocks remain as there are gaps at least this wide.
        enough = int(gaps[max(0, len(gaps) - MAX_MARKS)]) if len(gaps) else pixel
        return _merge(marks, max(pixel, enough))


def _level(gap_ns: int, marks: Marks) -> _Level:
    return _Level(gap_ns, marks, np.maximum.accumulate(marks.end_ns))


def _key(marks: Marks) -> Int64:
    return marks.lane.astype(np.int64) * 256 + marks.op_class


def _gaps(marks: Marks) -> Int64:
    """Return the gaps between marks that follow each other in one lane and class."""
    gaps = marks.start_ns[1:] - marks.end_ns[:-1]
    within_lane: Int64 = gaps[np.diff(_key(marks)) == 0]
    return within_lane


def _merge(marks: Marks, gap_ns: int) -> Marks:
    """Join marks of one lane and class closer than `gap_ns`; sorted by (lane, class, start)."""
    if not len(marks):
        return marks
    new_key = np.diff(_key(marks), prepend=-1) != 0
    # Ends do not decrease within a lane, but for operations that overlap in one stream.
    reach = np.maximum.accumulate(marks.end_ns + np.cumsum(new_key) * (1 << 50)) - np.cumsum(
        new_key
    ) * (1 << 50)
    opens = new_key.copy()
    opens[1:] |= marks.start_ns[1:] - reach[:-1] >= gap_ns
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(marks)) - 1
    length = reach[last] - marks.start_ns[first]
    return Marks(
        start_ns=marks.start_ns[first],
        end_ns=reach[last],
        lane=marks.lane[first],
        op_class=marks.op_class[first],
        busy_ns=np.minimum(np.add.reduceat(marks.busy_ns, first), length),
        count=np.add.reduceat(marks.count, first),
        row=marks.row[first],
    )
