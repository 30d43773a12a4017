"""Issue order: a copy that was ready waited behind one, issued before it, that was not.

Where both directions share one copy engine, or all streams one hardware queue, copies start in the
order in which they were issued. A copy out issued before the next chunk's copy in, but still
waiting for its kernel, then keeps that copy in waiting too, with the engine idle.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import COPY_CODES, USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.classes import CLASSES, CODE
from gpuscope.model.result import Abstention, Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import START_LATENCY_NS, Int64

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
MIN_REPEATS = 2
"""Copies an instance that were held so."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake."""


def run(trace: Trace, options: Options) -> Result:
    """Look for copies held behind waiting ones on a shared engine or queue."""
    one_queue = trace.environment.get(VARIABLE) == "1"
    engines = {device.copy_engines for device in trace.devices}
    if not one_queue and 1 not in engines:
        if None in engines and len(trace.rows_of("h2d")) and len(trace.rows_of("d2h")):
            reason = "the number of copy engines is not recorded"
            return Result(abstained=(Abstention("issue-order", reason),))
        return Result()
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, one_queue, region)))


def _rule(case: Case, one_queue: bool, region: Region) -> Finding | None:
    if not region.meant_to_overlap or not (one_queue or region.single_engine):
        return None
    rows, head, ready = _held_behind(case, region)
    start = case.ops.start_ns[head]
    times = union(ready, start)
    held = length(times)
    limit = min(region.potential_ns, region.span_ns - region.fullest_streams_ns)
    saving = min(held, limit)
    if len(rows) < region.often(MIN_REPEATS) or saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    out = case.ops.op_class[head] == CODE["d2h"]
    depth_first = 2 * int(out.sum()) > len(rows)
    shared = "the one copy engine" if region.single_engine else "the one hardware queue"
    waiting = CLASSES[int(np.bincount(case.ops.op_class[rows]).argmax())]
    awaited = CLASSES[int(np.bincount(case.ops.op_class[head]).argmax())]
    return case.finding(
        region,
        id="issue-order",
        claim=(
            f"{len(rows)} copies, mostly {waiting}, were ready {format_ns(held)} before the copy "
            f"issued before them, mostly {awaited}, could start: {shared} was idle meanwhile"
        ),
        mechanism=f"{shared} takes copies in the order of their calls, the waiting one first",
        advice=(
            "issue breadth first: all chunks' copies in, then their kernels, then their copies out"
            if depth_first
            else "issue depth first: one chunk's copy in, kernel and copy out, then the next chunk"
        ),
        evidence={
            "count": len(rows),
            "held_ns": held,
            "order": "depth first" if depth_first else "breadth first",
            "examples": case.operation_examples(rows, start - ready),
        },
        saving_ns=saving,
        held=times,
        limit_ns=limit,
    )


def _held_behind(case: Case, region: Region) -> tuple[Int64, Int64, Int64]:
    """Return the held copies, the copy each was held by, and since when.

    The first of copies that follow on each other holds the later ones of other streams that had all
    they need while the engine was idle before it.
    """
    waits, ops = case.waits, case.ops
    copies = region.rows[np.isin(region.op_class, COPY_CODES)]
    copies = copies[(waits.call_start_ns[copies] >= 0) & (ops.graph_node[copies] < 0)]
    engine = np.zeros(len(copies), np.int64) if region.single_engine else ops.op_class[copies]
    order = np.lexsort((waits.call_start_ns[copies], engine))
    copies, engine = copies[order], engine[order]
    after = ops.start_ns[copies[1:]] - ops.end_ns[copies[:-1]]
    follows = (engine[1:] == engine[:-1]) & (after >= 0) & (after <= START_LATENCY_NS)
    place = np.arange(len(copies))
    place[1:][follows] = 0
    head, rows = copies[np.maximum.accumulate(place)], copies
    own = np.maximum(np.maximum(waits.stream_ns(rows), waits.event_ns[rows]), waits.null_ns[rows])
    # Free from the end of the copy before the head, which the engine was still busy with.
    ready = np.maximum(np.maximum(own, waits.call_end_ns[rows]), waits.engine_ns(head))
    held = (ops.stream[rows] != ops.stream[head]) & (ops.start_ns[head] - ready > START_LATENCY_NS)
    return rows[held], head[held], ready[held]


ANALYZER = Analyzer(
    name="issue-order",
    summary="copies that wait behind others, issued before them, on one engine or queue",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
