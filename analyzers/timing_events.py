"""Events that take the time: kernels behind one start later than kernels that follow directly.

An event made without cudaEventDisableTiming writes a time stamp when it is reached, and what comes
next in the stream waits for that: 2 µs on an H200, where one made with it costs nothing. The flag
itself is not in a trace, but the gap is. Events that a profiler traces have the same effect. A
kernel that its stream holds back by cudaStreamWaitEvent starts as much later, whatever the events
are: what it tells of them is nothing.
"""

from __future__ import annotations

import re

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.model.classes import KERNEL_CODES
from gpuscope.model.result import Abstention, Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import REASON, Bool, Int32, Int64, call_name, event_links

RECORDS = re.compile(r"cu(da)?EventRecord\w*")
MIN_GAP_NS = 1_000
"""An event without a time stamp makes no such difference; the stamp alone takes longer."""
MIN_REPEATS = 3
"""Kernels an instance behind an event, and as many without one to compare with."""
MIN_SPAN_SHARE = 0.01
"""Share of the region's span that the events must take."""


def run(trace: Trace, options: Options) -> Result:
    """Look for gaps behind events."""
    case = Case.of(trace, options)
    if trace.event_records is None:
        if not _records_events(case):
            return Result()
        reason = "no CUDA event records: which operations follow an event is unknown"
        return Result(abstained=(Abstention("timing-events", reason),))
    if not len(trace.event_records):
        return Result()
    waits = event_links(trace, case.ops, r"cu(da)?StreamWaitEvent")
    if len(waits.unresolved) and not len(waits.call):
        reason = f"none of {len(waits.unresolved)} stream waits can be traced to its event record"
        return Result(abstained=(Abstention("timing-events", reason),))
    records = trace.event_records
    records = records.take((records.launch >= 0) & (records.stream >= 0))
    behind = _since_the_last_launch(case, records.stream, records.launch)
    held = _since_the_last_launch(case, waits.stream, waits.call)
    return Result(findings=case.search(lambda region: _rule(case, behind, held, region)))


def _records_events(case: Case) -> bool:
    return any(RECORDS.fullmatch(call_name(text)) for text in case.trace.strings)


def _since_the_last_launch(case: Case, stream: Int32 | Int64, call: Int32 | Int64) -> Bool:
    """Return the operations between whose launch and that of the one before a call was made.

    `stream` and `call` are of calls for a stream: rows of Trace.streams and Trace.api.
    """
    ops, waits = case.ops, case.waits
    between = np.zeros(len(ops), np.bool_)
    called_at = case.api.start_ns[call]
    for one in np.unique(stream).tolist():
        times = np.sort(called_at[stream == one])
        mine = np.flatnonzero((ops.stream == one) & (waits.stream_op >= 0))
        mine = mine[(waits.call_start_ns[mine] >= 0) & (ops.graph_node[mine] < 0)]
        since = waits.call_start_ns[waits.stream_op[mine]]
        between[mine] = np.searchsorted(times, since) < np.searchsorted(
            times, waits.call_start_ns[mine]
        )
    return between


def _rule(case: Case, behind: Bool, held: Bool, region: Region) -> Finding | None:
    waits, ops = case.waits, case.ops
    rows = region.rows[(waits.reason[region.rows] == REASON["stream"]) & ~held[region.rows]]
    # A copy behind a kernel takes longer to begin, with or without an event.
    rows = rows[np.isin(ops.op_class[rows], KERNEL_CODES)]
    rows = rows[np.isin(ops.op_class[waits.stream_op[rows]], KERNEL_CODES)]
    gap = ops.start_ns[rows] - waits.stream_ns(rows)
    # Programmatic dependent launch starts kernels before the one before them has ended.
    rows, gap = rows[gap >= 0], gap[gap >= 0]
    late, plain = rows[behind[rows]], gap[~behind[rows]]
    enough = region.often(MIN_REPEATS)
    if len(late) < enough or len(plain) < enough:
        return None
    cost = np.maximum(gap[behind[rows]] - int(np.median(plain)), 0)
    total = int(cost.sum())
    if int(np.median(cost)) < MIN_GAP_NS or total < MIN_SPAN_SHARE * region.span_ns:
        return None
    return case.finding(
        region,
        id="timing-events",
        claim=(
            f"{len(late)} kernels follow an event that takes the time, and start "
            f"{format_ns(int(np.median(cost)))} later than those that follow directly: "
            f"{format_ns(total)} in all"
        ),
        mechanism="the next operation of the stream waits until the time stamp is written",
        removable="yes",
        advice=(
            "create events that only order work with cudaEventDisableTiming "
            "(cupy.cuda.Event(disable_timing=True)), and record without --cuda-event-trace"
        ),
        evidence={
            "count": len(late),
            "held_ns": total,
            "median_gap_ns": int(np.median(gap[behind[rows]])),
            "median_gap_without_ns": int(np.median(plain)),
            "examples": case.operation_examples(late, cost),
        },
        saving_ns=total,
    )


ANALYZER = Analyzer(
    name="timing-events",
    summary="events that take the time and delay what follows them",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
