"""Few hardware queues: streams that share one wait for each other's heads.

CUDA_DEVICE_MAX_CONNECTIONS sets how many queues there are. Streams beyond them share: an operation
that is ready then starts only when the one enqueued before it, of another stream, has started. Both
must be seen: the limit in the captured environment, and operations that behave so.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import REASON, START_LATENCY_NS

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
MIN_REPEATS = 3
"""Operations an instance that started right behind a queue's head."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake."""


def run(trace: Trace, options: Options) -> Result:
    """Look for streams that wait for each other in a shared queue."""
    value = trace.environment.get(VARIABLE, "")
    if not value.isdecimal():
        return Result()
    case, limit = Case.of(trace, options), int(value)
    return Result(findings=case.search(lambda region: _rule(case, limit, region)))


def _rule(case: Case, limit: int, region: Region) -> Finding | None:
    waits, ops = case.waits, case.ops
    streams = len(np.unique(ops.stream[region.rows]))
    if streams <= limit or not region.meant_to_overlap:
        return None
    rows = region.rows[waits.call_start_ns[region.rows] >= 0]
    rows = rows[np.argsort(waits.call_start_ns[rows], kind="stable")]
    head, rows = rows[:-1], rows[1:]
    ready = np.maximum(waits.ready_ns[rows], waits.call_end_ns[rows])
    after = ops.start_ns[rows] - ops.start_ns[head]
    behind = (waits.reason[rows] == REASON["unknown"]) & (ops.graph_node[rows] < 0)
    behind &= (ops.stream[rows] != ops.stream[head]) & (ops.start_ns[rows] > ready)
    behind &= (after >= 0) & (after <= START_LATENCY_NS)
    rows, ready = rows[behind], ready[behind]
    times = union(ready, ops.start_ns[rows])
    held = length(times)
    saving = min(held, region.potential_ns)
    if len(rows) < region.often(MIN_REPEATS) or saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    return case.finding(
        region,
        id="connections-limit",
        claim=(
            f"{VARIABLE} is {limit} and {streams} streams are in use: {len(rows)} operations were "
            f"ready {format_ns(held)} before the one enqueued before them started"
        ),
        mechanism="an operation started right after one of another stream, enqueued before it",
        advice=f"raise {VARIABLE} to at least the number of streams, where the framework allows it",
        evidence={
            "count": len(rows),
            "held_ns": held,
            "limit": limit,
            "streams": streams,
            "examples": case.operation_examples(rows, ops.start_ns[rows] - ready),
        },
        saving_ns=saving,
        held=times,
        limit_ns=region.potential_ns,
    )


ANALYZER = Analyzer(
    name="connections-limit",
    summary="streams that share a hardware queue and wait for each other",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
