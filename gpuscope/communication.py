"""Communication over the ranks of one run: who waited for whom, and how long data moved.

A communication kernel spins until its peers arrive, so its duration is not its own. Of the kernels
of one collective, or of one exchange of all with all, the one that arrived last waited least: the
shortest duration over the ranks is the time that the data took, and the rest of each duration is
waiting, which comes first: ::

    rank 0   ├──── wait ────┤─ transfer ─┤
    rank 1                  ├─ transfer ─┤

Where data goes one way, to a root or from it, who has only to send may be done long before the
others: there a kernel waited no longer than until the last one had started, by the clocks that the
other kernels bring together. In an exchange where ranks have other partners than their partners, as
in a row of neighbours, the kernels do not end together either, and a kernel waited until the last
of its partners had started.

Kernels of NVSHMEM that wait for a signal move nothing and have no partner: what a peer does for
them is no kernel. They are matched with none.

A rank is a device of a process, in one report or in several. Without other ranks the transfer is
estimated: the shortest of the kernels of equal operation and bytes, if NCCL's payloads give both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope import mpi_clocks
from gpuscope.intervals import distinct, number_rows
from gpuscope.matching import REASONS, Kernels, Matches, match
from gpuscope.model.classes import CODE
from gpuscope.model.exchange import UNKNOWN, Clock, Exchange
from gpuscope.model.tables import Operations
from gpuscope.model.trace import Trace, run_of_ranks
from gpuscope.nccl import BOTH_WAYS, IN, OUT, ROOTED, Asked, asked_for
from gpuscope.units import format_ns

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

WAITS = re.compile(r"nvshmem\w*_wait_until")
"""Names of kernels that wait for a signal."""

TWICE = "two of the traces are of the same rank or process: name each once"
ALONE = "there is one rank only"
NOT_TOGETHER = "the reports have no moment in common, or no time of day to tell"
UNFIT = (TWICE, NOT_TOGETHER)
"""Why traces are not matched at all, whatever is in them."""
_APART = (
    "the traces were recorded {} apart, further than they are long, so that no verdict is of all "
    "of them: are they of one run?"
)


@dataclass(frozen=True, slots=True)
class _Rank:
    """One device of one process, with its communication kernels in the order of their launches."""

    trace: int
    device: int
    rows: Int64


def exchanges(traces: Sequence[Trace]) -> list[Exchange | None]:
    """Return, a trace, what is known of its communication kernels; None where it has none.

    The ranks are taken for those of one run if they overlap in time. Kernels that do not fit
    together stay unmatched, and the reason says why.
    """
    ranks = [
        _Rank(number, device, rows)
        for number, trace in enumerate(traces)
        for device, rows in _communication(trace).items()
    ]
    asked = {
        number: asked_for(traces[number], _rows_of(ranks, number))
        for number in sorted({rank.trace for rank in ranks})
    }
    reason = ALONE if len(ranks) < 2 else _unfit([traces[number] for number in asked])
    found: list[Exchange | None] = [None] * len(traces)
    for number, each in asked.items():
        mine = [rank for rank in ranks if rank.trace == number]
        found[number] = _described(traces[number], mine, each, reason)
    if reason is None:
        _match(traces, ranks, asked, found)
    if len(traces) > 1 and not any(each is not None and each.clocks for each in found):
        _set_by_mpi(traces, found)
    return found


def _set_by_mpi(traces: Sequence[Trace], found: list[Exchange | None]) -> None:
    """Where no kernels tell, let MPI's collectives tell how the ranks' clocks stand.

    Of ranks that do not fit together this says why, also where they have no kernels.
    """
    unknown = [Exchange.unknown(len(_operations(trace))) for trace in traces]
    if reason := _unfit(traces):
        for number, known in enumerate(found):
            found[number] = known or replace(unknown[number], reason=reason)
        return
    for number, clock in enumerate(mpi_clocks.clocks(traces)):
        if clock is not None:
            exchange = found[number] or unknown[number]
            places = (*range(len(traces[number].devices)), UNKNOWN)
            found[number] = replace(exchange, clocks=dict.fromkeys(places, clock))


def measured(exchange: Exchange | None) -> tuple[Int64 | None, Int64 | None]:
    """Return the transfer time of each operation, and the number of the rank that arrived last.

    UNKNOWN for all that is no matched communication kernel, or where no rank was last. None where
    nothing was matched: estimates are left out.
    """
    if exchange is None or not exchange.ranks:
        return None, None
    numbers = np.array([*exchange.rank_numbers, UNKNOWN], np.int64)
    return exchange.transfer_ns, numbers[exchange.late]


def _operations(trace: Trace) -> Operations:
    return trace.operations or Operations.empty()


def _communication(trace: Trace) -> dict[int, Int64]:
    """Return, a device, the rows of its kernels that have partners, in the order of launches."""
    ops = _operations(trace)
    rows = np.flatnonzero(ops.op_class == CODE["comm"])
    if len(rows):
        rows = rows[~named(trace.strings, WAITS)[ops.name[rows]]]
    # Calls are numbered in the order of their start; without them the kernels' own order holds.
    rows = rows[np.argsort(ops.launch[rows], kind="stable")]
    return {device: rows[ops.device[rows] == device] for device in distinct(ops.device[rows])}


def named(names: Sequence[str], pattern: re.Pattern[str]) -> Bool:
    """Return in which of `names` the pattern is found: shape (n,)."""
    return np.array([pattern.search(name) is not None for name in names], np.bool_)


def _rows_of(ranks: Sequence[_Rank], trace: int) -> Int64:
    """Return the communication kernels of a trace, a rank after the other."""
    return np.concatenate([rank.rows for rank in ranks if rank.trace == trace])


def _unfit(traces: Sequence[Trace]) -> str | None:
    """Say why the messages of several traces are not matched, or return None."""
    if not _same_time(traces):
        return NOT_TOGETHER
    return TWICE if seen_twice(traces) else None


def apart(traces: Sequence[Trace]) -> str | None:
    """Say that traces are not of the ranks of one run, or return None.

    They lie further apart than they are long, or two are of one rank, such as copies of one file.
    """
    return far_apart(traces) or (TWICE if seen_twice(traces) else None)


def far_apart(traces: Sequence[Trace]) -> str | None:
    """Say that traces lie further apart than they are long.

    None where they are near, where nobody can tell, as without the time of day, and of the ranks in
    a run's folder: these are of one run whenever they worked.
    """
    spans = _spans(traces)
    if len(spans) < 2 or run_of_ranks(traces) is not None:
        return None
    apart_ns = max(start for start, _ in spans) - min(end for _, end in spans)
    return _APART.format(format_ns(apart_ns)) if apart_ns > sum(b - a for a, b in spans) else None


def seen_twice(traces: Sequence[Trace]) -> bool:
    """Whether a rank is in two of the traces; without numbers, a process that began at one time."""
    seen: set[tuple[int | None, ...]] = set()
    for trace in traces:
        mine = {
            (process.rank,)
            if process.rank is not None
            else (None, process.pid, trace.start_utc_ns, trace.origin_ns)
            for process in trace.processes
        }
        if seen & mine:
            return True
        seen |= mine
    return False


def _same_time(traces: Sequence[Trace]) -> bool:
    """Whether the traces, as far as their clocks are known, have a moment in common."""
    if len(traces) == 1:
        return True
    spans = _spans(traces)
    if len(spans) < len(traces):
        return False
    return max(start for start, _ in spans) < min(end for _, end in spans)


def _spans(traces: Sequence[Trace]) -> list[tuple[int, int]]:
    """Return, by the time of day, from when to when the traces that know it worked."""
    return [
        (trace.start_utc_ns + span[0], trace.start_utc_ns + span[1])
        for trace in traces
        if trace.start_utc_ns is not None and (span := trace.span_ns) is not None
    ]


def _described(trace: Trace, ranks: Sequence[_Rank], asked: Asked, reason: str | None) -> Exchange:
    """Return what one trace alone says of its communication kernels."""
    ops = _operations(trace)
    rows = np.concatenate([rank.rows for rank in ranks])
    calls, size, communicator = (
        _of_all(ops, rows, column) for column in (asked.calls, asked.size_bytes, asked.communicator)
    )
    nothing: Int64 = np.broadcast_to(np.int64(UNKNOWN), len(ops))
    return Exchange(
        calls=_of_all(ops, rows, asked.calls.astype(np.int32)),
        call_texts=asked.texts,
        size_bytes=size,
        peer=_of_all(ops, rows, asked.peer.astype(np.int32)),
        communicator=communicator,
        transfer_ns=_estimates(trace, ranks, calls, size),
        estimated=True,
        late=np.broadcast_to(np.int32(UNKNOWN), len(ops)),
        late_ns=nothing,
        ranks=(),
        rank_numbers=(),
        clocks={},
        reason=reason,
    )


def _of_all(ops: Operations, rows: Int64, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a value for each operation, that of `rows`; where none is known it takes no memory."""
    if (values == UNKNOWN).all():
        return np.broadcast_to(values.dtype.type(UNKNOWN), len(ops))
    whole = np.full(len(ops), UNKNOWN, values.dtype)
    whole[rows] = values
    return whole


def _estimates(trace: Trace, ranks: Sequence[_Rank], calls: Int64, size: Int64) -> Int64:
    """Return the shortest duration of equal kernel, operation and bytes on each device."""
    ops = _operations(trace)
    told = [rank.rows[(calls[rank.rows] >= 0) & (size[rank.rows] >= 0)] for rank in ranks]
    if not any(map(len, told)):
        return np.broadcast_to(np.int64(UNKNOWN), len(ops))
    shortest = np.full(len(ops), UNKNOWN, np.int64)
    for rows in told:
        kind, _ = number_rows([ops.name[rows].astype(np.int64), calls[rows], size[rows]])
        duration = ops.end_ns[rows] - ops.start_ns[rows]
        least = np.full(int(kind.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, kind, duration)
        shortest[rows] = least[kind]
    return shortest


def _match(
    traces: Sequence[Trace],
    ranks: Sequence[_Rank],
    asked: Mapping[int, Asked],
    found: list[Exchange | None],
) -> None:
    """Replace the estimates by what the ranks together tell."""
    labels, numbers = _labels(traces, ranks), _numbers(traces, ranks)
    times = [_operations(traces[rank.trace]) for rank in ranks]
    start = np.concatenate(
        [ops.start_ns[rank.rows] for ops, rank in zip(times, ranks, strict=True)]
    )
    end = np.concatenate([ops.end_ns[rank.rows] for ops, rank in zip(times, ranks, strict=True)])
    utc = np.array([traces[rank.trace].start_utc_ns or 0 for rank in ranks])
    of_day = end + np.repeat(utc, [len(rank.rows) for rank in ranks])
    kernels = _kernels(traces, ranks, asked, of_day)
    order = sorted(range(len(ranks)), key=lambda rank: (numbers[rank], rank))
    matches = match(kernels, order)
    flow = np.concatenate([each.flow for each in asked.values()])
    one_way = np.isin(matches.group, matches.group[flow != BOTH_WAYS])
    clocks = _clocks(kernels, matches.group, np.where(one_way & (flow == BOTH_WAYS), ROOTED, flow))
    # The devices of a trace have one clock: that of the first is moved, and the others with it.
    leader = [next(at for at, one in enumerate(ranks) if one.trace == rank.trace) for rank in ranks]
    offsets = [clocks[at].offset_ns if at in clocks else 0 for at in leader]
    shift = utc + np.array(offsets, np.int64)
    transfer, late, late_ns = _waits(kernels.rank, matches, one_way, start, end, shift)
    for values in (transfer, late, late_ns):
        values[~matches.matched] = UNKNOWN
    for number, exchange in enumerate(found):
        mine = np.array([rank.trace == number for rank in ranks])[kernels.rank]
        if exchange is None:
            continue
        unmatched = matches.reason[mine & ~matches.matched]
        reason = None
        if len(unmatched):
            reason = REASONS[int(np.bincount(unmatched).argmax())]
            if len(unmatched) < int(mine.sum()):
                reason = f"{len(unmatched)} of {int(mine.sum())} kernels stay unmatched: {reason}"
        if len(unmatched) == int(mine.sum()):
            found[number] = replace(exchange, reason=reason)
            continue
        rows = _rows_of(ranks, number)
        spread = {}
        for name, values in (("transfer_ns", transfer), ("late", late), ("late_ns", late_ns)):
            spread[name] = np.full(len(exchange.transfer_ns), UNKNOWN, np.int64)
            spread[name][rows] = values[mine]
        found[number] = replace(
            exchange,
            transfer_ns=spread["transfer_ns"],
            estimated=False,
            late=spread["late"].astype(np.int32),
            late_ns=spread["late_ns"],
            ranks=labels,
            rank_numbers=numbers,
            clocks={
                rank.device: clocks[place]
                for place, rank in enumerate(ranks)
                if rank.trace == number and place in clocks
            },
            reason=reason,
        )


def _kernels(
    traces: Sequence[Trace], ranks: Sequence[_Rank], asked: Mapping[int, Asked], end_ns: Int64
) -> Kernels:
    """Lay out the kernels of all ranks, with names that mean the same in all traces."""
    numbers: dict[str, int] = {}

    def numbered(texts: Sequence[str]) -> Int64:
        found = [numbers.setdefault(text, len(numbers)) for text in texts]
        return np.array([*found, UNKNOWN], np.int64)

    names, calls, message_kernels, begin = [], [], [], 0
    for number, each in asked.items():
        trace, rows = traces[number], _rows_of(ranks, number)
        used, at = np.unique(_operations(trace).name[rows], return_inverse=True)
        names.append(numbered([trace.strings[name] for name in used.tolist()])[at])
        calls.append(numbered(each.texts)[each.calls])
        message_kernels.append(each.messages.kernel + begin)
        begin += len(rows)
    listed = list(asked.values())
    messages = [each.messages for each in listed]
    return Kernels(
        rank=np.repeat(np.arange(len(ranks)), [len(rank.rows) for rank in ranks]),
        end_ns=end_ns,
        name=np.concatenate(names),
        call=np.concatenate(calls),
        size_bytes=np.concatenate([each.size_bytes for each in listed]),
        communicator=np.concatenate([each.communicator for each in listed]),
        collective=np.concatenate([each.collective for each in listed]),
        exchange=np.concatenate([each.exchange for each in listed]),
        message_kernel=np.concatenate(message_kernels),
        message_sends=np.concatenate([each.sends for each in messages]),
        message_peer=np.concatenate([each.peer for each in messages]),
        message_bytes=np.concatenate([each.size_bytes for each in messages]),
    )


def _waits(
    rank: Int64, matches: Matches, one_way: Bool, start: Int64, end: Int64, shift: Int64
) -> tuple[Int64, Int64, Int64]:
    """Return of each kernel the transfer time, the rank that came last, and how much later.

    `one_way` says in which groups the kernels do not end together, `shift` what to add to the times
    of each rank.
    """
    duration, begins = end - start, start + shift[rank]
    transfer, late, late_ns = (np.full(len(rank), UNKNOWN, np.int64) for _ in range(3))
    grouped = np.flatnonzero(matches.group >= 0)
    if len(grouped):
        # The shortest of each group first, of equal ones that of the first rank.
        ordered = grouped[np.lexsort((duration[grouped], matches.group[grouped]))]
        _, first, size = np.unique(matches.group[ordered], return_index=True, return_counts=True)
        last = ordered[first]
        apart = duration[ordered[first + size - 1]] - duration[last]
        transfer[ordered] = np.repeat(duration[last], size)
        late[ordered] = np.repeat(np.where(apart > 0, rank[last], UNKNOWN), size)
        late_ns[ordered] = np.repeat(apart, size)
    to_or_from = np.flatnonzero(one_way & (matches.group >= 0))
    if len(to_or_from):
        ordered = to_or_from[np.lexsort((begins[to_or_from], matches.group[to_or_from]))]
        _, first, size = np.unique(matches.group[ordered], return_index=True, return_counts=True)
        last = ordered[first + size - 1]
        lag = np.repeat(begins[last], size) - begins[ordered]
        transfer[ordered] = np.maximum(transfer[ordered], duration[ordered] - lag)
        apart = begins[last] - begins[ordered[first]]
        late[ordered] = np.repeat(np.where(apart > 0, rank[last], UNKNOWN), size)
        late_ns[ordered] = np.repeat(apart, size)
    # The partners of each kernel in the order of their starts.
    order = np.lexsort((begins[matches.partner], matches.kernel))
    partner = matches.partner[order]
    kernel, first, size = np.unique(matches.kernel, return_index=True, return_counts=True)
    last = partner[first + size - 1]
    apart = begins[last] - begins[partner[first]]
    wait = np.minimum(begins[last] - begins[kernel], duration[kernel])
    transfer[kernel] = duration[kernel] - wait
    late[kernel] = np.where(apart > 0, rank[last], UNKNOWN)
    late_ns[kernel] = apart
    return transfer, late, late_ns


def _clocks(kernels: Kernels, group: Int64, flow: Int64) -> dict[int, Clock]:
    """Compare the clocks of the ranks with that of the first, by the ends of their groups.

    A rank that shares no group with the first is compared with one whose clock is known already.
    """
    of_rank = [
        np.flatnonzero((kernels.rank == number) & (group >= 0))
        for number in range(int(kernels.rank.max()) + 1)
    ]
    known = {0: Clock(0, 0, 0, len(of_rank[0]))} if len(of_rank[0]) else {}
    waiting = list(known)
    while waiting:
        reference = waiting.pop(0)
        theirs = of_rank[reference]
        for number, mine in enumerate(of_rank):
            if number in known:
                continue
            _, at, their = np.intersect1d(group[mine], group[theirs], return_indices=True)
            if not len(at):
                continue
            apart = kernels.end_ns[theirs[their]] - kernels.end_ns[mine[at]]
            symmetric = kernels.collective[mine[at]] & (flow[mine[at]] == BOTH_WAYS)
            apart += known[reference].offset_ns
            known[number] = _clock(apart, flow[mine[at]], symmetric)
            waiting.append(number)
    return known


def _clock(apart: Int64, flow: Int64, symmetric: Bool) -> Clock:
    """Tell how far two clocks are apart by how far the ends of matched kernels are.

    Those of collectives without a root come together. A receive ends some microseconds after its
    send, so that messages both ways tell by the middle between them. Only without these the ends of
    exchanges do, and last those of whatever there is.
    """
    out, into = apart[flow == OUT], apart[flow == IN]
    if symmetric.any():
        used = apart[symmetric]
        offset = _median(used)
    elif len(out) and len(into):
        used = np.concatenate([out, into])
        offset = (_median(out) + _median(into)) // 2
    else:
        used = apart[flow == BOTH_WAYS] if (flow == BOTH_WAYS).any() else apart
        offset = _median(used)
    left = np.sort(np.abs(used - offset))
    return Clock(offset, int(left[len(left) // 2]), int(left[-1]), len(left))


def _median(values: Int64) -> int:
    return int(np.sort(values)[len(values) // 2])


def _labels(traces: Sequence[Trace], ranks: Sequence[_Rank]) -> tuple[str, ...]:
    """Name the ranks: by number where each has one of its own, else by process and device."""
    places = [(traces[rank.trace], traces[rank.trace].devices[rank.device]) for rank in ranks]
    numbers = [trace.processes[device.process].rank for trace, device in places]
    if None not in numbers and len(set(numbers)) == len(numbers):
        return tuple(f"rank {number}" for number in numbers)
    named = [
        f"GPU {device.number} of process {trace.processes[device.process].pid}"
        for trace, device in places
    ]
    if len(set(named)) == len(named):
        return tuple(named)
    # Processes of two machines, or containers, can have one number.
    return tuple(
        f"{text} of report {rank.trace + 1}" for text, rank in zip(named, ranks, strict=True)
    )


def _numbers(traces: Sequence[Trace], ranks: Sequence[_Rank]) -> tuple[int, ...]:
    """Return the numbers of the ranks; one that does not tell its own has its position."""
    owners = [traces[rank.trace].devices[rank.device].process for rank in ranks]
    told = [
        traces[rank.trace].processes[owner].rank for rank, owner in zip(ranks, owners, strict=True)
    ]
    return tuple(place if number is None else number for place, number in enumerate(told))
