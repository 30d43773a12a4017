"""Contention: what running beside other work cost the operations themselves.

An operation ran *alone* if nothing else ran on its device at any time of it, and *overlapped* if
something did for at least half of its time; the rest is neither. Alike are kernels of one name and
launch configuration, and copies of one class, direction and size class (powers of two). What the
overlapped ones would have taken alone is the mean of those alike that ran alone anywhere in the
trace, by count for kernels and by bytes for copies. Communication kernels are left out, for their
durations include waiting for peers, and so is a kernel that began before the one before it in its
stream had ended, until when it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from gpuscope.batches import Batch, cut_where_idle, own_starts
from gpuscope.intervals import (
    BLOCK_ROWS,
    Cover,
    distinct,
    number_alike,
    number_rows,
    sum_by,
    union_sorted,
)
from gpuscope.lanes import COPY_LANES, Lanes, size_bounds, size_class
from gpuscope.latest import Latest
from gpuscope.model.classes import CLASSES, CODE, ENGINE_CODES
from gpuscope.model.result import ClassStretch, Contention, Stretch
from gpuscope.model.tables import in_classes
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

OVERLAPPED_SHARE = 0.50
"""Share of an operation's time during which something else must run for it to be overlapped."""
_IS_COMPARED = np.isin(np.arange(len(CLASSES)), (CODE["kernel"], *COPY_LANES))
_NO_ROWS = np.empty(0, np.int64)
LARGEST = 5
"""How many kinds of operations of a scope are listed one by one."""
_NEVER_ALONE = "none like these ran alone in the trace"


class Kinds:
    """The kinds of operations of a trace, and which operations ran alone or overlapped."""

    @classmethod
    def of(cls, trace: Trace, activities: Activities) -> Kinds:
        """Return the kinds of a trace, the same object while the same is asked."""
        return _KINDS.get((trace, activities), (), lambda: cls(trace, activities))

    def __init__(self, trace: Trace, activities: Activities) -> None:
        self._trace = trace
        self._lanes = Lanes(activities)
        operations = trace.operations
        count = 0 if operations is None else len(operations)
        self.of_operation = np.full(count, -1, np.int32)
        """Kind of each operation, -1 for those that are not compared."""
        self.overlapped = np.zeros(count, np.bool_)
        """Which operations overlapped."""
        some = activities.end_ns > activities.start_ns
        self._number(trace, activities, np.flatnonzero(some & _IS_COMPARED[activities.op_class]))
        self.alone_count = np.zeros(self.count, np.int64)
        self.alone_ns, self.alone_bytes = np.zeros((2, self.count), np.int64)
        self.alone_least_ns = np.full(self.count, np.iinfo(np.int64).max)
        self.alone_most_ns = np.zeros(self.count, np.int64)
        engine = np.flatnonzero(some & in_classes(activities.op_class, ENGINE_CODES))
        for device in distinct(activities.device[engine]):
            rows = engine[activities.device[engine] == device]
            for piece in cut_where_idle(activities, rows):
                self._compare(activities, piece)
        self.by_bytes = np.array(
            [lane // 64 != CODE["kernel"] for lane in self.columns[1]], np.bool_
        ) & (self.alone_bytes > 0)

    def _compare(self, activities: Activities, rows: Int64) -> None:
        """Add what ran on a device from one idle moment to another."""
        start, end = activities.start_ns[rows], activities.end_ns[rows]
        own = own_starts(activities.op_class[rows], activities.stream[rows], start, end)
        whole = own == start
        if not whole.all():
            order = np.argsort(own, kind="stable")
            order = order[own[order] < end[order]]  # the rest waited until its end
            rows, own, end, whole = rows[order], own[order], end[order], whole[order]
        operation, duration = activities.operation[rows], end - own
        shared = _shared_time(own, end)
        self.overlapped[operation] = whole & (shared >= OVERLAPPED_SHARE * duration)
        kind = self.of_operation[operation]
        alone = np.flatnonzero((shared == 0) & (kind >= 0) & whole)
        kind, duration = kind[alone], duration[alone]
        self.alone_count += np.bincount(kind, minlength=self.count)
        self.alone_ns += sum_by(duration, kind, self.count)
        np.minimum.at(self.alone_least_ns, kind, duration)
        np.maximum.at(self.alone_most_ns, kind, duration)
        self.alone_bytes += sum_by(activities.size_bytes[rows[alone]], kind, self.count)

    def _number(self, trace: Trace, activities: Activities, rows: Int64) -> None:
        """Give every kind among `rows` a number."""
        blocks, threads = _launch_configurations(trace)
        parts, found = [rows[at : at + BLOCK_ROWS] for at in range(0, len(rows), BLOCK_ROWS)], []
        for part in parts:
            columns = self._columns_of(trace, activities, part, blocks, threads)
            self.of_operation[activities.operation[part]], first = number_rows(columns)
            found.append([column[first] for column in columns])
        columns = [np.concatenate(each) for each in zip(*found, strict=True)] or [_NO_ROWS] * 5
        code, first = number_rows(columns)
        begin = 0
        for part, own in zip(parts, found, strict=True):
            operation = activities.operation[part]
            self.of_operation[operation] = code[begin + self.of_operation[operation]]
            begin += len(own[0])
        self.columns = [column[first].tolist() for column in columns]
        self.count = len(first)

    def _columns_of(
        self, trace: Trace, activities: Activities, rows: Int64, blocks: Int64, threads: Int32
    ) -> list[Int64]:
        """Return what rows of one kind have in common."""
        operations = trace.operations
        assert operations is not None
        row = activities.operation[rows]
        is_kernel = activities.op_class[rows] == CODE["kernel"]
        lane = self._lanes.of(activities.op_class[rows], activities.link[rows])
        size = np.where(is_kernel, 0, size_class(activities.size_bytes[rows]))
        of_kernels = (operations.name, blocks, threads)
        return [
            activities.device[rows].astype(np.int64),
            lane * 64 + size,
            *(np.where(is_kernel, column[row], -1).astype(np.int64) for column in of_kernels),
        ]

    def op_class(self, kind: int) -> str:
        """Return the class of a kind."""
        return self._lanes.name(self.columns[1][kind] // 64)[0]

    def expected_ns(self, kind: Int64, count: Int64, size_bytes: Int64) -> Int64:
        """Return what operations would have taken alone, rounded down; -1 where none tells."""
        whole = np.where(self.by_bytes[kind], self.alone_bytes[kind], self.alone_count[kind])
        part = np.where(self.by_bytes[kind], size_bytes, count)
        told = np.flatnonzero(whole)
        expected = np.full(len(kind), -1, np.int64)
        # Python's integers: bytes times nanoseconds leave 64 bits.
        exact = part[told].astype(object) * self.alone_ns[kind[told]] // whole[told]
        expected[told] = exact.astype(np.int64)
        return expected

    def stretch(self, kind: int, count: int, ns: int, size_bytes: int, expected: int) -> Stretch:
        """Describe one kind in a scope; an expected time of -1 is none."""
        _, lane, name, blocks, threads = (column[kind] for column in self.columns)
        op_class, link = self._lanes.name(lane // 64)
        is_kernel = op_class == "kernel"
        bounds = (None, None) if is_kernel else size_bounds(lane % 64)
        return Stretch(
            op_class=op_class,
            name=self._trace.strings[name] if is_kernel else None,
            grid_blocks=blocks if is_kernel and blocks >= 0 else None,
            block_threads=threads if is_kernel and threads >= 0 else None,
            link=link,
            from_bytes=bounds[0],
            to_bytes=bounds[1],
            alone_count=int(self.alone_count[kind]),
            alone_ns=int(self.alone_ns[kind]),
            alone_bytes=int(self.alone_bytes[kind]),
            overlapped_count=count,
            overlapped_ns=ns,
            overlapped_bytes=size_bytes,
            expected_ns=expected if expected >= 0 else None,
            ratio=ns / expected if expected > 0 else None,
        )


_KINDS: Latest[Kinds] = Latest()


class ContentionFigures:
    """The contention of many entries, added batch by batch."""

    def __init__(self, kinds: Kinds, trace: Trace, activities: Activities, entries: int) -> None:
        """`kinds` are those of the whole trace, `activities` what the entries are made of."""
        operations = trace.operations
        assert operations is not None
        self._kinds, self._activities, self._entries = kinds, activities, entries
        self._operations = operations
        self._parts: list[Int64] = []

    def add(self, batch: Batch) -> None:
        """Add the overlapped operations of a batch."""
        a, kinds = self._activities, self._kinds
        operation = a.operation[batch.rows]
        kind, duration = kinds.of_operation[operation], batch.end - batch.start
        lasted = self._operations.end_ns[operation] - self._operations.start_ns[operation]
        kept = np.flatnonzero((duration == lasted) & kinds.overlapped[operation] & (kind >= 0))
        if not len(kept):
            return
        keys, at = number_alike(batch.entry[kept] * kinds.count + kind[kept])
        amounts = (duration[kept], a.size_bytes[batch.rows[kept]])
        self._parts.append(
            np.stack(
                [keys, np.bincount(at), *(sum_by(amount, at, len(keys)) for amount in amounts)]
            )
        )

    def results(self) -> list[Contention]:
        """Return the contention of every entry."""
        found = [Contention({}, ())] * self._entries
        if not self._parts:
            return found
        joined = np.concatenate(self._parts, axis=1)
        keys, at = number_alike(joined[0])
        count, ns, size = (sum_by(column, at, len(keys)) for column in joined[1:])
        kind = keys % self._kinds.count
        expected = self._kinds.expected_ns(kind, count, size)
        columns = (
            each.tolist() for each in (keys // self._kinds.count, kind, count, ns, size, expected)
        )
        rows = zip(*columns, strict=True)
        for entry, mine in groupby(rows, key=lambda row: row[0]):
            found[entry] = self._of_entry([row[1:] for row in mine])
        return found

    def _of_entry(self, rows: Sequence[tuple[int, int, int, int, int]]) -> Contention:
        """Sum up the kinds of one entry: (kind, count, ns, bytes, expected ns)."""
        classes: dict[str, list[int]] = {}
        for kind, count, ns, _, expected in rows:
            sums = classes.setdefault(self._kinds.op_class(kind), [0, 0, 0, 0])
            told = expected >= 0
            for place, value in enumerate((count, ns, ns if told else 0, expected if told else 0)):
                sums[place] += value
        lost = [row for row in rows if row[4] >= 0]
        lost.sort(key=lambda row: (row[4] - row[2], row[0]))
        return Contention(
            classes={
                name: ClassStretch(
                    overlapped_count=count,
                    overlapped_ns=ns,
                    compared_ns=compared,
                    expected_ns=expected if compared else None,
                    ratio=compared / expected if expected else None,
                    reason=None if expected else _NEVER_ALONE,
                )
                for name, (count, ns, compared, expected) in sorted(classes.items())
            },
            largest=tuple(
                self._kinds.stretch(kind, count, ns, size, expected)
                for kind, count, ns, size, expected in lost[:LARGEST]
            ),
        )


def _launch_configurations(trace: Trace) -> tuple[Int64, Int32]:
    """Return blocks and threads a block of each operation, -1 where not recorded."""
    operations, configs = trace.operations, trace.kernel_configs
    assert operations is not None
    blocks = np.full(len(operations), -1, np.int64)
    threads = np.full(len(operations), -1, np.int32)
    if configs is not None:
        blocks[configs.operation] = configs.grid_blocks
        threads[configs.operation] = configs.block_threads
    return blocks, threads


def _shared_time(start: Int64, end: Int64) -> Int64:
    """Return how long something else ran during each of some operations, sorted by start.

    Each must last.
    """
    # Two are active where one has begun and the furthest end of those before is still to come.
    both = np.minimum(end[1:], np.maximum.accumulate(end)[:-1])
    some = both > start[1:]
    cover = Cover(union_sorted(start[1:][some], both[some]))
    # One that another met began before that one had ended, or the other way round.
    met = np.append(some, False)
    met[1:] |= some
    shared = np.zeros(len(start), np.int64)
    shared[met] = cover.within(start[met], end[met])
    return shared
