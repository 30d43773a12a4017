"""What the driver does on its own: launches sent in bursts, copies that are never asynchronous.

`wddm-batching`: on Windows the driver collects launches and sends them together, so operations
start long after their calls returned. `confidential-computing`: data passes through encrypted
buffers, and asynchronous copies keep their thread as synchronous ones do. Both are told from how
the operations behave; other rules leave to them what they explain.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case
from gpuscope.model.classes import CODE
from gpuscope.model.result import Abstention, Finding, Result
from gpuscope.model.tables import PINNED
from gpuscope.model.trace import Trace
from gpuscope.units import format_bytes, format_ns

MIN_SIZE_BYTES = 64 * 1024
"""Smaller copies may be over before their call returns."""
MIN_COPIES = 8
"""Fewer copies may have blocked for another reason."""
BLOCKED_SHARE = 0.90
"""Share of the asynchronous copies of pinned memory that kept their thread: elsewhere none does."""


def run(trace: Trace, options: Options) -> Result:
    """Look for bursts of launches, and for asynchronous copies that block."""
    case = Case.of(trace, options)
    found = (_batching(case), _confidential(case))
    findings = tuple(finding for finding in found if finding)
    if trace.system is None and len(case.kept_back):
        reason = (
            "operations start long after their launch, and the operating system is not recorded: "
            "whether the driver sends launches in bursts is unknown"
        )
        return Result(findings=findings, abstained=(Abstention("driver-model", reason),))
    return Result(findings=findings)


def _batching(case: Case) -> Finding | None:
    rows = case.sent_in_bursts
    if not len(rows):
        return None
    ready = np.maximum(case.waits.ready_ns[rows], case.waits.call_end_ns[rows])
    late = case.ops.start_ns[rows] - ready
    return Finding.of_trace(
        id="wddm-batching",
        claim=(
            f"{len(rows)} times the GPU was idle though work had been launched, for "
            f"{format_ns(int(np.median(late)))} at the median: the driver sends launches in bursts"
        ),
        mechanism=f"operations start long after their calls returned, under {case.trace.system}",
        evidence={
            "count": len(rows),
            "held_ns": int(late.sum()),
            "examples": case.operation_examples(rows, late),
        },
        advice=(
            "idle time of this trace says little about the program: look at Linux, or at the TCC "
            "driver model; calling cudaStreamQuery sends what was collected"
        ),
    )


def _confidential(case: Case) -> Finding | None:
    ops = case.ops
    copies = np.isin(ops.op_class, [CODE["h2d"], CODE["d2h"]]) & (ops.launch >= 0)
    copies &= (ops.src_kind == PINNED) | (ops.dst_kind == PINNED)
    copies &= ops.size_bytes > MIN_SIZE_BYTES
    rows = np.flatnonzero(copies)
    rows = rows[case.call_kind[ops.launch[rows]] == case.kind_code("copy-async")]
    blocked = int(case.blocking_copies[rows].sum())
    if len(rows) < MIN_COPIES or blocked < BLOCKED_SHARE * len(rows):
        return None
    size = int(ops.size_bytes[rows].sum())
    return Finding.of_trace(
        id="confidential-computing",
        claim=(
            f"{blocked} of {len(rows)} asynchronous copies of pinned memory, "
            f"{format_bytes(size)} in all, kept their thread until they were done: the driver "
            "makes them synchronous"
        ),
        mechanism=(
            "the calls cover their copies, as where confidential computing passes all data "
            "through encrypted buffers"
        ),
        evidence={"count": blocked, "copies": len(rows), "bytes": size},
        advice=(
            "overlap of copies is out of reach in this mode: see nvidia-smi conf-compute -f, and "
            "issue copies from a thread of their own"
        ),
    )


ANALYZER = Analyzer(
    name="driver-model",
    summary="launches sent in bursts, and asynchronous copies that the driver makes synchronous",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
