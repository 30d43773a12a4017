"""Work in the legacy null stream between work of blocking streams orders all of it.

A stream made with the default flag waits for the null stream, and the null stream for it. Streams
whose kind the trace does not tell take no part, and non-blocking streams are not concerned.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.result import Abstention, Finding, Result
from gpuscope.model.trace import NULL_STREAM, Trace
from gpuscope.units import counted, format_ns
from gpuscope.waits import REASON

MIN_REPEATS = 3
"""Operations an instance that the null stream held up."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake: below it, other limits decide."""


def run(trace: Trace, options: Options) -> Result:
    """Look for work that waited by the rule of the null stream."""
    if trace.streams and all(stream.kind is None for stream in trace.streams):
        reason = "the trace does not say which streams are blocking"
        return Result(abstained=(Abstention("null-stream-work", reason),))
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    if not region.meant_to_overlap:
        return None
    waits, ops = case.waits, case.ops
    rows = region.rows[waits.reason[region.rows] == REASON["null-stream"]]
    cost = np.maximum(waits.cost_ns[rows], 0)
    times = union(waits.null_ns[rows] - cost, waits.null_ns[rows])
    held = length(times)
    saving = min(held, region.potential_ns)
    if len(rows) < region.often(MIN_REPEATS) or saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    is_null = np.array([stream.kind == NULL_STREAM for stream in case.trace.streams])
    others = np.where(is_null[ops.stream[rows]], rows, waits.null_op[rows])
    in_null = np.unique(others)
    in_null_stream = counted(
        len(in_null), "operation in the null stream orders", "operations in the null stream order"
    )
    return case.finding(
        region,
        id="null-stream-work",
        claim=(
            f"{in_null_stream} the work of blocking streams: "
            f"{counted(len(rows), 'operation')} waited {format_ns(held)} for that alone"
        ),
        mechanism="an operation started when the null stream, or all blocking streams, were done",
        advice=(
            "create the streams with cudaStreamNonBlocking, or give the work of the null stream a "
            "stream of its own (or build with --default-stream per-thread)"
        ),
        evidence={
            "count": len(rows),
            "held_ns": held,
            "null_stream_operations": len(in_null),
            "calls": case.calls_evidence(ops.launch[in_null]),
            "examples": case.operation_examples(rows, cost),
        },
        saving_ns=saving,
        held=times,
        limit_ns=region.potential_ns,
    )


ANALYZER = Analyzer(
    name="null-stream-work",
    summary="work in the null stream that orders blocking streams",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
