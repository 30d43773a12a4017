"""No room on the GPU: communication kernels were ready while kernels filled the multiprocessors.

Whether a kernel fills the GPU is told from its grid and what a block takes, with the limits of a
multiprocessor and the number of them: of its green context, where it has one, else of the GPU, or
of the MIG slice that CUDA shows as one. Where only the whole is known fewer blocks may be enough,
so nothing is reported that would not hold there too. The blocks of a cooperative launch need room
all at once. Compute waiting for compute is no loss and is never reported.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import length, union
from gpuscope.model.classes import CODE
from gpuscope.model.result import Abstention, Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns
from gpuscope.waits import REASON

MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MIN_REPEATS = 2
"""Messages an instance that found no room."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake."""


def run(trace: Trace, options: Options) -> Result:
    """Look for communication kernels that compute kernels left no room."""
    if trace.kernel_configs is None and len(trace.rows_of("comm")):
        reason = "no launch configurations of kernels: what fills the GPU is unknown"
        return Result(abstained=(Abstention("gpu-full", reason),))
    case = Case.of(trace, options)
    return Result(
        findings=case.search(lambda region: _rule(case, region)),
        abstained=tuple(Abstention("gpu-full", reason) for reason in _unknown_parts(trace)),
    )


def _unknown_parts(trace: Trace) -> Iterator[str]:
    """Yield why a kernel may have filled what messages may use, without being seen to."""
    used = np.unique(trace.rows_of("comm").stream).tolist()
    streams = [trace.streams[index] for index in used if index >= 0]
    if any(stream.part is not None and stream.part_sm_count is None for stream in streams):
        yield "messages run in green contexts, whose multiprocessors are not recorded"
    # The recorder inside the program writes down the multiprocessors that CUDA grants the program.
    if streams and MPS_SHARE in trace.environment and trace.format != "cupti-sqlite":
        yield f"{MPS_SHARE} is set: how much of the GPU the program may use is not recorded"


def _rule(case: Case, region: Region) -> Finding | None:
    if not {"comm", "kernel"} <= set(region.material):
        return None
    waits, ops = case.waits, case.ops
    comm = region.rows[region.op_class == CODE["comm"]]
    rows = comm[waits.reason[comm] == REASON["sm"]]
    cost = np.maximum(waits.cost_ns[rows], 0)
    times = union(ops.start_ns[rows] - cost, ops.start_ns[rows])
    held = length(times)
    saving = min(held, region.potential_ns)
    if len(rows) < region.often(MIN_REPEATS) or saving < MIN_SAVING_SHARE * region.span_ns:
        return None
    return case.finding(
        region,
        id="gpu-full",
        claim=(
            f"{len(rows)} communication kernels were ready {format_ns(held)} before they started: "
            "kernels on the GPU left them no room"
        ),
        mechanism="kernels that left no room for their blocks ran from ready to start",
        advice=(
            "give communication a stream of higher priority and compute a smaller grid, so that "
            "blocks end often; or fewer communication channels or blocks, which need less room"
        ),
        evidence={
            "count": len(rows),
            "held_ns": held,
            "examples": case.operation_examples(rows, cost),
        },
        saving_ns=saving,
        held=times,
        limit_ns=region.potential_ns,
    )


ANALYZER = Analyzer(
    name="gpu-full",
    summary="communication kernels that found no room on the GPU",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
