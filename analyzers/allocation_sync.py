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
from gpuscope.intervals import distinct
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
MIN_REPEATS_ON_ONE_KIND = 10
"""Draining calls an instance where nothing is meant to overlap: setting up is no pattern."""
MIN_IDLE_SHARE = 0.05
"""Share of the region's span that the GPU must be idle there, less what the host needs anyhow."""
MECHANISM = "{} returned only when all work given to the GPU before was over"
ADVICE = (
    "allocate before the loop and reuse the buffers, take them from a memory pool "
    "(cudaMallocAsync and cudaFreeAsync, cupy.cuda.MemoryPool), and free after the loop"
)


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
        return _rule_on_one_kind(case, region, calls)
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
        mechanism=MECHANISM.format(names),
        advice=ADVICE,
        evidence=evidence,
        saving_ns=saving,
        held=held.times,
        limit_ns=region.potential_ns,
    )


def _rule_on_one_kind(case: Case, region: Region, calls: Callable[[int], Calls]) -> Finding | None:
    """Look for calls that let the GPU run dry where nothing is meant to overlap."""
    if "kernel" not in region.material:
        return None
    idle = case.idle(region)
    rows, took = case.begun_in(idle, ("allocate",))
    threads = distinct(case.launch_thread[idle.operation])
    draining = np.concatenate([np.empty(0, np.int64), *(calls(each).rows for each in threads)])
    kept = np.isin(rows, draining)
    idle, rows, took = idle.take(kept), rows[kept], took[kept]
    cost = idle.end_ns - idle.start_ns
    held = int(cost.sum())
    # The host needs the rest of its time anyhow.
    saving = min(held, int(took.sum()))
    if (
        len(rows) < region.often(MIN_REPEATS_ON_ONE_KIND)
        or saving < MIN_IDLE_SHARE * region.span_ns
    ):
        return None
    evidence = case.calls_evidence(np.unique(rows))
    names = names_of(evidence)
    return case.finding(
        region,
        id="allocation-sync",
        claim=(
            f"{names} between the launches drained the GPU {len(rows)} times: it is idle for "
            f"{format_ns(held)} until the next work is launched"
        ),
        mechanism=MECHANISM.format(names),
        advice=ADVICE,
        removable="unknown",
        evidence={
            "held_ns": held,
            "count": len(rows),
            "calls": evidence,
            "examples": case.operation_examples(idle.operation, cost),
        },
        saving_ns=saving,
        held=(idle.start_ns, idle.end_ns),
    )


ANALYZER = Analyzer(
    name="allocation-sync",
    summary="allocations and frees between launches that drain the GPU",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
