"""Bound by launching: the GPU is done before the next launch arrives, again and again.

Most operations find an empty queue, and the GPU is idle for as long as the host takes to issue the
next one. Idle time in waits, blocking copies, allocations or MPI has causes of its own and is not
counted; what the profiler adds to every call is taken off.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region, Windows
from gpuscope.intervals import intersect, length, union
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns, format_ratio

EMPTY_QUEUE_NS = 20_000
"""An operation that starts within this time after its launch began found an empty queue."""
MIN_EMPTY_SHARE = 0.50
"""Share of the operations that must have found it empty."""
MIN_IDLE_SHARE = 0.20
"""Share of the region's span that the GPU must be idle while work is issued."""
MIN_OPERATIONS = 100
"""Operations an instance: fewer say nothing about launching."""
MAX_OTHER_SHARE = 0.20
"""Share of the idle time that may lie in waits and the like before these are the cause."""
PROFILER_NS_PER_CALL = 1_000
"""About what tracing adds to an API call."""
OTHER_KINDS = ("wait", "poll", "copy", "allocate")
"""Calls whose time is not launching."""
MAX_BETWEEN_NS = 50_000
"""A longer stretch outside of calls is the host's own work, not launching."""


def run(trace: Trace, options: Options) -> Result:
    """Look for GPUs that wait for launches."""
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    if len(region.rows) < MIN_OPERATIONS * region.instances:
        return None
    ops, waits, trace = case.ops, case.waits, case.trace
    rows = region.rows[(waits.call_start_ns[region.rows] >= 0)]
    lag = ops.start_ns[rows] - waits.call_start_ns[rows]
    empty = (lag < EMPTY_QUEUE_NS) & (ops.graph_node[rows] < 0)
    if int(empty.sum()) < MIN_EMPTY_SHARE * len(region.rows):
        return None
    every = case.idle(region)
    # What the host does after a wait that let the GPU run dry is due to the wait.
    drained = case.begun_in(every, OTHER_KINDS)[0] >= 0
    idle = every.take(~drained)
    total = _between_ns(case, every)
    other = total - _between_ns(case, idle)
    other += case.held_by(idle, lambda thread: case.calls_of(OTHER_KINDS, thread)).held_ns
    mpi = trace.mpi
    if mpi is not None:
        in_mpi = union(mpi.start_ns, mpi.end_ns)
        other += length(intersect(union(idle.start_ns, idle.end_ns), in_mpi))
    if other > MAX_OTHER_SHARE * total:
        return None
    issuing = total - other - PROFILER_NS_PER_CALL * len(idle.operation)
    if issuing < MIN_IDLE_SHARE * region.span_ns:
        return None
    launches = np.unique(ops.launch[idle.operation]).astype(np.int64)
    return case.finding(
        region,
        id="launch-bound",
        claim=(
            f"{format_ratio(int(empty.sum()) / len(region.rows))} of {len(region.rows)} operations "
            f"found an empty queue: the GPU waits {format_ns(issuing)} for launches"
        ),
        mechanism=f"operations started within {format_ns(EMPTY_QUEUE_NS)} of their launching call",
        advice=(
            "give every launch more to do (bigger chunks, fused kernels), or replay the sequence "
            "as a CUDA graph"
        ),
        removable="unknown",
        evidence={
            "held_ns": issuing,
            "count": int(empty.sum()),
            "operations": len(region.rows),
            "median_launch_to_start_ns": int(np.median(lag)),
            "calls": case.calls_evidence(launches),
            "examples": case.operation_examples(idle.operation, idle.end_ns - idle.start_ns),
        },
        saving_ns=issuing,
    )


def _between_ns(case: Case, windows: Windows) -> int:
    """Return the time in some windows but for longer stretches of the host's own."""
    _, start, end = case.without_calls(windows)
    own = (end - start)[end - start > MAX_BETWEEN_NS]
    return length(union(windows.start_ns, windows.end_ns)) - int(own.sum())


ANALYZER = Analyzer(
    name="launch-bound",
    summary="a GPU that waits for the next launch most of the time",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
