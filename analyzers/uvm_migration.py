"""Unified memory: pages that migrate when they are touched, by kernels or by the CPU.

Migrations that the program asked for (prefetches) are copies and do not count. Which way pages went
the trace does not tell: what lies under kernels holds these up, and pages that move while none runs
were touched by the CPU, or by a copy.
"""

from __future__ import annotations

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import KERNEL_CODES, USES, Case, Region
from gpuscope.intervals import Cover, length, union
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import in_classes
from gpuscope.model.trace import Trace
from gpuscope.units import format_bytes, format_ns

MIN_BUSY_SHARE = 0.01
"""Share of the region's span that migrations must take."""


def run(trace: Trace, options: Options) -> Result:
    """Look for migrations nobody asked for."""
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    ops = case.ops
    rows = region.rows[region.op_class == CODE["uvm"]]
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    moving = union(start, end)
    busy = length(moving)
    if busy < max(MIN_BUSY_SHARE * region.span_ns, 1):
        return None
    on_device = (ops.device == region.device) & in_classes(ops.op_class, KERNEL_CODES)
    kernels = Cover(union(ops.start_ns[on_device], ops.end_ns[on_device]))
    under_ns = int(kernels.within(*moving).sum())
    under = kernels.within(start, end) > 0
    size = ops.size_bytes[rows]
    under_bytes, other_bytes = int(size[under].sum()), int(size[~under].sum())
    claims, advice = [], []
    if under.any():
        claims.append(
            f"{int(under.sum())} migrations of unified memory move {format_bytes(under_bytes)} in "
            f"{format_ns(under_ns)} while kernels wait for their pages"
        )
        advice.append("prefetch to the GPU with cudaMemPrefetchAsync on a stream before the kernel")
    if not under.all():
        what = "more" if claims else "migrations of unified memory"
        claims.append(
            f"{int((~under).sum())} {what} move {format_bytes(other_bytes)} in "
            f"{format_ns(busy - under_ns)} while no kernel runs, as pages do that the CPU touches"
        )
        advice.append(
            "prefetch to the host with cudaMemPrefetchAsync and cudaCpuDeviceId before the CPU "
            "touches the data"
        )
    return case.finding(
        region,
        id="uvm-migration",
        claim="; ".join(claims),
        mechanism="pages moved because they were touched, not because they were asked for",
        removable="yes",
        advice="; ".join([*advice, "or use cudaMalloc and explicit copies"]),
        evidence={
            "count": len(rows),
            "bytes": under_bytes + other_bytes,
            "migration_ns": busy,
            "under_kernels": int(under.sum()),
            "under_kernels_bytes": under_bytes,
            "under_kernels_ns": under_ns,
            "examples": case.operation_examples(rows, end - start),
        },
    )


ANALYZER = Analyzer(
    name="uvm-migration",
    summary="unified-memory migrations that nobody asked for, under kernels or not",
    needs=("operations",),
    run=run,
    uses=("api", *USES),
)
