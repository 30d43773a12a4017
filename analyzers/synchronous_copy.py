"""Synchronous copies: cudaMemcpy and its like return only when the copy is done.

They count where, meanwhile, work that was ready was not launched. A synchronous copy that costs
nothing is silent, and so is one within a device, which does not block the host. Reads of a few
bytes are another cause, `host-read`.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import COPY_CODES, MAX_READ_BYTES, USES, Case, Region, names_of
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import PAGEABLE
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import Bool

MIN_REPEATS = 2
"""Copies an instance that hold up work: one is no pattern."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake: below it, other limits decide."""


def run(trace: Trace, options: Options) -> Result:
    """Look for synchronous copies that held up ready work."""
    case = Case.of(trace, options)
    ops = case.ops
    copies = np.isin(ops.op_class, COPY_CODES) & (ops.launch >= 0)
    copies &= (ops.op_class != CODE["d2h"]) | (ops.size_bytes > MAX_READ_BYTES)
    rows = np.flatnonzero(copies)
    copies[rows] = case.call_kind[ops.launch[rows]] == case.kind_code("copy")
    if not copies.any():
        return Result()
    return Result(findings=case.search(lambda region: _rule(case, copies, region)))


def _rule(case: Case, copies: Bool, region: Region) -> Finding | None:
    if not region.meant_to_overlap:
        return None
    mine = region.rows[copies[region.rows]]
    held = case.held_by(case.late(region), lambda thread: case.launching_calls(mine, thread))
    saving = case.at_stake(region, held, repeats=MIN_REPEATS, share=MIN_SAVING_SHARE)
    if saving is None:
        return None
    evidence = case.held_evidence(held)
    names = names_of(evidence["calls"])
    kinds = np.stack([case.ops.src_kind[mine], case.ops.dst_kind[mine]])
    pageable = int((kinds == PAGEABLE).any(axis=0).sum())
    pin = "; their memory is pageable: pin it too, or they go on blocking" if pageable else ""
    return case.finding(
        region,
        id="synchronous-copy",
        claim=(
            f"{len(mine)} copies by {names} block their thread: work that was ready was launched "
            f"{format_ns(held.held_ns)} late in all"
        ),
        mechanism=f"the next work's launch came only after {names} had returned",
        advice=f"copy with cudaMemcpyAsync on a stream of the chunk's own{pin}",
        evidence={**evidence, "copies": len(mine), "pageable": pageable},
        saving_ns=saving,
        held=held.times,
        limit_ns=region.potential_ns,
    )


ANALYZER = Analyzer(
    name="synchronous-copy",
    summary="synchronous copies that hold up ready work",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
