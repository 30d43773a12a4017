"""Pageable memory: an asynchronous copy from or to it blocks the host until it is done.

CUDA stages such a copy through a buffer of its own and, past 64 KiB, returns only when the host's
side is done. Work of other streams that was ready is then launched too late to overlap. Whether a
call blocked is read from the trace, not from the kind of memory: on some machines it does not.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region, names_of
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import MEMORY_KINDS, PAGEABLE
from gpuscope.model.trace import Trace
from gpuscope.units import format_bytes, format_ns
from gpuscope.waits import Bool, Int64

MIN_SIZE_BYTES = 64 * 1024
"""Copies up to this size may return before they are done: the driver buffers them."""
MIN_REPEATS = 2
"""Blocked calls an instance: one copy that held up something once is no pattern."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake: below it, other limits decide."""
MIN_PINNED_BYTES = 1 << 20
"""Pinned copies of this size run at their link's full rate: what a pinned buffer would reach."""
FASTEST_LINK_BYTES_PER_S = 63_000_000_000
"""PCIe 5 ×16, the fastest link over which the driver stages pageable copies; 55 GB/s were measured
on it. Where a trace has no pinned copy, the saving is an upper bound by this rate."""


def run(trace: Trace, options: Options) -> Result:
    """Look for pageable copies that held up ready work."""
    case = Case.of(trace, options)
    ops = case.ops
    pageable = ((ops.src_kind == PAGEABLE) | (ops.dst_kind == PAGEABLE)) & case.blocking_copies
    pageable &= np.isin(ops.op_class, [CODE["h2d"], CODE["d2h"]])
    pageable &= ops.size_bytes > MIN_SIZE_BYTES
    rows = np.flatnonzero(pageable)
    pageable[rows] = case.call_kind[ops.launch[rows]] == case.kind_code("copy-async")
    if not pageable.any():
        return Result()
    return Result(findings=case.search(lambda region: _rule(case, pageable, region)))


def _rule(case: Case, pageable: Bool, region: Region) -> Finding | None:
    if not region.meant_to_overlap:
        return None
    ops = case.ops
    mine = region.rows[pageable[region.rows]]
    if len(mine) < region.often(MIN_REPEATS):
        return None
    held = case.held_by(case.late(region), lambda thread: case.launching_calls(mine, thread))
    if case.at_stake(region, held, repeats=MIN_REPEATS, share=MIN_SAVING_SHARE) is None:
        return None
    evidence = case.held_evidence(held)
    size, work = int(ops.size_bytes[mine].sum()), int((ops.end_ns - ops.start_ns)[mine].sum())
    faster, rates = _faster_when_pinned(case, mine)
    pinned = {
        name: max(0, busy - faster.get(name, 0)) for name, busy in region.class_busy_ns.items()
    }
    shorter = sum(faster.values())
    limit = region.saved_if(region.engines_of(pinned))
    return case.finding(
        region,
        id="pageable-copy",
        claim=(
            f"{len(mine)} copies, {format_bytes(size)} in all, use pageable memory: each blocks "
            f"its thread, and work that was ready waited {format_ns(held.held_ns)} to be launched; "
            f"pinned, the copies themselves would take {format_ns(shorter)} less"
        ),
        mechanism=(
            f"{names_of(evidence['calls'])} returned only when the copy was done, because one "
            f"side is {MEMORY_KINDS[PAGEABLE]} memory"
        ),
        advice=(
            "pin the buffers: allocate them with cudaHostAlloc (cupyx.empty_pinned, "
            "torch.Tensor.pin_memory) or register them once with cudaHostRegister"
        ),
        evidence={
            **evidence,
            "copies": len(mine),
            "bytes": size,
            "work_ns": work,
            "rate_bytes_per_s": size * 1_000_000_000 // max(work, 1),
            "faster_when_pinned_ns": shorter,
            "pinned_rate_bytes_per_s": rates,
        },
        saving_ns=min(held.held_ns + shorter, limit),
        held=held.times,
        limit_ns=limit,
    )


def _faster_when_pinned(case: Case, mine: Int64) -> tuple[dict[str, int], dict[str, int]]:
    """Return, a direction, the copy time that pinning would save, and the rate it is told from.

    The rate is that of the trace's own pinned copies, or else of the fastest link there is.
    """
    ops = case.ops
    duration = ops.end_ns - ops.start_ns
    saved, rates = {}, {}
    for name in ("h2d", "d2h"):
        same = ops.op_class == CODE[name]
        copies = mine[same[mine]]
        if not len(copies):
            continue
        pinned = same & (ops.src_kind != PAGEABLE) & (ops.dst_kind != PAGEABLE)
        pinned &= (ops.size_bytes >= MIN_PINNED_BYTES) & (duration > 0)
        rates[name] = FASTEST_LINK_BYTES_PER_S
        if pinned.any():
            rates[name] = int(np.median(ops.size_bytes[pinned] / duration[pinned]) * 1e9)
        pinned_ns = int(ops.size_bytes[copies].sum()) * 1_000_000_000 // rates[name]
        saved[name] = max(0, int(duration[copies].sum()) - pinned_ns)
    return saved, rates


ANALYZER = Analyzer(
    name="pageable-copy",
    summary="copies of pageable memory that block the host and hold up ready work",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
