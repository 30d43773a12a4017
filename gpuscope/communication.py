"""Communication over the ranks of one run: which operations belong together, and who waited.

A communication kernel spins until its peers arrive, so its duration is not its own. Of the kernels
that form one collective or one exchange, the one that arrived last waited least: the shortest
duration over the ranks is the time that the data took, and the rest of each duration is waiting,
which comes first: ::

    rank 0   ├──── wait ────┤─ transfer ─┤
    rank 1                  ├─ transfer ─┤

A rank is a device of a process, in one report or in several. Without other ranks the transfer is
estimated: the shortest of the kernels of equal operation and bytes, if NCCL's payloads give both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import number_rows
from gpuscope.model.classes import CODE
from gpuscope.model.exchange import Clock, Exchange
from gpuscope.model.tables import ApiCalls, Operations, Ranges
from gpuscope.model.trace import Trace

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

UNKNOWN = -1
"""Transfer time of an operation for which it is not known."""
_NCCL_CALL = re.compile(r"p?nccl[A-Z]\w*")
"""Names that NCCL gives its ranges; a program's own are called otherwise."""
GROUP_START = "ncclGroupStart"
GROUP_END = "ncclGroupEnd"

_TWICE = "two of the traces are of the same rank: name each rank once"
_ALONE = "there is one rank only"
_NOT_TOGETHER = "the reports have no moment in common, or no time of day to tell"
_DIFFERENT = "the ranks' communication kernels differ in number or in name"


@dataclass(frozen=True, slots=True)
class _Rank:
    """One device of one process, with its communication kernels in the order of their launches."""

    trace: int
    device: int
    rows: Int64


def exchanges(traces: Sequence[Trace]) -> list[Exchange | None]:
    """Return, a trace, what is known of its communication kernels; None where it has none.

    The ranks are taken for those of one run if they overlap in time and their communication
    kernels, in the order of their launches, are equally many and named alike: the k-th of each then
    belong together.
    """
    ranks = [
        _Rank(number, device, rows)
        for number, trace in enumerate(traces)
        for device, rows in _communication(trace).items()
    ]
    reason = _mismatch(traces, ranks)
    found: list[Exchange | None] = []
    for number, trace in enumerate(traces):
        mine = [rank for rank in ranks if rank.trace == number]
        found.append(_described(trace, mine, reason) if mine else None)
    if reason is None:
        _match(traces, ranks, found)
    return found


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
    return trace.operations if trace.operations is not None else Operations.empty()


def _communication(trace: Trace) -> dict[int, Int64]:
    """Return, a device, the rows of its communication kernels, in the order of their launches."""
    ops = _operations(trace)
    rows = np.flatnonzero(ops.op_class == CODE["comm"])
    # Calls are numbered in the order of their start; without them the kernels' own order holds.
    rows = rows[np.argsort(ops.launch[rows], kind="stable")]
    return {
        device: rows[ops.device[rows] == device] for device in np.unique(ops.device[rows]).tolist()
    }


def _mismatch(traces: Sequence[Trace], ranks: Sequence[_Rank]) -> str | None:
    """Say why the ranks cannot be matched, or return None."""
    if len(ranks) < 2:
        return _ALONE
    if not _same_time([traces[number] for number in sorted({rank.trace for rank in ranks})]):
        return _NOT_TOGETHER
    if _seen_twice([traces[number] for number in sorted({rank.trace for rank in ranks})]):
        return _TWICE
    numbers: dict[str, int] = {}
    first: Int64 | None = None
    for rank in ranks:
        trace = traces[rank.trace]
        used, at = np.unique(_operations(trace).name[rank.rows], return_inverse=True)
        texts = [trace.strings[name] for name in used.tolist()]
        names = np.array([numbers.setdefault(text, len(numbers)) for text in texts])[at]
        if first is None:
            first = names
        elif not np.array_equal(first, names):
            return _DIFFERENT
    return None


def _seen_twice(traces: Sequence[Trace]) -> bool:
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
    spans = [
        (trace.start_utc_ns + trace.origin_ns, trace.start_utc_ns + trace.origin_ns + length)
        for trace in traces
        if trace.start_utc_ns is not None and (length := trace.duration_ns)
    ]
    if len(spans) < len(traces):
        return False
    return max(start for start, _ in spans) < min(end for _, end in spans)


def _described(trace: Trace, ranks: Sequence[_Rank], reason: str | None) -> Exchange:
    """Return what one trace alone says of its communication kernels."""
    ops = _operations(trace)
    rows = np.concatenate([rank.rows for rank in ranks])
    texts, *columns = _asked_for(trace, rows)
    calls, size, peer = (_of_all(ops, rows, column) for column in columns)
    nothing: Int64 = np.broadcast_to(np.int64(UNKNOWN), len(ops))
    return Exchange(
        calls=calls.astype(np.int32),
        call_texts=texts,
        size_bytes=size,
        peer=peer.astype(np.int32),
        transfer_ns=_estimates(trace, ranks, calls, size),
        estimated=True,
        late=np.broadcast_to(np.int32(UNKNOWN), len(ops)),
        late_ns=nothing,
        ranks=(),
        rank_numbers=(),
        clocks={},
        reason=reason,
    )


def _of_all(ops: Operations, rows: Int64, values: Int64) -> Int64:
    """Return a value for each operation, that of `rows`; where none is known it takes no memory."""
    if (values == UNKNOWN).all():
        return np.broadcast_to(np.int64(UNKNOWN), len(ops))
    whole = np.full(len(ops), UNKNOWN, np.int64)
    whole[rows] = values
    return whole


def _estimates(trace: Trace, ranks: Sequence[_Rank], calls: Int64, size: Int64) -> Int64:
    """Return the shortest duration of equal kernel, operation and bytes on each device."""
    ops = _operations(trace)
    shortest = np.full(len(ops), UNKNOWN, np.int64)
    for rank in ranks:
        rows = rank.rows[(calls[rank.rows] >= 0) & (size[rank.rows] >= 0)]
        kind, _ = number_rows([ops.name[rows].astype(np.int64), calls[rows], size[rows]])
        duration = ops.end_ns[rows] - ops.start_ns[rows]
        least = np.full(int(kind.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, kind, duration)
        shortest[rows] = least[kind]
    return shortest


def _match(traces: Sequence[Trace], ranks: Sequence[_Rank], found: list[Exchange | None]) -> None:
    """Replace the estimates by what the ranks together tell."""
    ends = np.stack([_operations(traces[rank.trace]).end_ns[rank.rows] for rank in ranks])
    starts = np.stack([_operations(traces[rank.trace]).start_ns[rank.rows] for rank in ranks])
    durations = ends - starts
    shortest, longest = durations.min(axis=0), durations.max(axis=0)
    last = durations.argmin(axis=0)
    labels, numbers = _labels(traces, ranks), _numbers(traces, ranks)
    ends += np.array([[traces[rank.trace].start_utc_ns or 0] for rank in ranks])
    for number, exchange in enumerate(found):
        if exchange is None:
            continue
        transfer, late, late_ns = (np.full_like(exchange.transfer_ns, UNKNOWN) for _ in range(3))
        clocks = {}
        for place, rank in enumerate(ranks):
            if rank.trace != number:
                continue
            transfer[rank.rows] = shortest
            late[rank.rows] = np.where(longest > shortest, last, UNKNOWN)
            late_ns[rank.rows] = longest - shortest
            clocks[rank.device] = _clock(ends[0], ends[place])
        found[number] = Exchange(
            calls=exchange.calls,
            call_texts=exchange.call_texts,
            size_bytes=exchange.size_bytes,
            peer=exchange.peer,
            transfer_ns=transfer,
            estimated=False,
            late=late.astype(np.int32),
            late_ns=late_ns,
            ranks=labels,
            rank_numbers=numbers,
            clocks=clocks,
            reason=None,
        )


def _clock(reference: Int64, ends: Int64) -> Clock:
    """Compare the ends of matched kernels, which come together, on two clocks."""
    apart = np.sort(reference - ends)
    offset = int(apart[len(apart) // 2])
    left = np.sort(np.abs(apart - offset))
    return Clock(offset, int(left[len(left) // 2]), int(left[-1]), len(left))


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


# What NCCL was asked for


def _asked_for(trace: Trace, rows: Int64) -> tuple[tuple[str, ...], Int64, Int64, Int64]:
    """Return texts, and for each kernel the number of its text, its bytes and its peer.

    A kernel belongs to the NCCL call in which it was launched; one launched at the end of a group
    to the calls of that group, whose bytes are summed.
    """
    api, ranges = trace.api, trace.ranges
    call, size, peer = (np.full(len(rows), UNKNOWN, np.int64) for _ in range(3))
    if api is None or ranges is None or not len(ranges):
        return (), call, size, peer
    is_nccl = np.array([_NCCL_CALL.fullmatch(text) is not None for text in trace.strings], np.bool_)
    listed = np.flatnonzero(is_nccl[ranges.name] & (ranges.end_ns >= 0))
    listed = listed[np.argsort(ranges.thread[listed], kind="stable")]
    if not len(listed):
        return (), call, size, peer
    names, kind = np.unique(ranges.name[listed], return_inverse=True)
    texts = [trace.strings[name] for name in names.tolist()]
    held = _range_of(trace, rows, api, ranges, listed)
    first, stop = _members(listed, kind, texts, ranges.thread)
    inside = np.flatnonzero(held >= 0)
    first, stop = first[held[inside]], stop[held[inside]]
    # Of every kind of call, how many the group holds: groups alike have the same numbers.
    work = np.array([text not in (GROUP_START, GROUP_END) for text in texts], np.bool_)
    counts = np.stack(
        [
            _between(first, stop, kind == each) if work[each] else first * 0
            for each in range(len(texts))
        ]
    )
    call[inside], groups = number_rows(list(counts))
    told = ranges.size_bytes[listed]
    whole = (_between(first, stop, work[kind] & (told < 0)) == 0) & (counts.sum(axis=0) > 0)
    size[inside] = np.where(whole, _between(first, stop, np.where(work[kind], told, 0)), UNKNOWN)
    peer[inside] = _only_peer(first, stop, np.where(work[kind], ranges.peer[listed], UNKNOWN))
    listed_texts = tuple(_group_text(counts[:, one].tolist(), texts) for one in groups.tolist())
    return listed_texts, call, size, peer


def _range_of(trace: Trace, rows: Int64, api: ApiCalls, ranges: Ranges, listed: Int64) -> Int64:
    """Return, a kernel, the NCCL range that it was launched in: position in `listed`, or -1."""
    held = np.full(len(rows), UNKNOWN, np.int64)
    launch = _operations(trace).launch[rows]
    for thread in np.unique(ranges.thread[listed]).tolist():
        low, high = np.searchsorted(ranges.thread[listed], [thread, thread + 1])
        mine = np.flatnonzero((launch >= 0) & (api.thread[launch] == thread))
        time = api.start_ns[launch[mine]]
        at = low + np.searchsorted(ranges.start_ns[listed[low:high]], time, side="right") - 1
        inside = (at >= low) & (time < ranges.end_ns[listed[np.maximum(at, 0)]])
        held[mine[inside]] = at[inside]
    return held


def _members(
    listed: Int64, kind: Int64, texts: Sequence[str], thread: Int32
) -> tuple[Int64, Int64]:
    """Return from where to where in `listed` the calls lie that each range stands for.

    A range stands for itself, the end of a group for what its thread called since the start of it.
    """
    at = np.arange(len(listed))
    first, stop = at.copy(), at + 1
    if GROUP_END not in texts or GROUP_START not in texts:
        return first, stop
    opens = np.maximum.accumulate(np.where(kind == texts.index(GROUP_START), at, UNKNOWN))
    ends = np.flatnonzero((kind == texts.index(GROUP_END)) & (opens >= 0))
    ends = ends[thread[listed[opens[ends]]] == thread[listed[ends]]]
    first[ends] = opens[ends]
    return first, stop


def _between(first: Int64, stop: Int64, values: npt.NDArray[np.generic]) -> Int64:
    """Return the sum of `values` from `first` to `stop`."""
    total = np.concatenate(([0], np.cumsum(values.astype(np.int64))))
    return total[stop] - total[first]


def _only_peer(first: Int64, stop: Int64, peers: Int64) -> Int64:
    """Return the peer that all calls from `first` to `stop` with one have, or -1."""
    known = np.flatnonzero(peers >= 0)
    low, high = np.searchsorted(known, first), np.searchsorted(known, stop)
    if not len(known):
        return np.full(len(first), UNKNOWN, np.int64)
    changes = np.concatenate(([0], np.cumsum(np.diff(peers[known], prepend=peers[known[0]]) != 0)))
    last = np.maximum(high, 1)
    same = (high > low) & (changes[last] == changes[np.minimum(low + 1, len(known))])
    return np.where(same, peers[known[np.minimum(low, len(known) - 1)]], UNKNOWN)


def _group_text(counts: Sequence[int], texts: Sequence[str]) -> str:
    """Write what a group holds: ``2 ncclRecv + 2 ncclSend``."""
    parts = [
        text if count == 1 else f"{count} {text}"
        for count, text in zip(counts, texts, strict=True)
        if count
    ]
    return " + ".join(sorted(parts)) or GROUP_END
