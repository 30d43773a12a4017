"""Overlap that does not pay: operations run together, but each lasts longer than alone.

Two that need the same thing, such as the memory's bandwidth, share it: what they lose together can
be as much as the overlap gains. How long an operation takes alone, :mod:`gpuscope.contention` says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.batches import own_starts
from gpuscope.cases import USES, Case, Region
from gpuscope.contention import Kinds
from gpuscope.intervals import number_alike, sum_by
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities
from gpuscope.units import format_ns
from gpuscope.waits import Bool

MIN_ALONE = 3
"""Runs with nothing beside them that tell how long one takes alone."""
MAX_ALONE_SPREAD = 1.5
"""Longest to shortest of these: a kernel whose time depends on its data tells nothing."""
MIN_REPEATS = 2
"""Operations an instance that run beside others."""
MIN_LOSS_SHARE = 0.50
"""Share of the overlap's gain that must be lost again."""
MIN_SPAN_SHARE = 0.05
"""Share of the region's span that must overlap, and that must be lost."""


def run(trace: Trace, options: Options) -> Result:
    """Look for operations that overlap and are slower for it."""
    case = Case.of(trace, options)
    kinds = functools.cache(lambda: Kinds.of(trace, Activities.of(trace, options.moving_ns)))
    return Result(findings=case.search(lambda region: _rule(case, kinds, region)))


def _comparable(kinds: Kinds) -> Bool:
    """Return the kinds that often enough ran alone, and took about as long each time.

    Copies are compared by their rates, so that theirs may differ.
    """
    alike = kinds.alone_most_ns <= MAX_ALONE_SPREAD * kinds.alone_least_ns
    comparable: Bool = (kinds.alone_count >= MIN_ALONE) & (alike | kinds.by_bytes)
    return comparable


def _rule(case: Case, compared: Callable[[], Kinds], region: Region) -> Finding | None:
    ops, rows = case.ops, region.rows
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    took = end - own_starts(ops.op_class[rows], ops.stream[rows], start, end)
    # What ran together would take this long one after the other, less what it does take.
    gained = int(took.sum()) - region.busy_ns
    least = MIN_SPAN_SHARE * region.span_ns
    if gained < least:
        return None
    kinds = compared()
    kind_of = kinds.of_operation
    mine = kinds.overlapped[rows] & (kind_of[rows] >= 0)
    mine[mine] = _comparable(kinds)[kind_of[rows[mine]]]
    rows, took = rows[mine], took[mine]
    if len(rows) < region.often(MIN_REPEATS):
        return None
    kind, at = number_alike(kind_of[rows])
    count = np.bincount(at)
    alone_ns = kinds.expected_ns(kind, count, sum_by(ops.size_bytes[rows], at, len(kind)))
    slower = np.maximum(sum_by(took, at, len(kind)) - alone_ns, 0)
    loss = int(slower.sum())
    if loss < least or loss < MIN_LOSS_SHARE * gained:
        return None
    net = gained - loss
    kept = slower[at] > 0
    return case.finding(
        region,
        id="overlap-with-slowdown",
        claim=(
            f"{int(kept.sum())} operations overlap but take {format_ns(loss)} longer than alone: "
            f"of {format_ns(gained)} of overlap "
            + (f"{format_ns(net)} is gained" if net > 0 else "nothing is gained")
        ),
        mechanism="the same operations with nothing beside them are shorter",
        removable="unknown",
        advice=(
            "let fewer of them run at once: fewer copies in flight, fewer communication channels, "
            "or a smaller grid for the one that can wait"
        ),
        evidence={
            "count": int(kept.sum()),
            "overlap_ns": gained,
            "lost_ns": loss,
            "net_ns": net,
            "examples": case.operation_examples(
                rows[kept], np.maximum(took - (alone_ns // count)[at], 0)[kept]
            ),
        },
    )


ANALYZER = Analyzer(
    name="overlap-with-slowdown",
    summary="operations that overlap and last longer for it",
    needs=("operations",),
    run=run,
    uses=("api", *USES),
)
