"""Whether the trace can be trusted: records lost, a coarse clock, a GPU shared in time.

None of these is a cause of missing overlap; each makes every other answer doubtful.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import Operations
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns, format_ratio

LOST_SHARE = 0.01
"""Share of lost GPU records above which figures are not to be trusted."""
COARSE_CLOCK_NS = 1_000
"""Common step of all times from which on short operations cannot be told apart."""
MIN_OPERATIONS = 16
"""Fewer times than these may share a step by chance."""


def run(trace: Trace, options: Options) -> Result:
    """Check that records and times are what they seem."""
    del options  # it is the whole trace that can be trusted or not
    operations = trace.operations if trace.operations is not None else Operations.empty()
    found = [_lost(trace, operations), _coarse(operations), *_shared(trace, operations)]
    return Result(findings=tuple(finding for finding in found if finding))


def _finding(id: str, claim: str, mechanism: str, advice: str, evidence: object) -> Finding:
    assert isinstance(evidence, dict)
    return Finding(
        id=id,
        severity="warning",
        process=None,
        device=None,
        range=None,
        claim=claim,
        mechanism=mechanism,
        removable="unknown",
        evidence=evidence,
        advice=advice,
        saving_ns=None,
    )


def _lost(trace: Trace, operations: Operations) -> Finding | None:
    lost = trace.lost_records or 0
    if lost <= LOST_SHARE * (lost + len(operations)):
        return None
    return _finding(
        "lost-records",
        f"about {lost} GPU records are missing: busy times and overlap are too low",
        f"{format_ratio(lost / (lost + len(operations)))} of the launches left no record",
        "record again with less in the trace: a shorter run, a capture range, no backtraces",
        {"lost": lost, "recorded": len(operations)},
    )


def _coarse(operations: Operations) -> Finding | None:
    if len(operations) < MIN_OPERATIONS:
        return None
    origin = operations.start_ns[0]
    step = int(np.gcd.reduce(operations.start_ns - origin))
    step = int(np.gcd.reduce(operations.end_ns - origin, initial=step))
    if step < COARSE_CLOCK_NS:
        return None
    return _finding(
        "coarse-clock",
        f"all times are multiples of {format_ns(step)}: shorter overlaps cannot be seen",
        "the recorded clock is that coarse",
        "record on a machine with a finer clock, or make the chunks longer",
        {"step_ns": step, "operations": len(operations)},
    )


def _shared(trace: Trace, operations: Operations) -> list[Finding]:
    """Return one finding for each two processes whose kernels run on one GPU at the same time."""
    kernels = np.isin(operations.op_class, [CODE["kernel"], CODE["comm"], CODE["fused"]])
    spans: dict[str, list[tuple[int, int, int]]] = {}
    for device in np.unique(operations.device[kernels]).tolist():
        mine = kernels & (operations.device == device)
        spans.setdefault(trace.devices[device].hardware, []).append(
            (
                trace.devices[device].process,
                int(operations.start_ns[mine].min()),
                int(operations.end_ns[mine].max()),
            )
        )
    found = []
    for users in spans.values():
        for (a, a_start, a_end), (b, b_start, b_end) in combinations(users, 2):
            start, end = max(a_start, b_start), min(a_end, b_end)
            if a == b or start >= end:
                continue
            pids = sorted((trace.processes[a].pid, trace.processes[b].pid))
            found.append(
                _finding(
                    "time-sliced",
                    f"processes {pids[0]} and {pids[1]} use one GPU for {format_ns(end - start)}: "
                    "unless under MPS, the durations of each include the other's turns",
                    "kernels of two processes lie in the same stretch of time on one GPU",
                    "give each process a GPU of its own, or start MPS; overlap between them is "
                    "not counted",
                    {"window_ns": [start, end], "processes": pids},
                )
            )
    return found


ANALYZER = Analyzer(
    name="trust",
    summary="whether records, clock and durations of the trace can be trusted",
    needs=("operations",),
    run=run,
)
