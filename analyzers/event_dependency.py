"""Events between streams: an operation waited for an event behind work of another stream.

Such waits are how streams are meant to work together. They are reported only where overlap that
was possible is missing, where the waits are between different kinds of work, and where they account
for a large part of it.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.intervals import length, union
from gpuscope.model.classes import CLASSES
from gpuscope.model.result import Abstention, Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns, format_ratio
from gpuscope.waits import REASON, USES, Case, Region

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
    rows = rows[ops.op_class[rows] != ops.op_class[waits.event_op[rows]]]
    cost = np.maximum(waits.cost_ns[rows], 0)
    held = length(union(waits.event_ns[rows] - cost, waits.event_ns[rows]))
    saving = min(held, region.potential_ns)
    if len(rows) < MIN_REPEATS * region.instances or saving < MIN_SAVING_SHARE * region.span_ns:
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
            "record the event right after the last operation that is needed, and let only the "
            "stream wait that needs it"
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
    )


ANALYZER = Analyzer(
    name="event-dependency",
    summary="events between streams that keep copies, compute and communication apart",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
