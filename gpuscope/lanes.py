"""Streams, engines and copy rates: the operations of a scope by where they ran and what they moved.

A *lane* is a class, or one direction between two devices. An engine is a lane, but that copies to
and from the host share one on devices with a single copy engine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscope.batches import Batch, KeySums
from gpuscope.intervals import number_alike, sum_by
from gpuscope.measures import link_text
from gpuscope.model.classes import CLASSES, CODE
from gpuscope.model.result import CopyRate, EngineFigures, SizeRate, StreamFigures
from gpuscope.model.tables import STAGED, Operations, in_classes
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities
from gpuscope.units import NS_PER_S

Int64 = npt.NDArray[np.int64]

COPY_LANES = tuple(CODE[name] for name in ("h2d", "d2h", "d2d", "p2p"))
"""The classes of copies that a device makes."""
_IS_COPY = np.isin(np.arange(len(CLASSES)), COPY_LANES)
_SIZES = 64
_SHARED = ("d2h", "h2d")


class Lanes:
    """Numbers for the lanes of a trace: its classes, then its links."""

    def __init__(self, activities: Activities) -> None:
        self._links = np.unique(activities.link[activities.link >= 0])
        self.count = len(CLASSES) + len(self._links)

    def of(self, op_class: npt.NDArray[np.uint8], link: npt.NDArray[np.int32]) -> Int64:
        """Return the lane of each operation."""
        lane = op_class.astype(np.int64)
        peer = np.flatnonzero(link >= 0)
        lane[peer] = len(CLASSES) + np.searchsorted(self._links, link[peer])
        return lane

    def name(self, lane: int) -> tuple[str, str | None]:
        """Return the class of a lane, and its direction between devices."""
        if lane < len(CLASSES):
            return CLASSES[lane], None
        return "p2p", link_text(int(self._links[lane - len(CLASSES)]))


def size_class(size_bytes: Int64) -> Int64:
    """Return k for sizes from 2^(k-1) to 2^k exclusive; 0 for no bytes."""
    return np.frexp(size_bytes.astype(np.float64))[1].astype(np.int64)


def size_bounds(size: int) -> tuple[int, int]:
    """Return the bounds of a size class, the upper one exclusive."""
    return (0, 1) if size == 0 else (1 << (size - 1), 1 << size)


class LaneFigures:
    """Streams, engines and rates of many entries, added batch by batch."""

    def __init__(
        self,
        trace: Trace,
        activities: Activities,
        single_engine: npt.NDArray[np.bool_],
        *,
        clipped: bool = False,
    ) -> None:
        """`single_engine` says of each entry whether its device has one copy engine.

        With `clipped` the edges of a window may have cut operations.
        """
        self._trace, self._activities, self._single = trace, activities, single_engine
        self._entries = len(single_engine)
        self._lanes = Lanes(activities)
        self._span = np.zeros(self._entries, np.int64)
        self._by_stream = KeySums(len(trace.streams) + 1)
        self._classes = len(CLASSES)
        self._by_class: list[Int64] = []
        self._by_lane = KeySums(self._lanes.count)
        self._shared = KeySums(1)
        some_unfit = clipped or bool((self._operations().flags & STAGED).any())
        self._rates = KeySums(self._lanes.count) if some_unfit else self._by_lane
        self._by_size = KeySums(self._lanes.count * _SIZES)

    def add_span(self, time_ns: Int64) -> None:
        """Add to the spans of the entries what lies between the pieces of a time line."""
        self._span += time_ns

    def add(self, batch: Batch) -> None:
        """Add the operations of a batch."""
        a, rows = self._activities, batch.rows
        self._span += batch.span_ns
        op_class, stream = a.op_class[rows], a.stream[rows].astype(np.int64)
        size, lane = a.size_bytes[rows], self._lanes.of(op_class, a.link[rows])
        self._by_stream.add(batch, stream, size, np.flatnonzero(stream >= 0))
        width = (len(self._trace.streams) + 1) * self._classes
        full = batch.entry * width + stream * self._classes + op_class
        keys, at = number_alike(full if stream.min(initial=0) >= 0 else full[stream >= 0])
        self._by_class.append(np.stack([keys, np.bincount(at, minlength=len(keys))]))
        self._by_lane.add(batch, lane, size)
        host = self._single[batch.entry] & in_classes(op_class, [CODE[name] for name in _SHARED])
        self._shared.add(batch, np.zeros_like(lane), size, np.flatnonzero(host))
        copies = np.flatnonzero(_IS_COPY[op_class])
        if self._rates is not self._by_lane:
            copies = copies[~self._unfit(batch, copies)]
            self._rates.add(batch, lane, size, copies)
        self._by_size.add(batch, lane * _SIZES + size_class(size), size, copies)

    def _unfit(self, batch: Batch, rows: Int64) -> npt.NDArray[np.bool_]:
        """Return which of some copies have no rate: their bytes were not moved in their time.

        Those that the edges of a window cut, and those that the driver stages, of which the first
        piece alone is timed.
        """
        operations = self._operations()
        row = self._activities.operation[batch.rows[rows]]
        whole = operations.end_ns[row] - operations.start_ns[row]
        cut = batch.end[rows] - batch.start[rows] < whole
        unfit: npt.NDArray[np.bool_] = cut | (operations.flags[row] & STAGED != 0)
        return unfit

    def _operations(self) -> Operations:
        operations = self._trace.operations
        assert operations is not None
        return operations

    def streams(self) -> list[tuple[StreamFigures, ...]]:
        """Return the streams of every entry, in the order of contexts and numbers."""
        counts: dict[int, int] = {}
        if self._by_class:
            joined = np.concatenate(self._by_class, axis=1)
            keys, at = number_alike(joined[0])
            sums = sum_by(joined[1], at, len(keys))
            counts = dict(zip(keys.tolist(), sums.tolist(), strict=True))
        width = len(self._trace.streams) + 1
        found = []
        for entry, rows in enumerate(self._by_stream.by_entry(self._entries)):
            listed = []
            for number, count, _, work, busy in rows:
                stream = self._trace.streams[number]
                base = (entry * width + number) * self._classes
                listed.append(
                    StreamFigures(
                        context=stream.context,
                        stream=stream.number,
                        kind=stream.kind,
                        priority=stream.priority,
                        count=count,
                        work_ns=work,
                        busy_ns=busy,
                        idle_ns=int(self._span[entry]) - busy,
                        classes={
                            name: counts[base + code]
                            for code, name in enumerate(CLASSES)
                            if base + code in counts
                        },
                    )
                )
            found.append(tuple(sorted(listed, key=lambda each: (each.context, each.stream))))
        return found

    def engines(self) -> list[tuple[EngineFigures, ...]]:
        """Return the engines of every entry that did anything."""
        together = self._shared.by_entry(self._entries)
        found = []
        for entry, rows in enumerate(self._by_lane.by_entry(self._entries)):
            span = int(self._span[entry])
            listed = []
            for lane, count, _, work, busy in rows:
                op_class, link = self._lanes.name(lane)
                if not (self._single[entry] and op_class in _SHARED):
                    name = op_class if link is None else f"{op_class} {link}"
                    listed.append(EngineFigures(name, count, work, busy, span - busy))
            for _, count, _, work, busy in together[entry]:
                listed.append(EngineFigures("+".join(_SHARED), count, work, busy, span - busy))
            found.append(tuple(listed))
        return found

    def rates(self) -> list[tuple[CopyRate, ...]]:
        """Return the copy rates of every entry."""
        by_size = self._by_size.by_entry(self._entries)
        found = []
        for entry, rows in enumerate(self._rates.by_entry(self._entries)):
            sizes: dict[int, list[SizeRate]] = {}
            for key, count, moved, work, busy in by_size[entry]:
                lane, size = divmod(key, _SIZES)
                sizes.setdefault(lane, []).append(
                    SizeRate(*size_bounds(size), count, moved, work, busy, rate(moved, busy))
                )
            found.append(
                tuple(
                    CopyRate(
                        *self._lanes.name(lane),
                        count,
                        moved,
                        work,
                        busy,
                        rate(moved, busy),
                        tuple(sizes[lane]),
                    )
                    for lane, count, moved, work, busy in rows
                    if lane in sizes
                )
            )
        return found


def rate(size_bytes: int, time_ns: int) -> float | None:
    """Return bytes a second; None where no time passed."""
    return size_bytes * NS_PER_S / time_ns if time_ns else None
