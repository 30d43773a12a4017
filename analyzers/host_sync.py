"""Waiting on the host: the thread that issues the next work waits for the GPU first.

While it waits in a synchronising call, or asks again and again, nothing new is launched: engines
that are free stay idle. A wait counts for the time in which an operation that the same thread
launched next could have begun already; threads that wait and launch nothing cost nothing. Nor do
waits that end a phase, in which several operations of one kind were issued, or after which a range
of another name begins: programs that measure or load do so, and mean it. Where there is only one
kind of work, no overlap is lost: a wait costs the time in which the GPU has run dry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Calls, Case, Region, Windows, names_of
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns

MIN_REPEATS = 3
"""Waits an instance: programs with phases wait between them, which is no pattern to remove."""
MIN_REPEATS_WITHOUT_RANGE = 10
"""Waits where no range tells one part of the program from the next, and in a loop of ranges."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake: below it, other limits decide."""


def run(trace: Trace, options: Options) -> Result:
    """Look for waits of the launching thread that held up ready work."""
    case = Case.of(trace, options)
    calls = functools.cache(functools.partial(_waits_between_work, case))

    def rule(region: Region) -> Finding | None:
        if region.meant_to_overlap:
            return _rule(case, region, calls)
        return _rule_on_one_kind(case, region)

    return Result(findings=case.search(rule))


def _waits_between_work(case: Case, thread: int) -> Calls:
    """Return a thread's waits but those that end a phase, read a result, or are for a message."""
    waits = case.calls_of(("wait", "poll"), thread)
    mine = np.flatnonzero(case.launch_thread == thread)
    if not len(waits.rows) or not len(mine):
        return waits
    launch = case.waits.call_start_ns[mine]
    order = np.argsort(launch, kind="stable")
    launch, op_class = launch[order], case.ops.op_class[mine][order]
    changes = np.concatenate(([0, 0], np.cumsum(op_class[1:] != op_class[:-1])))
    until = np.searchsorted(launch, waits.start_ns)
    since = np.concatenate(([0], until[:-1]))
    # A wait right after another one ends the same stretch of work.
    some = np.maximum.accumulate(np.where(until > since, np.arange(len(until)), 0))
    until, since = until[some], since[some]
    alike = changes[until] == changes[np.minimum(since + 1, until)]
    ends_phase = alike & (until - since >= 2)
    mine = mine[order]
    before, after = mine[np.maximum(until - 1, 0)], mine[np.minimum(until, len(mine) - 1)]
    ends_phase |= case.in_other_ranges(before, after)
    for_a_read = np.isin(waits.rows, case.reads[1])
    next_launch = np.append(launch, waits.end_ns.max() + 1)[until]
    behind = Windows(np.full(len(until), mine[0]), waits.end_ns, next_launch)
    return waits.take(~ends_phase & ~for_a_read & ~case.in_mpi(behind))


def _rule(case: Case, region: Region, calls: Callable[[int], Calls]) -> Finding | None:
    if region.potential_ns < MIN_SAVING_SHARE * region.span_ns:
        return None
    held = case.held_by(case.late(region), calls)
    one_phase = region.name is not None and region.turns_ns is None
    repeats = MIN_REPEATS if one_phase else MIN_REPEATS_WITHOUT_RANGE
    saving = case.at_stake(region, held, repeats=repeats, share=MIN_SAVING_SHARE)
    if saving is None:
        return None
    evidence = case.held_evidence(held)
    names = names_of(evidence["calls"])
    return case.finding(
        region,
        id="host-sync",
        claim=(
            f"the thread waits in {names} {len(held.calls)} times between launches: work that was "
            f"ready was launched {format_ns(held.held_ns)} late in all"
        ),
        mechanism=f"the next work's launch came only after {names} had returned",
        advice=(
            f"issue all chunks first and call {names} once after the last, or let a stream wait "
            "with cudaStreamWaitEvent instead of the host"
        ),
        evidence=evidence,
        saving_ns=saving,
        held=held.times,
        limit_ns=region.potential_ns,
    )


def _rule_on_one_kind(case: Case, region: Region) -> Finding | None:
    """Look for waits that let the GPU run dry where nothing is meant to overlap.

    The whole gap counts: but for the wait, the host would have prepared and launched the next work
    meanwhile.
    """
    if "kernel" not in region.material:
        return None
    idle = case.idle(region)
    # Messages were waited for, results are read, and a range of another name begins a new phase.
    calls, waited_ns = case.begun_in(idle, ("wait", "poll"))
    before = case.waits.stream_op[idle.operation]
    other = case.in_other_ranges(np.where(before >= 0, before, idle.operation), idle.operation)
    kept = (calls >= 0) & ~other & ~case.in_mpi(idle) & ~np.isin(calls, case.reads[1])
    idle, calls, waited_ns = idle.take(kept), calls[kept], waited_ns[kept]
    cost = idle.end_ns - idle.start_ns
    held = int(cost.sum())
    # The host needs the rest of its time anyhow.
    saving = min(held, int(waited_ns.sum()))
    often = len(calls) >= region.often(MIN_REPEATS_WITHOUT_RANGE)
    if not often or saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    evidence = case.calls_evidence(np.unique(calls))
    names = names_of(evidence)
    return case.finding(
        region,
        id="host-sync",
        claim=(
            f"the thread waits in {names} {len(calls)} times for the GPU to finish, and then "
            f"prepares and launches the next work: the GPU is idle for {format_ns(held)} meanwhile"
        ),
        mechanism=f"{names} returned when the GPU had run dry, and the next launch came after it",
        advice=(
            f"launch the next work without {names} before it: one stream keeps its order; wait "
            "only before the host reads a result"
        ),
        removable="unknown",
        evidence={
            "held_ns": held,
            "count": len(calls),
            "calls": evidence,
            "examples": case.operation_examples(idle.operation, cost),
        },
        saving_ns=saving,
        held=(idle.start_ns, idle.end_ns),
    )


ANALYZER = Analyzer(
    name="host-sync",
    summary="waits of the launching thread that hold up ready work",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
