"""Code made while the program runs: the GPU is idle while kernels are compiled, tuned and loaded.

What tells compilation from any other work of the host is the load of the finished code: a call such
as cuModuleLoadData in the idle time, or the first call that ever launched the kernel behind it.
"""

from __future__ import annotations

import re

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import EXAMPLES, USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import Int64, call_name

CALLS = re.compile(r"cu(da)?(Module|Library)Load\w*|cuLinkCreate|cuLinkComplete")
"""Calls that take finished code."""
MIN_PIECE_NS = 1_000_000
"""A shorter stretch is no compilation: loading alone takes tens of microseconds."""
MIN_SPAN_SHARE = 0.01
"""Share of the region's span that such stretches must take."""


def run(trace: Trace, options: Options) -> Result:
    """Look for idle time of the GPU that ends with code being loaded."""
    names = [i for i, text in enumerate(trace.strings) if CALLS.fullmatch(call_name(text))]
    if trace.api is None or not names:
        return Result()
    loads = np.flatnonzero(np.isin(trace.api.name, names))
    if not len(loads):
        return Result()
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, loads, region)))


def _rule(case: Case, loads: Int64, region: Region) -> Finding | None:
    windows = case.idle(region)
    long = windows.end_ns - windows.start_ns >= MIN_PIECE_NS
    start, end = windows.start_ns[long], windows.end_ns[long]
    thread = case.launch_thread[windows.operation[long]]
    loading = np.zeros(len(start), np.bool_)
    loaded: list[Int64] = []
    for number in np.unique(thread).tolist():
        mine = loads[case.api.thread[loads] == number]
        of_thread = np.flatnonzero(thread == number)
        low = np.searchsorted(case.api.start_ns[mine], start[of_thread])
        high = np.searchsorted(case.api.start_ns[mine], end[of_thread])
        loading[of_thread] = high > low
        inside = np.zeros(len(mine) + 1, np.int64)
        np.add.at(inside, low, 1)
        np.add.at(inside, high, -1)
        loaded.append(mine[np.cumsum(inside)[:-1] > 0])
    total = length(union(start[loading], end[loading]))
    if not total or total < MIN_SPAN_SHARE * region.span_ns:
        return None
    calls = np.concatenate(loaded)
    took = np.flatnonzero(loading)
    worst = took[np.lexsort((start[took], start[took] - end[took]))][:EXAMPLES].tolist()
    return case.finding(
        region,
        id="jit-autotune",
        severity="info",
        claim=(
            f"the GPU is idle for {format_ns(total)} while code is compiled or tuned, in "
            f"{len(took)} stretches: the figures of this range are not those of a warm program"
        ),
        mechanism="calls that load finished code lie in idle stretches of the GPU",
        removable="yes",
        advice="run every shape once before what is measured, or keep compiled code in a cache",
        evidence={
            "count": len(took),
            "held_ns": total,
            "calls": case.calls_evidence(calls),
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
