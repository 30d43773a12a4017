"""Why every operation started when it did, and where the time before it went.

An operation starts when its launch has reached the GPU, the operation before it in its stream has
ended, every event its stream waits for is reached, and its engine is free. :class:`Waits` finds
when each of these came true, and hence which one was last: the *reason*. ::

    launch call     ├──┤                    ready: the predecessor ended last,
    predecessor  ├──────────┤               so the reason is `stream`; the cost is
    event             ├──┤  ·               what it held the operation up beyond
    operation               ├──────┤        the launch and the event

:class:`Case` adds what the causes are told from: the kinds of API calls, the regions (outermost
NVTX ranges first) that a finding can be about, and the time during which work that was ready had
not been launched yet because the launching thread was in a certain call.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.analysis import Options
from gpuscope.intervals import (
    Axis,
    Cover,
    Disjoint,
    intersect,
    length,
    subtract,
    sum_by,
    union,
    union_sorted,
)
from gpuscope.model.classes import CLASSES, CODE, ENGINE_CODES
from gpuscope.model.result import Finding
from gpuscope.model.tables import PUSH_POP, ApiCalls, Operations
from gpuscope.model.trace import BLOCKING, NULL_STREAM, Trace
from gpuscope.scopes import matches, nesting

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

START_LATENCY_NS = 20_000
"""An operation starts within this time after the last thing it waited for: on an H200 2 to 13 µs
pass between two operations of one stream, and 1 to 3 µs after the return of a launch."""
SMALL_REGION_SHARE = 0.01
"""Ranges with less than this share of the device's work and span are not looked at one by one."""
USES = ("ranges", "mpi", "syncs", "event_records", "kernel_configs")
"""Tables that a case looks at where the trace has them, for `Analyzer.uses`."""
LEVELS = 3
"""How deep ranges are looked into: the outermost, and two levels of ranges inside them."""
EXAMPLES = 3
"""How many of the worst cases a finding shows."""
BLOCKING_SHARE = 0.80
"""A call that covers this share of its copy blocked the host; one that returned early did not."""
PROMPT_NS = 50_000
"""A launch that follows a call within this time followed at once, also in an interpreter."""
MAX_POLL_GAP_NS = 100_000
"""Queries of a stream or event that follow each other within this time are one wait."""
LIBRARY_DOMAINS = frozenset({"NCCL", "NVSHMEM", "CCCL", "cuBLAS", "cuBLASLt", "cuDNN", "cuFFT"})
"""NVTX domains whose ranges are a library's own, not the program's phases."""

REASONS = ("host", "stream", "event", "null-stream", "engine", "sm", "unknown")
"""What an operation can have waited for last; the position is the code in `Waits.reason`."""
REASON = {name: code for code, name in enumerate(REASONS)}

KERNEL_CODES = tuple(CODE[name] for name in ("kernel", "comm", "fused", "gate"))
COPY_CODES = tuple(CODE[name] for name in ("h2d", "d2h", "p2p"))
HIDEABLE = ("kernel", "comm", "h2d", "d2h", "p2p")
"""The classes that programs mean to run beside each other."""
MATERIAL_SHARE = 0.05
"""Classes with less than this share of the region's busy time are nothing to hide or hide under."""

# Limits of a streaming multiprocessor that hold from compute capability 7.0 on or are larger on
# newer ones: a grid that fills these is sure to fill the real ones.
_SM_THREADS = 2048
_SM_BLOCKS = 32
_SM_REGISTERS = 65_536
_SM_SHARED_BYTES = 233_472


@dataclass(frozen=True, slots=True)
class Waits:
    """What every operation of a trace waited for: arrays of shape (operations,).

    Times are on the trace's clock, -1 where there is nothing to wait for or nothing is known.
    """

    call_start_ns: Int64
    """Start of the launching call: the operation never starts before."""
    call_end_ns: Int64
    stream_op: Int64
    """The operation before it in its stream: index into Trace.operations."""
    stream_ns: Int64
    """When that ended."""
    event_op: Int64
    """The operation behind the last event its stream waited for; -1 also for an event that was
    reached at once."""
    event_ns: Int64
    null_op: Int64
    """The operation that the rule of the legacy null stream makes it wait for."""
    null_ns: Int64
    engine_op: Int64
    """The copy before it on its copy engine."""
    engine_ns: Int64
    turn_ns: Int64
    """End of everything of its class that began before it on its device."""
    reason: UInt8
    """Code of the last thing it waited for, see REASONS."""
    cost_ns: Int64
    """How much earlier it could have started without that alone; -1 where that is unknown."""
    waits_total: int
    """Stream waits for events in the trace."""
    waits_resolved: int
    """Those whose event record is in the trace too."""

    @property
    def ready_ns(self) -> Int64:
        """When the GPU could have begun it: the last of stream, event, null stream and engine."""
        return np.maximum(
            np.maximum(self.stream_ns, self.event_ns), np.maximum(self.null_ns, self.engine_ns)
        )

    @classmethod
    def of(cls, trace: Trace) -> Waits:
        """Find what every operation of `trace` waited for."""
        ops = trace.operations if trace.operations is not None else Operations.empty()
        start, end = ops.start_ns, ops.end_ns
        call_start, call_end = _launch_times(trace, ops)
        stream_op, stream_ns = _earlier(ops.stream, end)
        engine_op, engine_ns = _engine_times(trace, ops)
        _, turn_ns = _earlier(ops.device.astype(np.int64) * len(CLASSES) + ops.op_class, end)
        null_op, null_ns = _null_times(trace, ops, call_start)
        events = _Events(trace, ops, call_start, stream_op)

        # The last of these to come true, and the last but one; the first of equals counts.
        ready, last = np.full(len(start), -1, np.int64), np.zeros(len(start), np.uint8)
        second = call_start.copy()
        for code, time in enumerate((stream_ns, events.time_ns, null_ns, engine_ns)):
            if time.max(initial=-1) < 0:
                continue
            # What is over only after the start held nothing up: two operations that overlap.
            time = np.where(time > start, -1, time)
            later = time > ready
            np.maximum(second, np.minimum(time, ready), out=second)
            ready[later] = time[later]
            last[later] = code

        in_graph = ops.graph_node >= 0
        known = call_start >= 0
        by_gpu = (ready >= 0) & (ready >= call_start) & (start - ready <= START_LATENCY_NS)
        # Ready before the call returned, started after: the launch came last.
        by_gpu &= (ready >= call_end) | (start < call_end)
        # Edges of a graph are not in the trace, so streams and events say nothing about a node.
        by_gpu &= ~in_graph | (last == 3)
        by_host = ~by_gpu & known & (start <= call_end + START_LATENCY_NS)
        sm_ready = np.maximum(ready, call_end)
        by_sm = ~by_gpu & ~by_host & known & ~in_graph & _sm_busy(trace, ops, sm_ready)

        reason = np.full(len(start), REASON["unknown"], np.uint8)
        code_of_time = np.array(
            [REASON[name] for name in ("stream", "event", "null-stream", "engine")], np.uint8
        )
        reason[by_gpu] = code_of_time[last[by_gpu]]
        reason[by_host] = REASON["host"]
        reason[by_sm] = REASON["sm"]
        cost = np.full(len(start), -1, np.int64)
        told = by_gpu & (second >= 0)
        cost[told] = ready[told] - second[told]
        told = by_host & (ready >= 0)
        cost[told] = np.maximum(start[told] - ready[told], 0)
        cost[by_sm] = start[by_sm] - sm_ready[by_sm]
        return cls(
            call_start_ns=call_start,
            call_end_ns=call_end,
            stream_op=stream_op,
            stream_ns=stream_ns,
            event_op=events.operation,
            event_ns=events.time_ns,
            null_op=null_op,
            null_ns=null_ns,
            engine_op=engine_op,
            engine_ns=engine_ns,
            turn_ns=turn_ns,
            reason=reason,
            cost_ns=cost,
            waits_total=events.total,
            waits_resolved=events.resolved,
        )


def _launch_times(trace: Trace, ops: Operations) -> tuple[Int64, Int64]:
    """Return start and end of each operation's launching call, -1 without one."""
    call_start = np.full(len(ops), -1, np.int64)
    call_end = np.full(len(ops), -1, np.int64)
    if trace.api is not None and len(trace.api):
        known = np.flatnonzero(ops.launch >= 0)
        call_start[known] = trace.api.start_ns[ops.launch[known]]
        call_end[known] = trace.api.end_ns[ops.launch[known]]
    return call_start, call_end


def _sorted_by(key: npt.NDArray[Any]) -> Int64:
    """Return a stable order by `key`; keys below 65536 take a radix sort."""
    if len(key) and int(key.min()) >= 0 and int(key.max()) < 1 << 16:
        key = key.astype(np.uint16)
    return np.argsort(key, kind="stable")


def _running_max(group: npt.NDArray[Any], value: Int64) -> tuple[Int64, Int64]:
    """Return the position and value of the largest `value` so far in each run of `group`.

    Rows of one group lie together; a value of -1 is no value.
    """
    if not len(value):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    opens = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    high = int(value.max())
    some = bool(value.min() >= 0)
    low = int(value.min()) if some else int(value.min(initial=high, where=value >= 0))
    lifted = value - (low - 1)
    if not some:
        lifted[value < 0] = 0
    sizes = np.diff(np.append(opens, len(value)))
    shift = np.repeat(np.arange(len(opens)) * (max(high - low, 0) + 2), sizes)
    lifted += shift
    reach = np.maximum.accumulate(lifted)
    position = np.arange(len(value))
    position[lifted != reach] = 0
    np.maximum.accumulate(position, out=position)
    reach -= shift
    nothing = reach <= 0
    position[nothing] = -1
    reach += low - 1
    reach[nothing] = -1
    return position, reach


def _earlier(key: npt.NDArray[Any], end: Int64) -> tuple[Int64, Int64]:
    """Return, a row, the earlier row of equal `key` that ends last, and its end; -1 for none.

    Rows are in order of their starts; a negative key is no key.
    """
    found = np.full(len(end), -1, np.int64)
    time = np.full(len(end), -1, np.int64)
    if not len(end):
        return found, time
    order = _sorted_by(key)
    grouped = key[order]
    position, reach = _running_max(grouped, end[order])
    follows = np.flatnonzero((grouped[1:] == grouped[:-1]) & (grouped[1:] >= 0)) + 1
    found[order[follows]] = order[position[follows - 1]]
    time[order[follows]] = reach[follows - 1]
    return found, time


def _engine_times(trace: Trace, ops: Operations) -> tuple[Int64, Int64]:
    """Return the copy before each copy on its engine: one a direction, a link, or one in all."""
    single = np.array([device.copy_engines == 1 for device in trace.devices] or [False])
    h2d, d2h, p2p = (ops.op_class == CODE[name] for name in ("h2d", "d2h", "p2p"))
    direction = np.full(len(ops), -1, np.int64)
    direction[h2d] = 0
    direction[d2h] = 1
    direction[d2h & single[ops.device]] = 0
    direction[p2p] = 2 + np.clip(ops.dst_device[p2p], 0, 63)
    key = np.where(direction >= 0, ops.device.astype(np.int64) * 66 + direction, -1)
    copies = np.flatnonzero(key >= 0)
    found = np.full(len(ops), -1, np.int64)
    time = np.full(len(ops), -1, np.int64)
    before, time[copies] = _earlier(key[copies], ops.end_ns[copies])
    found[copies] = np.where(before >= 0, copies[before], -1)
    return found, time


def _null_times(trace: Trace, ops: Operations, call_start: Int64) -> tuple[Int64, Int64]:
    """Apply the rule of the legacy null stream, in the order of the launches.

    Work of the null stream waits for what blocking streams of its context were given before, and
    their work for what the null stream was given before. Streams of unknown kind take no part.
    """
    found = np.full(len(ops), -1, np.int64)
    time = np.full(len(ops), -1, np.int64)
    contexts: dict[tuple[int, int, int], int] = {}
    context_of = np.full(len(trace.streams) + 1, -1, np.int64)
    is_null = np.zeros(len(trace.streams) + 1, np.bool_)
    for number, stream in enumerate(trace.streams):
        if stream.kind in (NULL_STREAM, BLOCKING):
            place = (stream.process, stream.device, stream.context)
            context_of[number] = contexts.setdefault(place, len(contexts))
            is_null[number] = stream.kind == NULL_STREAM
    rows = np.flatnonzero((context_of[ops.stream] >= 0) & (call_start >= 0))
    null = is_null[ops.stream[rows]]
    if not null.any() or null.all():
        return found, time
    rows = rows[np.lexsort((call_start[rows], context_of[ops.stream[rows]]))]
    null = is_null[ops.stream[rows]]
    context = context_of[ops.stream[rows]]
    for mine, others in ((null, ~null), (~null, null)):
        position, reach = _running_max(context, np.where(others, ops.end_ns[rows], -1))
        told = mine & (reach >= 0)
        found[rows[told]] = rows[position[told]]
        time[rows[told]] = reach[told]
    return found, time


class _Events:
    """When the last event was reached that each operation's stream had been told to wait for."""

    def __init__(
        self, trace: Trace, ops: Operations, call_start: Int64, predecessor: Int64
    ) -> None:
        self.operation = np.full(len(ops), -1, np.int64)
        self.time_ns = np.full(len(ops), -1, np.int64)
        self.total = self.resolved = 0
        if trace.api is None or not len(trace.api):
            return
        calls = _named(trace, r"cu(da)?StreamWaitEvent")
        is_wait = calls[trace.api.name]
        self.total = int(is_wait.sum())
        records, syncs = trace.event_records, trace.syncs
        if records is None or syncs is None or not len(records) or not self.total:
            return
        syncs = syncs.take((syncs.launch >= 0) & (syncs.event >= 0) & (syncs.stream >= 0))
        syncs = syncs.take(is_wait[syncs.launch])
        records = records.take((records.launch >= 0) & (records.stream >= 0))
        streams = _streams_with_work(trace, ops)
        record_at = trace.api.start_ns[records.launch]
        wait_at = trace.api.start_ns[syncs.launch]

        record_key, wait_key = _event_keys(trace, records, syncs)
        line = _Line(min(int(record_at.min(initial=0)), int(wait_at.min(initial=0))))
        order = np.lexsort((record_at, record_key))
        keys, times = record_key[order], line.place(record_key[order], record_at[order])
        at = np.searchsorted(times, line.place(wait_key, wait_at)) - 1
        hit = (at >= 0) & (keys[np.maximum(at, 0)] == wait_key)
        waits, found = np.flatnonzero(hit), order[at[hit]]
        self.resolved = len(waits)

        # When was the event reached: the end of what its stream had been given before the record.
        launched = np.flatnonzero(call_start >= 0)
        launched = launched[np.lexsort((call_start[launched], ops.stream[launched]))]
        stream = ops.stream[launched]
        position, reach = _running_max(stream, ops.end_ns[launched])
        places = line.place(stream, call_start[launched])
        of_record = streams[records.stream[found]]
        at = np.searchsorted(places, line.place(of_record, record_at[found])) - 1
        behind = (at >= 0) & (stream[np.maximum(at, 0)] == of_record)
        reached_ns = np.where(behind, reach[np.maximum(at, 0)], record_at[found])
        reached_op = np.where(behind, launched[position[np.maximum(at, 0)]], -1)

        # Every later operation of the waiting stream waits for it.
        waiting = streams[syncs.stream[waits]]
        order = np.lexsort((wait_at[waits], waiting))
        waiting, asked = waiting[order], wait_at[waits][order]
        last, time = _running_max(waiting, reached_ns[order])
        at = np.searchsorted(line.place(waiting, asked), places) - 1
        told = (at >= 0) & (waiting[np.maximum(at, 0)] == stream)
        self.time_ns[launched[told]] = time[at[told]]
        self.operation[launched[told]] = reached_op[order][last[at[told]]]
        # An event behind the own predecessor or itself adds nothing to stream order.
        own = (self.operation >= 0) & (self.operation == predecessor)
        own |= (self.operation >= 0) & (ops.stream[self.operation] == ops.stream)
        self.time_ns[own] = -1
        self.operation[own] = -1


@dataclass(frozen=True, slots=True)
class _Line:
    """Places pairs (unit, time) on one line, in lexicographic order."""

    begin_ns: int

    def place(self, unit: npt.NDArray[Any], time_ns: Int64) -> npt.NDArray[np.complex128]:
        """Return numbers that sort by unit, then by time."""
        return unit.astype(np.float64) + 1j * (time_ns - self.begin_ns).astype(np.float64)


def _event_keys(trace: Trace, records: Any, syncs: Any) -> tuple[Int64, Int64]:
    """Give equal (process, context, event, event_sync) of records and waits equal numbers."""
    places: dict[tuple[int, int], int] = {}
    place_of = np.array(
        [places.setdefault((s.process, s.context), len(places)) for s in trace.streams], np.int64
    )
    columns = [
        np.concatenate([place_of[records.stream], place_of[syncs.stream]]),
        np.concatenate([records.event, syncs.event]),
        np.concatenate([records.event_sync, syncs.event_sync]),
    ]
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + code, return_inverse=True)[1].astype(np.int64)
    return key[: len(records)], key[len(records) :]


def _streams_with_work(trace: Trace, ops: Operations) -> Int64:
    """Map every stream to the one of equal context and number that has operations.

    Records of events and waits name the device that was current, not the stream's own.
    """
    used = np.zeros(len(trace.streams), np.bool_)
    used[ops.stream[ops.stream >= 0]] = True
    exact: dict[tuple[int, int, int], int] = {}
    loose: dict[tuple[int, int], list[int]] = {}
    for number, stream in enumerate(trace.streams):
        if used[number]:
            exact[(stream.process, stream.context, stream.number)] = number
            loose.setdefault((stream.process, stream.number), []).append(number)
    mapped = np.arange(len(trace.streams))
    for number, stream in enumerate(trace.streams):
        if not used[number]:
            alike = loose.get((stream.process, stream.number), [])
            only = alike[0] if len(alike) == 1 else number
            mapped[number] = exact.get((stream.process, stream.context, stream.number), only)
    return mapped


def _sm_busy(trace: Trace, ops: Operations, ready: Int64) -> Bool:
    """Return which kernels were ready while one that fills the GPU ran, until they started."""
    busy = np.zeros(len(ops), np.bool_)
    configs = trace.kernel_configs
    if configs is None or not len(configs):
        return busy
    sms = np.array([device.sm_count or 0 for device in trace.devices] or [0], np.int64)
    threads = np.maximum(configs.block_threads, 1)
    registers = np.maximum(configs.registers_per_thread * threads, 1)
    blocks = np.minimum(
        np.minimum(_SM_BLOCKS, _SM_THREADS // threads),
        np.minimum(
            _SM_REGISTERS // registers, _SM_SHARED_BYTES // np.maximum(configs.shared_bytes, 1)
        ),
    )
    device = ops.device[configs.operation]
    fills = (sms[device] > 0) & (configs.grid_blocks >= sms[device] * np.maximum(blocks, 1))
    for number in np.unique(device).tolist():
        filling = configs.operation[fills & (device == number)]
        if not len(filling):
            continue
        # One after the other, as they follow on each other's last blocks, they fill the GPU as one.
        begin, end = union(ops.start_ns[filling], ops.end_ns[filling] + START_LATENCY_NS)
        kernels = configs.operation[device == number]
        at = np.searchsorted(begin, ready[kernels] + START_LATENCY_NS, side="right") - 1
        busy[kernels] = (at >= 0) & (end[np.maximum(at, 0)] >= ops.start_ns[kernels])
    return busy


# API calls

CALL_KINDS: Mapping[str, re.Pattern[str]] = {
    "wait": re.compile(r"cu(da)?(Stream|Event|Device|Ctx|Thread)Synchronize"),
    "poll": re.compile(r"cu(da)?(Stream|Event)Query"),
    "copy": re.compile(r"cu(da)?Memcpy(?!.*Async)\w*"),
    "copy-async": re.compile(r"cu(da)?Memcpy\w*Async\w*"),
    "allocate": re.compile(
        r"cuda(Malloc|MallocHost|MallocPitch|MallocManaged|Malloc3D|MallocArray|Malloc3DArray"
        r"|HostAlloc|Free|FreeHost|FreeArray|HostRegister|HostUnregister)"
        r"|cuMem(Alloc|AllocPitch|AllocManaged|AllocHost|HostAlloc|Free|FreeHost|HostRegister"
        r"|HostUnregister)"
        r"|cu(Module|Library)(Load|Unload)\w*"
    ),
    "launch": re.compile(
        r"cu(da)?(Launch\w*Kernel\w*|GraphLaunch|Memset\w*Async|EventRecord\w*|StreamWaitEvent)"
    ),
}
"""Kinds of API calls by name, without version and stream suffixes; the first that fits."""
_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")


def call_name(name: str) -> str:
    """Return the name of an API call as it is written in a program.

    >>> call_name("cudaMemcpyAsync_v3020")
    'cudaMemcpyAsync'
    """
    return _SUFFIX.sub("", name)


def _named(trace: Trace, pattern: str) -> Bool:
    """Return, an index of Trace.strings, whether the call's name matches."""
    compiled = re.compile(pattern)
    return np.array(
        [compiled.fullmatch(call_name(text)) is not None for text in trace.strings], np.bool_
    )


@dataclass(frozen=True)
class Calls:
    """Calls of one thread, sorted by start: arrays alike in shape."""

    rows: Int64
    """What they are: rows of Trace.api, or of Trace.mpi."""
    start_ns: Int64
    end_ns: Int64

    @cached_property
    def reach_ns(self) -> Int64:
        """The last end so far."""
        return np.maximum.accumulate(self.end_ns)

    def near(self, stretches: Disjoint) -> Calls:
        """Return the calls that can have time in some stretches; only these are looked at."""
        low = np.searchsorted(self.reach_ns, stretches[0], side="right")
        high = np.searchsorted(self.start_ns, stretches[1])
        low[1:] = np.maximum(low[1:], high[:-1])
        sizes = np.maximum(high - low, 0)
        ends = np.cumsum(sizes)
        within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)
        at = np.repeat(low, sizes) + within
        return Calls(self.rows[at], self.start_ns[at], self.end_ns[at])


@dataclass(frozen=True, slots=True)
class Windows:
    """Times during which something waited for the launch of an operation: arrays alike in shape."""

    operation: Int64
    """Index into Trace.operations."""
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True, slots=True)
class Held:
    """What calls of the launching threads cover of some windows."""

    held_ns: int
    """Time, in any window, during which the window's thread was in one of the calls."""
    calls: Int64
    """Rows of Trace.api (or of the intervals asked for), longest holdup first."""
    call_held_ns: Int64
    """Part of the holdups that each call covers."""
    operations: Int64
    """The operation, of the longest holdup in each call: index into Trace.operations."""


@dataclass(frozen=True)
class Region:
    """What a finding is about: the instances of one range on one device, or what no range covers.

    Attributes
    ----------
    device
        Index into Trace.devices.
    level
        Nesting level of the range; 0 also for what no range covers.
    number
        Number of the region in its level.
    rows
        Indices into Trace.operations, by (instance, start).
    first
        Where each instance begins in `rows`.
    """

    device: int
    name: str | None
    level: int
    number: int
    rows: Int64
    first: Int64
    ops: Operations
    single_engine: bool

    @property
    def instances(self) -> int:
        """Number of instances with operations on the device."""
        return len(self.first)

    @cached_property
    def instance(self) -> Int64:
        """Number of the instance of each row."""
        return np.repeat(np.arange(len(self.first)), np.diff(np.append(self.first, len(self.rows))))

    @cached_property
    def begin_ns(self) -> Int64:
        """Start of each instance's first operation."""
        return np.minimum.reduceat(self.ops.start_ns[self.rows], self.first)

    @cached_property
    def finish_ns(self) -> Int64:
        """End of each instance's last operation."""
        return np.maximum.reduceat(self.ops.end_ns[self.rows], self.first)

    @cached_property
    def window_ns(self) -> tuple[int, int]:
        """First start and last end of all instances."""
        return int(self.begin_ns.min()), int(self.finish_ns.max())

    @cached_property
    def span_ns(self) -> int:
        """Sum of the instances' spans."""
        return int((self.finish_ns - self.begin_ns).sum())

    @cached_property
    def _axis_times(self) -> tuple[Int64, Int64]:
        axis = Axis.lay_out(self.begin_ns, self.finish_ns)
        shift = axis.shift[self.instance]
        return self.ops.start_ns[self.rows] + shift, self.ops.end_ns[self.rows] + shift

    def _busy(self, mask: Bool) -> int:
        start, end = self._axis_times
        mask = mask & (end > start)
        return length(union_sorted(start[mask], end[mask]))

    @cached_property
    def op_class(self) -> UInt8:
        """Class code of each row."""
        return self.ops.op_class[self.rows]

    @cached_property
    def busy_ns(self) -> int:
        """Time with any engine busy, summed over the instances."""
        return self._busy(np.isin(self.op_class, ENGINE_CODES))

    @cached_property
    def idle_ns(self) -> int:
        """Rest of the span."""
        return self.span_ns - self.busy_ns

    @cached_property
    def class_busy_ns(self) -> dict[str, int]:
        """Busy time of every engine class present."""
        codes = [code for code in np.unique(self.op_class).tolist() if code in ENGINE_CODES]
        return {CLASSES[code]: self._busy(self.op_class == code) for code in codes}

    @cached_property
    def class_count(self) -> dict[str, int]:
        """Number of operations of every class present."""
        counts = np.bincount(self.op_class, minlength=len(CLASSES)).tolist()
        return {name: counts[code] for code, name in enumerate(CLASSES) if counts[code]}

    @cached_property
    def material(self) -> tuple[str, ...]:
        """The classes worth hiding: at least MATERIAL_SHARE of the busy time."""
        return tuple(
            name
            for name, busy in self.class_busy_ns.items()
            if name in HIDEABLE and busy > 0 and busy >= MATERIAL_SHARE * self.busy_ns
        )

    @cached_property
    def material_streams(self) -> int:
        """Number of streams that hold work of the material classes."""
        codes = [CODE[name] for name in self.material]
        return len(np.unique(self.ops.stream[self.rows[np.isin(self.op_class, codes)]]))

    @cached_property
    def cycles(self) -> float:
        """How often an instance goes from copying in, out or across to computing, on average."""
        kind = np.zeros(len(self.rows), np.int8)
        kind[np.isin(self.op_class, COPY_CODES)] = 1
        kind[self.op_class == CODE["kernel"]] = 2
        kept = np.flatnonzero(kind)
        same = self.instance[kept[1:]] == self.instance[kept[:-1]]
        turns = same & (kind[kept[:-1]] == 1) & (kind[kept[1:]] == 2)
        return int(turns.sum()) / max(1, self.instances)

    @cached_property
    def meant_to_overlap(self) -> bool:
        """Two material classes in two streams or more, or a repeated copy/kernel pattern in one."""
        if len(self.material) < 2:
            return False
        return self.material_streams >= 2 or self.cycles >= 2

    @cached_property
    def engines_ns(self) -> dict[str, int]:
        """Busy time of every engine: a class, or both copy directions where they share one."""
        engines = dict(self.class_busy_ns)
        if self.single_engine and "h2d" in engines and "d2h" in engines:
            engines["h2d"] += engines.pop("d2h")
        return engines

    @cached_property
    def bound_ns(self) -> int:
        """Busy time of the busiest engine: a floor of the span if the chunks are independent."""
        return max(self.engines_ns.values(), default=0)

    @cached_property
    def chunks(self) -> float:
        """Pieces an instance is cut into: operations of the material class that has fewest."""
        counts = [self.class_count[name] for name in self.material]
        return max(1.0, min(counts, default=1) / max(1, self.instances))

    @cached_property
    def unhidden_ns(self) -> int:
        """Busy time that perfect overlap of independent chunks would save, idle time apart."""
        return max(0, self.potential_ns - self.idle_ns)

    @cached_property
    def potential_ns(self) -> int:
        """What perfect overlap of independent chunks would save.

        The span, less the busiest engine, less what the first and last of n chunks cannot hide:
        an n-th of the other engines' time.
        """
        rest = sum(self.engines_ns.values()) - self.bound_ns
        return max(0, self.span_ns - self.bound_ns - int(rest / self.chunks))


def _asked(options: Options) -> tuple[object, ...]:
    """Return the options that a case depends on."""
    return options.ranges, options.domains, options.window_ns, options.attribute


class Case:
    """One trace as the causes see it; :meth:`of` keeps the last one, which all analyzers share."""

    def __init__(self, trace: Trace, options: Options) -> None:
        self.trace = trace
        self.options = options
        self.ops = trace.operations if trace.operations is not None else Operations.empty()
        self.api = trace.api if trace.api is not None else ApiCalls.empty()
        self.waits = Waits.of(trace)
        self._gaps: dict[int, tuple[Int64, Int64, Int64]] = {}
        self._outside: dict[int, Calls] = {}
        self._places: list[tuple[Int32, Int32]] = []
        self._intervals: dict[tuple[tuple[str, ...], int], Calls] = {}

    _last: Case | None = None
    _lock = threading.Lock()

    @classmethod
    def of(cls, trace: Trace, options: Options) -> Case:
        """Return the case of `trace`, the same object while the same trace and ranges are asked."""
        with cls._lock:
            last = cls._last
            if last is None or last.trace is not trace or _asked(last.options) != _asked(options):
                cls._last = last = cls(trace, options)
            return last

    # Calls

    @cached_property
    def call_kind(self) -> npt.NDArray[np.int8]:
        """Kind of each API call: position in CALL_KINDS, -1 for any other."""
        kind = np.full(len(self.trace.strings), -1, np.int8)
        for index in np.unique(self.api.name).tolist():
            text = call_name(self.trace.strings[index])
            for code, pattern in enumerate(CALL_KINDS.values()):
                if pattern.fullmatch(text):
                    kind[index] = code
                    break
        return kind[self.api.name]

    @cached_property
    def launch_thread(self) -> Int32:
        """Thread of each operation's launching call; -1 without one."""
        thread = np.full(len(self.ops), -1, np.int32)
        known = self.ops.launch >= 0
        if len(self.api):
            thread[known] = self.api.thread[self.ops.launch[known]]
        return thread

    def calls_of(self, kinds: tuple[str, ...], thread: int) -> Calls:
        """Return a thread's calls of some kinds.

        Polls that follow each other are one wait, from the start of the first, whose row stands
        for it, to the end of the last.
        """
        key = (kinds, thread)
        if key not in self._intervals:
            mine = np.flatnonzero(self.api.thread == thread)
            start, end, kind = self.api.start_ns[mine], self.api.end_ns[mine], self.call_kind[mine]
            poll = kind == self.kind_code("poll")
            goes_on = np.zeros(len(mine), np.bool_)
            goes_on[1:] = poll[1:] & poll[:-1] & (start[1:] - end[:-1] <= MAX_POLL_GAP_NS)
            first = np.flatnonzero(~goes_on)
            last = np.append(first[1:], len(mine)) - 1
            wanted = np.isin(kind[first], [self.kind_code(name) for name in kinds])
            first, last = first[wanted], last[wanted]
            self._intervals[key] = Calls(mine[first], start[first], end[last])
        return self._intervals[key]

    def kind_code(self, kind: str) -> int:
        """Return the code of a kind of calls in `call_kind`."""
        return list(CALL_KINDS).index(kind)

    def launching_calls(self, operations: Int64, thread: int) -> Calls:
        """Return the calls of a thread that launched some operations."""
        rows = np.unique(self.ops.launch[operations])
        rows = rows[rows >= 0].astype(np.int64)
        rows = rows[self.api.thread[rows] == thread]
        return Calls(rows, self.api.start_ns[rows], self.api.end_ns[rows])

    @cached_property
    def blocking_copies(self) -> Bool:
        """Copies whose launching call lasted until they were nearly over: it blocked the host."""
        ops, waits = self.ops, self.waits
        copies = np.isin(ops.op_class, COPY_CODES) & (waits.call_start_ns >= 0)
        shared = np.minimum(ops.end_ns, waits.call_end_ns) - np.maximum(
            ops.start_ns, waits.call_start_ns
        )
        return copies & (shared >= BLOCKING_SHARE * (ops.end_ns - ops.start_ns)) & (shared > 0)

    # Regions

    @cached_property
    def _program_ranges(self) -> Int64:
        """Rows of the ranges that findings may name: pushed and popped by the program."""
        ranges, strings = self.trace.ranges, self.trace.strings
        if ranges is None:
            return np.empty(0, np.int64)
        mask = (ranges.end_ns >= 0) & (ranges.kind == PUSH_POP)
        if self.options.domains:
            wanted = [i for i, text in enumerate(strings) if text in self.options.domains]
            mask &= np.isin(ranges.domain, [*wanted, *([-1] * ("" in self.options.domains))])
        else:
            library = [i for i, text in enumerate(strings) if text in LIBRARY_DOMAINS]
            mask &= ~np.isin(ranges.domain, library)
        if self.options.ranges:
            names = [i for i, text in enumerate(strings) if matches(text, self.options.ranges)]
            mask &= np.isin(ranges.name, names)
        return np.flatnonzero(mask)

    @cached_property
    def _depth(self) -> Int64:
        ranges = self.trace.ranges
        assert ranges is not None
        return nesting(ranges.take(self._program_ranges))[0]

    def _covering(self, level: int) -> Int64:
        """Return, an operation, the range of nesting depth `level` it was launched in, or -1."""
        covering = np.full(len(self.ops), -1, np.int64)
        ranges = self.trace.ranges
        if ranges is None or not len(self._program_ranges):
            return covering
        rows = self._program_ranges[self._depth == level]
        by_process = self.options.attribute == "process"
        owner = ranges.process if by_process else ranges.thread
        unit = self.ops.process if by_process else self.launch_thread
        launch = self.waits.call_start_ns
        for number in np.unique(owner[rows]).tolist():
            of_unit = rows[owner[rows] == number]
            mine = np.flatnonzero((unit == number) & (launch >= 0))
            at = np.searchsorted(ranges.start_ns[of_unit], launch[mine], side="right") - 1
            held = of_unit[np.maximum(at, 0)]
            inside = (at >= 0) & (launch[mine] < ranges.end_ns[held])
            covering[mine[inside]] = held[inside]
        return covering

    @cached_property
    def levels(self) -> tuple[tuple[Region, ...], ...]:
        """The regions of every nesting level, the outermost first, in order of time."""
        levels = [self._regions_of(0)]
        for level in range(1, LEVELS):
            if self.trace.ranges is None or not (self._depth == level).any():
                break
            levels.append(self._regions_of(level))
        return tuple(levels)

    @cached_property
    def in_any_range(self) -> Bool:
        """Operations that were launched inside a range of the program."""
        return self._covering(0) >= 0

    def windows_of(self, region: Region) -> tuple[Int64, Int64, Int32]:
        """Return start, end and thread of the outermost ranges of a region's name and process."""
        ranges = self.trace.ranges
        empty = np.empty(0, np.int64)
        if ranges is None or region.name is None:
            return empty, empty, np.empty(0, np.int32)
        rows = self._program_ranges[self._depth == 0]
        rows = rows[ranges.process[rows] == self.trace.devices[region.device].process]
        rows = rows[ranges.name[rows] == self.trace.strings.index(region.name)]
        return ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows]

    def _regions_of(self, level: int) -> tuple[Region, ...]:
        ops, ranges = self.ops, self.trace.ranges
        considered = np.isin(ops.op_class, ENGINE_CODES)
        if self.options.window_ns:
            low, high = self.options.window_ns
            considered &= (ops.start_ns < high) & (ops.end_ns > low)
        covering = self._covering(level)
        if level:
            considered &= covering >= 0
        rows = np.flatnonzero(considered)
        if not len(rows):
            return ()
        covering = covering[rows]
        instance = covering.copy()
        name = np.full(len(rows), -1, np.int64)
        if ranges is not None:
            inside = covering >= 0
            name[inside] = ranges.name[covering[inside]]
            # What no range covers is cut where an outermost range begins.
            outer = ranges.start_ns[self._program_ranges]
            launch = self.waits.call_start_ns[rows[~inside]]
            time = np.where(launch >= 0, launch, ops.start_ns[rows[~inside]])
            instance[~inside] = -1 - np.searchsorted(np.sort(outer), time, side="right")
        device = ops.device[rows].astype(np.int64)
        lowest = int(instance.min())
        width = int(instance.max()) - lowest + 1
        group = device * width + (instance - lowest)
        label = np.full(width * len(self.trace.devices), -1, np.int64)
        label[group] = name
        if level == 0:
            label = self._pool_small(rows, group, label, width)
        present = np.zeros(len(label), np.bool_)
        present[group] = True
        groups = np.flatnonzero(present)
        groups = groups[np.lexsort((groups % width, label[groups], groups // width))]
        rank = np.empty(len(label), np.int64)
        rank[groups] = np.arange(len(groups))
        # Rows are in order of their starts: a stable sort keeps them so within each group.
        order = _sorted_by(rank[group])
        rows, group = rows[order], group[order]
        device, name, instance = group // width, label[group], group % width
        opens = np.flatnonzero(
            (np.diff(device, prepend=-1) != 0) | (np.diff(name, prepend=-2) != 0)
        )
        owner = np.full(len(ops), -1, np.int32)
        place = np.full(len(ops), -1, np.int32)
        self._places.append((owner, place))
        regions: list[Region] = []
        for begin, stop in zip(opens.tolist(), [*opens[1:].tolist(), len(rows)], strict=True):
            part = instance[begin:stop]
            named = int(name[begin])
            region = Region(
                device=int(device[begin]),
                name=self.trace.strings[named] if named >= 0 else None,
                level=level,
                number=len(regions),
                rows=rows[begin:stop],
                first=np.flatnonzero(np.diff(part, prepend=part[0] - 1)),
                ops=ops,
                single_engine=self.trace.devices[int(device[begin])].copy_engines == 1,
            )
            owner[region.rows] = region.number
            place[region.rows] = region.instance
            regions.append(region)
        return tuple(sorted(regions, key=lambda region: (region.device, region.window_ns)))

    def _pool_small(self, rows: Int64, group: Int64, label: Int64, width: int) -> Int64:
        """Give ranges too small to matter to the device as a whole; instances stay apart.

        `label` is the name of each group, and a group's number by `width` its device.
        """
        start, end = self.ops.start_ns[rows], self.ops.end_ns[rows]
        first = np.full(len(label), np.iinfo(np.int64).max)
        last = np.full(len(label), -1, np.int64)
        np.minimum.at(first, group, start)
        np.maximum.at(last, group, end)
        span = np.where(last >= 0, last - first, 0)
        work = sum_by(end - start, group, len(label))
        names = len(self.trace.strings) + 1
        entry = np.arange(len(label)) // width * names + label + 1
        small = np.ones(len(label), np.bool_)
        for amount in (span, work):
            of_entry = sum_by(amount, entry, names * len(self.trace.devices))
            of_device = of_entry.reshape(-1, names).sum(axis=1).repeat(names)
            small &= (of_entry < SMALL_REGION_SHARE * of_device)[entry]
        return np.where(small, -1, label)

    def instance_of(self, region: Region, operations: Int64) -> Int64:
        """Return the instance in `region` of each of some operations of it."""
        return self._places[region.level][1][operations].astype(np.int64)

    def search(self, rule: Callable[[Region], Finding | None]) -> tuple[Finding, ...]:
        """Apply a rule to every region, the outermost first.

        Inside a region that gave a finding no further one is looked for.
        """
        found = []
        reported = np.zeros(len(self.ops), np.bool_)
        for regions in self.levels:
            for region in regions:
                if reported[region.rows].any():
                    continue
                finding = rule(region)
                if finding is not None:
                    found.append(finding)
                    reported[region.rows] = True
        return tuple(found)

    # What held work up

    def late(self, region: Region) -> Windows:
        """Return the operations of a region that were launched late, and from when to when.

        From when the GPU could have begun each, nothing of its class still running, or else from
        the instance's first start, until its launching call began.
        """
        waits, rows = self.waits, region.rows
        start = np.maximum(waits.ready_ns[rows], waits.turn_ns[rows])
        start = np.maximum(start, region.begin_ns[region.instance])
        end = waits.call_start_ns[rows]
        # What the nodes of a graph waited for is not in the trace.
        told = (waits.reason[rows] == REASON["host"]) | (self.ops.graph_node[rows] < 0)
        late = told & (end > start)
        return Windows(rows[late], start[late], end[late])

    def idle(self, region: Region) -> Windows:
        """Return the times at which the device was idle because the host was late.

        Each stretch in which nothing ran on the device, within an instance, that the start of an
        operation of the region ended whose launch was still to come when it began.
        """
        gap_start, gap_end, next_op = self._device_gaps(region.device)
        owner, _ = self._places[region.level]
        mine = np.flatnonzero(owner[next_op] == region.number)
        next_op, gap_start, gap_end = next_op[mine], gap_start[mine], gap_end[mine]
        inside = gap_start >= region.begin_ns[self.instance_of(region, next_op)]
        late = self.waits.call_start_ns[next_op] > gap_start
        late |= (self.waits.reason[next_op] == REASON["host"]) & (self.ops.launch[next_op] >= 0)
        kept = inside & late & (self.launch_thread[next_op] >= 0)
        return Windows(next_op[kept], gap_start[kept], gap_end[kept])

    def _device_gaps(self, device: int) -> tuple[Int64, Int64, Int64]:
        """Return starts and ends of a device's idle stretches, and the operation after each."""
        if device not in self._gaps:
            ops = self.ops
            rows = np.flatnonzero(
                (ops.device == device)
                & np.isin(ops.op_class, ENGINE_CODES)
                & (ops.end_ns > ops.start_ns)
            )
            reach = np.maximum.accumulate(ops.end_ns[rows])
            after = np.flatnonzero(ops.start_ns[rows[1:]] > reach[:-1]) + 1
            self._gaps[device] = (reach[after - 1], ops.start_ns[rows[after]], rows[after])
        return self._gaps[device]

    def held_by(self, windows: Windows, calls: Callable[[int], Calls]) -> Held:
        """Find how much of the windows the calls of the launching threads cover.

        `calls` gives the calls in question of a thread. A call counts if the launch that ends the
        window follows soon after its return: if the host did something else for longer than the
        call held work up, that is what the launch waited for.
        """
        thread = self.launch_thread[windows.operation]
        total = 0
        found: list[Int64] = []
        for number in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == number)
            mine = mine[np.argsort(windows.end_ns[mine], kind="stable")]
            late = union(windows.start_ns[mine], windows.end_ns[mine])
            near = calls(number).near(late)
            call_start, call_end = near.start_ns, near.end_ns
            held = Cover([late]).within(call_start, call_end)[0]
            # The operation whose window ends first after the call began.
            at = np.searchsorted(windows.end_ns[mine], call_start, side="right")
            next_one = mine[np.minimum(at, len(mine) - 1)]
            launch = self.waits.call_start_ns[windows.operation[next_one]]
            after = launch - call_end
            some = np.flatnonzero((held > 0) & (after <= np.maximum(held, PROMPT_NS)))
            total += length(intersect(late, union(call_start[some], call_end[some])))
            operation = windows.operation[next_one[some]]
            found.append(np.stack([near.rows[some], held[some], operation]))
        joined = np.concatenate(found, axis=1) if found else np.empty((3, 0), np.int64)
        joined = joined[:, np.lexsort((joined[0], -joined[1]))]
        return Held(total, *joined)

    def without_calls(self, windows: Windows) -> tuple[Int64, Int64, Int64]:
        """Return the parts of the windows in which the thread was in no CUDA or MPI call.

        Thread, start and end of each.
        """
        thread = self.launch_thread[windows.operation]
        found: list[Int64] = []
        for number in np.unique(thread).tolist():
            mine = thread == number
            late = union(windows.start_ns[mine], windows.end_ns[mine])
            near = self._all_calls(number).near(late)
            rest = subtract(late, (near.start_ns, near.end_ns))
            found.append(np.stack([np.full(len(rest[0]), number), *rest]))
        joined = np.concatenate(found, axis=1) if found else np.empty((3, 0), np.int64)
        return joined[0], joined[1], joined[2]

    def _all_calls(self, thread: int) -> Calls:
        """Return the times a thread was in CUDA or MPI calls, merged."""
        if thread not in self._outside:
            mine = self.api.thread == thread
            start, end = self.api.start_ns[mine], self.api.end_ns[mine]
            mpi = self.trace.mpi
            if mpi is not None:
                mine = mpi.thread == thread
                start = np.concatenate([start, mpi.start_ns[mine]])
                end = np.concatenate([end, mpi.end_ns[mine]])
            start, end = union(start, end)
            self._outside[thread] = Calls(np.arange(len(start)), start, end)
        return self._outside[thread]

    # Findings

    def calls_evidence(self, rows: Int64) -> list[dict[str, Any]]:
        """Return name, thread and count of API calls, most frequent first."""
        pairs, counts = np.unique(
            np.stack([self.api.name[rows], self.api.thread[rows]]), axis=1, return_counts=True
        )
        listed = [
            {
                "name": call_name(self.trace.strings[name]),
                "thread": self.trace.threads[thread].tid,
                "count": count,
            }
            for (name, thread), count in zip(pairs.T.tolist(), counts.tolist(), strict=True)
        ]
        return sorted(listed, key=lambda entry: (-entry["count"], entry["name"], entry["thread"]))

    def held_evidence(self, held: Held) -> dict[str, Any]:
        """Return counts, calls and the worst examples of a holdup."""
        return {
            "held_ns": held.held_ns,
            "count": len(held.calls),
            "calls": self.calls_evidence(held.calls),
            "examples": [
                {
                    "operation": operation,
                    "start_ns": int(self.ops.start_ns[operation]),
                    "held_ns": held_ns,
                    "call": call_name(self.trace.strings[self.api.name[call]]),
                    "call_start_ns": int(self.api.start_ns[call]),
                }
                for call, held_ns, operation in zip(
                    held.calls[:EXAMPLES].tolist(),
                    held.call_held_ns[:EXAMPLES].tolist(),
                    held.operations[:EXAMPLES].tolist(),
                    strict=True,
                )
            ],
        }

    def operation_examples(self, rows: Int64, cost_ns: Int64) -> list[dict[str, Any]]:
        """Return the operations that cost most."""
        worst = np.lexsort((rows, -cost_ns))[:EXAMPLES]
        return [
            {"operation": row, "start_ns": int(self.ops.start_ns[row]), "cost_ns": cost}
            for row, cost in zip(rows[worst].tolist(), cost_ns[worst].tolist(), strict=True)
        ]

    def finding(
        self,
        region: Region,
        *,
        id: str,
        claim: str,
        mechanism: str,
        advice: str,
        evidence: Mapping[str, Any],
        removable: str = "if-independent",
        severity: str = "warning",
        saving_ns: int | None = None,
    ) -> Finding:
        """Return a finding about `region`, with its window and figures in the evidence."""
        device = self.trace.devices[region.device]
        common = {
            "window_ns": list(region.window_ns),
            "instances": region.instances,
            "span_ns": region.span_ns,
            "busy_ns": region.busy_ns,
            "bound_ns": region.bound_ns,
        }
        return Finding(
            id=id,
            severity=severity,
            process=self.trace.processes[device.process].pid,
            device=device.number,
            range=region.name,
            claim=claim,
            mechanism=mechanism,
            removable=removable,
            evidence={**common, **evidence},
            advice=advice,
            saving_ns=saving_ns,
        )


def names_of(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the names in a list of call evidence, as a phrase: ``cudaFree and cudaMalloc``."""
    names = list(dict.fromkeys(str(entry["name"]) for entry in calls))
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
