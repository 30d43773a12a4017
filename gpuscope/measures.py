"""Measuring scopes: exact figures of groups of operations, and verdicts on pairs.

Every figure follows from one construction. In each group of operations (an instance of a range on a
device) the operations of each class are merged into disjoint busy intervals; the line is cut at all
their boundaries; each piece has a set of active classes. The time of each set is the partition, and
busy time, every pair's overlap, exposed and idle time are sums over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.analysis import Options, RatioLimits
from gpuscope.cases import MIN_COMPILING_NS, code_loads
from gpuscope.intervals import (
    Axis,
    Cover,
    Disjoint,
    Grouping,
    common_step,
    coverage,
    depth,
    distinct,
    numbered,
    run_starts,
    spread,
    sum_between,
    sum_by,
    union,
    union_sorted,
)
from gpuscope.model.classes import CLASSES, CODE, ENGINE_CODES
from gpuscope.model.quality import lost_text
from gpuscope.model.result import (
    ClassConcurrency,
    ClassFigures,
    Concurrency,
    InstanceSpread,
    LinkPair,
    PairFigures,
    Part,
    Scope,
)
from gpuscope.model.tables import PAGEABLE, in_classes
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities, Entry, Groups, Piece
from gpuscope.verdicts import MIN_INSTANCE_BUSY_NS, OVERLAPPED_RHO, PairSums, judge

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_HOST_COPIES = (CODE["h2d"], CODE["d2h"])
LOST_SHARE = 0.01
"""Share of lost GPU records above which a trace is not judged."""
SMALL_GAIN_SHARE = 0.01
"""Where overlap could save less than this share of the serial engine time, it has no efficiency."""
FOREIGN_TIME_SHARE = 0.05
"""Share of the engine time that is not the operations' own, above which efficiency has a note."""
OUTLIER_MADS = 3.0
"""Instances farther than this many scaled MADs from the median span are outliers."""
MAD_SCALE = 1.4826
"""Makes the MAD of a normal distribution its standard deviation."""


class Context:
    """What the scopes of one trace share."""

    def __init__(self, trace: Trace, activities: Activities, options: Options) -> None:
        self.trace = trace
        self.limits: RatioLimits = options.ratio_limits
        self.transfer_estimated = options.transfer_ns is None and options.exchange is not None
        self.granularity_ns = common_step(activities.start_ns, activities.end_ns)
        self.codes = distinct(activities.op_class)
        """Classes present, as codes; positions in this list are the compact codes."""
        self.compact = np.zeros(len(CLASSES), np.int64)
        self.compact[self.codes] = np.arange(len(self.codes))
        self.names = [CLASSES[code] for code in self.codes]
        self.is_engine = np.isin(self.codes, ENGINE_CODES)
        self.pairs = list(combinations(range(len(self.codes)), 2))
        """Pairs of compact codes."""
        self.links = np.unique(activities.link[activities.op_class == CODE["p2p"]]).tolist()
        """Links of peer copies; -1 is that of those which count on none."""
        self.pageable = _pageable(trace)
        """Of each operation, whether it copies pageable memory, and False for none; or None."""
        self.moves = bool((activities.moving_ns >= 0).any())
        """Whether it is known of any communication kernel when its data moved."""
        self.trouble = _trouble(trace)
        self.shared_hardware = _shared_hardware(trace, activities)
        self._covers: dict[int, list[Cover]] = {}
        self._compiling: dict[int, Disjoint] = {}
        self._activities = activities

    def pid(self, entry: Entry) -> int:
        """Return the operating-system pid of an entry's process."""
        return self.trace.processes[self.trace.devices[entry.device].process].pid

    def rank(self, entry: Entry) -> int | None:
        """Return the MPI rank of an entry's process, None when unknown."""
        return self.trace.processes[self.trace.devices[entry.device].process].rank

    def covers(self, device: int) -> list[Cover]:
        """Return the busy time of every class on the whole of a device."""
        if device not in self._covers:
            a = self._activities
            lasting = (a.device == device) & (a.end_ns > a.start_ns)
            self._covers[device] = [
                Cover(union(a.start_ns[mine], a.end_ns[mine]))
                for mine in (lasting & (a.op_class == code) for code in self.codes)
            ]
        return self._covers[device]

    def compiling(self, device: int) -> Disjoint:
        """Return the stretches in which a device is idle and its process loads finished code."""
        if device not in self._compiling:
            self._compiling[device] = self._find_compiling(device)
        return self._compiling[device]

    def _find_compiling(self, device: int) -> Disjoint:
        api, process = self.trace.api, self.trace.devices[device].process
        loads = np.empty(0, np.int64) if api is None else code_loads(api, self.trace.strings)
        if api is None or not len(loads):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        times = np.sort(api.start_ns[loads[api.process[loads] == process]])
        a = self._activities
        start, end = union(a.start_ns[a.device == device], a.end_ns[a.device == device])
        begin, finish = end[:-1], start[1:]
        holds = np.searchsorted(times, begin) < np.searchsorted(times, finish)
        holds &= finish - begin >= MIN_COMPILING_NS
        return begin[holds], finish[holds]


def _pageable(trace: Trace) -> Bool | None:
    """Return which operations copy pageable memory, and False for row -1; None where none does."""
    if trace.operations is None:
        return None
    ops = trace.operations
    pageable = (ops.src_kind == PAGEABLE) | (ops.dst_kind == PAGEABLE)
    pageable &= in_classes(ops.op_class, _HOST_COPIES)
    return np.append(pageable, False) if pageable.any() else None


def _trouble(trace: Trace) -> str | None:
    """Say why nothing in the trace can be judged, if so."""
    operations = 0 if trace.operations is None else len(trace.operations)
    lost = trace.lost_records or 0
    if lost > LOST_SHARE * (lost + operations):
        return lost_text(lost)
    return None


def _shared_hardware(trace: Trace, activities: Activities) -> frozenset[int]:
    """Return the devices (indices) whose GPU another process of the report used meanwhile."""
    spans: dict[str, list[tuple[int, int, int]]] = {}
    for device in distinct(activities.device[activities.operation >= 0]):
        mine = (activities.device == device) & (activities.operation >= 0)
        spans.setdefault(trace.devices[device].hardware, []).append(
            (device, int(activities.start_ns[mine].min()), int(activities.end_ns[mine].max()))
        )
    shared = set()
    for users in spans.values():
        for (a, a_start, a_end), (b, b_start, b_end) in combinations(users, 2):
            different = trace.devices[a].process != trace.devices[b].process
            if different and a_start < b_end and b_start < a_end:
                shared |= {a, b}
    return frozenset(shared)


@dataclass(slots=True)
class _Sums:
    """What is measured in each group, and adds up over the pieces of a group.

    Arrays are indexed by compact class code, by position in ``Context.pairs``, or by engine (the
    classes, then the links), then by group.
    """

    busy: Int64
    engines: Int64
    overlap: Int64
    boundaries: Int64
    first: Int64
    """First start of an engine's operation, on the trace's clock; far in the future where none."""
    last: Int64
    """Last end of an engine's operation; -1 where there is none."""
    edge: _Edge
    """Where the last group ended."""
    by_entry: Grouping
    """Sums over the groups of each entry."""
    axis: Axis
    """What the groups of the last piece are laid on."""
    parts: Sequence[Disjoint]
    """Its busy times on that, a class each."""
    edges: Sequence[Int64]
    """Where the groups begin in each of these."""

    def add(self, later: _Sums) -> None:
        """Add what a later piece of the same groups holds."""
        for mine, its in (
            (self.busy, later.busy),
            (self.engines, later.engines),
            (self.overlap, later.overlap),
            (self.boundaries, later.boundaries),
        ):
            mine += its
        self.edge, self.axis = later.edge, later.axis
        self.parts, self.edges = later.parts, later.edges
        self.first = np.minimum(self.first, later.first)
        self.last = np.maximum(self.last, later.last)


_FAR = int(np.iinfo(np.int64).max)


class Totals:
    """Figures of many entries, summed over their groups as these are added.

    Arrays are indexed by entry, then by compact class code; pairs are [entry, a, b] with a < b.
    """

    def __init__(self, context: Context, entries: Sequence[Entry]) -> None:
        n, c = len(entries), len(context.codes)
        self.context, self.entries = context, entries
        self.device = np.array([entry.device for entry in entries], np.int64)
        self.single_engine = np.array(
            [context.trace.devices[entry.device].copy_engines == 1 for entry in entries], np.bool_
        )
        zeros = np.zeros
        self.span, self.busy, self.serial = (zeros(n, np.int64) for _ in range(3))
        self.bound, self.pageable = zeros(n, np.int64), zeros(n, np.int64)
        self.engines, self.least = zeros(n, np.int64), zeros(n, np.int64)
        """Busy times of the engines: all added up, and the largest alone. Pages that migrate count
        in neither: nothing is gained by what runs beside them."""
        self.transfer, self.transfer_hidden, self.wait_hidden = (
            zeros(n, np.int64) for _ in range(3)
        )
        self.transfer_known = zeros(n, np.int64)
        self.count, self.work, self.class_busy = (zeros((n, c), np.int64) for _ in range(3))
        self.bytes, self.class_peak = zeros((n, c), np.int64), zeros((n, c), np.int64)
        self.overlap, self.boundaries = (zeros((n, c, c), np.int64) for _ in range(2))
        self.under = zeros((n, c, c), np.int64)
        self.counting = zeros((n, c, c), np.int64)
        self.good = {bias: zeros((n, c, c), np.int64) for bias in (-1, 0, 1)}
        self.cold, self.cold_good = zeros((n, c, c), np.int64), zeros((n, c, c), np.int64)
        """The instances of ranges in which code was compiled: those that would count, and be good.
        They count only where all are such."""
        self.partition: dict[int, Int64] = {}
        self.streams_ns: dict[int, Int64] = {}
        self.peak = zeros(n, np.int64)
        self.first_start = np.full(n, _FAR)
        self._streams = np.zeros((n * c, len(context.trace.streams)), np.bool_)
        self._groups: list[Int64] = []
        self._beside: Future[None] | None = None
        self._instances: dict[int, Int64] | None = None
        self._limits = self._limit_table()

    def _limit_table(self) -> npt.NDArray[np.float64]:
        """Return the ratio limit of every [entry, a, b]; NaN: not judged."""
        context = self.context
        c = len(context.codes)
        limits = np.ones((len(self.entries), c, c))
        if context.limits:
            position = {name: i for i, name in enumerate(context.names)}
            for number, entry in enumerate(self.entries):
                for (name, a, b), limit in context.limits.items():
                    if entry.name == name and a in position and b in position:
                        i, j = sorted((position[a], position[b]))
                        limits[number, i, j] = np.nan if limit is None else limit
        return limits

    # Adding

    def add(self, activities: Activities, groups: Groups, beside: Executor | None = None) -> None:
        """Add the groups of one batch, each of them whole.

        A part of the work is given to `beside`, if there is one; :meth:`finish` waits for it.
        """
        if len(groups):
            begun = np.ones(len(groups.rows), np.bool_)
            measured = self._measure(activities, groups, begun)
            self._conclude(groups, measured)
            self.finish()
            if beside is None:
                self._add_under(groups, measured)
            else:
                self._beside = beside.submit(self._add_under, groups, measured)

    def finish(self) -> None:
        """Wait for what goes on beside."""
        if self._beside is not None:
            self._beside.result()
            self._beside = None

    def add_pieces(self, number: int, pieces: Iterable[Piece]) -> None:
        """Add the time line of a device as entry `number`, piece by piece."""
        sums = before = None
        one = np.zeros(1, np.int64)
        for piece in pieces:
            a = piece.activities
            groups = Groups(np.arange(len(a.start_ns)), one, one + number, one - 1)
            begun = ~piece.continues
            found = self._measure(a, groups, begun, before)
            before = found.edge
            if sums is None:
                sums = found
            else:
                sums.add(found)
        if sums is not None:
            self._conclude(Groups(one, one, one + number, one - 1), sums)
            self.under[number] = self.overlap[number] + self.overlap[number].T

    def _measure(
        self,
        a: Activities,
        groups: Groups,
        begun: Bool,
        before: _Edge | None = None,
    ) -> _Sums:
        """Measure groups; add what is a sum over their rows, and return the rest.

        Rows that are not `begun` here were counted in an earlier piece.
        """
        context = self.context
        n, c = len(self.entries), len(context.codes)
        rows, group = groups.rows, groups.group_of_rows()
        start, end = a.start_ns.take(rows), a.end_ns.take(rows)
        code = context.compact[a.op_class.take(rows)]
        edges = np.append(groups.first, len(rows))
        entry = spread(groups.entry, np.diff(edges))
        by_entry = Grouping(groups.entry, n)
        entry_class = entry * c + code
        duration = end - start
        counted, size = entry_class, a.size_bytes.take(rows)
        if not begun.all():
            counted, size = counted[begun], size[begun]
        self.count += np.bincount(counted, minlength=n * c).reshape(n, c)
        self.bytes += sum_by(size, counted, n * c).reshape(n, c)
        self.work += sum_by(duration, entry_class, n * c).reshape(n, c)
        stream = a.stream[rows]
        self._note_streams(entry_class, stream)
        self._add_pageable(a, groups, group, duration)

        axis = Axis.of_runs(start, end, groups.first)
        lasting = duration > 0
        engine = context.is_engine[code] & lasting
        self.serial += by_entry.sum(sum_between(np.where(engine, duration, 0), edges))
        first = np.minimum.reduceat(np.where(engine, start, _FAR), groups.first)
        last = np.maximum.reduceat(np.where(engine, end, -1), groups.first)

        waits = self._waits(a, groups, group, begun, axis)
        shift = axis.shift[group]
        start, end = start + shift, end + shift
        parts = []
        for i in range(c):
            mine = np.flatnonzero(lasting & (code == i))
            begin, finish = start.take(mine), end.take(mine)
            parts.append(union_sorted(begin, finish))
            self._class_peak(i, begin, finish, entry.take(mine))
        edges_of = [axis.edges(begin) for begin, _ in parts]
        busy = _busy(parts, edges_of)

        shared = _Shared(axis, [*parts, *waits], before)
        self._add_partition(by_entry, shared)
        self._add_waits(by_entry, shared)
        self._add_streams(groups, axis, start[engine], end[engine], stream[engine])
        together = [shared.pair(i, j) for i, j in context.pairs]
        nothing = np.empty((0, len(groups)), np.int64)
        overlap, boundaries = (
            map(np.stack, zip(*together, strict=True)) if together else (nothing, nothing)
        )
        return _Sums(
            busy=busy,
            engines=self._engine_busy(code, a.link[rows], axis, busy, start, end, lasting),
            overlap=overlap,
            boundaries=boundaries,
            first=first,
            last=last,
            edge=shared.edge(),
            by_entry=by_entry,
            axis=axis,
            parts=parts,
            edges=edges_of,
        )

    def _conclude(self, groups: Groups, sums: _Sums) -> None:
        """Add what can be said only of whole groups."""
        entry, total = groups.entry, sums.by_entry.sum
        some = sums.last >= 0
        span = np.where(some, sums.last - sums.first, 0)
        self.span += total(span)
        np.minimum.at(self.first_start, entry, sums.first)
        self.class_busy += total(sums.busy).T
        step = 2 * self.context.granularity_ns
        cold = self._compiled(groups, sums)
        for number, (i, j) in enumerate(self.context.pairs):
            overlap, boundaries = sums.overlap[number], sums.boundaries[number]
            self.overlap[:, i, j] += total(overlap)
            self.boundaries[:, i, j] += total(boundaries)
            busy_i, busy_j = sums.busy[i], sums.busy[j]
            counts = (busy_i >= MIN_INSTANCE_BUSY_NS) & (busy_j >= MIN_INSTANCE_BUSY_NS)
            possible = np.minimum(busy_i, busy_j) * self._limits[entry, i, j]
            if cold.any():
                reached = overlap >= OVERLAPPED_RHO * possible
                self.cold[:, i, j] += total(counts & cold)
                self.cold_good[:, i, j] += total(counts & cold & reached)
                counts &= ~cold
            self.counting[:, i, j] += total(counts)
            for bias, good in self.good.items():
                reached = overlap + bias * step * boundaries >= OVERLAPPED_RHO * possible
                good[:, i, j] += total(counts & reached)
        engines = self._one_copy_engine(entry, sums)
        if len(engines):
            self.bound += total(engines.max(axis=0))
            if "uvm" in self.context.names:
                engines = engines.copy()
                engines[self.context.names.index("uvm")] = 0
            self.least += total(engines.max(axis=0))
            self.engines += total(engines.sum(axis=0))
        self._groups.append(np.stack([entry, groups.instance, span]))

    def _compiled(self, groups: Groups, sums: _Sums) -> Bool:
        """Return which groups are instances of a range in which code was compiled."""
        found = np.zeros(len(groups), np.bool_)
        of_range = np.array([entry.name is not None for entry in self.entries], np.bool_)
        device = np.where(of_range, self.device, -1)[groups.entry]
        for number in distinct(device[device >= 0]):
            begin, finish = self.context.compiling(number)
            mine = np.flatnonzero(device == number)
            inside = np.searchsorted(begin, sums.last[mine]) > np.searchsorted(
                finish, sums.first[mine], side="right"
            )
            found[mine] = inside
        return found

    def _waits(
        self, a: Activities, groups: Groups, group: Int64, begun: Bool, axis: Axis
    ) -> list[Disjoint]:
        """Add up transfer times, and return when data moved, and when a kernel only waited.

        Both are parts of the communication class, on the axis; an empty list where nothing is
        known.
        """
        n = len(self.entries)
        rows = groups.rows
        known = np.flatnonzero(a.moving_ns[rows] >= 0) if self.context.moves else rows[:0]
        if not len(known):
            return []
        start, end = a.start_ns[rows[known]], a.end_ns[rows[known]]
        moving = np.clip(a.moving_ns[rows[known]], start, end)
        entry = groups.entry[group[known]]
        self.transfer += sum_by(end - moving, entry, n)
        self.transfer_known += np.bincount(entry[begun[known]], minlength=n)
        shift = axis.shift[group[known]]
        return [union(moving + shift, end + shift), union(start + shift, moving + shift)]

    def _add_waits(self, by_entry: Grouping, shared: _Shared) -> None:
        if shared.parts > len(self.context.codes) and "kernel" in self.context.names:
            kernel, moving = self.context.names.index("kernel"), len(self.context.codes)
            for total, part in ((self.transfer_hidden, moving), (self.wait_hidden, moving + 1)):
                total += by_entry.sum(shared.pair(kernel, part)[0])

    def _note_streams(self, entry_class: Int64, stream: npt.NDArray[np.int32]) -> None:
        real = stream >= 0
        self._streams[entry_class[real], stream[real]] = True

    def _class_peak(self, i: int, start: Int64, end: Int64, entry: Int64) -> None:
        self.class_peak[entry, i] = np.maximum(self.class_peak[entry, i], 1)
        ends = np.sort(end)
        beside = np.flatnonzero(start[1:] < ends[:-1]) + 1
        active = beside + 1 - np.searchsorted(ends, start[beside], side="right")
        np.maximum.at(self.class_peak[:, i], entry[beside], active)

    def _add_partition(self, by_entry: Grouping, shared: _Shared) -> None:
        engines = sum(1 << int(i) for i in np.flatnonzero(self.context.is_engine))
        for mask, time in zip(shared.masks, by_entry.sum(shared.table), strict=True):
            seen = mask & engines
            if not seen:
                continue
            self.busy += time
            self.partition[seen] = self.partition.get(seen, 0) + time

    def _engine_busy(
        self,
        code: Int64,
        link: npt.NDArray[np.int32],
        axis: Axis,
        busy: Int64,
        start: Int64,
        end: Int64,
        lasting: Bool,
    ) -> Int64:
        """Return the busy time of each engine: [class or link, group]; p2p counts by link."""
        peer = np.array(self.context.codes) == CODE["p2p"]
        found = [busy * (self.context.is_engine & ~peer)[:, np.newaxis]]
        for number in self.context.links:
            mine = lasting & peer[code] & (link == number)
            part = union_sorted(start[mine], end[mine])
            found.append(_busy([part], [axis.edges(part[0])]))
        return np.concatenate(found)

    def _one_copy_engine(self, entry: Int64, sums: _Sums) -> Int64:
        """Return the busy time of the engines, both copy directions as one where there is one."""
        names = self.context.names
        if not self.single_engine.any() or not {"h2d", "d2h"} <= set(names):
            return sums.engines
        i, j = names.index("h2d"), names.index("d2h")
        shared = sums.overlap[self.context.pairs.index((min(i, j), max(i, j)))]
        one = self.single_engine[entry]
        engines = sums.engines.copy()
        engines[i, one] += (engines[j] - shared)[one]
        engines[j, one] = 0
        return engines

    def _add_pageable(self, a: Activities, groups: Groups, group: Int64, duration: Int64) -> None:
        """Add the time of the copies of pageable memory."""
        if self.context.pageable is not None:
            mine = np.flatnonzero(self.context.pageable[a.operation[groups.rows]])
            entry = groups.entry[group[mine]]
            self.pageable += sum_by(duration[mine], entry, len(self.entries))

    def _add_streams(
        self,
        groups: Groups,
        axis: Axis,
        start: Int64,
        end: Int64,
        stream: npt.NDArray[np.int32],
    ) -> None:
        """Add the time with exactly k streams active."""
        if not len(start):
            return
        order = np.argsort(
            stream.astype(np.uint16 if stream.max() < 65536 else np.uint32), kind="stable"
        )
        start, end, stream = start[order], end[order], stream[order]
        edges = [*run_starts(stream).tolist(), len(stream)]
        parts = [union_sorted(start[a:b], end[a:b]) for a, b in pairwise(edges)]
        times, active = depth(*(np.concatenate(side) for side in zip(*parts, strict=True)))
        duration = np.diff(times)
        some = (duration > 0) & (active[:-1] > 0)
        level = active[:-1][some]
        entry = groups.entry[axis.group_at(times[:-1][some])]
        np.maximum.at(self.peak, entry, level)
        n, top = len(self.entries), int(level.max(initial=0))
        table = sum_by(duration[some], entry * (top + 1) + level, n * (top + 1))
        for k, time in enumerate(table.reshape(n, top + 1).T[1:], start=1):
            self.streams_ns[k] = self.streams_ns.get(k, 0) + time

    def _add_under(self, groups: Groups, sums: _Sums) -> None:
        """Add the time of each class of the groups under every class of the whole device."""
        device_of = self.device[groups.entry]
        devices = distinct(device_of)
        for i, ((start, end), edges) in enumerate(zip(sums.parts, sums.edges, strict=True)):
            group = numbered(edges)
            shift = sums.axis.shift[group]
            start, end = start - shift, end - shift
            under = np.zeros((len(self.context.codes), len(start)), np.int64)
            for device in devices:
                mine = slice(None) if len(devices) == 1 else (device_of == device)[group]
                for j, cover in enumerate(self.context.covers(device)):
                    if j != i:
                        under[j, mine] = cover.within(start[mine], end[mine])
            for j, time in enumerate(under):
                if j != i:
                    self.under[:, i, j] += sums.by_entry.sum(sum_between(time, edges))

    # Reading them out

    def _by_entry(self) -> dict[int, Int64]:
        """Return, an entry, its instances and spans in order of time: shape (2, instances)."""
        if self._instances is None:
            joined = np.concatenate(self._groups, axis=1) if self._groups else np.empty((3, 0))
            joined = joined[:, np.lexsort((joined[1], joined[0]))].astype(np.int64)
            edges = np.searchsorted(joined[0], np.arange(len(self.entries) + 1))
            self._instances = {
                number: joined[1:, edges[number] : edges[number + 1]]
                for number in range(len(self.entries))
            }
        return self._instances

    def instance_count(self, number: int) -> int:
        """Return how many instances of an entry ran something."""
        return len(self._by_entry()[number][0])

    def instance_index(self, number: int, instance: int) -> int:
        """Return the position of an instance among those of its entry that ran something."""
        return int(np.searchsorted(self._by_entry()[number][0], instance))

    def spread(self, number: int) -> InstanceSpread:
        """Say how the spans of an entry's instances differ."""
        spans = self._by_entry()[number][1]
        median = float(np.median(spans))
        mad = float(np.median(np.abs(spans - median)))
        far = np.abs(spans - median) > OUTLIER_MADS * MAD_SCALE * max(mad, 1.0)
        return InstanceSpread(
            median_ns=round(median),
            mad_ns=round(mad),
            min_ns=int(spans.min()),
            max_ns=int(spans.max()),
            outliers=tuple(np.flatnonzero(far).tolist()),
        )

    def scope(self, number: int) -> Scope:
        """Return all figures of an entry."""
        names = self.context.names
        present = [i for i in range(len(names)) if self.count[number, i]]
        span, busy = int(self.span[number]), int(self.busy[number])
        parts = sorted(
            (_names_of(mask, names), int(times[number]))
            for mask, times in self.partition.items()
            if times[number]
        )
        working = busy - sum(ns for classes, ns in parts if classes == ("uvm",))
        if span > busy:
            parts.insert(0, ((), span - busy))
        engines = int(self.engines[number])
        gain = engines - int(self.least[number])
        measurable = engines > 0 and gain >= SMALL_GAIN_SHARE * engines
        return Scope(
            span_ns=span,
            busy_ns=busy,
            idle_ns=span - busy,
            serial_ns=int(self.serial[number]),
            bound_ns=int(self.bound[number]),
            schedule_bound_ns=None,
            overlap_efficiency=(engines - working) / gain if measurable else None,
            efficiency_note=self._note(number, engines),
            classes={names[i]: self._class(number, i) for i in present},
            pairs=self._pairs(number, present),
            partition=tuple(Part(classes, ns) for classes, ns in parts),
            concurrency=Concurrency(
                streams_ns={
                    str(k): int(times[number])
                    for k, times in sorted(self.streams_ns.items())
                    if times[number]
                },
                peak=int(self.peak[number]),
                classes={
                    names[i]: ClassConcurrency(
                        mean=_ratio(int(self.work[number, i]), int(self.class_busy[number, i])),
                        peak=int(self.class_peak[number, i]),
                    )
                    for i in present
                },
            ),
        )

    def _note(self, number: int, engines: int) -> str | None:
        share = int(self.pageable[number]) / engines if engines else 0.0
        if share > FOREIGN_TIME_SHARE:
            return (
                f"{100 * share:.0f} % of the engine time is copies of pageable memory, whose "
                "durations include staging on the host"
            )
        comm = self.context.names.index("comm") if "comm" in self.context.names else None
        if comm is not None and self.transfer_known[number] and engines:
            waits = int(self.work[number, comm] - self.transfer[number]) / engines
            if waits > FOREIGN_TIME_SHARE:
                return (
                    f"{100 * waits:.0f} % of the engine time is communication kernels waiting for "
                    "their peers"
                )
        if self.entries[number].device in self.context.shared_hardware:
            return "another process used this GPU meanwhile, which stretches durations"
        return None

    def _class(self, number: int, i: int) -> ClassFigures:
        context = self.context
        busy = int(self.class_busy[number, i])
        exposed: int | None = busy
        if context.names[i] == "kernel":
            exposed = None
        elif "kernel" in context.names and context.names[i] != "fused":
            a, b = sorted((i, context.names.index("kernel")))
            exposed = busy - int(self.overlap[number, a, b])
        count, work = int(self.count[number, i]), int(self.work[number, i])
        transfer: dict[str, Any] = {}
        if context.names[i] == "comm" and count == int(self.transfer_known[number]):
            moved = int(self.transfer[number])
            transfer = {
                "transfer_ns": moved,
                "wait_ns": work - moved,
                "transfer_exposed_ns": moved - int(self.transfer_hidden[number]),
                "wait_exposed_ns": work - moved - int(self.wait_hidden[number]),
                "transfer_estimated": context.transfer_estimated,
            }
        return ClassFigures(
            count=count,
            work_ns=work,
            busy_ns=busy,
            exposed_ns=exposed,
            bytes=int(self.bytes[number, i]),
            streams=int(self._streams[number * len(self.context.codes) + i].sum()),
            **transfer,
        )

    def _pairs(self, number: int, present: Sequence[int]) -> tuple[PairFigures, ...]:
        names = self.context.names
        graphs = any(names[i] == "graph" for i in present)
        pairs = [self._pair(number, i, j, graphs) for i, j in combinations(present, 2)]
        return tuple(sorted(pairs, key=lambda pair: (pair.a, pair.b)))

    def _pair(self, number: int, i: int, j: int, graphs: bool) -> PairFigures:
        context = self.context
        busy = {i: int(self.class_busy[number, i]), j: int(self.class_busy[number, j])}
        low, high = sorted((i, j), key=lambda k: context.names[k])
        a, b = context.names[low], context.names[high]
        limit = float(self._limits[number, i, j])
        blind = {"graph", "fused"} & {a, b}
        counting, cold = (int(table[number, i, j]) for table in (self.counting, self.cold))
        good = {bias: int(table[number, i, j]) for bias, table in self.good.items()}
        figures = PairSums(
            a=a,
            b=b,
            busy_a=busy[low],
            busy_b=busy[high],
            overlap=int(self.overlap[number, i, j]),
            scope_busy=int(self.busy[number]),
            a_under=int(self.under[number, low, high]),
            b_under=int(self.under[number, high, low]),
            limit=None if np.isnan(limit) else limit,
            uncertainty=2 * int(self.boundaries[number, i, j]) * context.granularity_ns,
            counting=counting or cold,
            good=good if counting else dict.fromkeys(good, int(self.cold_good[number, i, j])),
            is_range=self.entries[number].name is not None,
        )
        trouble = context.trouble
        if blind:
            trouble = {
                "graph": "CUDA graphs were traced whole, so what ran inside is unknown",
                "fused": "a fused kernel computes and communicates at once",
            }[min(blind)]
        elif "uvm" in {a, b}:
            trouble = "pages that nobody asked for hold up what needs them: that hides nothing"
        elif graphs:
            trouble = "CUDA graphs were traced whole, so what ran inside is unknown"
        elif self.entries[number].device in context.shared_hardware:
            trouble = "another process used this GPU meanwhile, perhaps in turns (no MPS is known)"
        verdict, reason = judge(figures, trouble)
        if cold and trouble is None:
            reason += (
                f"; {cold} of {counting + cold} instances compile code and do not count"
                if counting
                else "; code is compiled in every instance: this is no warm program"
            )
        ratio = _ratio(figures.overlap, min(busy.values()))
        known = not blind
        return PairFigures(
            a=a,
            b=b,
            overlap_ns=figures.overlap if known else None,
            overlap_ratio=ratio if known else None,
            ratio_limit=figures.limit,
            rho=figures.rho() if known else None,
            hidden_ratio_a=_ratio(figures.overlap, figures.busy_a) if known else None,
            hidden_ratio_b=_ratio(figures.overlap, figures.busy_b) if known else None,
            a_under_any_b_ns=figures.a_under if known else None,
            b_under_any_a_ns=figures.b_under if known else None,
            uncertainty_ns=figures.uncertainty if known else None,
            verdict=verdict,
            reason=reason,
        )


_Edge = tuple[int, int]
"""A time on the trace's clock, and the mask of the classes that were active up to it."""


class _Shared:
    """The line of a batch, cut where the set of active classes changes.

    `before` is where an earlier piece of the one group ended: what goes on from there is no new
    stretch.
    """

    def __init__(self, axis: Axis, parts: Sequence[Disjoint], before: _Edge | None) -> None:
        pieces = coverage(parts)
        self.parts = len(parts)
        groups = len(axis.begin)
        self._edges = axis.edges(pieces.start)
        self.masks, self._code = _small_unique(pieces.mask)
        """Every set of classes that was active."""
        self._joined = np.zeros(len(pieces.start), np.bool_)
        np.equal(pieces.start[1:], pieces.end[:-1], out=self._joined[1:])
        self._before = 0
        self._edge: _Edge = before or (-1, 0)
        if len(pieces.start):
            shift = int(axis.shift[-1])
            self._edge = (int(pieces.end[-1]) - shift, int(pieces.mask[-1]))
            if before is not None and before[0] == int(pieces.start[0]) - int(axis.shift[0]):
                self._before = before[1]
        width = len(self.masks)
        self.table = sum_by(
            pieces.end - pieces.start,
            self._code * groups + numbered(self._edges),
            width * groups,
        ).reshape(width, groups)
        """The time of each set in each group: [set, group]."""

    def edge(self) -> _Edge:
        """Return where the line ends, for the next piece of the group."""
        return self._edge

    def pair(self, i: int, j: int) -> tuple[Int64, Int64]:
        """Return, in each group, the time two classes share and its boundaries (two a stretch)."""
        both = np.array([bool(m >> i & 1 and m >> j & 1) for m in self.masks], np.bool_)
        if not both.any():
            nothing = np.zeros(self.table.shape[1], np.int64)
            return nothing, nothing
        overlap = self.table[both].sum(axis=0)
        active = both[self._code]
        begins = active.copy()
        begins[1:] &= ~(active[:-1] & self._joined[1:])
        begins[:1] &= not (self._before >> i & 1 and self._before >> j & 1)
        return overlap, 2 * sum_between(begins, self._edges)


def _small_unique(masks: npt.NDArray[np.uint32]) -> tuple[list[int], Int64]:
    """Return the distinct masks and each row's position among them."""
    if not len(masks):
        return [], np.empty(0, np.int64)
    present = np.bincount(masks)
    distinct = np.flatnonzero(present)
    code = np.zeros(len(present), np.int64)
    code[distinct] = np.arange(len(distinct))
    return distinct.tolist(), code[masks]


def _busy(parts: Sequence[Disjoint], edges: Sequence[Int64]) -> Int64:
    """Return the time of each part in each group, given where these begin in it: [part, group]."""
    pairs = zip(parts, edges, strict=True)
    return np.stack([sum_between(end - start, at) for (start, end), at in pairs])


def _names_of(mask: int, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(name for i, name in enumerate(names) if mask >> i & 1))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class LinkSums:
    """Busy time and overlap of links, summed over groups of peer copies."""

    def __init__(self, context: Context, copies: Activities, entries: Sequence[Entry]) -> None:
        self._context, self._copies, self._entries = context, copies, entries
        self._links = np.unique(copies.link).tolist()
        n, m = len(entries), len(self._links)
        self._busy = np.zeros((n, m), np.int64)
        self._scope_busy = np.zeros(n, np.int64)
        self._overlap, self._counting, self._boundaries = (
            np.zeros((n, m, m), np.int64) for _ in range(3)
        )
        self._turns = np.zeros((n, m, m), np.int64)
        self._good = {bias: np.zeros((n, m, m), np.int64) for bias in (-1, 0, 1)}

    def add(self, groups: Groups) -> None:
        """Add the groups of one batch."""
        if not len(groups):
            return
        copies, n = self._copies, len(self._entries)
        rows, group = groups.rows, groups.group_of_rows()
        start, end = copies.start_ns[rows], copies.end_ns[rows]
        in_order = np.lexsort((start, group))
        self._add_turns(copies.link[rows][in_order], group[in_order], groups.entry)
        axis = Axis.of_runs(start, end, groups.first)
        lasting = end > start
        start, end = start + axis.shift[group], end + axis.shift[group]
        by_entry = Grouping(groups.entry, n)
        begin, finish = union_sorted(start[lasting], end[lasting])
        self._scope_busy += by_entry.sum(sum_between(finish - begin, axis.edges(begin)))
        link = copies.link[rows]
        parts = [
            union_sorted(start[lasting & (link == each)], end[lasting & (link == each)])
            for each in self._links
        ]
        busy = _busy(parts, [axis.edges(begin) for begin, _ in parts])
        self._busy += by_entry.sum(busy).T
        step = 2 * self._context.granularity_ns
        for i, j in combinations(range(len(parts)), 2):
            overlap, boundaries = _Shared(axis, (parts[i], parts[j]), None).pair(0, 1)
            self._overlap[:, i, j] += by_entry.sum(overlap)
            self._boundaries[:, i, j] += by_entry.sum(boundaries)
            least = np.minimum(busy[i], busy[j])
            counts = least >= MIN_INSTANCE_BUSY_NS
            self._counting[:, i, j] += by_entry.sum(counts)
            for bias, good in self._good.items():
                reached = overlap + bias * step * boundaries >= OVERLAPPED_RHO * least
                good[:, i, j] += by_entry.sum(counts & reached)

    def _add_turns(
        self,
        link: npt.NDArray[np.int32],
        group: npt.NDArray[np.int64],
        entry: npt.NDArray[np.int64],
    ) -> None:
        """Count how often the link changes from a copy to the next, in order of their starts."""
        rows_of = [np.flatnonzero(link == each) for each in self._links]
        for i, j in combinations(range(len(self._links)), 2):
            mine = np.sort(np.concatenate([rows_of[i], rows_of[j]]))
            link_of, group_of = link[mine], group[mine]
            turned = (link_of[1:] != link_of[:-1]) & (group_of[1:] == group_of[:-1])
            self._turns[:, i, j] += np.bincount(
                entry[group_of[1:][turned]], minlength=len(self._entries)
            )

    def pairs(self, number: int) -> tuple[LinkPair, ...]:
        """Return the overlaps of the links of an entry that carried anything."""
        present = [i for i in range(len(self._links)) if self._busy[number, i]]
        return tuple(self._pair(number, i, j) for i, j in combinations(present, 2))

    def _pair(self, number: int, i: int, j: int) -> LinkPair:
        a, b = link_text(self._links[i]), link_text(self._links[j])
        overlap = int(self._overlap[number, i, j])
        busy_a, busy_b = int(self._busy[number, i]), int(self._busy[number, j])
        granularity = self._context.granularity_ns
        verdict, reason = judge(
            PairSums(
                a=a,
                b=b,
                busy_a=busy_a,
                busy_b=busy_b,
                overlap=overlap,
                scope_busy=int(self._scope_busy[number]),
                a_under=overlap,
                b_under=overlap,
                limit=1.0,
                uncertainty=2 * int(self._boundaries[number, i, j]) * granularity,
                counting=int(self._counting[number, i, j]),
                good={bias: int(good[number, i, j]) for bias, good in self._good.items()},
                is_range=False,
            ),
            self._context.trouble,
        )
        return LinkPair(
            process=self._context.pid(self._entries[number]),
            a=a,
            b=b,
            overlap_ns=overlap,
            overlap_ratio=_ratio(overlap, min(busy_a, busy_b)),
            turns=int(self._turns[number, i, j]),
            verdict=verdict,
            reason=reason,
        )


def peer_copies(trace: Trace, activities: Activities) -> Activities:
    """Return the peer copies, those of a process all put on its first device."""
    peer = activities.link >= 0
    first_device: dict[int, int] = {}
    for index, device in enumerate(trace.devices):
        first_device.setdefault(device.process, index)
    home = np.array([first_device[device.process] for device in trace.devices] or [0], np.int32)
    return activities.take(peer, device=home[activities.device[peer]])


def link_text(link: int) -> str:
    """Write a link as ``0>1``."""
    return f"{link // 65536}>{link % 65536}"
