"""One stream: copies and kernels that could overlap are queued in one stream, which orders them.

Only a repeated pattern of copies and kernels counts, and only where the stream is what most of it
waited for: a host that is late with its launches is another cause. Kernels alone in one stream are
never reported.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import COPY_CODES, USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import NULL_STREAM, Trace
from gpuscope.units import format_ns
from gpuscope.waits import REASON

MIN_CYCLES = 2
"""Times an instance goes from copying to computing: once is no pipeline."""
MIN_STREAM_SHARE = 0.95
"""Share of the work of copies, and of that of kernels, that the one stream holds."""
MIN_ORDERED_SHARE = 0.50
"""Share of its operations that started when their predecessor in the stream ended."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake: below it, other limits decide."""


def run(trace: Trace, options: Options) -> Result:
    """Look for copies and kernels that one stream keeps apart."""
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    copies = np.isin(region.op_class, COPY_CODES)
    kernels = region.op_class == CODE["kernel"]
    material = set(region.material)
    if "kernel" not in material or not material & {"h2d", "d2h", "p2p"}:
        return None
    if region.cycles < MIN_CYCLES or region.unhidden_ns < MIN_SAVING_SHARE * region.span_ns:
        return None
    ops, rows = case.ops, region.rows
    work = (ops.end_ns - ops.start_ns)[rows]
    stream_of = ops.stream[rows]
    streams, code = np.unique(stream_of, return_inverse=True)
    number = int(np.argmax(np.bincount(code, weights=work)))
    stream, inside = int(streams[number]), code == number
    if stream < 0:
        return None
    for part in (copies, kernels):
        if work[part & inside].sum() < MIN_STREAM_SHARE * work[part].sum():
            return None
    ordered = (case.waits.reason[rows] == REASON["stream"]) & inside & (copies | kernels)
    if int(ordered.sum()) < MIN_ORDERED_SHARE * int(((copies | kernels) & inside).sum()):
        return None
    cost = np.maximum(case.waits.cost_ns[rows[ordered]], 0)
    ended = case.waits.stream_ns(rows[ordered])
    times = union(ended - cost, ended)
    label = case.trace.streams[stream].label
    default = case.trace.streams[stream].kind == NULL_STREAM
    launches = np.unique(ops.launch[rows[ordered]])
    cycles = round(region.cycles * region.instances)
    return case.finding(
        region,
        id="default-stream" if default else "same-stream",
        claim=(
            f"{cycles} times copies and kernels follow each other in {label}: at most one of them "
            f"runs at a time, for {format_ns(region.busy_ns)} where the busiest engine needs "
            f"{format_ns(region.bound_ns)}"
        ),
        mechanism=f"{int(ordered.sum())} operations waited for their predecessor in {label}",
        advice=(
            "give every chunk a stream of its own, made with cudaStreamCreateWithFlags and "
            "cudaStreamNonBlocking (cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream), "
            "and pass it to the copies and kernels of that chunk"
            if default
            else "give every chunk a stream of its own, three or four in turn"
        ),
        evidence={
            "stream": case.trace.streams[stream].number,
            "count": int(ordered.sum()),
            "cycles": cycles,
            "held_ns": length(times),
            "classes_ns": region.class_busy_ns,
            "calls": case.calls_evidence(launches[launches >= 0]),
            "examples": case.operation_examples(rows[ordered], cost),
        },
        saving_ns=region.unhidden_ns,
        held=times,
    )


ANALYZER = Analyzer(
    name="same-stream",
    summary="copies and kernels that one stream, or the default stream, keeps apart",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
