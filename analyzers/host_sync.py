"""Waiting on the host: the thread that issues the next work waits for the GPU first.

While it waits in a synchronising call, or asks again and again, nothing new is launched: engines
that are free stay idle. A wait counts for the time in which an operation that the same thread
launched next could have begun already; threads that wait and launch nothing cost nothing.
"""

from __future__ import annotations

from gpuscope.analysis import Analyzer, Options
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import USES, Case, Region, names_of

MIN_REPEATS = 3
"""Waits an instance: programs with phases wait between them, which is no pattern to remove."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake: below it, other limits decide."""


def run(trace: Trace, options: Options) -> Result:
    """Look for waits of the launching thread that held up ready work."""
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    if not region.meant_to_overlap or region.potential_ns < MIN_SAVING_SHARE * region.span_ns:
        return None
    held = case.held_by(case.late(region), lambda thread: case.calls_of(("wait", "poll"), thread))
    saving = min(held.held_ns, region.potential_ns)
    if len(held.calls) < MIN_REPEATS * region.instances:
        return None
    if saving < MIN_SAVING_SHARE * region.span_ns:
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
    )


ANALYZER = Analyzer(
    name="host-sync",
    summary="waits of the launching thread that hold up ready work",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
