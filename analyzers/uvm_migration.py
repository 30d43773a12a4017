"""Unified memory: pages that migrate when they are touched, in the middle of kernels.

Migrations that the program asked for (prefetches) are copies and do not count.
"""

from __future__ import annotations

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_bytes, format_ns

MIN_BUSY_SHARE = 0.01
"""Share of the region's span that migrations must take."""


def run(trace: Trace, options: Options) -> Result:
    """Look for migrations nobody asked for."""
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    busy = region.class_busy_ns.get("uvm", 0)
    if not busy or busy < MIN_BUSY_SHARE * region.span_ns:
        return None
    rows = region.rows[region.op_class == CODE["uvm"]]
    size = int(case.ops.size_bytes[rows].sum())
    return case.finding(
        region,
        id="uvm-migration",
        claim=(
            f"{len(rows)} migrations of unified memory move {format_bytes(size)} in "
            f"{format_ns(busy)} while kernels wait for their pages"
        ),
        mechanism="pages moved because they were touched, not because they were asked for",
        removable="yes",
        advice=(
            "prefetch with cudaMemPrefetchAsync on a stream before the kernel, or use cudaMalloc "
            "and explicit copies"
        ),
        evidence={
            "count": len(rows),
            "bytes": size,
            "migration_ns": busy,
            "examples": case.operation_examples(
                rows, case.ops.end_ns[rows] - case.ops.start_ns[rows]
            ),
        },
    )


ANALYZER = Analyzer(
    name="uvm-migration",
    summary="unified-memory migrations in the middle of kernels",
    needs=("operations",),
    run=run,
    uses=("api", *USES),
)
