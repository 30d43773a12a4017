"""The timeline: traces laid out in rows, and what a view of the rows needs to be drawn.

Rows make a tree, written flat with a level: a process, its devices, their streams; its threads.
Times are in ns from the page's zero, the first operation of all traces on one clock. Nothing is
drawn here: the script `timeline.js` beside this file draws what :meth:`Timeline.view` returns.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope import communication
from gpuscope.analysis import Options
from gpuscope.cases import CALL_KINDS, Case
from gpuscope.figures.compare import Alignment
from gpuscope.figures.levels import Part, split, view
from gpuscope.figures.names import found_in
from gpuscope.figures.overlap import Together
from gpuscope.figures.palette import DARK, LIGHT
from gpuscope.intervals import coverage, distinct, gaps, run_starts, union, union_sorted
from gpuscope.intervals import depth as depth_of
from gpuscope.model.classes import CLASSES, CODE, ENGINE_CODES, HOST_CODES, base_name
from gpuscope.model.tables import Operations, in_classes
from gpuscope.model.trace import Trace, shown_names
from gpuscope.progress import Progress, silent
from gpuscope.scopes import ProjectedRanges, open_before, project_ranges
from gpuscope.units import format_ns, printable, visible
from gpuscope.waits import REASONS, call_name

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Parts = dict[int, Part]

ASSETS = Path(__file__).parent / "assets"
"""The scripts and the style that the page and the report share."""
SCRIPTS = ("drawing.js", "controls.js", "timeline.js")
"""The scripts, in the order in which they are loaded."""

MOST_MARKS = 4_000
"""Marks of all rows of a view together, but for wide ones."""
NEAR_ROWS = 10
"""Fewer rows than these get no more marks each."""
MAX_RANGE_DEPTH = 5
"""Nesting levels of NVTX ranges that get a row; deeper ones share the last."""
MAX_RANGE_ROWS = 4
"""Rows that ranges of one depth spread over where they overlap; more share these."""
MAX_RANGE_LANES = 8
"""Rows of NVTX ranges of one device."""
OPEN_DEVICES = 4
"""Devices are unfolded at first when there are so few in all traces; of more one sees the bands."""
OPEN_THREADS = 2
"""Threads are unfolded at first when there are so few."""
NO_STREAM = "no stream"
_NAME_LENGTH = 160
_LONGEST_PARSED = 2_000
"""Characters of a name in which its base, or a pattern, is looked for."""
_KERNELS = (CODE["kernel"], CODE["comm"], CODE["fused"])

PAINTS = (*CLASSES, "call", "wait", "range", *(f"idle: {reason}" for reason in REASONS))
"""What rows are painted with, by number; after these come the sets of classes of the bands."""
_CALL, _WAIT, _RANGE = (PAINTS.index(name) for name in ("call", "wait", "range"))
_FIRST_REASON = PAINTS.index(f"idle: {REASONS[0]}")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the timeline."""

    label: str
    kind: str
    """``group``, ``device`` (its band shows what ran together), ``idle``, ``range``, ``stream``,
    ``engine``, ``thread`` (its CUDA calls), ``nvtx`` or ``mpi``."""
    level: int
    """How deep in the tree; the rows below it with a larger level belong to it."""
    trace: int
    """Number of the trace."""
    device: int = -1
    """Index into Trace.devices, or -1."""
    note: str = ""
    """What a reader of the label may want to know, too."""
    unfolded: bool = True
    """Whether the rows that belong to it are shown at first."""


def plain(text: str, length: int = 120) -> str:
    """Make a name from a trace fit for a text node: one line of printable characters."""
    return printable(text, length)


def spread(start_ns: Int64, end_ns: Int64, most: int) -> tuple[Int64, int]:
    """Spread intervals over rows so that those that overlap lie beside each other.

    Within each stretch of overlapping intervals the rows go round in the order of their starts:
    intervals that end in that order never meet in a row unless more than `most` are open at once.

    Parameters
    ----------
    start_ns, end_ns
        Intervals of shape (n,), sorted by start.
    most
        Largest number of rows.

    Returns
    -------
    The row of each interval, shape (n,), and the number of rows; 0 rows without intervals.
    """
    if not len(start_ns):
        return start_ns, 0
    _, open_at_once = depth_of(start_ns, end_ns)
    count = max(1, min(most, int(open_at_once.max(initial=0))))
    opens = np.ones(len(start_ns), np.bool_)
    opens[1:] = start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]
    first = np.flatnonzero(opens)[np.cumsum(opens) - 1]
    return (np.arange(len(start_ns)) - first) % count, count


@dataclass(frozen=True, eq=False)
class Placed:
    """A trace on the page."""

    trace: Trace
    shift_ns: int
    """What to add to its times to get times of the page."""
    case: Case
    ranges: ProjectedRanges
    operations: Operations

    @cached_property
    def every(self) -> Part:
        """All operations, on the page's clock."""
        ops = self.operations
        shift = self.shift_ns
        item = np.arange(len(ops), dtype=np.int32)
        return Part(ops.start_ns + shift, ops.end_ns + shift, item)

    @cached_property
    def ends_ns(self) -> Int64:
        """The ends of all operations on the page's clock, sorted."""
        return np.sort(self.operations.end_ns) + self.shift_ns

    def table(self, kind: str) -> tuple[Any, str]:
        """Return the table whose rows a row of this kind shows, and the table's name."""
        name = {"stream": "operations", "engine": "operations", "idle": "operations"}.get(kind)
        name = name or {"range": "ranges", "nvtx": "ranges", "thread": "api", "mpi": "mpi"}[kind]
        return getattr(self.trace, name), name


def _place(trace: Trace, shift_ns: int) -> Placed:
    """Find out what a trace's rows need; NumPy lets two threads work at once."""
    with ThreadPoolExecutor(1) as pool:
        ranges = pool.submit(project_ranges, trace)
        case = Case.of(trace, Options())
    operations = trace.operations or Operations.empty()
    return Placed(trace, shift_ns, case, ranges.result(), operations)


def one_clock(traces: Sequence[Trace]) -> Alignment:
    """Put the traces of one run on one clock, the first operation of all at 0.

    By the recorded time of day, set right by the communication kernels, which end together on all
    ranks, or by MPI's collectives, where these can be matched. Where a trace has no time of day,
    all begin together. What is there twice is told.
    """
    found = _one_clock(traces)
    if not communication.seen_twice(traces):
        return found
    twice = communication.TWICE
    return replace(found, note=f"{found.note} {twice[0].upper()}{twice[1:]}.")


def _one_clock(traces: Sequence[Trace]) -> Alignment:
    known = [trace.start_utc_ns for trace in traces if trace.start_utc_ns is not None]
    if len(traces) == 1 or len(known) < len(traces):
        note = "A trace has no time of day, so that all are shown from their first operation."
        return Alignment(tuple(-trace.origin_ns for trace in traces), note)
    if reason := communication.far_apart(traces):
        note = f"{reason[0].upper()}{reason[1:]} All are shown from their first operation."
        return Alignment(tuple(-trace.origin_ns for trace in traces), note, common=False)
    note = "The traces share one clock by the time of day."
    clocks = [
        clock
        for exchange in communication.exchanges(traces)
        if exchange is not None
        and (clock := next(iter(exchange.clocks.values()), None)) is not None
    ]
    if len(clocks) == len(traces):
        known = [time + clock.offset_ns for time, clock in zip(known, clocks, strict=True)]
        note = (
            "The traces share one clock by the time of day, set right by communication kernels or "
            f"MPI calls that end together ({clocks[0].matched:,}, to within "
            f"{format_ns(max(clock.residual_ns for clock in clocks))})."
        )
    placed = list(zip(known, traces, strict=True))
    begins = [time + trace.origin_ns for time, trace in placed if trace.duration_ns]
    zero = min(begins, default=min(known))
    return Alignment(tuple(time - zero for time in known), note)


class Timeline:
    """Traces laid out in rows, ready for any view.

    A device without operations has no row. `alignment` puts the traces on another clock than that
    of :func:`one_clock`.
    """

    def __init__(
        self,
        traces: Sequence[Trace],
        progress: Progress = silent,
        alignment: Alignment | None = None,
    ) -> None:
        self.alignment = one_clock(traces) if alignment is None else alignment
        steps = 2 * len(traces)
        self.placed: list[Placed] = []
        for trace, shift in zip(traces, self.alignment.shifts_ns, strict=True):
            progress("laying out", len(self.placed), steps)
            self.placed.append(_place(trace, shift))
        own = alignment is None  # the traces of different runs are called as they are named
        self.names = shown_names(traces) if own else [trace.path for trace in traces]
        """What tells the traces from each other."""
        used = sum(int((np.bincount(p.operations.device) > 0).sum()) for p in self.placed)
        self._unfolded = used <= OPEN_DEVICES
        self.rows: list[Row] = []
        self.sets: list[tuple[str, ...]] = []
        """The sets of classes that ran together, painted with numbers from len(PAINTS) on."""
        self._parts: dict[int, Parts] = {}
        self._busy: dict[int, Part] = {}
        self.row_of_stream: list[dict[int, int]] = []
        self.row_of_thread: list[dict[int, int]] = []
        self.row_of_device: list[dict[int, int]] = []
        for number in range(len(self.placed)):
            progress("laying out", len(self.placed) + number, steps)
            self._lay_out(number)
        ends = [p.trace.origin_ns + p.shift_ns + p.trace.duration_ns for p in self.placed]
        self.end_ns = max([1, *ends])
        """End of the last operation; the first starts at 0."""
        self._short_names: dict[tuple[int, int, bool], str] = {}
        self._named = lru_cache(maxsize=2 * len(self.placed))(self._find_names)
        self._matching = lru_cache(maxsize=2)(self._find_matching)

    # Laying out

    def _add(self, row: Row, parts: Parts | None = None) -> int:
        self.rows.append(row)
        if parts:
            self._parts[len(self.rows) - 1] = parts
        return len(self.rows) - 1

    def _lay_out(self, number: int) -> None:
        placed = self.placed[number]
        trace, operations = placed.trace, placed.operations
        for index in (self.row_of_stream, self.row_of_thread, self.row_of_device):
            index.append({})
        shown = np.flatnonzero(operations.op_class != CODE["gate"]).astype(np.int32)
        # What has no stream has a row of its own, the last of its device.
        stream = operations.stream[shown]
        loose = len(trace.streams) + operations.device[shown]
        engine = operations.device[shown] * len(CLASSES) + operations.op_class[shown]
        with ThreadPoolExecutor(1) as pool:
            called = pool.submit(self._threads, number)
            by_stream = self._split(number, operations, shown, np.where(stream < 0, loose, stream))
            by_engine = self._split(number, operations, shown, engine)
        threads = called.result()
        used = sorted(
            set(distinct(operations.device[shown])),
            key=lambda index: (trace.devices[index].process, trace.devices[index].number),
        )
        processes = dict.fromkeys(trace.devices[index].process for index in used)
        name = plain(self.names[number], 60) if len(self.placed) > 1 else ""
        base = int(bool(name) and len(processes) != 1)
        if base:
            self._add(Row(name, "group", 0, number))
        for process in processes:
            level = base
            if len(processes) > 1 or name:
                label = self._process_label(placed, process)
                if name and not base and not label.startswith(name):
                    label = f"{name} · {label}"
                self._add(Row(label, "group", base, number))
                level += 1
            for device in used:
                if trace.devices[device].process == process:
                    self._lay_out_device(number, device, level, by_stream, by_engine)
            mine = [thread for thread in threads if trace.threads[thread].process == process]
            for thread in mine:
                self._lay_out_thread(
                    number, thread, level, threads[thread], len(mine) <= OPEN_THREADS
                )

    def _split(
        self, number: int, operations: Operations, shown: Int32, row: npt.NDArray[Any]
    ) -> dict[int, Parts]:
        shift = self.placed[number].shift_ns
        if len(shown) < len(operations):
            operations = operations.take(shown)
        return split(
            row.astype(np.int32),
            operations.op_class.astype(np.int32),
            operations.start_ns + shift,
            operations.end_ns + shift,
            shown,
        )

    @staticmethod
    def _process_label(placed: Placed, process: int) -> str:
        facts = placed.trace.processes[process]
        rank = f"rank {facts.rank} · " if facts.rank is not None else ""
        name = f" {plain(facts.name, 40)}" if facts.name else ""
        return f"{rank}process {facts.pid}{name}"

    def _lay_out_device(
        self,
        number: int,
        device: int,
        level: int,
        by_stream: Mapping[int, Parts],
        by_engine: Mapping[int, Parts],
    ) -> None:
        trace = self.placed[number].trace
        facts = trace.devices[device]
        engines = {
            code: by_engine[device * len(CLASSES) + code]
            for code in range(len(CLASSES))
            if device * len(CLASSES) + code in by_engine
        }
        note = plain(facts.name, 40) if facts.name else ""
        label, unfolded = f"GPU {facts.number}", self._unfolded
        head = self._add(Row(label, "device", level, number, device, note, unfolded=unfolded))
        self.row_of_device[number][device] = head
        idle = self._band(number, device, head, engines)
        self._add(Row("idle: why", "idle", level + 1, number, device), idle)
        self._lay_out_ranges(number, device, level + 1)
        streams = [i for i, s in enumerate(trace.streams) if s.device == device and i in by_stream]
        for index in sorted(streams, key=lambda i: trace.streams[i].number):
            stream = trace.streams[index]
            notes = [
                stream.kind if stream.kind in ("blocking", "non-blocking") else "",
                f"priority {stream.priority}" if stream.priority else "",
            ]
            self.row_of_stream[number][index] = self._add(
                Row(
                    stream.label,
                    "stream",
                    level + 1,
                    number,
                    device,
                    " · ".join(filter(None, notes)),
                ),
                by_stream[index],
            )
        if len(trace.streams) + device in by_stream:
            self.row_of_stream[number][-1 - device] = self._add(
                Row(NO_STREAM, "stream", level + 1, number, device),
                by_stream[len(trace.streams) + device],
            )
        self._add(Row("engines", "group", level + 1, number, device, "by class", unfolded=False))
        for code, parts in engines.items():
            self._add(Row(CLASSES[code], "engine", level + 2, number, device), parts)
            if code == CODE["p2p"]:
                self._lay_out_links(number, device, level + 3, parts[code])

    def _lay_out_links(self, number: int, device: int, level: int, peer: Part) -> None:
        """Give the copies of each direction a row where there are several, as links work apart."""
        operations = self.placed[number].operations
        src, dst = operations.src_device[peer.item], operations.dst_device[peer.item]
        links = sorted(set(zip(src.tolist(), dst.tolist(), strict=True)))
        for a, b in links if len(links) > 1 else ():
            mine = np.flatnonzero((src == a) & (dst == b))
            part = Part(peer.start_ns[mine], peer.end_ns[mine], peer.item[mine])
            self._add(Row(f"{a}>{b}", "engine", level, number, device), {CODE["p2p"]: part})

    def _band(self, number: int, device: int, head: int, engines: Mapping[int, Parts]) -> Parts:
        """Make the band of what ran together, and return the idle stretches by their cause."""
        placed = self.placed[number]
        codes, lines = [], []
        for code, parts in engines.items():
            part = parts[code]
            codes.append(code)
            lines.append(union(part.start_ns, part.end_ns))
        mpi = placed.trace.mpi
        if mpi is not None:
            mine = mpi.process == placed.trace.devices[device].process
            codes.append(CODE["mpi"])
            lines.append(
                union(mpi.start_ns[mine] + placed.shift_ns, mpi.end_ns[mine] + placed.shift_ns)
            )
        cut = coverage(lines)
        masks, which = np.unique(cut.mask, return_inverse=True)
        paint_of = np.array([self._paint_of_set(codes, mask) for mask in masks.tolist()], np.int32)
        self._parts[head] = split(
            np.zeros(len(cut.start), np.int32),
            paint_of[which],
            cut.start,
            cut.end,
            np.full(len(cut.start), -1, np.int32),
        ).get(0, {})
        on_gpu = sum(1 << i for i, code in enumerate(codes) if code in ENGINE_CODES)
        working = (cut.mask & on_gpu) != 0
        busy = union_sorted(cut.start[working], cut.end[working])
        if not len(busy[0]):
            return {}
        self._busy[head] = Part(*busy, np.zeros(len(busy[0]), np.int32))
        return self._idle(placed, device, *gaps(busy))

    def _idle(self, placed: Placed, device: int, start: Int64, end: Int64) -> Parts:
        """Return idle stretches by what the operation that ended each had waited for."""
        operations = placed.operations
        mine = (operations.device == device) & in_classes(operations.op_class, ENGINE_CODES)
        rows = np.flatnonzero(mine & (operations.end_ns > operations.start_ns)).astype(np.int32)
        first = np.searchsorted(operations.start_ns[rows], end - placed.shift_ns)
        item = rows[np.minimum(first, len(rows) - 1)]
        paint = placed.case.waits.reason[item].astype(np.int32) + _FIRST_REASON
        return split(np.zeros(len(start), np.int32), paint, start, end, item).get(0, {})

    def _paint_of_set(self, codes: Sequence[int], mask: int) -> int:
        names = tuple(sorted(CLASSES[code] for i, code in enumerate(codes) if mask >> i & 1))
        if names not in self.sets:
            self.sets.append(names)
        return len(PAINTS) + self.sets.index(names)

    def _lay_out_ranges(self, number: int, device: int, level: int) -> None:
        """Give the ranges on a device their rows: one a nesting depth, more where they overlap."""
        placed = self.placed[number]
        ranges = placed.ranges
        mine = np.flatnonzero(ranges.device == device)
        depth = np.minimum(ranges.depth[mine], MAX_RANGE_DEPTH - 1)
        deepest = int(depth.max(initial=-1))
        first = len(self.rows)
        for place in range(deepest + 1):
            rows = mine[depth == place]
            left = MAX_RANGE_LANES - (len(self.rows) - first) - (deepest - place)
            lane, count = spread(
                ranges.start_ns[rows], ranges.end_ns[rows], min(MAX_RANGE_ROWS, left)
            )
            for each in range(count):
                self._add(
                    Row("" if len(self.rows) > first else "NVTX", "range", level, number, device),
                    self._range_parts(
                        placed,
                        ranges.start_ns[rows[lane == each]],
                        ranges.end_ns[rows[lane == each]],
                        ranges.range_row[rows[lane == each]],
                    ),
                )

    @staticmethod
    def _range_parts(placed: Placed, start: Int64, end: Int64, item: Int64) -> Parts:
        if not len(start):
            return {}
        shift = placed.shift_ns
        return {_RANGE: Part(start + shift, end + shift, item.astype(np.int32))}

    def _threads(self, number: int) -> dict[int, dict[str, list[Parts]]]:
        """Return what is known of each thread: calls, ranges by depth, MPI calls."""
        placed = self.placed[number]
        trace, shift = placed.trace, placed.shift_ns
        threads: dict[int, dict[str, list[Parts]]] = {}

        def note(kind: str, rows: dict[int, Parts]) -> None:
            for thread, parts in rows.items():
                known = threads.setdefault(thread, {"thread": [], "nvtx": [], "mpi": []})
                known[kind].append(parts)

        def spread_out(
            table: Any, paint: Int32, end_ns: Int64, rows: Int64 | slice
        ) -> dict[int, Parts]:
            item = np.arange(len(table), dtype=np.int32)[rows]
            start, end = table.start_ns[rows] + shift, end_ns[rows] + shift
            return split(table.thread[rows], paint, start, end, item)

        if trace.api:
            wait = CALL_KINDS["wait"]
            waiting = np.array(
                [
                    wait.fullmatch(call_name(text[:_LONGEST_PARSED])) is not None
                    for text in trace.strings
                ]
            )
            paint = np.where(waiting[trace.api.name], _WAIT, _CALL).astype(np.int32)
            note("thread", spread_out(trace.api, paint, trace.api.end_ns, slice(None)))
        ranges = trace.ranges
        if ranges:
            depth = open_before(ranges)
            # A range that never ended lasts as long as the trace.
            end = np.where(ranges.end_ns < 0, trace.origin_ns + trace.duration_ns, ranges.end_ns)
            end = np.maximum(end, ranges.start_ns)
            for place in range(min(MAX_RANGE_DEPTH, int(depth.max()) + 1)):
                mine = np.flatnonzero(np.minimum(depth, MAX_RANGE_DEPTH - 1) == place)
                paint = np.full(len(mine), _RANGE, np.int32)
                note("nvtx", spread_out(ranges, paint, end, mine))
        if trace.mpi:
            paint = np.full(len(trace.mpi), CODE["mpi"], np.int32)
            note("mpi", spread_out(trace.mpi, paint, trace.mpi.end_ns, slice(None)))
        return threads

    def _lay_out_thread(
        self, number: int, thread: int, level: int, known: dict[str, list[Parts]], unfolded: bool
    ) -> None:
        facts = self.placed[number].trace.threads[thread]
        name = plain(facts.name, 30) if facts.name else ""
        calls = known["thread"][0] if known["thread"] else None
        self.row_of_thread[number][thread] = self._add(
            Row(
                f"thread {facts.tid}",
                "thread",
                level,
                number,
                note=" · ".join(filter(None, (name, "CUDA calls" if calls else ""))),
                unfolded=unfolded,
            ),
            calls,
        )
        for place, parts in enumerate(known["nvtx"]):
            self._add(Row("" if place else "NVTX", "nvtx", level + 1, number), parts)
        for parts in known["mpi"]:
            self._add(Row("MPI", "mpi", level + 1, number), parts)

    # Facts

    def row_of_operation(self, number: int, item: int) -> int | None:
        """Return the row of an operation's stream, None when it has none."""
        operations = self.placed[number].operations
        stream = int(operations.stream[item])
        key = stream if stream >= 0 else -1 - int(operations.device[item])
        return self.row_of_stream[number].get(key)

    def operation_at(self, row: int, item: int) -> tuple[int, int] | None:
        """Return the trace and the operation that an item of a row is, None if it is none."""
        if not 0 <= row < len(self.rows) or self.rows[row].kind not in ("stream", "engine"):
            return None
        number = self.rows[row].trace
        return (number, item) if 0 <= item < len(self.placed[number].operations) else None

    def stream_label(self, number: int, item: int) -> str:
        """Name the stream of an operation."""
        placed = self.placed[number]
        stream = int(placed.operations.stream[item])
        return placed.trace.streams[stream].label if stream >= 0 else NO_STREAM

    def device_label(self, number: int, device: int) -> str:
        """Name a device of a trace, with its process where there are several."""
        trace = self.placed[number].trace
        facts = trace.devices[device]
        name = f"GPU {facts.number}"
        if len({trace.devices[each].process for each in self.row_of_device[number]}) > 1:
            process = trace.processes[facts.process]
            name += (
                f" · rank {process.rank}" if process.rank is not None else f" · pid {process.pid}"
            )
        if len(self.placed) > 1:
            name += f" · {plain(self.names[number], 30)}"
        return name

    def range_windows(self, number: int) -> dict[str, tuple[int, int]]:
        """Return by name, from first to last operation, the ranges of a trace that have any."""
        placed = self.placed[number]
        found: dict[str, tuple[int, int]] = {}
        if placed.trace.ranges is None or not len(placed.ranges.range_row):
            return found
        name = placed.trace.ranges.name[placed.ranges.range_row]
        order = np.argsort(name, kind="stable")
        first = run_starts(name[order])
        low = np.minimum.reduceat(placed.ranges.start_ns[order], first) + placed.shift_ns
        high = np.maximum.reduceat(placed.ranges.end_ns[order], first) + placed.shift_ns
        texts = (placed.trace.strings[at] for at in name[order][first].tolist())
        for text, begin, end in zip(texts, low.tolist(), high.tolist(), strict=True):
            before = found.get(text, (begin, end))  # one text may be there twice
            found[text] = min(begin, before[0]), max(end, before[1])
        return found

    def together(self, number: int, device: int, low_ns: int, high_ns: int) -> Together | None:
        """Return what ran together on a device within [low, high), None when nothing ran."""
        head = self.row_of_device[number].get(device)
        if head is None or head not in self._busy:
            return None
        busy = self._busy[head]
        first, stop = busy.within(low_ns, high_ns)
        if first == stop:
            return None
        begin = max(low_ns, int(busy.start_ns[first]))
        end = min(high_ns, int(busy.end_ns[stop - 1]))
        window = np.array([low_ns, high_ns])
        sets = {
            self.sets[paint - len(PAINTS)]: int(np.diff(part.covered(window))[0])
            for paint, part in self._parts[head].items()
        }
        host = {CLASSES[code] for code in HOST_CODES}
        return Together.of_sets(end - begin, sets, host)

    def band_sums(self, row: int, edges_ns: Int64) -> dict[int, Int64]:
        """Return, of the band in a device's row, the time of each set of classes between edges.

        By the set's paint; shape (len(edges_ns) - 1,). Times are exact.
        """
        return {paint: np.diff(part.covered(edges_ns)) for paint, part in self._parts[row].items()}

    # Views

    def describe(self) -> dict[str, Any]:
        """Return all that does not depend on the view: rows and paints, as JSON."""
        return {
            "rows": [
                {
                    **{
                        name: getattr(row, name)
                        for name in (
                            "label",
                            "note",
                            "kind",
                            "level",
                            "trace",
                            "device",
                            "unfolded",
                        )
                    },
                    "paints": sorted(self._parts.get(number, ())),
                }
                for number, row in enumerate(self.rows)
            ],
            "paints": [
                {
                    "name": " + ".join(names),
                    "classes": list(names),
                    **{
                        theme.name: [theme.color(name) for name in names] for theme in (LIGHT, DARK)
                    },
                    "ink": {theme.name: theme.ink_on(names[0]) for theme in (LIGHT, DARK)},
                }
                for names in [*((name,) for name in PAINTS), *self.sets]
            ],
            "hideable": len(CLASSES),
            "first_set": len(PAINTS),
            "hosts": [CLASSES[code] for code in HOST_CODES],
            "end_ns": self.end_ns,
        }

    def view(
        self,
        low_ns: int,
        high_ns: int,
        pixels: int,
        rows: Sequence[int],
        pattern: str = "",
        most: int = MOST_MARKS,
    ) -> dict[str, Any]:
        """Return what to draw of some rows in [low, high) on a screen `pixels` wide, as JSON.

        With `pattern` only what it finds in the names is there; bands and idle time stay. About
        `most` intervals are marks of their own, beside those that are wide on the screen.

        Raises
        ------
        PatternError
            The pattern is no regular expression, or takes too long.
        """
        column = max(1, -(-(high_ns - low_ns) // pixels))
        low = low_ns - low_ns % column
        all_parts = self.matching(pattern)
        rows = [row for row in rows if row in all_parts]
        near = max(1, most // max(NEAR_ROWS, len(rows)))
        names: dict[str, int] = {}
        drawn = {}
        for row in rows:
            seen = view(all_parts[row], low, high_ns, column, near)
            name_of = self._namer(row)
            drawn[row] = {
                "columns": [
                    [paint, base64.b64encode(share.tobytes()).decode()]
                    for paint, share in seen.columns.items()
                    if share.any()
                ],
                "marks": [
                    [
                        paint,
                        marks.start_ns.tolist(),
                        (marks.end_ns - marks.start_ns).tolist(),
                        marks.item.tolist(),
                        [
                            names.setdefault(name_of(item, paint), len(names))
                            for item in marks.item.tolist()
                        ],
                    ]
                    for paint, marks in seen.marks.items()
                    if len(marks)
                ],
            }
        return {
            "low_ns": low,
            "high_ns": high_ns,
            "column_ns": column,
            "rows": drawn,
            "names": list(names),
        }

    def name_of(self, row: int, item: int, paint: int) -> str:
        """Return what an item of a row is called on the screen."""
        return self._namer(row)(item, paint)

    def _namer(self, row: int) -> Callable[[int, int], str]:
        """Return what names the items of a row, given the item and its paint."""
        number, kind = self.rows[row].trace, self.rows[row].kind
        if kind == "device":
            return lambda item, paint: " + ".join(self.sets[paint - len(PAINTS)])
        if kind == "idle":
            return lambda item, paint: REASONS[paint - _FIRST_REASON]
        table, _ = self.placed[number].table(kind)
        column: Int32 = table.name
        return lambda item, paint: self.short_name(number, int(column[item]), paint in _KERNELS)

    def short_name(self, number: int, name: int, kernel: bool = False) -> str:
        """Shorten a name for a bar: a kernel's to its base, a call's without its version."""
        key = number, name, kernel
        if key not in self._short_names:
            text = self.placed[number].trace.strings[name][:_LONGEST_PARSED]
            text = base_name(text) if kernel else call_name(text)
            self._short_names[key] = plain(visible(text), _NAME_LENGTH)
        return self._short_names[key]

    def named(self, number: int, pattern: str) -> npt.NDArray[np.bool_]:
        """Return, an index of Trace.strings, whether `pattern` is found in it, in any case.

        Raises
        ------
        PatternError
            The pattern is no regular expression, or takes too long.
        """
        return self._named(number, pattern)

    def matching(self, pattern: str) -> dict[int, Parts]:
        """Return the intervals of each row in whose names `pattern` is found, by their paint.

        Bands and idle time are kept whole; without a pattern all is.

        Raises
        ------
        PatternError
            The pattern is no regular expression, or takes too long.
        """
        return self._matching(pattern) if pattern else self._parts

    def _find_names(self, number: int, pattern: str) -> npt.NDArray[np.bool_]:
        strings = self.placed[number].trace.strings
        return found_in([text[:_LONGEST_PARSED] for text in strings], pattern)

    def _find_matching(self, pattern: str) -> dict[int, Parts]:
        found = [self.named(number, pattern) for number in range(len(self.placed))]
        kept: dict[int, Parts] = {}
        for row, parts in self._parts.items():
            number, kind = self.rows[row].trace, self.rows[row].kind
            if kind in ("device", "idle"):
                kept[row] = parts
                continue
            table, _ = self.placed[number].table(kind)
            hit = found[number][table.name]
            fewer = {}
            for paint, part in parts.items():
                mine = np.flatnonzero(hit[part.item])
                if len(mine):
                    fewer[paint] = Part(part.start_ns[mine], part.end_ns[mine], part.item[mine])
            kept[row] = fewer
        return kept
