"""Phases: what ranges that communicate spend computing, packing, transferring and in MPI."""

from __future__ import annotations

from gpuscope.analysis import Analyzer, Options
from gpuscope.model.result import Result
from gpuscope.model.trace import Trace
from gpuscope.phases import PhaseSums, communicates
from gpuscope.scopes import Activities, RangeScopes, addition


def run(trace: Trace, options: Options) -> Result:
    """Add the phases to the ranges that `ranges` measures."""
    activities = Activities.of(trace, options.moving_ns)
    if not communicates(activities):
        return Result()
    scopes = RangeScopes.of(trace, activities, options)
    sums = PhaseSums(trace, activities, scopes.entries)
    for groups in scopes.batches():
        sums.add(groups)
    found = [
        addition(trace, entry, {"phases": phases})
        for entry, phases in zip(scopes.entries, sums.results(), strict=True)
        if phases is not None
    ]
    return Result(additions=tuple(found))


ANALYZER = Analyzer(
    name="phases",
    lane="figures",
    summary="of ranges that communicate: computing, packing, transfers, MPI, and what was hidden",
    needs=("operations", "api", "ranges"),
    uses=("mpi",),
    run=run,
    completes=("ranges",),
)
