"""Blocking MPI: the GPU is idle while the thread that launches its work is inside an MPI call.

A call counts for the time in which the GPU ran dry during it, if the thread's next launch follows
soon after its return: then the call, and nothing after it, is what kept the launch back. Calls
that follow each other at once, with no launch between them, are one block: the launch has to
follow the last. Where no kernel is in the range there is nothing to run during the calls.
"""

from __future__ import annotations

import re

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import PROMPT_NS, USES, Calls, Case, Region, names_of
from gpuscope.intervals import sum_by
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import MpiCalls
from gpuscope.model.trace import Trace
from gpuscope.scopes import behind_gates
from gpuscope.units import format_ns
from gpuscope.waits import Bool, Int64

MAX_RETURN_TO_LAUNCH_NS = 100_000
"""From an MPI call's return to the thread's next launch. It takes 31 to 98 µs in the shipped traces
of jacobi-mpi-overlap's twin `blocking`, a Python program under Nsight Systems."""
MIN_REPEATS = 2
"""Blocks of calls an instance with the GPU idle: a barrier at the end is no pattern."""
MIN_IDLE_SHARE = 0.01
"""Share of the region's span that the GPU must be idle in MPI calls, and kernels could fill."""
COMPUTE = ("kernel", "fused", "graph")
"""Classes of work that can run on the GPU while its host is in MPI."""

ADVICE_STARTS = "launch the work that needs no message before the call"
"""Of calls that start messages and are nonblocking already."""
ADVICE = (
    f"{ADVICE_STARTS}, or use the nonblocking form "
    "(MPI_Isend, MPI_Irecv) and complete it after the launches"
)
ADVICE_COMPLETES = "complete the messages after the launches of the work that needs none of them"
"""Of calls that complete messages, which are nonblocking already."""
ADVICES = (
    (re.compile(r"MPI_(Wait|Test)"), ADVICE_COMPLETES),
    (re.compile(r"MPI_I[a-z]"), ADVICE_STARTS),
)
"""By the name of the call that the GPU is idle longest in."""


def run(trace: Trace, options: Options) -> Result:
    """Look for MPI calls during which the GPU ran dry."""
    case = Case.of(trace, options)
    mpi = trace.mpi
    if not mpi:
        return Result()
    mpi = mpi.take(~behind_gates(trace, mpi))
    block_end_ns, followed = _blocks(case, mpi)

    def calls(thread: int) -> Calls:
        rows = np.flatnonzero(followed & (mpi.thread == thread))
        return Calls(rows, mpi.start_ns[rows], mpi.end_ns[rows], block_end_ns[rows])

    def rule(region: Region) -> Finding | None:
        held = case.held_by(case.idle(region), calls)
        if len(np.unique(block_end_ns[held.calls])) < region.often(MIN_REPEATS):
            return None
        compute_ns = sum(region.class_busy_ns.get(name, 0) for name in COMPUTE)
        saving_ns = min(held.held_ns, compute_ns)
        if saving_ns < MIN_IDLE_SHARE * region.span_ns:
            return None
        entries = _calls_evidence(case, mpi.take(held.calls), held.call_held_ns)
        names = names_of(entries)
        advice = next(
            (text for name, text in ADVICES if name.match(str(entries[0]["name"]))), ADVICE
        )
        return case.finding(
            region,
            id="mpi-blocking",
            claim=(
                f"the GPU is idle for {format_ns(held.held_ns)} while the thread that launches its "
                f"work is in {names}, {len(held.calls)} times"
            ),
            mechanism=f"the next launch came right after {names} had returned",
            advice=advice,
            evidence={
                "held_ns": held.held_ns,
                "count": len(held.calls),
                "calls": entries,
                "examples": case.held_examples(held, mpi),
            },
            saving_ns=saving_ns,
            held=held.times,
        )

    return Result(findings=case.search(rule))


def _blocks(case: Case, mpi: MpiCalls) -> tuple[Int64, Bool]:
    """Return when the block of each call ends, and whether a launch of its thread follows soon."""
    block_end = mpi.end_ns.copy()
    followed = np.zeros(len(mpi), np.bool_)
    for thread in np.unique(mpi.thread).tolist():
        launches = np.sort(case.waits.call_start_ns[case.launch_thread == thread])
        if not len(launches):
            continue
        mine = np.flatnonzero(mpi.thread == thread)
        start, end = mpi.start_ns[mine], mpi.end_ns[mine]
        at = np.searchsorted(launches, end)
        last = np.ones(len(mine), np.bool_)
        last[:-1] = (start[1:] - end[:-1] > PROMPT_NS) | (np.diff(at) > 0)
        # Of each call the first one, from itself on, that is the last of its block.
        ends = np.flatnonzero(last)
        block_end[mine] = end[ends[np.searchsorted(ends, np.arange(len(mine)))]]
        after = launches[np.minimum(at, len(launches) - 1)]
        soon = after - block_end[mine] <= MAX_RETURN_TO_LAUNCH_NS
        followed[mine] = (at < len(launches)) & soon
    return block_end, followed


def _calls_evidence(case: Case, calls: MpiCalls, held_ns: Int64) -> list[dict[str, object]]:
    """Return name, thread and count of calls, those that held the GPU up longest first."""
    pairs, at, counts = np.unique(
        np.stack([calls.name, calls.thread]), axis=1, return_inverse=True, return_counts=True
    )
    longest = np.argsort(-sum_by(held_ns, at.ravel(), len(counts)), kind="stable")
    return [
        {
            "name": case.trace.strings[name],
            "thread": case.trace.threads[thread].tid,
            "count": count,
        }
        for (name, thread), count in zip(
            pairs.T[longest].tolist(), counts[longest].tolist(), strict=True
        )
    ]


ANALYZER = Analyzer(
    name="mpi-blocking",
    summary="MPI calls during which the GPU runs dry",
    needs=("operations", "api", "mpi"),
    run=run,
    uses=USES,
)
