"""Overlap that does not pay: operations run together, but each lasts longer than alone.

Two that need the same thing, such as the memory's bandwidth, share it: what they lose together can
be as much as the overlap gains. How long an operation takes by itself is learnt from those of the
same name, size and grid that ran with nothing beside them.
"""

from __future__ import annotations

import functools

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import Cover, Disjoint, union_sorted
from gpuscope.model.classes import CODE, ENGINE_CODES
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import Int64

MIN_ALONE = 3
"""Runs without anything beside them, whose median is how long one takes alone."""
MAX_ALONE_SHARE = 0.02
"""An operation is alone if other work covers less than this share of it."""
MIN_BESIDE_SHARE = 0.50
"""It runs together with others if they cover this share of it."""
MIN_LOSS_SHARE = 0.50
"""Share of the overlap's gain that must be lost again."""
MIN_SPAN_SHARE = 0.05
"""Share of the region's span that must overlap, and that must be lost."""


def run(trace: Trace, options: Options) -> Result:
    """Look for operations that overlap and are slower for it."""
    case = Case.of(trace, options)
    if len(case.ops) < MIN_ALONE + 1:
        return Result()
    alone_ns = functools.cache(functools.partial(_alone_ns, case))
    return Result(
        findings=case.search(
            lambda region: (
                _rule(case, *alone_ns(region.device), region) if len(region.material) > 1 else None
            )
        )
    )


def _alone_ns(case: Case, device: int) -> tuple[Int64, Int64]:
    """Return, an operation of the device, how long others run beside it, and its time alone.

    Its time is -1 where it is unknown: communication waits for its peers, and has no own time.
    """
    ops = case.ops
    beside, alone_ns = np.full(len(ops), -1, np.int64), np.full(len(ops), -1, np.int64)
    rows = np.flatnonzero((ops.device == device) & np.isin(ops.op_class, ENGINE_CODES))
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    beside[rows] = Cover(_crowded(start, end)).within(start, end)
    took = end - start
    known = ~np.isin(ops.op_class[rows], [CODE["comm"], CODE["fused"], CODE["graph"]]) & (took > 0)
    alone = known & (beside[rows] <= MAX_ALONE_SHARE * took)
    keys = np.stack(
        [ops.op_class[rows], ops.name[rows], ops.size_bytes[rows], case.grid_blocks[rows]]
    )
    _, kind = np.unique(keys, axis=1, return_inverse=True)
    kind = kind.ravel()
    order = np.lexsort((took, kind))
    order = order[alone[order]]
    kinds, first, count = np.unique(kind[order], return_index=True, return_counts=True)
    enough = count >= MIN_ALONE
    median = np.full(int(kind.max(initial=0)) + 1, -1, np.int64)
    median[kinds[enough]] = took[order[(first + count // 2)[enough]]]
    alone_ns[rows] = np.where(known, median[kind], -1)
    return beside, alone_ns


def _crowded(start: Int64, end: Int64) -> Disjoint:
    """Return the stretches with two operations or more; `start` is sorted."""
    reach = np.maximum.accumulate(end)
    low = start[1:]
    high = np.minimum(end[1:], reach[:-1])
    kept = high > low
    return union_sorted(low[kept], high[kept])


def _rule(case: Case, beside: Int64, alone_ns: Int64, region: Region) -> Finding | None:
    ops, rows = case.ops, region.rows
    took = ops.end_ns[rows] - ops.start_ns[rows]
    slowed = (alone_ns[rows] >= 0) & (beside[rows] >= MIN_BESIDE_SHARE * took)
    if int(slowed.sum()) < 2 * region.instances:
        return None
    lost = np.where(slowed, np.maximum(took - alone_ns[rows], 0), 0)
    loss = int(lost.sum())
    # What ran together would take this long one after the other, less what it does take.
    gained = int(took.sum()) - region.busy_ns
    least = MIN_SPAN_SHARE * region.span_ns
    if gained < least or loss < least or loss < MIN_LOSS_SHARE * gained:
        return None
    count, net = int((lost > 0).sum()), gained - loss
    return case.finding(
        region,
        id="overlap-with-slowdown",
        claim=(
            f"{count} operations overlap but take {format_ns(loss)} longer than alone: of "
            f"{format_ns(gained)} of overlap "
            + (f"{format_ns(net)} is gained" if net > 0 else "nothing is gained")
        ),
        mechanism="the same operations without anything beside them are shorter",
        removable="unknown",
        advice=(
            "let fewer of them run at once: fewer copies in flight, fewer communication channels, "
            "or a smaller grid for the one that can wait"
        ),
        evidence={
            "count": count,
            "overlap_ns": gained,
            "lost_ns": loss,
            "net_ns": net,
            "examples": case.operation_examples(rows[lost > 0], lost[lost > 0]),
        },
    )


ANALYZER = Analyzer(
    name="overlap-with-slowdown",
    summary="operations that overlap and last longer for it",
    needs=("operations",),
    run=run,
    uses=("api", *USES),
)
