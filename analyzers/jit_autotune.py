"""Code made while the program runs: the GPU is idle while kernels are compiled, tuned and loaded.

What tells compilation from any other work of the host is the load of the finished code: a call such
as cuModuleLoadData in the idle time.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import EXAMPLES, USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import counted, format_ns

MIN_SPAN_SHARE = 0.01
"""Share of the region's span that such stretches must take."""


def run(trace: Trace, options: Options) -> Result:
    """Look for idle time of the GPU that ends with code being loaded."""
    case = Case.of(trace, options)
    if not len(case.code_loads):
        return Result()
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    windows = case.idle(region)
    took = np.flatnonzero(case.compiling(windows))
    start, end = windows.start_ns[took], windows.end_ns[took]
    stretches = union(start, end)
    total = length(stretches)
    if not total or total < MIN_SPAN_SHARE * region.span_ns:
        return None
    at = np.searchsorted(stretches[0], case.api.start_ns[case.code_loads], side="right") - 1
    inside = (at >= 0) & (case.api.start_ns[case.code_loads] < stretches[1][np.maximum(at, 0)])
    worst = np.lexsort((start, start - end))[:EXAMPLES].tolist()
    return case.finding(
        region,
        id="jit-autotune",
        severity="info",
        claim=(
            f"the GPU is idle for {format_ns(total)} while code is compiled or tuned, in "
            f"{counted(len(took), 'stretch', 'stretches')}: these figures are not those of "
            "a warm program"
        ),
        mechanism="calls that load finished code lie in idle stretches of the GPU",
        removable="yes",
        advice="run every shape once before what is measured, or keep compiled code in a cache",
        evidence={
            "count": len(took),
            "held_ns": total,
            "calls": case.calls_evidence(case.code_loads[inside]),
            "examples": [
                {"start_ns": int(start[i]), "held_ns": int(end[i] - start[i])} for i in worst
            ],
        },
    )


ANALYZER = Analyzer(
    name="jit-autotune",
    summary="compiling, tuning and loading of code while the GPU is idle",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
