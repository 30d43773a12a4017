"""What the trace does not show where it was looked at: launches of other threads, whole graphs.

`other-thread`: a range misses the operations that other threads launched in its window, so figures
of the range say little. `graph-opaque`: CUDA graphs were traced as one record each.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns, format_ratio

MAX_MISSED_SHARE = 0.20
"""Share of the launches in a range's windows that may be other threads'."""
MIN_GRAPH_SHARE = 0.01
"""Share of the region's span from which on graphs traced whole matter."""


def run(trace: Trace, options: Options) -> Result:
    """Look for work that ranges miss and for graphs traced whole."""
    case = Case.of(trace, options)
    graphs = case.search(lambda region: _graphs(case, region))
    if options.attribute == "process":
        return Result(findings=graphs)
    threads = (_other_threads(case, region) for region in (*case.levels, ())[0])
    return Result(findings=(*graphs, *(finding for finding in threads if finding)))


def _graphs(case: Case, region: Region) -> Finding | None:
    busy = region.class_busy_ns.get("graph", 0)
    if not busy or busy < MIN_GRAPH_SHARE * region.span_ns:
        return None
    count = region.class_count["graph"]
    return case.finding(
        region,
        id="graph-opaque",
        severity="info",
        claim=(
            f"{count} launches of CUDA graphs, {format_ns(busy)} of GPU time, were traced whole: "
            "what ran inside them is unknown"
        ),
        mechanism="graphs were recorded as one record each",
        removable="unknown",
        advice="record again with --cuda-graph-trace=node",
        evidence={"count": count, "graph_ns": busy},
    )


def _other_threads(case: Case, region: Region) -> Finding | None:
    """Compare a range's own operations with what others launched in its windows."""
    if region.name is None:
        return None
    starts, ends, thread = case.windows_of(region)
    mine = (case.ops.device == region.device) & (case.waits.call_start_ns >= 0)
    mine &= (case.ops.op_class != CODE["gate"]) & ~case.in_any_range
    launch = case.waits.call_start_ns[mine]
    other = case.launch_thread[mine]
    order = np.argsort(launch, kind="stable")
    low = np.searchsorted(launch[order], starts)
    high = np.searchsorted(launch[order], ends)
    # Windows of one range on several threads may share launches: each launch counts once.
    change = np.bincount(low, minlength=len(order) + 1) - np.bincount(
        high, minlength=len(order) + 1
    )
    inside = order[np.cumsum(change)[:-1] > 0]
    missed = int((~np.isin(other[inside], np.unique(thread))).sum())
    own = len(region.rows)
    if missed <= MAX_MISSED_SHARE * (own + missed):
        return None
    rows = np.flatnonzero(mine)[inside]
    tids = sorted(
        {case.trace.threads[number].tid for number in np.unique(case.launch_thread[rows]).tolist()}
    )
    return case.finding(
        region,
        id="other-thread",
        claim=(
            f"{format_ratio(missed / (own + missed))} of the operations launched in the windows of "
            "this range come from other threads and are missing in its figures"
        ),
        mechanism=f"the range has {own} operations of its own; {missed} were launched by others",
        removable="unknown",
        advice="count the launches of all threads of the process: --attribute process",
        evidence={"own": own, "missed": missed, "threads": tids},
    )


ANALYZER = Analyzer(
    name="not-seen",
    summary="work that ranges miss because other threads launched it, and graphs traced whole",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
