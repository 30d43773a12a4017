"""Host functions in a stream: what follows one waits until the CPU has run it.

The trace does not tell a host function's stream, so one is blamed only for an operation that
nothing else explains, and only where it is what the thread enqueued between that operation and the
one before it in the stream.
"""

from __future__ import annotations

import re

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import REASON, Int64, call_name

CALLS = re.compile(r"cu(da)?(LaunchHostFunc|StreamAddCallback)")
"""Calls that put a host function into a stream."""
MIN_REPEATS = 3
"""Operations an instance that waited behind one."""
MIN_SAVING_SHARE = 0.01
"""Share of the region's span that these operations must have waited."""


def run(trace: Trace, options: Options) -> Result:
    """Look for operations that waited behind a host function."""
    names = [i for i, text in enumerate(trace.strings) if CALLS.fullmatch(call_name(text))]
    if trace.api is None or not names:
        return Result()
    case = Case.of(trace, options)
    functions = np.flatnonzero(np.isin(trace.api.name, names))
    return Result(findings=case.search(lambda region: _rule(case, functions, region)))


def _rule(case: Case, functions: Int64, region: Region) -> Finding | None:
    waits, ops, api = case.waits, case.ops, case.api
    rows = region.rows[waits.reason[region.rows] == REASON["unknown"]]
    rows = rows[(waits.stream_op[rows] >= 0) & (ops.graph_node[rows] < 0) & (ops.launch[rows] >= 0)]
    before = ops.launch[waits.stream_op[rows]]
    at = np.searchsorted(functions, ops.launch[rows]) - 1
    function = functions[np.maximum(at, 0)]
    behind = (at >= 0) & (before >= 0) & (function > before)
    behind &= api.thread[function] == api.thread[ops.launch[rows]]
    rows, function = rows[behind], function[behind]
    ready = np.maximum(waits.ready_ns[rows], waits.call_start_ns[rows])
    cost = ops.start_ns[rows] - ready
    times = union(ready, ops.start_ns[rows])
    held = length(times)
    limit = region.span_ns - region.fullest_streams_ns
    saving = min(held, limit)
    if len(rows) < region.often(MIN_REPEATS) or saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    return case.finding(
        region,
        id="host-func",
        claim=(
            f"{len(rows)} operations waited {format_ns(held)} in their streams behind a host "
            "function"
        ),
        mechanism="nothing else explains the gap, and a host function was enqueued in it",
        removable="unknown",
        advice=("make the function shorter, or record an event and let another thread wait for it"),
        evidence={
            "count": len(rows),
            "held_ns": held,
            "calls": case.calls_evidence(np.unique(function)),
            "examples": case.operation_examples(rows, cost),
        },
        saving_ns=saving,
        held=times,
        limit_ns=limit,
    )


ANALYZER = Analyzer(
    name="host-func",
    summary="operations that wait in their stream behind a host function",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
