"""Communication behind compute: a message starts only when the kernels it follows are all done.

Reported where communication kernels are a material part, most of them started when a compute kernel
before them in stream or event order ended, and most of their time lies under no kernel. With the
ranks read together only the time in which data moved counts; waiting for a peer is `comm-skew`.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import length, stable_order, union
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import REASON, Bool, Int64

MIN_REPEATS = 2
"""Messages an instance that followed compute."""
MIN_FOLLOWING_SHARE = 0.50
"""Share of the messages that must have waited for a compute kernel."""
MIN_EXPOSED_SHARE = 0.50
"""Share of the communication that must lie under no kernel."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake."""


def run(trace: Trace, options: Options) -> Result:
    """Look for communication that starts when compute is over."""
    case = Case.of(trace, options)
    transfer_ns = options.transfer_ns
    return Result(findings=case.search(lambda region: _rule(case, transfer_ns, region)))


def _rule(case: Case, transfer_ns: Int64 | None, region: Region) -> Finding | None:
    if not {"comm", "kernel"} <= set(region.material):
        return None
    ops, waits = case.ops, case.waits
    comm = region.rows[case.messages(region)]
    by_stream = waits.reason[comm] == REASON["stream"]
    by_event = waits.reason[comm] == REASON["event"]
    before = np.where(by_stream, waits.stream_op[comm], waits.event_op[comm])
    follows = (by_stream | by_event) & (before >= 0)
    follows &= ops.op_class[np.maximum(before, 0)] == CODE["kernel"]
    first = _first_of_train(case, comm, by_stream)
    follows = follows[first]
    begin, end = ops.start_ns[comm], ops.end_ns[comm]
    if transfer_ns is not None:
        # With the ranks read together, waiting for a late one is told apart: it is no exposure, and
        # a message that waited for longer than its data took was not held up by compute here.
        moving = np.where(transfer_ns[comm] >= 0, transfer_ns[comm], end - begin)
        follows &= end - begin - moving <= moving
        begin = np.maximum(begin, end - moving)
    moved = union(begin, end)
    bare = case.under_no_kernel(region, moved)
    exposed = length(bare)
    count = int(follows.sum())
    if count < max(region.often(MIN_REPEATS), MIN_FOLLOWING_SHARE * len(comm)):
        return None
    saving = min(exposed, region.potential_ns)
    if exposed < MIN_EXPOSED_SHARE * length(moved) or saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    rows = comm[follows]
    trailing = int((follows & (first != np.arange(len(comm)))).sum())
    others = f", {trailing} of them behind another that did" if trailing else ""
    return case.finding(
        region,
        id="comm-after-compute",
        claim=(
            f"{count} of {len(comm)} messages started when the compute before them ended{others}: "
            f"{format_ns(exposed)} of communication lie under no kernel"
        ),
        mechanism="communication kernels waited for compute by stream order or by event",
        advice=(
            "split the work: compute what is sent first (boundary, or the first bucket), send it "
            "on a stream of its own, and compute the rest meanwhile"
        ),
        evidence={
            "count": count,
            "messages": len(comm),
            "exposed_ns": exposed,
            "waiting_left_out": transfer_ns is not None,
            "examples": case.operation_examples(rows, ops.end_ns[rows] - ops.start_ns[rows]),
        },
        saving_ns=saving,
        held=bare,
        limit_ns=region.potential_ns,
    )


def _first_of_train(case: Case, comm: Int64, by_stream: Bool) -> Int64:
    """Return, each message, the one that its train began with: a position in `comm`.

    Messages of a train start when the message before them in their stream ends, such as the buckets
    of gradients that are sent when the backward pass is over.
    """
    stream = case.ops.stream[comm]
    order = stable_order(stream)
    rows = comm[order]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = ~by_stream[order[1:]] | (case.waits.stream_op[rows[1:]] != rows[:-1])
    first = np.empty(len(rows), np.int64)
    first[order] = order[np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))]
    return first


ANALYZER = Analyzer(
    name="comm-after-compute",
    summary="communication that starts only when the compute before it is over",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
