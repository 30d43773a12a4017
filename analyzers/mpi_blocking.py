"""Blocking MPI: the GPU is idle while the thread that launches its work is inside an MPI call.

A call counts for the time in which the GPU ran dry during it, if the thread's next launch follows
within 50 µs of its return: then the call, and nothing after it, is what kept the launch back.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import EXAMPLES, USES, Calls, Case, Region, names_of
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import MpiCalls
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns

MAX_RETURN_TO_LAUNCH_NS = 50_000
"""From an MPI call's return to the thread's next launch."""
MIN_REPEATS = 2
"""Calls an instance with the GPU idle: a barrier at the end is no pattern."""
MIN_IDLE_SHARE = 0.01
"""Share of the region's span that the GPU must be idle in MPI calls."""


def run(trace: Trace, options: Options) -> Result:
    """Look for MPI calls during which the GPU ran dry."""
    case = Case.of(trace, options)
    mpi = trace.mpi
    if mpi is None or not len(mpi):
        return Result()
    followed = _followed_by_launch(case, mpi)

    def calls(thread: int) -> Calls:
        rows = np.flatnonzero(followed & (mpi.thread == thread))
        return Calls(rows, mpi.start_ns[rows], mpi.end_ns[rows])

    def rule(region: Region) -> Finding | None:
        held = case.held_by(case.idle(region), calls)
        if len(held.calls) < MIN_REPEATS * region.instances:
            return None
        if held.held_ns < MIN_IDLE_SHARE * region.span_ns:
            return None
        entries = _calls_evidence(case, mpi.take(held.calls))
        names = names_of(entries)
        examples = [
            {
                "operation": operation,
                "start_ns": int(case.ops.start_ns[operation]),
                "held_ns": held_ns,
                "call": case.trace.strings[mpi.name[call]],
                "call_start_ns": int(mpi.start_ns[call]),
            }
            for call, held_ns, operation in zip(
                held.calls[:EXAMPLES].tolist(),
                held.call_held_ns[:EXAMPLES].tolist(),
                held.operations[:EXAMPLES].tolist(),
                strict=True,
            )
        ]
        return case.finding(
            region,
            id="mpi-blocking",
            claim=(
                f"the GPU is idle for {format_ns(held.held_ns)} while the thread that launches its "
                f"work is in {names}, {len(held.calls)} times"
            ),
            mechanism=f"the next launch came right after {names} had returned",
            advice=(
                "launch the work that needs no message before the call, or use the nonblocking "
                "form (MPI_Isend, MPI_Irecv) and complete it after the launches"
            ),
            evidence={
                "held_ns": held.held_ns,
                "count": len(held.calls),
                "calls": entries,
                "examples": examples,
            },
            saving_ns=held.held_ns,
        )

    return Result(findings=case.search(rule))


def _followed_by_launch(case: Case, mpi: MpiCalls) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which calls' thread launches work soon after they return."""
    followed = np.zeros(len(mpi), np.bool_)
    for thread in np.unique(mpi.thread).tolist():
        launches = np.sort(case.waits.call_start_ns[case.launch_thread == thread])
        if not len(launches):
            continue
        mine = np.flatnonzero(mpi.thread == thread)
        at = np.searchsorted(launches, mpi.end_ns[mine])
        after = launches[np.minimum(at, len(launches) - 1)]
        soon = after - mpi.end_ns[mine] <= MAX_RETURN_TO_LAUNCH_NS
        followed[mine] = (at < len(launches)) & soon
    return followed


def _calls_evidence(case: Case, calls: MpiCalls) -> list[dict[str, object]]:
    pairs, counts = np.unique(np.stack([calls.name, calls.thread]), axis=1, return_counts=True)
    return [
        {
            "name": case.trace.strings[name],
            "thread": case.trace.threads[thread].tid,
            "count": count,
        }
        for (name, thread), count in zip(pairs.T.tolist(), counts.tolist(), strict=True)
    ]


ANALYZER = Analyzer(
    name="mpi-blocking",
    summary="MPI calls during which the GPU runs dry",
    needs=("operations", "api", "mpi"),
    run=run,
    uses=USES,
)
