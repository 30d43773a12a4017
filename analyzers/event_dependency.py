"""Events between streams: a chunk's work waited for an event behind the chunk before it.

Events are how streams are meant to work together: a kernel waits for its copy, a copy out for its
kernel. What keeps chunks apart are waits the other way round, a copy in that waits for a kernel or
a copy out, and these are reported where overlap that was possible is missing.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.classes import CLASSES, CODE
from gpuscope.model.result import Abstention, Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns, format_ratio
from gpuscope.waits import REASON

STAGES = ("h2d", "kernel", "d2h")
"""The order of a chunk's work: a wait for a later stage is a wait for another chunk."""
MIN_REPEATS = 3
"""Waits an instance that held up work."""
MIN_POTENTIAL_SHARE = 0.10
"""Share of the region's span that overlap could save: below it the events do their work well."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that the waits alone must account for."""


def run(trace: Trace, options: Options) -> Result:
    """Look for events that keep different kinds of work apart."""
    case = Case.of(trace, options)
    if case.waits.waits_total and not case.waits.waits_resolved:
        reason = f"none of {case.waits.waits_total} stream waits can be traced to its event record"
        return Result(abstained=(Abstention("event-dependency", reason),))
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    if not region.meant_to_overlap:
        return None
    if region.potential_ns < MIN_POTENTIAL_SHARE * region.span_ns:
        return None
    waits, ops = case.waits, case.ops
    rows = region.rows[waits.reason[region.rows] == REASON["event"]]
    rows = rows[waits.event_op[rows] >= 0]
    stage = np.full(len(CLASSES), -1, np.int64)
    stage[[CODE[name] for name in STAGES]] = np.arange(len(STAGES))
    mine, awaited_stage = stage[ops.op_class[rows]], stage[ops.op_class[waits.event_op[rows]]]
    rows = rows[(mine >= 0) & (mine < awaited_stage)]
    cost = np.maximum(waits.cost_ns[rows], 0)
    times = union(waits.event_ns[rows] - cost, waits.event_ns[rows])
    held = length(times)
    saving = min(held, region.potential_ns)
    if len(rows) < region.often(MIN_REPEATS) or saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    pairs, counts = np.unique(
        np.stack([ops.op_class[rows], ops.op_class[waits.event_op[rows]]]),
        axis=1,
        return_counts=True,
    )
    most = int(np.argmax(counts))
    waiting, awaited = CLASSES[pairs[0, most]], CLASSES[pairs[1, most]]
    unresolved = 1 - waits.waits_resolved / max(1, waits.waits_total)
    return case.finding(
        region,
        id="event-dependency",
        claim=(
            f"{len(rows)} operations, mostly {waiting} behind {awaited}, started when an event of "
            f"another stream was reached, and waited {format_ns(held)} for that alone"
        ),
        mechanism=(
            f"cudaStreamWaitEvent; {format_ratio(unresolved)} of the trace's waits could not be "
            "traced to their event"
        ),
        advice=(
            "record the event right after the last operation that is needed, or give the chunks "
            "buffers of their own, two or three in turn, so that the next need not wait"
        ),
        evidence={
            "count": len(rows),
            "held_ns": held,
            "pairs": {
                f"{CLASSES[a]} behind {CLASSES[b]}": count
                for (a, b), count in zip(pairs.T.tolist(), counts.tolist(), strict=True)
            },
            "unresolved_ratio": unresolved,
            "examples": case.operation_examples(rows, cost),
        },
        saving_ns=saving,
        held=times,
        limit_ns=region.potential_ns,
    )


ANALYZER = Analyzer(
    name="event-dependency",
    summary="events between streams that make a chunk wait for the one before",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
