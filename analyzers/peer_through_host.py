"""Copies between GPUs that the driver takes through the host, for want of peer access.

Such a copy is two, out of one GPU's memory and into the other's, at the rate of the host's link and
with the host's memory in between, whatever connects the GPUs. Where the copies go is known, but not
what the direct way would take, so that no saving is given.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.quality import HOST_LINK_BYTES_PER_S
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import STAGED
from gpuscope.model.trace import Trace
from gpuscope.units import NS_PER_S, counted, format_bytes, format_ns
from gpuscope.waits import Bool

MIN_SPAN_SHARE = 0.01
"""Share of the region's span that the copies take under no kernel."""


def run(trace: Trace, options: Options) -> Result:
    """Look for copies between GPUs in two pieces."""
    case = Case.of(trace, options)
    staged = (case.ops.flags & STAGED) != 0
    if not staged.any():
        return Result()
    return Result(findings=case.search(lambda region: _rule(case, staged, region)))


def _rule(case: Case, staged: Bool, region: Region) -> Finding | None:
    ops = case.ops
    mine = region.rows[staged[region.rows]]
    bare_ns = length(case.under_no_kernel(region, union(ops.start_ns[mine], ops.end_ns[mine])))
    # Of a large copy the first piece alone may be recorded: it takes as long as its bytes at least.
    size_bytes = int(ops.size_bytes[mine].sum())
    stake_ns = max(bare_ns, size_bytes * NS_PER_S // HOST_LINK_BYTES_PER_S)
    if not len(mine) or stake_ns < MIN_SPAN_SHARE * region.span_ns:
        return None
    pairs = np.unique(np.stack([ops.src_device[mine], ops.dst_device[mine]]), axis=1).T.tolist()
    links = [f"GPU {source} > GPU {target}" for source, target in pairs if min(source, target) >= 0]
    return case.finding(
        region,
        id="peer-through-host",
        claim=(
            f"copies {' and '.join(links) or 'between GPUs'} go through the host: "
            f"{counted(len(mine), 'piece')} of them on this GPU, {format_bytes(size_bytes)} "
            f"arriving, {format_ns(bare_ns)} of it under no kernel"
        ),
        mechanism=(
            "each copy between the GPUs was recorded in two, from memory of a GPU to memory of a "
            "GPU: without peer access the driver copies out and in again"
        ),
        removable="unknown",
        advice=(
            "enable peer access in both directions before the first copy "
            "(cudaDeviceEnablePeerAccess; cudaMemPoolSetAccess for memory of a pool), where "
            "`nvidia-smi topo -p2p r` says that these GPUs have it"
        ),
        evidence={
            "count": len(mine),
            "bytes": size_bytes,
            "links": links,
            "bare_ns": bare_ns,
        },
    )


ANALYZER = Analyzer(
    name="peer-through-host",
    summary="copies between GPUs that the driver takes through the host",
    needs=("operations",),
    run=run,
    uses=USES,
)
