"""Unified memory: pages that migrate when they are touched, by kernels or by the CPU.

Migrations that the program asked for (prefetches) are copies and do not count. Kernels wait for
pages that come to their GPU; pages go back to the host when the CPU touches them, or when the
GPU's memory is full.
"""

from __future__ import annotations

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import Cover, length, union
from gpuscope.model.classes import CODE, KERNEL_CODES
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import EVICTED, TO_HOST, in_classes
from gpuscope.model.trace import Trace
from gpuscope.units import format_bytes, format_ns

MIN_BUSY_SHARE = 0.01
"""Share of the region's span that migrations must take."""
_TO_DEVICE = (
    "{count} to the GPU move {size} in {time}, {under} of it while kernels run, which wait for them"
)
_ASK_BEFORE_KERNEL = "prefetch to the GPU with cudaMemPrefetchAsync on a stream before the kernel"
_TO_HOST = "{count} to the host, as pages go that the CPU touches, move {size} in {time}"
_ASK_BEFORE_CPU = (
    "prefetch to the host with cudaMemPrefetchAsync (cudaMemLocationTypeHost, before CUDA 13 "
    "cudaCpuDeviceId) before the CPU touches the data"
)
_EVICTED = "{count} evict {size} in {time} from a GPU whose memory is full"
_FIT = "work on parts of the data that fit into the GPU's memory together"


def run(trace: Trace, options: Options) -> Result:
    """Look for migrations nobody asked for."""
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    ops = case.ops
    rows = region.rows[region.op_class == CODE["uvm"]]
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    busy = length(union(start, end))
    if busy < max(MIN_BUSY_SHARE * region.span_ns, 1):
        return None
    on_device = (ops.device == region.device) & in_classes(ops.op_class, KERNEL_CODES)
    kernels = Cover(union(ops.start_ns[on_device], ops.end_ns[on_device]))
    flags = ops.flags[rows]
    evicted = flags & EVICTED != 0
    touched = ~evicted & (flags & TO_HOST != 0)
    evidence, claims, advice = {}, [], []
    for name, mine, claim, remedy in (
        ("to_device", ~evicted & ~touched, _TO_DEVICE, _ASK_BEFORE_KERNEL),
        ("to_host", touched, _TO_HOST, _ASK_BEFORE_CPU),
        ("evicted", evicted, _EVICTED, _FIT),
    ):
        moving = union(start[mine], end[mine])
        part = {
            "count": int(mine.sum()),
            "bytes": int(ops.size_bytes[rows[mine]].sum()),
            "ns": length(moving),
            "under_kernels_ns": int(kernels.within(*moving).sum()),
        }
        evidence[name] = part
        if part["count"]:
            claims.append(
                claim.format(
                    count=part["count"],
                    size=format_bytes(part["bytes"]),
                    time=format_ns(part["ns"]),
                    under=format_ns(part["under_kernels_ns"]),
                )
            )
            advice.append(remedy)
    return case.finding(
        region,
        id="uvm-migration",
        claim=f"migrations of unified memory: {'; '.join(claims)}",
        mechanism="pages moved because they were touched, not because they were asked for",
        removable="yes",
        advice="; ".join([*advice, "or use cudaMalloc and explicit copies"]),
        evidence={
            "migration_ns": busy,
            **evidence,
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
