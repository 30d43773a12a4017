"""Which operations belong to which scope: devices, windows and NVTX ranges.

A *scope* is what figures are computed over: one (process, device) over the whole trace, a window of
it, or an NVTX range. A range has *instances*; each instance on each device is a *group* of
operations with a timeline of its own. A group belongs to an *entry*, one a (name or path, process,
device), over which the groups are summed.

Operations belong to a range by their launch: the API call of the same process and correlation id
starts in [start, end) of the range on the range's thread, or on any thread of the process.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.analysis import Options
from gpuscope.intervals import (
    Cover,
    distinct,
    expanded,
    order_by,
    run_starts,
    spread,
    sum_by,
    union,
)
from gpuscope.latest import Latest
from gpuscope.model.classes import CODE
from gpuscope.model.result import Addition
from gpuscope.model.tables import STAGED, START_END, MpiCalls, Operations, Ranges
from gpuscope.model.trace import Trace

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

_BARRIER = "MPI_Barrier"
_CHUNK_ROWS = 250_000
"""Memberships (operation, instance) handled at once; what fits a cache is twice as fast."""


@dataclass(frozen=True, slots=True)
class Activities:
    """What scopes are made of: operations and MPI calls, but for start gates and what they hold up.

    Arrays of shape (n,). An MPI call stands once for each device that its process uses.
    """

    start_ns: Int64
    end_ns: Int64
    op_class: UInt8
    device: Int32
    """Index into Trace.devices."""
    stream: Int32
    """Index into Trace.streams; -1 for MPI calls."""
    size_bytes: Int64
    link: Int32
    """``src * 65536 + dst`` of a copy straight from one known device to another, else -1."""
    launch_ns: Int64
    """Start of the launching API call; -1 without one."""
    launch_thread: Int32
    """Index into Trace.threads; -1 without a launching call."""
    operation: Int64
    """Index into Trace.operations; -1 for MPI calls."""
    moving_ns: Int64
    """Of a communication kernel, when its data began to move; -1 when unknown."""

    @classmethod
    def of(cls, trace: Trace, transfer_ns: Int64 | None = None) -> Activities:
        """Return the activities of a trace, the same object while the same is asked.

        `transfer_ns` has a value for each operation.
        """
        return _ACTIVITIES.get((trace, transfer_ns), (), lambda: cls._collect(trace, transfer_ns))

    @classmethod
    def _collect(cls, trace: Trace, transfer_ns: Int64 | None) -> Activities:
        operations = trace.operations or Operations.empty()
        kept = np.flatnonzero(operations.op_class != CODE["gate"])
        if len(kept) < len(operations):
            operations = operations.take(kept)
        count = len(operations)
        launch_ns: Int64 = np.broadcast_to(np.int64(-1), count)
        launch_thread: Int32 = np.broadcast_to(np.int32(-1), count)
        if trace.api:
            launch_ns = trace.api.start_ns.take(operations.launch)
            launch_thread = trace.api.thread.take(operations.launch)
            unknown = operations.launch < 0
            launch_ns[unknown] = -1
            launch_thread[unknown] = -1
        link: Int32 = np.broadcast_to(np.int32(-1), count)
        # Of a large copy that the driver stages, the first piece alone is timed: no link is.
        peer = (operations.op_class == CODE["p2p"]) & (operations.flags & STAGED == 0)
        peer &= (operations.src_device >= 0) & (operations.dst_device >= 0)
        if peer.any():
            link = np.where(peer, operations.src_device * 65536 + operations.dst_device, -1)
            link = link.astype(np.int32)
        moving_ns: Int64 = np.broadcast_to(np.int64(-1), count)
        if transfer_ns is not None and (transfer_ns >= 0).any():
            moved = transfer_ns[kept]
            begins = np.maximum(operations.start_ns, operations.end_ns - moved)
            moving_ns = np.where(moved >= 0, begins, -1)
        gpu = cls(
            start_ns=operations.start_ns,
            end_ns=operations.end_ns,
            op_class=operations.op_class,
            device=operations.device,
            stream=operations.stream,
            size_bytes=operations.size_bytes,
            link=link,
            launch_ns=launch_ns,
            launch_thread=launch_thread,
            operation=kept,
            moving_ns=moving_ns,
        )
        return gpu if not trace.mpi else gpu._with_mpi(trace)

    def take(self, rows: npt.NDArray[Any], **changed: npt.NDArray[Any]) -> Activities:
        """Return some rows, by mask or index, with columns `changed`."""
        columns = {
            name: getattr(self, name)[rows] for name in self.__slots__ if name not in changed
        }
        return Activities(**columns, **changed)

    def _with_mpi(self, trace: Trace) -> Activities:
        mpi = trace.mpi
        assert mpi is not None
        parts = [self]
        counts = ~behind_gates(trace, mpi)
        for device in distinct(self.device):
            mine = np.flatnonzero(counts & (mpi.process == trace.devices[device].process))
            count = len(mine)
            parts.append(
                Activities(
                    start_ns=mpi.start_ns[mine],
                    end_ns=mpi.end_ns[mine],
                    op_class=np.full(count, CODE["mpi"], np.uint8),
                    device=np.full(count, device, np.int32),
                    stream=np.full(count, -1, np.int32),
                    size_bytes=np.maximum(mpi.size_bytes[mine], 0),
                    link=np.full(count, -1, np.int32),
                    launch_ns=mpi.start_ns[mine],
                    launch_thread=mpi.thread[mine],
                    operation=np.full(count, -1, np.int64),
                    moving_ns=np.full(count, -1, np.int64),
                )
            )
        return Activities(
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in Activities.__slots__
            }
        )


_ACTIVITIES: Latest[Activities] = Latest()


def behind_gates(trace: Trace, calls: MpiCalls) -> Bool:
    """Return which MPI calls are made behind a start gate of their process: shape (n,).

    The ranks meet there before what is measured begins: calls that lie wholly in a gate, and
    barriers that lie partly in one. The first rank opens the gates of all, at times before another
    has come back from the barrier.
    """
    behind = np.zeros(len(calls), np.bool_)
    if trace.operations is None or not len(calls):
        return behind
    gates = trace.operations.take(trace.operations.op_class == CODE["gate"])
    if not len(gates):
        return behind
    process = np.array([device.process for device in trace.devices])[gates.device]
    work_ns = calls.end_ns - calls.start_ns
    barriers = [name for name, text in enumerate(trace.strings) if text == _BARRIER]
    least_ns = np.where(np.isin(calls.name, barriers), 1, work_ns)
    for number in distinct(process):
        mine = process == number
        gate = Cover(union(gates.start_ns[mine], gates.end_ns[mine]))
        held_ns = gate.within(calls.start_ns, calls.end_ns)
        behind |= (work_ns > 0) & (held_ns >= least_ns) & (calls.process == number)
    return behind


@dataclass(frozen=True, slots=True)
class Entry:
    """What one line of a report stands for."""

    device: int
    """Index into Trace.devices."""
    name: str | None
    """Name of the range; None for a device scope."""
    path: str | None
    instances_total: int
    unattributed_ratio: float | None


def addition(trace: Trace, entry: Entry, figures: Mapping[str, Any]) -> Addition:
    """Return further figures of the scope that `entry` stands for."""
    device = trace.devices[entry.device]
    pid = trace.processes[device.process].pid
    return Addition(pid, device.number, entry.path or entry.name, figures)


@dataclass(frozen=True, slots=True)
class Groups:
    """A batch of groups: the rows of each, sorted by (group, start).

    Attributes
    ----------
    rows
        Shape (m,): indices into the activities.
    first
        Shape (g,): where each group begins in `rows`.
    entry
        Shape (g,): the entry of each group.
    instance
        Shape (g,): index into Trace.ranges of the instance; -1 in device scopes.
    """

    rows: Int64
    first: Int64
    entry: Int64
    instance: Int64

    def __len__(self) -> int:
        return len(self.first)

    def group_of_rows(self) -> Int64:
        """Return the group of each row: shape (m,)."""
        sizes = np.diff(np.append(self.first, len(self.rows)))
        return spread(np.arange(len(self.first)), sizes)


def device_groups(activities: Activities) -> tuple[list[Entry], Groups]:
    """Return one entry and one group for each device on which an operation ran.

    MPI calls of processes whose devices did nothing, as in a window, belong to none.
    """
    entries = device_entries(activities)
    devices = np.array([entry.device for entry in entries], np.int64)
    order = order_by(activities.device, activities.start_ns)
    if len(entries) < len(distinct(activities.device)):
        order = order[np.isin(activities.device[order], devices)]
    first = np.searchsorted(activities.device[order], devices)
    return entries, Groups(order, first, np.arange(len(devices)), np.full(len(devices), -1))


def device_entries(activities: Activities) -> list[Entry]:
    """Return one entry for each device on which an operation ran."""
    found = np.bincount(activities.device[activities.operation >= 0])
    return [Entry(device, None, None, 1, None) for device in np.flatnonzero(found).tolist()]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a device's time line: what was active in it, cut at its edges."""

    activities: Activities
    """Sorted by start."""
    continues: Bool
    """Of each activity, whether it began in an earlier piece."""


def device_pieces(activities: Activities, device: int) -> Iterator[Piece]:
    """Cut the time line of a device into pieces that hold a bounded number of activities each.

    Everything that is a sum over time is the sum over the pieces, in memory that does not grow.
    """
    rows = np.flatnonzero(activities.device == device)
    start = activities.start_ns[rows]
    if (start[1:] < start[:-1]).any():
        rows = rows[np.argsort(start, kind="stable")]
    begin, going_on = 0, rows[:0]
    for low in range(0, len(rows), _CHUNK_ROWS):
        high = low + _CHUNK_ROWS
        end = int(activities.start_ns[rows[high]]) if high < len(rows) else np.iinfo(np.int64).max
        mine = np.concatenate([going_on, rows[low:high]])
        ends = activities.end_ns[mine]
        yield Piece(
            activities.take(
                mine,
                start_ns=np.maximum(activities.start_ns[mine], begin),
                end_ns=np.minimum(ends, end),
            ),
            np.arange(len(mine)) < len(going_on),
        )
        begin, going_on = end, mine[ends > end]


def clip(activities: Activities, window_ns: tuple[int, int] | None) -> Activities:
    """Cut the activities at the edges of a window; those with no time inside fall away."""
    if window_ns is None:
        return activities
    low, high = window_ns
    start = np.maximum(activities.start_ns, low)
    end = np.minimum(activities.end_ns, high)
    inside = end > start
    return activities.take(inside, start_ns=start[inside], end_ns=end[inside])


class RangeScopes:
    """The NVTX ranges of a trace as scopes.

    Parameters
    ----------
    trace
        A trace with operations, API calls and ranges.
    activities
        Its activities.
    options
        Which ranges, by name or by path, and whose launches belong to them.
    """

    @classmethod
    def of(cls, trace: Trace, activities: Activities, options: Options) -> RangeScopes:
        """Return the scopes, the same object while the same is asked."""
        settings = (options.ranges, options.domains, options.categories, options.by_path)
        return _RANGE_SCOPES.get(
            (trace, activities),
            (*settings, options.attribute),
            lambda: cls(trace, activities, options),
        )

    def __init__(self, trace: Trace, activities: Activities, options: Options) -> None:
        assert trace.ranges is not None
        self._trace = trace
        self._activities = activities
        self._ranges = ranges = trace.ranges
        self._paths = Paths(trace.ranges, trace.strings) if options.by_path else None
        chosen = self._chosen(options)
        by_process = self._ranges.kind[chosen] == START_END
        if options.attribute == "process":
            by_process[:] = True
        process_of_device = np.array([d.process for d in trace.devices] or [0], np.int32)
        found = []
        if not by_process.all():
            rows = chosen[~by_process]
            threads = _Launches(activities, activities.launch_thread)
            found.append((threads, *threads.slices(ranges, rows, ranges.thread[rows])))
        if by_process.any():
            rows = chosen[by_process]
            owner = np.where(activities.launch_ns >= 0, process_of_device[activities.device], -1)
            processes = _Launches(activities, owner)
            found.append((processes, *processes.slices(ranges, rows, ranges.process[rows])))
        self._slices = [(launches.order, *where) for launches, *where in found]
        self.entries: list[Entry] = []
        self._keys = np.empty(0, np.int64)
        self._find_entries(chosen, found)

    def _find_entries(
        self, chosen: Int64, found: Sequence[tuple[_Launches, Int64, Int64, Int64]]
    ) -> None:
        """List one entry for each label and device with at least one operation."""
        trace, ranges = self._trace, self._ranges
        labels = len(self._paths.texts) if self._paths else len(trace.strings)
        device_count = len(trace.devices)
        keys = []
        entries = []
        for device in distinct(self._activities.device):
            process = trace.devices[device].process
            of_process = chosen[ranges.process[chosen] == process]
            total = np.bincount(self._label_of(of_process), minlength=labels)
            held = _launched_within(self._activities, device, ranges, of_process)
            within = sum_by(held, self._label_of(of_process), labels)
            own = np.zeros(labels, np.int64)
            for launches, instances, low, high in found:
                counts = launches.count_on(device, low, high)
                own += sum_by(counts, self._label_of(instances), labels)
            for label in np.flatnonzero(own).tolist():
                text = self._paths.texts[label] if self._paths else trace.strings[label]
                seen = int(within[label])
                # Launches that two instances of one name share are counted in both.
                outside = max(0, seen - int(own[label]))
                keys.append(label * device_count + device)
                entries.append(
                    Entry(
                        device=device,
                        name=self._paths.names[label] if self._paths else text,
                        path=text if self._paths else None,
                        instances_total=int(total[label]),
                        unattributed_ratio=outside / seen if seen else None,
                    )
                )
        order = np.argsort(np.array(keys, np.int64))
        self._keys = np.array(keys, np.int64)[order]
        self.entries = [entries[i] for i in order.tolist()]

    def _label_of(self, rows: Int64) -> Int64:
        """Return what entries are made by: the index of the name, or of the path."""
        return self._paths.number[rows] if self._paths else self._ranges.name[rows].astype(np.int64)

    def _chosen(self, options: Options) -> Int64:
        ranges, strings = self._ranges, self._trace.strings
        mask = (ranges.end_ns >= 0) & in_domains(self._trace, options)
        if options.ranges:
            texts = self._paths.texts if self._paths else strings
            matching = [i for i, text in enumerate(texts) if matches(text, options.ranges)]
            mask &= np.isin(self._label_of(np.arange(len(ranges))), matching)
        return np.flatnonzero(mask)

    def batches(self) -> Iterator[Groups]:
        """Yield the groups of all instances in batches of bounded size."""
        for order, instances, low, high in self._slices:
            some = high > low
            instances, low, high = instances[some], low[some], high[some]
            sizes = high - low
            batch = (np.cumsum(sizes) - sizes) // _CHUNK_ROWS
            edges = run_starts(batch)
            for begin, stop in pairwise([*edges.tolist(), len(sizes)]):
                part = slice(begin, stop)
                groups = self._groups(order, instances[part], low[part], sizes[part])
                if len(groups):
                    yield groups

    def _groups(self, launched: Int64, instances: Int64, low: Int64, sizes: Int64) -> Groups:
        activities = self._activities
        rows = launched[expanded(low, low + sizes)]
        device_count = len(self._trace.devices)
        key = np.repeat(np.arange(len(instances)), sizes) * device_count + activities.device[rows]
        order = order_by(key, activities.start_ns[rows])
        rows, key = rows[order], key[order]
        first = run_starts(key)
        # A group of MPI calls alone is no instance: nothing ran on the device.
        real = np.logical_or.reduceat(activities.operation[rows] >= 0, first)
        if not real.all():
            kept = np.repeat(real, np.diff(np.append(first, len(rows))))
            rows, key = rows[kept], key[kept]
            first = run_starts(key)
        if not len(rows):
            return Groups(rows, first, first, first)
        instance = instances[key[first] // device_count]
        device = (key[first] % device_count).astype(np.int64)
        return Groups(rows, first, self._entries_of(instance, device), instance)

    def _entries_of(self, instance: Int64, device: Int64) -> Int64:
        return np.searchsorted(
            self._keys, self._label_of(instance) * len(self._trace.devices) + device
        )


def in_domains(trace: Trace, options: Options) -> npt.NDArray[np.bool_]:
    """Return which ranges lie in the NVTX domains and categories asked for."""
    ranges = trace.ranges if trace.ranges is not None else Ranges.empty()
    mask = np.ones(len(ranges), np.bool_)
    if options.domains:
        wanted = [i for i, text in enumerate(trace.strings) if text in options.domains]
        mask &= np.isin(ranges.domain, [*wanted, *([-1] * ("" in options.domains))])
    if options.categories:
        numbers = [int(text) for text in options.categories if text.isdecimal()]
        asked = np.isin(ranges.category, numbers)
        for each in trace.categories:
            if matches(each.name, options.categories):
                named = (ranges.process == each.process) & (ranges.domain == each.domain)
                asked |= named & (ranges.category == each.number)
        mask &= asked
    return mask


_RANGE_SCOPES: Latest[RangeScopes] = Latest()


def matches(text: str, patterns: Sequence[str]) -> bool:
    """Return whether `text` equals one of the patterns or matches it as a glob.

    As in names, ``*`` stands for anything in a path, ``/`` too.
    """
    return any(text == pattern or fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def did_you_mean(trace: Trace, pattern: str) -> str:
    """Return ``; did you mean 'step'?`` where a range of the trace is called nearly so, or ""."""
    close = difflib.get_close_matches(pattern, sorted(trace.range_names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _launched_within(activities: Activities, device: int, ranges: Ranges, rows: Int64) -> Int64:
    """Count the operations of a device that each range's window holds, whoever launched them.

    By launch; an operation without a launching call counts by its own start.
    """
    mine = (activities.operation >= 0) & (activities.device == device)
    launch = activities.launch_ns[mine]
    time = np.sort(np.where(launch >= 0, launch, activities.start_ns[mine]))
    return np.searchsorted(time, ranges.end_ns[rows]) - np.searchsorted(time, ranges.start_ns[rows])


class _Launches:
    """Activities in the order of their launches on each unit (a thread or a process)."""

    def __init__(self, activities: Activities, unit: Int32) -> None:
        launched = np.flatnonzero(unit >= 0)
        self.order = launched[np.lexsort((activities.launch_ns[launched], unit[launched]))]
        self._time = activities.launch_ns[self.order]
        self._unit = unit[self.order]
        self._on_gpu = activities.operation[self.order] >= 0
        self._device = activities.device[self.order]

    def slices(self, ranges: Ranges, rows: Int64, unit: Int32) -> tuple[Int64, Int64, Int64]:
        """Return, a range row, where its activities lie in `order`: (rows, low, high)."""
        low = np.zeros(len(rows), np.int64)
        high = np.zeros(len(rows), np.int64)
        for number in distinct(unit):
            begin, stop = np.searchsorted(self._unit, [number, number + 1])
            time = self._time[begin:stop]
            mine = np.flatnonzero(unit == number)
            low[mine] = begin + np.searchsorted(time, ranges.start_ns[rows[mine]])
            high[mine] = begin + np.searchsorted(time, ranges.end_ns[rows[mine]])
        return rows, low, high

    def count_on(self, device: int, low: Int64, high: Int64) -> Int64:
        """Count the operations on `device` in each slice of `order`."""
        before = np.concatenate(([0], np.cumsum((self._device == device) & self._on_gpu)))
        return before[high] - before[low]


class Paths:
    """The nesting path of every range, such as ``step/forward``."""

    def __init__(self, ranges: Ranges, strings: Sequence[str]) -> None:
        level, parent = nesting(ranges)
        self.number = np.full(len(ranges), -1, np.int64)
        self.texts: list[str] = []
        self.names: list[str] = []
        """The name at the end of each path, which may hold a slash itself."""
        for place in range(int(level.max(initial=-1)) + 1):
            rows = np.flatnonzero(level == place)
            above = np.where(parent[rows] >= 0, self.number[np.maximum(parent[rows], 0)], -1)
            pairs, codes = np.unique(
                np.stack([above, ranges.name[rows]]), axis=1, return_inverse=True
            )
            base = len(self.texts)
            for up, name in zip(*pairs.tolist(), strict=True):
                prefix = f"{self.texts[up]}/" if up >= 0 else ""
                self.texts.append(prefix + strings[name])
                self.names.append(strings[name])
            self.number[rows] = base + codes


def _by_thread(ranges: Ranges) -> Iterator[tuple[Int64, Int64, Int64]]:
    """Yield the rows of the ranges of each thread that ended, outer ones first, and their times."""
    for thread in distinct(ranges.thread):
        rows = np.flatnonzero((ranges.thread == thread) & (ranges.end_ns >= 0))
        rows = rows.take(order_by(ranges.start_ns.take(rows), -ranges.end_ns.take(rows)))
        yield rows, ranges.start_ns.take(rows), ranges.end_ns.take(rows)


def nesting(ranges: Ranges) -> tuple[Int64, Int64]:
    """Return in how many ranges of its thread every range nests, and the row of the inmost one.

    A range nests in one that begins no later and ends no earlier; where two cross, as ranges of
    two domains may, neither nests in the other. One of no length lies within what lasts beyond it.
    A range that never ended nests in nothing, and nothing in it; its parent is -1.
    """
    level = np.zeros(len(ranges), np.int64)
    parent = np.full(len(ranges), -1, np.int64)
    for rows, start, end in _by_thread(ranges):
        lasting = end > start
        last, beyond = np.where(lasting, end, end + 1), np.where(lasting, end, -1)
        left, above = np.arange(len(rows)), np.empty(0, np.int64)
        place = 0
        while len(left):
            reach = np.maximum.accumulate(np.append(-1, beyond[left[:-1]]))
            free = last[left] > reach
            here = left[free]
            level[rows[here]] = place
            if place:
                parent[rows[here]] = rows[above[np.searchsorted(above, here) - 1]]
            above, left = here[lasting[here]], left[~free]
            place += 1
    return level, parent


def open_before(ranges: Ranges) -> Int64:
    """Return how many ranges of its thread are open when a range begins: the row to draw it in."""
    depth = np.zeros(len(ranges), np.int64)
    for rows, start, end in _by_thread(ranges):
        ended_before = np.searchsorted(np.sort(end), start, side="right")
        # Ranges of no length end where they start: they are over only after themselves.
        depth[rows] = np.maximum(np.arange(len(rows)) - ended_before, 0)
    return depth


@dataclass(frozen=True, slots=True)
class ProjectedRanges:
    """Instances of ranges as the GPU saw them: from their first operation to their last.

    Arrays of shape (n,), sorted by (device, start).
    """

    range_row: Int64
    """Index into Trace.ranges."""
    device: Int64
    """Index into Trace.devices."""
    start_ns: Int64
    end_ns: Int64
    depth: Int64
    """Nesting depth on the thread, from 0."""


def project_ranges(trace: Trace, options: Options | None = None) -> ProjectedRanges:
    """Project every range instance onto each device where it has operations."""
    activities = Activities.of(trace)
    empty = np.empty(0, np.int64)
    if not trace.ranges or not len(activities.start_ns):
        return ProjectedRanges(empty, empty, empty, empty, empty)
    depth = open_before(trace.ranges)
    scopes = RangeScopes(trace, activities, options or Options())
    parts = []
    for groups in scopes.batches():
        on_gpu = activities.operation[groups.rows] >= 0
        start = np.where(on_gpu, activities.start_ns[groups.rows], np.iinfo(np.int64).max)
        end = np.where(on_gpu, activities.end_ns[groups.rows], -1)
        device_of_entry = np.array([entry.device for entry in scopes.entries], np.int64)
        parts.append(
            np.stack(
                [
                    groups.instance,
                    device_of_entry[groups.entry],
                    np.minimum.reduceat(start, groups.first),
                    np.maximum.reduceat(end, groups.first),
                    depth[groups.instance],
                ]
            )
        )
    joined = np.concatenate(parts, axis=1) if parts else np.empty((5, 0), np.int64)
    order = np.lexsort((joined[2], joined[1]))
    return ProjectedRanges(*joined[:, order])
