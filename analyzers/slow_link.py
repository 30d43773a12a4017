"""A slow link: large copies far below the rate of the same kind of link elsewhere in the trace.

A trace does not say what a link can do, so its rate is learnt from the trace: the best that large
copies reached, with nothing else copied meanwhile, on GPUs of the same model in the same direction.
One that stays far below it has a worse path (memory of another NUMA node, fewer lanes, staging), or
shares it with what the trace does not hold. Copies of rows with gaps between them are slow by
themselves and left out.
"""

from __future__ import annotations

import re

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import COPY_CODES, USES, Case, Region
from gpuscope.intervals import Cover, length, union
from gpuscope.model.classes import CLASSES
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import PAGEABLE, STAGED
from gpuscope.model.trace import Trace
from gpuscope.units import format_bytes, format_ns, format_ratio
from gpuscope.waits import Bool, Int64, call_name

MIN_SIZE_BYTES = 4 << 20
"""Smaller copies do not reach their link's rate: what a copy takes before it begins counts."""
MAX_RATE_SHARE = 0.60
"""Copies below this share of their link's rate are slow."""
RATE_QUANTILE = 0.90
"""Which of the rates seen is the link's own: the best few may be cut short by the clock."""
MIN_COPIES = 3
"""Undisturbed copies on each side of the comparison."""
_OF_ROWS = re.compile(r"^cu(da)?Memcpy[23]D")
"""Calls that copy rows of an array, not one block."""
MIN_SAVING_SHARE = 0.01
"""Share of the region's span that faster copies would give back, where nothing hides them."""


def run(trace: Trace, options: Options) -> Result:
    """Compare large copies with the best of their kind."""
    case = Case.of(trace, options)
    alone = _undisturbed(case)
    if int(alone.sum()) < 2 * MIN_COPIES:
        return Result()
    link_rate = _link_rates(case, alone)
    return Result(findings=case.search(lambda region: _rule(case, alone, link_rate, region)))


def _undisturbed(case: Case) -> Bool:
    """Return the large copies with nothing else copied meanwhile, on any GPU: links are shared."""
    ops = case.ops
    copies = np.flatnonzero(np.isin(ops.op_class, COPY_CODES) & (ops.end_ns > ops.start_ns))
    start, end = ops.start_ns[copies], ops.end_ns[copies]
    reach = np.maximum.accumulate(end)
    quiet = np.ones(len(copies), np.bool_)
    quiet[1:] &= start[1:] >= reach[:-1]
    quiet[:-1] &= start[1:] >= end[:-1]
    alone = np.zeros(len(ops), np.bool_)
    alone[copies[quiet]] = True
    alone &= (ops.size_bytes >= MIN_SIZE_BYTES) & (ops.flags & STAGED == 0)
    alone &= (ops.src_kind != PAGEABLE) & (ops.dst_kind != PAGEABLE)
    rows = np.flatnonzero(alone & (ops.launch >= 0) & (len(case.api) > 0))
    names = [i for i, text in enumerate(case.trace.strings) if _OF_ROWS.search(call_name(text))]
    alone[rows] = ~np.isin(case.api.name[ops.launch[rows]], names)
    return alone


def _link_rates(case: Case, alone: Bool) -> Int64:
    """Return, an operation, the best rate of its kind in bytes per second, -1 where unknown."""
    ops = case.ops
    models: dict[str | None, int] = {}
    model = np.array([models.setdefault(d.name, len(models)) for d in case.trace.devices], np.int64)
    kind = np.where(alone, model[ops.device] * len(CLASSES) + ops.op_class, -1)
    rates = np.full(len(ops), -1, np.int64)
    for number in np.unique(kind[alone]).tolist():
        mine = np.flatnonzero(kind == number)
        rate = ops.size_bytes[mine] / (ops.end_ns[mine] - ops.start_ns[mine])
        rates[mine] = int(np.quantile(rate, RATE_QUANTILE) * 1e9)
    return rates


def _rule(case: Case, alone: Bool, link_rate: Int64, region: Region) -> Finding | None:
    ops = case.ops
    mine = region.rows[alone[region.rows]]
    took = ops.end_ns[mine] - ops.start_ns[mine]
    rate = ops.size_bytes[mine] * 1_000_000_000 // np.maximum(took, 1)
    slow = rate < MAX_RATE_SHARE * link_rate[mine]
    if int(slow.sum()) < region.often(MIN_COPIES):
        return None
    rows, best, took, rate = mine[slow], link_rate[mine][slow], took[slow], rate[slow]
    excess = np.maximum(took - (ops.size_bytes[rows] / best * 1e9).astype(np.int64), 0)
    bare = case.under_no_kernel(region, union(ops.start_ns[rows], ops.end_ns[rows]))
    exposed = Cover(bare).within(ops.start_ns[rows], ops.end_ns[rows])
    saving = int(np.minimum(excess, exposed).sum())
    if saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    directions = sorted({CLASSES[code] for code in np.unique(ops.op_class[rows]).tolist()})
    typical, reference = int(np.median(rate)), int(np.median(best))
    return case.finding(
        region,
        id="slow-link",
        claim=(
            f"{len(rows)} large {' and '.join(directions)} copies reach "
            f"{format_ratio(typical / reference)} of what the same kind of link reaches elsewhere "
            f"in the trace: {format_bytes(typical)}/s, not {format_bytes(reference)}/s; of the "
            f"{format_ns(length(bare))} that they lie bare, {format_ns(saving)} is due to that"
        ),
        mechanism="the trace holds nothing else that was copied meanwhile, so the path is slow",
        removable="unknown",
        advice=(
            "see whether another process copies over the same link; bind this one, and so its "
            "host buffers, to the GPU's NUMA node (numactl --cpunodebind --membind); see "
            "nvidia-smi -q for the link's width"
        ),
        evidence={
            "count": len(rows),
            "rate_bytes_per_s": typical,
            "link_rate_bytes_per_s": reference,
            "bytes": int(ops.size_bytes[rows].sum()),
            "examples": case.operation_examples(rows, excess),
        },
        saving_ns=saving,
    )


ANALYZER = Analyzer(
    name="slow-link",
    summary="large copies far below the rate of their kind of link",
    needs=("operations",),
    run=run,
    uses=("api", *USES),
)
