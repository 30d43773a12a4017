"""Lazy loading: the first launch of a kernel loads its code, and the GPU is idle meanwhile."""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.model.classes import KERNEL_CODES
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import counted, format_ns
from gpuscope.waits import Int64

MIN_SLOWDOWN = 10
"""A first launch loads code if it takes this many times the median of the later ones."""
MIN_LATER = 3
"""Later launches of the kernel to compare with."""
MIN_IDLE_SHARE = 0.01
"""Share of the region's span that the GPU must be idle in first launches."""


def run(trace: Trace, options: Options) -> Result:
    """Look for first launches that leave the GPU idle."""
    case = Case.of(trace, options)
    first = _slow_first_launches(case)
    if not len(first):
        return Result()
    return Result(findings=case.search(lambda region: _rule(case, first, region)))


def _slow_first_launches(case: Case) -> Int64:
    """Return the operations whose launch was the first of their kernel, and far slower."""
    ops, waits = case.ops, case.waits
    rows = np.flatnonzero(
        np.isin(ops.op_class, KERNEL_CODES) & (waits.call_start_ns >= 0) & (ops.graph_node < 0)
    )
    took = waits.call_end_ns[rows] - waits.call_start_ns[rows]
    kernel = ops.name[rows].astype(np.int64) * len(case.trace.processes) + ops.process[rows]
    order = np.lexsort((waits.call_start_ns[rows], kernel))
    opens = np.flatnonzero(np.diff(kernel[order], prepend=-1))
    by_time = np.lexsort((took, kernel))
    counts = np.diff(np.append(opens, len(rows)))
    # The first launch is among them: with so many later ones the median is one of these.
    median = took[by_time][opens + (counts - 1) // 2]
    slow = (counts > MIN_LATER) & (took[order[opens]] >= MIN_SLOWDOWN * np.maximum(median, 1))
    first: Int64 = rows[order[opens[slow]]]
    return first


def _rule(case: Case, first: Int64, region: Region) -> Finding | None:
    mine = first[np.isin(first, region.rows)]
    held = case.held_by(case.idle(region), lambda thread: case.launching_calls(mine, thread))
    if not len(mine) or held.held_ns < MIN_IDLE_SHARE * region.span_ns:
        return None
    names = sorted({case.trace.strings[index] for index in case.ops.name[mine].tolist()})
    return case.finding(
        region,
        id="lazy-loading",
        claim=(
            f"the first launches of {counted(len(mine), 'kernel')} take {MIN_SLOWDOWN} times "
            f"as long as the later ones, and the GPU is idle for {format_ns(held.held_ns)} "
            "meanwhile"
        ),
        mechanism="CUDA loads a kernel's code when it is launched first",
        removable="yes",
        advice="launch every kernel once before the part that counts, or set "
        "CUDA_MODULE_LOADING=EAGER",
        evidence={**case.held_evidence(held), "kernels": names},
        saving_ns=held.held_ns,
        held=held.times,
    )


ANALYZER = Analyzer(
    name="lazy-loading",
    summary="first launches that load code while the GPU is idle",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
