"""Ranks out of step: communication kernels that spin until their peers arrive.

How long the data of each message took is known only where the reports of all ranks were read
together: the rank that arrives last waits least. What lies under compute costs nothing, and makes
the finding an info.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import length, sum_by, union
from gpuscope.model.classes import CODE
from gpuscope.model.result import Abstention, Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns, format_ratio
from gpuscope.waits import Int64

MIN_WAIT_SHARE = 0.20
"""Share of the messages' time that must be waiting."""
MIN_SPAN_SHARE = 0.01
"""Share of the region's span that waiting must take to be found, and exposed waiting to be a
warning."""


def run(trace: Trace, options: Options) -> Result:
    """Look for communication kernels that wait for their peers."""
    transfer = options.transfer_ns
    if transfer is None:
        if not len(trace.rows_of("comm")):
            return Result()
        reason = "how long messages waited is known only with the reports of all ranks together"
        return Result(abstained=(Abstention("comm-skew", reason),))
    case = Case.of(trace, options)
    late = options.late_rank
    rank_count = len(options.exchange.ranks) if options.exchange else 0
    found = case.search(lambda region: _rule(case, transfer, late, rank_count, region))
    return Result(findings=found)


def _waited_for(late: Int64 | None, wait: Int64) -> dict[str, int]:
    """Return how long the messages waited for each rank that arrived last, the worst first."""
    if late is None:
        return {}
    ranks, at = np.unique(late, return_inverse=True)
    waited = sum_by(wait, at, len(ranks))
    order = np.argsort(-waited, kind="stable")
    return {f"rank {ranks[i]}": int(waited[i]) for i in order.tolist() if waited[i]}


def _rule(
    case: Case, transfer: Int64, late: Int64 | None, rank_count: int, region: Region
) -> Finding | None:
    ops = case.ops
    comm = region.rows[region.op_class == CODE["comm"]]
    comm = comm[transfer[comm] >= 0]
    duration = ops.end_ns[comm] - ops.start_ns[comm]
    wait = np.maximum(duration - transfer[comm], 0)
    total, work = int(wait.sum()), int(duration.sum())
    if total < max(MIN_WAIT_SHARE * work, MIN_SPAN_SHARE * region.span_ns, 1):
        return None
    waiting = union(ops.start_ns[comm], ops.start_ns[comm] + wait)
    exposed = length(case.under_no_kernel(region, waiting))
    ranks = _waited_for(None if late is None else late[comm], wait)
    matters = exposed >= MIN_SPAN_SHARE * region.span_ns
    # What one of n ranks does less the others do more, so that an n-th of the waiting stays.
    saving = exposed - exposed // rank_count if rank_count else exposed
    return case.finding(
        region,
        id="comm-skew",
        severity="warning" if matters else "info",
        claim=(
            f"{format_ns(total)} of {format_ns(work)} in {len(comm)} communication kernels "
            f"({format_ratio(total / work)}) are waiting for other ranks, {format_ns(exposed)} of "
            "it under no kernel" + (f"; mostly for {next(iter(ranks))}" if ranks else "")
        ),
        mechanism="the same message took another rank less time: that one arrived later",
        removable="unknown",
        advice=(
            f"balance the ranks: see what {next(iter(ranks), 'the late one')} did before these "
            "messages, in its own report"
        ),
        evidence={
            "count": len(comm),
            "wait_ns": total,
            "exposed_wait_ns": exposed,
            "transfer_ns": work - total,
            "waited_for_ns": ranks,
            "examples": case.operation_examples(comm, wait),
        },
        saving_ns=saving if matters else None,
    )


ANALYZER = Analyzer(
    name="comm-skew",
    summary="communication kernels that wait for ranks that arrive late",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
