"""What the trace does not show where it was looked at: other threads, whole graphs, unseen traffic.

`other-thread`: a range misses the operations that other threads launched in its window, so figures
of the range say little. `graph-opaque`: CUDA graphs were traced as one record each.
`not-observable`: the program uses a library whose transfers may leave no rows at all.
"""

from __future__ import annotations

import re

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import EXAMPLES, USES, Case, Region
from gpuscope.intervals import distinct
from gpuscope.model.classes import CODE, base_name
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import counted, format_ns, format_ratio

MAX_MISSED_SHARE = 0.20
"""Share of the launches in a range's windows that may be other threads'."""
MIN_GRAPH_SHARE = 0.01
"""Share of the region's span from which on graphs traced whole matter."""
UNSEEN = {
    "NVSHMEM": re.compile(r"nvshmem.*", re.IGNORECASE),
    "GPUDirect Storage": re.compile(r"cuFile\w*|libkvikio|kvikio", re.IGNORECASE),
}
"""Libraries that can move data without a record, by names of kernels, NVTX domains and ranges.

Kernels have no namespace in a trace, so that a library whose names are plain words is not told.
NVSHMEM does so inside kernels; on a stream, and between GPUs that reach each other, its puts and
gets are copies like any other.
"""


def run(trace: Trace, options: Options) -> Result:
    """Look for work that ranges miss and for graphs traced whole."""
    case = Case.of(trace, options)
    unseen = _not_observable(trace)
    graphs = case.search(lambda region: _graphs(case, region))
    steps = np.zeros(len(case.ops), np.bool_)
    for loop in case.loops:
        steps[loop.rows] = True
    outermost = [each for each in (*case.levels, ())[0] if not steps[each.rows].all()]
    threads = (_other_threads(case, region) for region in (*case.loops, *outermost))
    return Result(findings=(*unseen, *graphs, *(finding for finding in threads if finding)))


def _not_observable(trace: Trace) -> list[Finding]:
    """Report each library in use whose transfers no table of the trace holds."""
    used = [trace.operations.name] if trace.operations is not None else []
    if trace.ranges is not None:
        used += [trace.ranges.name, trace.ranges.domain]
    indices = set().union(*map(distinct, used)) - {-1}
    names = sorted(trace.strings[index] for index in indices)
    found = []
    for library, pattern in UNSEEN.items():
        seen = [name for name in names if pattern.fullmatch(base_name(name))]
        if seen:
            found.append(
                Finding.of_trace(
                    id="not-observable",
                    claim=(
                        f"the program uses {library}, which can transfer data without a row in the "
                        "trace: no overlap in these figures does not mean that there was none"
                    ),
                    mechanism=(
                        f"{counted(len(seen), 'name is', 'names are')} its own, such as {seen[0]}"
                    ),
                    evidence={"names": seen[:EXAMPLES]},
                    advice="judge it by time, or sample the links: --gpu-metrics-devices=all",
                )
            )
    return found


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
    if region.name is None or case.by_process(0):
        return None
    starts, ends, thread = case.windows_of(region)
    mine = (case.ops.device == region.device) & (case.waits.call_start_ns >= 0)
    mine &= (case.ops.op_class != CODE["gate"]) & (case.outermost_range < 0)
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
        mechanism=(
            f"the range has {counted(own, 'operation')} of its own; "
            f"{counted(missed, 'was', 'were')} launched by others"
        ),
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
