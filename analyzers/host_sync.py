"""Waiting on the host: the thread that issues the next work waits for the GPU first.

While it waits in a synchronising call, or asks again and again, nothing new is launched: engines
that are free stay idle. A wait counts for the time in which an operation that the same thread
launched next could have begun already; threads that wait and launch nothing cost nothing. Nor do
waits that end a phase, in which several operations of one kind were issued, or after which a range
of another name begins: programs that measure or load do so, and mean it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Calls, Case, Region, names_of
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
    return Result(findings=case.search(lambda region: _rule(case, region, calls)))


def _waits_between_work(case: Case, thread: int) -> Calls:
    """Return a thread's waits but those that end a phase of one kind of work, or read a result."""
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
    return waits.take(~ends_phase & ~for_a_read)


def _rule(case: Case, region: Region, calls: Callable[[int], Calls]) -> Finding | None:
    if not region.meant_to_overlap or region.potential_ns < MIN_SAVING_SHARE * region.span_ns:
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


ANALYZER = Analyzer(
    name="host-sync",
    summary="waits of the launching thread that hold up ready work",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
