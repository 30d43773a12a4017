"""Reading a result on the host: a few bytes are copied out, the host waits, and the GPU is idle.

Typical are `.item()`, printing a loss, and library calls that return a scalar. The copy itself is
nothing; the queue that runs dry behind it is. Pinning the target would not help.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import Bool

MIN_REPEATS = 3
"""Reads an instance with the GPU idle behind them: a last result is read once."""
MIN_SAVING_SHARE = 0.01
"""Share of the region's span that must be at stake."""


def run(trace: Trace, options: Options) -> Result:
    """Look for blocking reads with the GPU idle after them."""
    case = Case.of(trace, options)
    reads, _ = case.reads
    if not reads.any():
        return Result()
    return Result(findings=case.search(lambda region: _rule(case, reads, region)))


def _rule(case: Case, reads: Bool, region: Region) -> Finding | None:
    ops = case.ops
    idle = case.idle(region)
    idle = idle.take(~case.in_mpi(idle))
    # The read that ended last before the GPU fell idle, if it is what ended there.
    ends = np.flatnonzero(reads & (ops.device == region.device))
    ends = ends[np.argsort(ops.end_ns[ends], kind="stable")]
    if not len(ends):
        return None
    at = np.searchsorted(ops.end_ns[ends], idle.start_ns, side="right") - 1
    read = ends[np.maximum(at, 0)]
    behind = (at >= 0) & (ops.end_ns[read] == idle.start_ns)
    behind &= case.launch_thread[read] == case.launch_thread[idle.operation]
    read, after = read[behind], idle.operation[behind]
    cost = (idle.end_ns - idle.start_ns)[behind]
    total = int(cost.sum())
    if len(read) < region.often(MIN_REPEATS):
        return None
    bare = _laid_bare(case, region)
    # The host needs the rest of its time anyhow.
    saving = min(total + bare, _waited_ns(case, region))
    if saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    return case.finding(
        region,
        id="host-read",
        claim=(
            f"{len(read)} reads of at most {int(ops.size_bytes[read].max())} bytes make the host "
            f"wait, and the GPU is idle for {format_ns(total)} behind them"
            + (f"; work issued late for it lies bare for another {format_ns(bare)}" if bare else "")
        ),
        mechanism="the next work was launched only after the copy to the host had ended",
        advice=(
            "read the value less often or later (keep it on the GPU, read it a step behind, or "
            "copy it with cudaMemcpyAsync to pinned memory and look at it after an event)"
        ),
        removable="unknown",
        evidence={
            "count": len(read),
            "held_ns": total,
            "laid_bare_ns": bare,
            "calls": case.calls_evidence(np.unique(ops.launch[read])),
            "examples": case.operation_examples(after, cost),
        },
        saving_ns=saving,
        held=(idle.start_ns[behind], idle.end_ns[behind]),
    )


def _waited_ns(case: Case, region: Region) -> int:
    """Return how long threads are in reads, and in waits for them, while a region is at work."""
    reads, waits = case.reads
    calls = np.union1d(case.ops.launch[reads], waits)
    begin, finish = region.window_ns
    start, end = case.api.start_ns[calls], case.api.end_ns[calls]
    mine = (start < finish) & (end > begin)
    return int((end - start)[mine].sum())


def _laid_bare(case: Case, region: Region) -> int:
    """Return the busy time that would be hidden if the reads held no other stream's work up."""
    if not region.meant_to_overlap or region.material_streams < 2:
        return 0
    reads, waits = case.reads
    rows = np.union1d(case.ops.launch[reads], waits)
    held = case.held_by(case.late(region), lambda thread: case.calls_at(rows, thread))
    return min(held.held_ns, region.unhidden_ns)


ANALYZER = Analyzer(
    name="host-read",
    summary="reads of a few bytes that leave the GPU idle",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
