"""Allocation between launches: cudaFree and its like wait until the GPU has drained.

A call counts where it did drain the GPU, that is, work was running or queued when it began, all of
it was over when it returned, and it took most of the call's time; and where ready work was launched
late because of it. The forms that are ordered by a stream (cudaMallocAsync, cudaFreeAsync) never
count.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Calls, Case, Region, names_of
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import Int64

MIN_REPEATS = 2
"""Draining calls an instance: allocations before and after a phase are no pattern."""
MIN_DRAINING_SHARE = 0.50
"""Share of the call's time after which the last work ends: a call that goes on for longer was busy
with something of its own. cudaFree returns 0.1 ms after the last operation."""
MIN_SAVING_SHARE = 0.01
"""Share of the region's span: a smaller holdup is no finding."""


def run(trace: Trace, options: Options) -> Result:
    """Look for allocating and freeing calls that drained the GPU and held up ready work."""
    case = Case.of(trace, options)
    rows = np.flatnonzero(case.call_kind == case.kind_code("allocate"))
    if not len(rows):
        return Result()
    draining = np.zeros(len(case.api), np.bool_)
    draining[rows[_drained(case, rows)]] = True

    def calls(thread: int) -> Calls:
        all_calls = case.calls_of(("allocate",), thread)
        return all_calls.take(draining[all_calls.rows])

    return Result(findings=case.search(lambda region: _rule(case, region, calls)))


def _drained(case: Case, rows: Int64) -> Int64:
    """Return which calls began with work on a device pending and returned with none of it left."""
    waits, ops, api = case.waits, case.ops, case.api
    drained = np.zeros(len(rows), np.bool_)
    took = api.end_ns[rows] - api.start_ns[rows]
    least = api.start_ns[rows] + (MIN_DRAINING_SHARE * took).astype(np.int64)
    for device in np.unique(ops.device).tolist():
        mine = np.flatnonzero((ops.device == device) & (waits.call_start_ns >= 0))
        if not len(mine):
            continue
        mine = mine[np.argsort(waits.call_start_ns[mine], kind="stable")]
        reach = np.maximum.accumulate(ops.end_ns[mine])
        at = np.searchsorted(waits.call_start_ns[mine], api.start_ns[rows]) - 1
        last = np.where(at >= 0, reach[np.maximum(at, 0)], -1)
        same = api.process[rows] == case.trace.devices[device].process
        drained |= same & (last > least) & (last <= api.end_ns[rows])
    return np.flatnonzero(drained)


def _rule(case: Case, region: Region, calls: Callable[[int], Calls]) -> Finding | None:
    if not region.meant_to_overlap:
        return None
    held = case.held_by(case.late(region), calls)
    saving = case.at_stake(region, held, repeats=MIN_REPEATS, share=MIN_SAVING_SHARE)
    if saving is None:
        return None
    evidence = case.held_evidence(held)
    names = names_of(evidence["calls"])
    return case.finding(
        region,
        id="allocation-sync",
        claim=(
            f"{names} between the launches drained the GPU {len(held.calls)} times: work that was "
            f"ready was launched {format_ns(held.held_ns)} late in all"
        ),
        mechanism=f"{names} returned only when all work given to the GPU before was over",
        advice=(
            "allocate before the loop and reuse the buffers, take them from a memory pool "
            "(cudaMallocAsync and cudaFreeAsync, cupy.cuda.MemoryPool), and free after the loop"
        ),
        evidence=evidence,
        saving_ns=saving,
        held=held.times,
        limit_ns=region.potential_ns,
    )


ANALYZER = Analyzer(
    name="allocation-sync",
    summary="allocations and frees between launches that drain the GPU",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
