"""One stream: copies and kernels that could overlap are queued in one stream, which orders them.

Only a repeated pattern of copies and kernels counts, and only where the stream is what most of it
waited for: a host that is late with its launches is another cause. A thread that waits for the work
in the stream before it launches the next is not late: it does by itself what the stream does, and
neither repair helps without the other, so both are named. Kernels alone in one stream are never
reported.
"""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import COPY_CODES, MAX_READ_BYTES, PROMPT_NS, USES, Case, Region, names_of
from gpuscope.intervals import distinct, length, union
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding, Result
from gpuscope.model.tables import PAGEABLE
from gpuscope.model.trace import NULL_STREAM, Trace
from gpuscope.units import counted, format_ns
from gpuscope.waits import REASON, Int64

MIN_CYCLES = 2
"""Times an instance goes from copying to computing: once is no pipeline."""
MIN_STREAM_SHARE = 0.95
"""Share of the work of copies, and of that of kernels, that the one stream holds."""
MIN_ORDERED_SHARE = 0.50
"""Share of its operations that started when their predecessor in the stream ended, or were launched
when their thread had waited for that."""
MIN_SAVING_SHARE = 0.05
"""Share of the region's span that must be at stake: below it, other limits decide."""


def run(trace: Trace, options: Options) -> Result:
    """Look for copies and kernels that one stream keeps apart."""
    case = Case.of(trace, options)
    return Result(findings=case.search(lambda region: _rule(case, region)))


def _rule(case: Case, region: Region) -> Finding | None:
    copies = np.isin(region.op_class, COPY_CODES)
    kernels = region.op_class == CODE["kernel"]
    material = set(region.material)
    if "kernel" not in material or not material & {"h2d", "d2h", "p2p"}:
        return None
    cycles = round(region.cycles * region.instances)
    if cycles < region.often(MIN_CYCLES) or region.unhidden_ns < MIN_SAVING_SHARE * region.span_ns:
        return None
    ops, rows = case.ops, region.rows
    work = (ops.end_ns - ops.start_ns)[rows]
    stream_of = ops.stream[rows]
    streams, code = np.unique(stream_of, return_inverse=True)
    number = int(np.argmax(np.bincount(code, weights=work)))
    stream, inside = int(streams[number]), code == number
    if stream < 0:
        return None
    for part in (copies, kernels):
        if work[part & inside].sum() < MIN_STREAM_SHARE * work[part].sum():
            return None
    chain = rows[inside & (copies | kernels)]
    ordered = chain[case.waits.reason[chain] == REASON["stream"]]
    waited, calls = _waited_for(case, chain)
    often = len(calls) >= region.often(MIN_CYCLES)
    waited = waited if often else waited[:0]
    if len(ordered) + len(waited) < MIN_ORDERED_SHARE * len(chain):
        return None
    cost = np.maximum(case.waits.cost_ns[ordered], 0)
    before = case.waits.stream_op[waited]
    cost = np.append(
        cost, ops.end_ns[before] - np.maximum(ops.start_ns[before], case.waits.turn_ns[waited])
    )
    cost = np.maximum(cost, 0)
    kept = np.append(ordered, waited)
    ended = case.waits.stream_ns(kept)
    times = union(ended - cost, ended)
    label = case.trace.streams[stream].label
    default = case.trace.streams[stream].kind == NULL_STREAM
    blocking = case.calls_evidence(calls) if often else []
    waits = f", and the thread waits for them in {names_of(blocking)}" if often else ""
    return case.finding(
        region,
        id="default-stream" if default else "same-stream",
        claim=(
            f"{cycles} times copies and kernels follow each other in {label}{waits}: at most one "
            f"of them runs at a time, for {format_ns(region.busy_ns)} where the busiest engine "
            f"needs {format_ns(region.bound_ns)}"
        ),
        mechanism=(
            f"{counted(len(kept), 'operation')} waited for their predecessor in {label}"
            + (f", {len(waited)} of them because their thread did" if often else "")
        ),
        advice=(
            "give every chunk a stream of its own, made with cudaStreamCreateWithFlags and "
            "cudaStreamNonBlocking (cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream), "
            "and pass it to the copies and kernels of that chunk"
            if default
            else "give every chunk a stream of its own, three or four in turn"
        )
        + (_advice_on(case, calls) if often else ""),
        evidence={
            "stream": case.trace.streams[stream].number,
            "count": len(kept),
            "cycles": cycles,
            "held_ns": length(times),
            "classes_ns": region.class_busy_ns,
            "calls": case.calls_evidence(np.unique(ops.launch[kept[ops.launch[kept] >= 0]])),
            **({"waits": blocking} if often else {}),
            "examples": case.operation_examples(kept, cost),
        },
        saving_ns=region.unhidden_ns,
        held=times,
    )


def _waited_for(case: Case, chain: Int64) -> tuple[Int64, Int64]:
    """Return the operations whose thread waited for the one before them in their stream.

    It was in a call that waits, copies or frees when that one ended, and launched them right after
    the call. Returns the operations, and the calls: rows of Trace.api.
    """
    waits = case.waits
    late = chain[(waits.reason[chain] == REASON["host"]) & (waits.stream_op[chain] >= 0)]
    thread, ended = case.launch_thread[late], waits.stream_ns(late)
    copies = np.flatnonzero(case.blocking_copies)
    call = np.full(len(late), -1)
    for number in distinct(thread):
        mine = np.flatnonzero(thread == number)
        kinds = case.calls_of(("wait", "poll", "allocate"), number)
        copying = case.launching_calls(copies, number)
        start = np.append(kinds.start_ns, copying.start_ns)
        if not len(start):
            continue
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.append(kinds.end_ns, copying.end_ns)[order]
        # Calls that follow each other at once are one: the launch has to follow the last.
        last = np.flatnonzero(np.append(start[1:] - end[:-1] > PROMPT_NS, True))
        at = np.maximum(np.searchsorted(start, ended[mine], side="right") - 1, 0)
        inside = (start[at] <= ended[mine]) & (ended[mine] <= end[at])
        returned = end[last[np.searchsorted(last, at)]]
        inside &= waits.call_start_ns[late[mine]] - returned <= PROMPT_NS
        call[mine] = np.where(inside, np.append(kinds.rows, copying.rows)[order][at], -1)
    return late[call >= 0], np.unique(call[call >= 0])


def _advice_on(case: Case, calls: Int64) -> str:
    """Return what to do about calls that wait for each operation, as the rest of a sentence."""
    ops, kind = case.ops, case.call_kind[calls]
    copies = np.flatnonzero(np.isin(ops.launch, calls) & case.blocking_copies)
    pageable = (ops.src_kind[copies] == PAGEABLE) | (ops.dst_kind[copies] == PAGEABLE)
    reads = np.isin(calls, np.append(ops.launch[case.reads[0]], case.reads[1]))
    waits = np.isin(kind, [case.kind_code("wait"), case.kind_code("poll")]) & ~reads
    todo = (
        (waits, "wait once, after the last"),
        (reads, "read results a step behind"),
        ((kind == case.kind_code("copy")) & ~reads, "copy with cudaMemcpyAsync"),
        (pageable & (ops.size_bytes[copies] > MAX_READ_BYTES), "pin the buffers"),
        (kind == case.kind_code("allocate"), "allocate before the loop and free after it"),
    )
    return "".join(f"; {what}" for some, what in todo if some.any())


ANALYZER = Analyzer(
    name="same-stream",
    summary="copies and kernels that one stream, or the default stream, keeps apart",
    needs=("operations", "api"),
    run=run,
    uses=USES,
)
