"""Whether the trace can be trusted: records lost, the profiler in the way, a clock, a shared GPU.

None of these is a cause of missing overlap; each makes every other answer doubtful.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.measures import LOST_SHARE
from gpuscope.model import quality
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import Operations
from gpuscope.model.trace import Trace
from gpuscope.units import counted, format_ns, format_ratio


def run(trace: Trace, options: Options) -> Result:
    """Check that records and times are what they seem."""
    operations = trace.operations or Operations.empty()
    found = [
        _lost(trace, operations),
        _overhead(trace),
        _perturbed(trace, options),
        _coarse(operations),
        *_shared(trace, operations),
    ]
    return Result(findings=tuple(finding for finding in found if finding))


def _lost(trace: Trace, operations: Operations) -> Finding | None:
    lost = trace.lost_records or 0
    if lost <= LOST_SHARE * (lost + len(operations)):
        return None
    advice = "record again with less in the trace: a shorter run, a capture range, no backtraces"
    if not len(operations):
        advice = (
            "record again with no other profiler at work on the GPU, and with one no older than "
            "the driver"
        )
    return Finding.of_trace(
        id="lost-records",
        claim=f"about {lost} GPU records are missing: busy times and overlap are too low",
        mechanism=f"{format_ratio(lost / (lost + len(operations)))} of the launches left no record",
        advice=advice,
        evidence={"lost": lost, "recorded": len(operations)},
        severity="warning",
    )


def _overhead(trace: Trace) -> Finding | None:
    check = next((check for check in trace.checks if check.name == quality.PROFILER_OVERHEAD), None)
    if check is None or check.state != quality.WARNING:
        return None
    return Finding.of_trace(
        id="profiler-overhead",
        claim=check.text,
        mechanism="the profiler recorded its own work: buffers, injection, symbols",
        advice="record a later part (--capture), less of it, or without call stacks",
        evidence={},
        severity="warning",
    )


def _perturbed(trace: Trace, options: Options) -> Finding | None:
    """Report that the times are not the program's own: measured, or known of event tracing."""
    records = trace.event_records
    stamped = 0 if records is None else int((records.timestamp_ns >= 0).sum())
    if options.perturbed:
        listed = ", ".join(
            f"{name} {format_ratio(abs(change))} {'longer' if change > 0 else 'shorter'}"
            for name, change in options.perturbed.items()
        )
        claim = f"under the profiler the program took another time: {listed}"
        mechanism = "the same passes were timed without the profiler just before"
    elif stamped:
        claim = (
            f"{counted(stamped, 'event was', 'events were')} traced on the GPU, which can make "
            "streams wait for each other that would not otherwise"
        )
        mechanism = "event records carry time stamps: each is written in its stream's order"
    else:
        return None
    return Finding.of_trace(
        id="perturbed",
        claim=claim,
        mechanism=mechanism,
        advice="record again, lighter: a shorter part, --cuda-event-trace=false, no call stacks",
        evidence={"changes": dict(options.perturbed), "traced_events": stamped},
        severity="warning",
    )


def _coarse(operations: Operations) -> Finding | None:
    step = quality.clock_step_ns(operations)
    if step is None or step < quality.COARSE_CLOCK_NS:
        return None
    return Finding.of_trace(
        id="coarse-clock",
        claim=f"all times are multiples of {format_ns(step)}: shorter overlaps cannot be seen",
        mechanism="the recorded clock is that coarse",
        advice="record on a machine with a finer clock, or make the chunks longer",
        evidence={"step_ns": step, "operations": len(operations)},
        severity="warning",
    )


def _shared(trace: Trace, operations: Operations) -> list[Finding]:
    """Return one finding for each two processes whose kernels run on one GPU at the same time."""
    kernels = np.isin(operations.op_class, [CODE["kernel"], CODE["comm"], CODE["fused"]])
    spans: dict[str, list[tuple[int, int, int]]] = {}
    for device in np.unique(operations.device[kernels]).tolist():
        mine = kernels & (operations.device == device)
        spans.setdefault(trace.devices[device].hardware, []).append(
            (
                trace.devices[device].process,
                int(operations.start_ns[mine].min()),
                int(operations.end_ns[mine].max()),
            )
        )
    found = []
    for users in spans.values():
        for (a, a_start, a_end), (b, b_start, b_end) in combinations(users, 2):
            start, end = max(a_start, b_start), min(a_end, b_end)
            if a == b or start >= end:
                continue
            pids = sorted((trace.processes[a].pid, trace.processes[b].pid))
            found.append(
                Finding.of_trace(
                    id="time-sliced",
                    claim=(
                        f"processes {pids[0]} and {pids[1]} use one GPU for "
                        f"{format_ns(end - start)}: unless under MPS, the durations of each "
                        "include the other's turns"
                    ),
                    mechanism="kernels of two processes lie in the same stretch of time on one GPU",
                    advice=(
                        "give each process a GPU of its own, or start MPS; overlap between them is "
                        "not counted"
                    ),
                    evidence={"window_ns": [start, end], "processes": pids},
                    severity="warning",
                )
            )
    return found


ANALYZER = Analyzer(
    name="trust",
    summary="whether records, clock and durations of the trace can be trusted",
    needs=("operations",),
    run=run,
    uses=("event_records",),
)
