"""A busy host: the GPU is idle while the launching thread is in no CUDA or MPI call.

The time goes to the program itself: an interpreter, a data loader, waiting for input. Short gaps
between calls belong to launching and are left out; compiling is told by `jit-autotune`.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import EXAMPLES, USES, Case, Region
from gpuscope.intervals import sum_by
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import Int64

MIN_PIECE_NS = 50_000
"""A shorter stretch outside of calls is part of issuing work, also in an interpreter."""
MIN_REPEATS = 3
"""Times an instance that the GPU waits so: setting up once is no pattern."""
MIN_KERNELS = 3
"""Kernels an instance: without them it is set-up, not a program at work."""
MIN_IDLE_SHARE = 0.10
"""Share of an instance's span that the GPU must be idle so."""
MAX_TIMES_MEDIAN = 10
"""A gap counts for at most this many times the median gap: compilations and first connections are
far longer than what recurs."""
MIN_INSTANCE_SHARE = 0.50
"""More than this share of the instances must be so: the first one alone is warming up."""


def run(trace: Trace, options: Options) -> Result:
    """Look for idle time of the GPU in which the host is outside of CUDA."""
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    if region.class_count.get("kernel", 0) < MIN_KERNELS * region.instances:
        return None
    windows = case.idle(region)
    windows = windows.take(~case.compiling(windows))
    thread, start, end = case.without_calls(windows)
    kept = end - start >= MIN_PIECE_NS
    thread, start, end = thread[kept], start[kept], end[kept]
    order = np.argsort(windows.end_ns, kind="stable")
    at = order[np.searchsorted(windows.end_ns[order], start, side="right")]
    by_window = sum_by(end - start, at, len(order))
    waited = np.flatnonzero(by_window)
    instance, spans_ns = _parts(case, region, windows.operation[waited])
    most = MAX_TIMES_MEDIAN * int(np.median(by_window[waited])) if len(waited) else 0
    usual = sum_by(np.minimum(by_window[waited], most), instance, len(spans_ns))
    affected = usual >= MIN_IDLE_SHARE * spans_ns
    if region.turns_ns is None:
        affected &= np.bincount(instance, minlength=len(spans_ns)) >= MIN_REPEATS
    if int(affected.sum()) <= MIN_INSTANCE_SHARE * len(spans_ns):
        return None
    repeats, total = len(waited), int(by_window.sum())
    saving = int(usual.sum())
    worst = np.lexsort((start, start - end))[:EXAMPLES].tolist()
    tids = sorted({case.trace.threads[number].tid for number in np.unique(thread).tolist()})
    return case.finding(
        region,
        id="host-busy",
        claim=(
            f"the GPU is idle for {format_ns(total)} while the thread that launches its work is "
            f"outside of CUDA, {repeats} times"
        ),
        mechanism="nothing was queued, and the launching thread was in no CUDA or MPI call",
        advice=(
            "prepare the next step's work earlier or on another thread, launch further ahead, or "
            "replay the launches as a CUDA graph"
        ),
        removable="unknown",
        evidence={
            "held_ns": total,
            "count": repeats,
            "threads": tids,
            "examples": [
                {"start_ns": int(start[i]), "held_ns": int(end[i] - start[i])} for i in worst
            ],
        },
        saving_ns=saving,
        held=(start, end),
    )


def _parts(case: Case, region: Region, operations: Int64) -> tuple[Int64, Int64]:
    """Return in which instance, or turn of a loop, some operations are, and the spans of all.

    A turn lasts from the start of its first range to that of the next turn's.
    """
    if region.turns_ns is None:
        return case.instance_of(region, operations), region.finish_ns - region.begin_ns
    launch = case.waits.call_start_ns[operations]
    turn = np.searchsorted(region.turns_ns, launch, side="right") - 1
    return turn, np.diff(region.turns_ns, append=region.window_ns[1])


ANALYZER = Analyzer(
    name="host-busy",
    summary="idle time of the GPU in which the launching thread is outside of CUDA",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
