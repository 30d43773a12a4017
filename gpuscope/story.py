"""The story of an operation, or of a range: what each waited for, and what that cost.

The same that causes are told from (:mod:`gpuscope.waits`, :mod:`gpuscope.cases`), put in words and
times for one place of the trace. ``gpuscope explain`` prints it; a page can show it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope.cases import Case, Region
from gpuscope.intervals import distinct, subtract, sum_by, union
from gpuscope.model.classes import CLASSES, CODE, ENGINE_CODES
from gpuscope.model.tables import EVICTED, MEMORY_KINDS, PREFETCH, TO_HOST, Operations
from gpuscope.model.trace import Trace
from gpuscope.units import format_bytes, format_ns
from gpuscope.waits import REASONS, Int32, Int64, Waits, call_name

SCHEMA_VERSION = 1
HOST_STEPS = 6
"""The longest things the launching thread did while the operation waited for it."""
MOST_BARS = 600
"""Bars of a lane; with more operations each stands for a cell of the window."""
WORST = 3
"""Operations of a range that are told one by one: those whose reason cost most."""

WAITED_FOR = ("stream", "event", "null-stream", "engine")
"""What the GPU waits for, in the order of :class:`gpuscope.waits.Waits`."""
TOLD = {
    "stream": "it started {since} after the operation before it in its stream had ended",
    "chained": "it started before the kernel before it in its stream had ended, which let it do so "
    "(programmatic dependent launch)",
    "event": "it started {since} after what its stream was told to wait for by an event had ended",
    "null-stream": "it started {since} after what the rule of the null stream made it wait for had "
    "ended",
    "engine": "it started {since} after the copy before it on its copy engine had ended",
    "host": "it was launched last of all: it started {since} after its call began",
    "sm": "kernels left it no room on the GPU from when it was ready until it started",
    "unknown": "nothing in the trace says what it waited for",
}
"""The reasons of a start as sentences."""
TOLD_COST = "; without that alone it could have started {cost} earlier"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that came before an operation."""

    kind: str
    """``launch``, one of WAITED_FOR, or ``host``: what the thread did instead of launching."""
    text: str
    start_ns: int
    end_ns: int
    operation: int | None
    """Index of the operation waited for, in order of starts; None for what the host did."""


@dataclass(frozen=True, slots=True)
class OperationStory:
    """Why one operation started when it did. Times are on the trace's clock."""

    operation: int
    """Index in order of starts, as in the examples of findings."""
    op_class: str
    name: str
    process: int
    device: int
    stream: str
    range: str | None
    """The outermost range that it was launched in."""
    size_bytes: int
    memory: str | None
    """Of a copy, the kinds of memory: ``pageable → device``; None where they are not recorded.

    Of a migration of unified memory, where the pages go and why.
    """
    start_ns: int
    end_ns: int
    launch: Step | None
    waited_for: tuple[Step, ...]
    host: tuple[Step, ...]
    """What the launching thread did from when the GPU was ready until the launch, in order."""
    ready_ns: int | None
    """When the last thing that the GPU waited for was over."""
    reason: str
    """One of REASONS."""
    told: str
    """The reason as a sentence."""
    cost_ns: int | None
    """How much earlier it could have started without that alone."""


@dataclass(frozen=True, slots=True)
class ReasonCost:
    """How many operations of a class one reason held up, and by how much."""

    op_class: str
    reason: str
    count: int
    cost_ns: int
    """Sum of the costs that are known."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One operation as it is drawn; of a lane with more than MOST_BARS, a cell of the window.

    A cell has the class that takes most of the time of the operations that begin in it.
    """

    op_class: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """The operations of one stream in the instance that is drawn."""

    stream: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class RangeStory:
    """What the operations of one range waited for, on one device."""

    process: int
    device: int
    range: str | None
    """None: what no range covers."""
    instances: int
    span_ns: int
    busy_ns: int
    foreign_ns: int
    """Time in the span in which only other work than the range's runs on the device."""
    idle_ns: int
    """Time in the span in which nothing runs on the device."""
    drawn: int
    """The instance that the lanes show: that of median span."""
    drawn_window_ns: tuple[int, int]
    lanes: tuple[Lane, ...]
    reasons: tuple[ReasonCost, ...]
    """By class, the costliest first."""
    worst: tuple[OperationStory, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of ``gpuscope explain``."""

    path: str
    operations: tuple[OperationStory, ...]
    ranges: tuple[RangeStory, ...]
    left_out: int
    """Shorter ranges that were not asked for by name."""
    later_ns: int | None = None
    """Where nothing ran at the moment asked for, how much later the operation began."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why operations started when they did, in numbers: arrays of shape (n,); -1 is not known."""

    reason: Int64
    """Place in TOLD."""
    since_ns: Int64
    """From the end of what was waited for, or the start of the launching call, to the start."""
    cost_ns: Int64
    before: Int64
    """The operation waited for."""
    call: Int64
    """The launching call."""


def reasons_of(case: Case, operations: Int64) -> Reasons:
    """Return the reasons of the starts of some operations (indices into Trace.operations)."""
    ops, waits, api = case.ops, case.waits, case.api
    start = ops.start_ns[operations]
    names = list(TOLD)
    code = np.array([names.index(name) for name in REASONS])[waits.reason[operations]]
    since = np.full(len(operations), -1, np.int64)
    before = np.full(len(operations), -1, np.int64)
    for kind, (other, ended) in zip(WAITED_FOR, _waits(waits, operations), strict=True):
        mine = code == names.index(kind)
        since = np.where(mine, start - ended, since)
        before = np.where(mine, other, before)
    chained = (code == names.index("stream")) & (waits.stream_ns(operations) > start)
    code, since = np.where(chained, names.index("chained"), code), np.where(chained, -1, since)
    call = ops.launch[operations].astype(np.int64) if len(api) else before.copy()
    mine = np.flatnonzero((code == names.index("host")) & (call >= 0))
    since[mine] = start[mine] - api.start_ns[call[mine]]
    told_by_time = np.isin(code, [names.index(name) for name in (*WAITED_FOR, "host")])
    code = np.where(told_by_time & (since < 0), names.index("unknown"), code)
    return Reasons(code, since, waits.cost_ns[operations], before, call)


def operation_at(trace: Trace, time_ns: int) -> int | None:
    """Return the operation that began last among those running at a time, or the next to begin."""
    operations = trace.operations
    if not operations:
        return None
    begun = int(np.searchsorted(operations.start_ns, time_ns, side="right"))
    running = np.flatnonzero(operations.end_ns[:begun] > time_ns)
    if len(running):
        return int(running[-1])
    return begun if begun < len(operations) else None


def tell_operation(case: Case, operation: int) -> OperationStory:
    """Tell why an operation (index into Trace.operations) started when it did."""
    trace, ops, waits = case.trace, case.ops, case.waits
    start_ns = int(ops.start_ns[operation])
    reason = REASONS[waits.reason[operation]]
    cost_ns = int(waits.cost_ns[operation])
    known = reasons_of(case, np.array([operation]))
    launch = _launch(case, operation)
    waited_for = _waited_for(case, operation)
    ready_ns = int(waits.ready_ns[operation])
    device = trace.devices[ops.device[operation]]
    covering = int(case.outermost_range[operation])
    return OperationStory(
        operation=operation,
        op_class=CLASSES[ops.op_class[operation]],
        name=trace.strings[ops.name[operation]],
        process=trace.processes[device.process].pid,
        device=device.number,
        stream=_stream(trace, int(ops.stream[operation])),
        range=case.label_of(covering) if covering >= 0 else None,
        size_bytes=int(ops.size_bytes[operation]),
        memory=_memory(ops, operation),
        start_ns=start_ns,
        end_ns=int(ops.end_ns[operation]),
        launch=launch,
        waited_for=waited_for,
        host=_host(case, operation, ready_ns),
        ready_ns=ready_ns if ready_ns >= 0 else None,
        reason=reason,
        told=_told(list(TOLD)[known.reason[0]], int(known.since_ns[0]), cost_ns),
        cost_ns=cost_ns if cost_ns >= 0 else None,
    )


def _memory(ops: Operations, operation: int) -> str | None:
    flags = int(ops.flags[operation])
    if ops.op_class[operation] == CODE["uvm"]:
        why = ", evicted from a full memory" if flags & EVICTED else ""
        return f"pages to the {'host' if flags & TO_HOST else 'GPU'}{why}"
    if flags & PREFETCH:
        return "pages that were prefetched"
    kinds = int(ops.src_kind[operation]), int(ops.dst_kind[operation])
    if not all(0 <= kind < len(MEMORY_KINDS) for kind in kinds):
        return None
    return " → ".join(MEMORY_KINDS[kind] for kind in kinds)


def tell_range(case: Case, region: Region) -> RangeStory:
    """Tell what the operations of a region waited for."""
    trace, ops, waits = case.trace, case.ops, case.waits
    device = trace.devices[region.device]
    spans = region.finish_ns - region.begin_ns
    drawn = int(np.argsort(spans, kind="stable")[(len(spans) - 1) // 2])
    rows = region.rows[region.instance == drawn]
    window = int(region.begin_ns[drawn]), int(region.finish_ns[drawn])

    def number_of(stream: int) -> int:
        return trace.streams[stream].number if stream >= 0 else -1

    lanes = [
        Lane(_stream(trace, stream), _bars(case, rows[ops.stream[rows] == stream], window))
        for stream in sorted(np.unique(ops.stream[rows]).tolist(), key=number_of)
    ]
    # What came before the instance is no part of its story.
    since = ops.start_ns[region.rows] - region.begin_ns[region.instance]
    cost = np.minimum(waits.cost_ns[region.rows], since)
    worst = region.rows[np.lexsort((region.rows, -cost))[: min(WORST, int((cost > 0).sum()))]]
    return RangeStory(
        process=trace.processes[device.process].pid,
        device=device.number,
        range=region.name,
        instances=region.instances,
        span_ns=region.span_ns,
        busy_ns=region.busy_ns,
        foreign_ns=region.foreign_ns,
        idle_ns=region.idle_ns,
        drawn=drawn,
        drawn_window_ns=window,
        lanes=tuple(lanes),
        reasons=_reasons(case, region.rows, np.maximum(cost, 0)),
        worst=tuple(tell_operation(case, row) for row in worst.tolist()),
    )


def _bars(case: Case, rows: Int64, window_ns: tuple[int, int]) -> tuple[Bar, ...]:
    """Return the bars of one lane."""
    ops = case.ops
    op_class, start, end = ops.op_class[rows], ops.start_ns[rows], ops.end_ns[rows]
    if len(rows) > MOST_BARS:
        low, high = window_ns
        edges = np.linspace(low, high, MOST_BARS + 1).astype(np.int64)
        cell = np.searchsorted(edges, start, side="right") - 1
        size = MOST_BARS * len(CLASSES)
        work = sum_by(end - start, np.minimum(cell, MOST_BARS - 1) * len(CLASSES) + op_class, size)
        work = work.reshape(MOST_BARS, len(CLASSES))
        some = np.flatnonzero(work.max(axis=1))
        op_class, start, end = work.argmax(axis=1)[some], edges[some], edges[some + 1]
    columns = zip(op_class.tolist(), start.tolist(), end.tolist(), strict=True)
    return tuple(Bar(CLASSES[code], a, b) for code, a, b in columns)


def _reasons(case: Case, rows: Int64, cost: Int64) -> tuple[ReasonCost, ...]:
    op_class, reason = case.ops.op_class[rows], case.waits.reason[rows]
    found = []
    for code in distinct(op_class):
        if code not in ENGINE_CODES:
            continue
        for why in np.unique(reason[op_class == code]).tolist():
            mine = (op_class == code) & (reason == why)
            found.append(
                ReasonCost(CLASSES[code], REASONS[why], int(mine.sum()), int(cost[mine].sum()))
            )
    return tuple(sorted(found, key=lambda entry: (entry.op_class, -entry.cost_ns, -entry.count)))


def _stream(trace: Trace, stream: int) -> str:
    return trace.streams[stream].label if stream >= 0 else "no stream"


def _called(case: Case, call: int) -> str:
    tid = case.trace.threads[case.api.thread[call]].tid
    return f"{call_name(case.trace.strings[case.api.name[call]])}, thread {tid}"


def _launch(case: Case, operation: int) -> Step | None:
    call = int(case.ops.launch[operation])
    if call < 0 or not len(case.api):
        return None
    start, end = int(case.api.start_ns[call]), int(case.api.end_ns[call])
    return Step("launch", _called(case, call), start, end, None)


def _described(case: Case, operation: int) -> str:
    ops = case.ops
    name = case.trace.strings[ops.name[operation]]
    size = int(ops.size_bytes[operation])
    what = f"{name}, {format_bytes(size)}" if size else name
    return f"{what}, {_stream(case.trace, int(ops.stream[operation]))}"


def _waits(waits: Waits, rows: Int64) -> tuple[tuple[Int32, Int64], ...]:
    """Return, a kind of WAITED_FOR, what each of `rows` waited for and the time until which."""
    return (
        (waits.stream_op[rows], waits.stream_ns(rows)),
        (waits.event_op[rows], waits.event_ns[rows]),
        (waits.null_op[rows], waits.null_ns[rows]),
        (waits.engine_op[rows], waits.engine_ns(rows)),
    )


def _waited_for(case: Case, operation: int) -> tuple[Step, ...]:
    ops = case.ops
    steps = []
    found = _waits(case.waits, np.array([operation]))
    for kind, (before, until) in zip(WAITED_FOR, found, strict=True):
        end = int(until[0])
        if end < 0:
            continue
        other = int(before[0])
        start = int(ops.start_ns[other]) if other >= 0 else end
        text = _described(case, other) if other >= 0 else "reached when it was recorded"
        steps.append(Step(kind, text, start, end, other if other >= 0 else None))
    return tuple(steps)


def _host(case: Case, operation: int, ready_ns: int) -> tuple[Step, ...]:
    """Return what the launching thread did from `ready_ns` until it launched the operation."""
    api, mpi = case.api, case.trace.mpi
    thread, until = int(case.launch_thread[operation]), int(case.waits.call_start_ns[operation])
    if thread < 0 or ready_ns < 0 or until <= ready_ns:
        return ()
    steps = []
    high = int(np.searchsorted(api.start_ns, until))
    low = int(np.searchsorted(case.api_reach_ns, ready_ns, side="right"))
    ended = (api.end_ns[low:high] > ready_ns) & (api.thread[low:high] == thread)
    rows = low + np.flatnonzero(ended)
    start, end = np.maximum(api.start_ns[rows], ready_ns), np.minimum(api.end_ns[rows], until)
    for row, a, b in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        steps.append(Step("host", _called(case, row), a, b, None))
    if mpi is not None:
        mine = np.flatnonzero(
            (mpi.thread == thread) & (mpi.start_ns < until) & (mpi.end_ns > ready_ns)
        )
        for row in mine.tolist():
            a, b = max(int(mpi.start_ns[row]), ready_ns), min(int(mpi.end_ns[row]), until)
            steps.append(Step("host", case.trace.strings[mpi.name[row]], a, b, None))
    taken = union(
        np.array([step.start_ns for step in steps], np.int64),
        np.array([step.end_ns for step in steps], np.int64),
    )
    rest = subtract((np.array([ready_ns]), np.array([until])), taken)
    for a, b in zip(*(side.tolist() for side in rest), strict=True):
        steps.append(Step("host", "in no CUDA or MPI call", a, b, None))
    longest = sorted(steps, key=lambda step: (step.start_ns - step.end_ns, step.start_ns))
    return tuple(sorted(longest[:HOST_STEPS], key=lambda step: step.start_ns))


def _told(reason: str, since_ns: int, cost_ns: int) -> str:
    """Say the reason as a sentence."""
    cost = TOLD_COST.format(cost=format_ns(cost_ns)) if cost_ns > 0 else ""
    cost = "" if reason == "unknown" else cost
    return TOLD[reason].format(since=format_ns(since_ns)) + cost
