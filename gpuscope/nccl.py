"""What NCCL was asked for, kernel by kernel: by the NVTX ranges that NCCL itself makes.

A kernel belongs to the NCCL call in which it was launched; one launched at the end of a group to
the calls of that group. Bytes, peers and communicators are in the payloads of these ranges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import distinct, expanded, number_rows
from gpuscope.model.exchange import UNKNOWN
from gpuscope.model.tables import ApiCalls, Int32, Int64, Operations, Ranges
from gpuscope.model.trace import Trace

Bool = npt.NDArray[np.bool_]

_CALL = re.compile(r"p?nccl[A-Z]\w*")
"""Names that NCCL gives its ranges; a program's own are called otherwise."""
GROUP_START = "ncclGroupStart"
GROUP_END = "ncclGroupEnd"
_SENDS = ("ncclSend", "pncclSend")
_RECEIVES = ("ncclRecv", "pncclRecv")
_ROOTED = tuple(
    f"{prefix}{name}"
    for prefix in ("nccl", "pnccl")
    for name in ("Broadcast", "Bcast", "Reduce", "Gather", "Scatter")
)
"""Collectives in which data goes from one rank to all, or from all to one."""


BOTH_WAYS, OUT, IN, ROOTED = range(4)
"""Where the data of a kernel goes: to all ranks that it comes from; only out, only in; from a root
or to it, or to other ranks than it comes from. Kernels end together where it goes both ways."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Sends and receives, in the order of the kernels and of the calls for each."""

    kernel: Int64
    """Position among the kernels that were asked about."""
    sends: Bool
    peer: Int64
    """Rank of the other side in the communicator."""
    size_bytes: Int64


@dataclass(frozen=True, slots=True)
class Asked:
    """What each of some kernels was launched for; -1 where nothing is known."""

    texts: tuple[str, ...]
    calls: Int64
    """Number in `texts`."""
    size_bytes: Int64
    """Of all calls of the group together."""
    peer: Int64
    """The peer or root that all of the calls have."""
    communicator: Int64
    """The communicator that all of the calls have."""
    collective: Bool
    """There was neither a send nor a receive."""
    exchange: Bool
    """There were only sends and receives, all of known bytes and peer, for this kernel alone."""
    flow: Int64
    """Where data goes: one of the numbers below."""
    messages: Messages
    """Those of the kernels of which `exchange` is true."""


def asked_for(trace: Trace, rows: Int64) -> Asked:
    """Return what the kernels at `rows` of the operations were launched for."""
    api, ranges = trace.api, trace.ranges
    ops = trace.operations or Operations.empty()
    if api is None or not ranges:
        return _nothing(len(rows))
    is_nccl = np.array([_CALL.fullmatch(text) is not None for text in trace.strings], np.bool_)
    listed = np.flatnonzero(is_nccl[ranges.name] & (ranges.end_ns >= 0))
    listed = listed[np.argsort(ranges.thread[listed], kind="stable")]
    if not len(listed):
        return _nothing(len(rows))
    names, kind = np.unique(ranges.name[listed], return_inverse=True)
    texts = [trace.strings[name] for name in names.tolist()]
    held = _range_of(ops.launch[rows], api, ranges, listed)
    first, stop = _members(listed, kind, texts, ranges.thread)
    inside = np.flatnonzero(held >= 0)
    holder = held[inside]
    first, stop = first[holder], stop[holder]
    # Of every kind of call, how many the group holds: groups alike have the same numbers.
    work = np.array([text not in (GROUP_START, GROUP_END) for text in texts], np.bool_)
    counts = np.stack(
        [
            _between(first, stop, kind == each) if work[each] else first * 0
            for each in range(len(texts))
        ]
    )
    numbers, groups = number_rows(list(counts))
    is_work, size, peer = work[kind], ranges.size_bytes[listed], ranges.peer[listed]
    whole = _between(first, stop, is_work & (size < 0)) == 0
    told = whole & (counts.sum(axis=0) > 0)
    total = np.where(told, _between(first, stop, np.where(is_work, size, 0)), UNKNOWN)
    sending, receiving, rooted = (
        np.array([text in names for text in texts], np.bool_)
        for names in (_SENDS, _RECEIVES, _ROOTED)
    )
    one_to_one = sending | receiving
    between_two = one_to_one[kind] & (peer >= 0) & (size >= 0)
    calls = counts.sum(axis=0)
    alone = np.bincount(holder, minlength=len(listed))[holder] == 1
    exchange = alone & (calls > 0) & (_between(first, stop, between_two) == calls)
    collective = (calls > 0) & (_between(first, stop, one_to_one[kind]) == 0)

    def spread(values: npt.NDArray[np.generic], missing: int) -> Int64:
        whole = np.full(len(rows), missing, np.int64)
        whole[inside] = values
        return whole

    parts = np.flatnonzero(exchange)
    at = expanded(first[parts], stop[parts])
    of_part = np.repeat(inside[parts], (stop - first)[parts])
    of_part, at = of_part[between_two[at]], at[between_two[at]]
    messages = Messages(of_part, sending[kind][at], peer[at].astype(np.int64), size[at])
    sent, received = counts[sending].sum(axis=0), counts[receiving].sum(axis=0)
    flow = spread(
        np.select(
            [
                counts[rooted].sum(axis=0) == calls,
                (sent > 0) & (received == 0),
                (sent == 0) & (received > 0),
            ],
            [np.where(calls > 0, ROOTED, BOTH_WAYS), OUT, IN],
            BOTH_WAYS,
        ),
        BOTH_WAYS,
    )
    uneven = _uneven(messages)
    flow[uneven] = np.where(flow[uneven] == BOTH_WAYS, ROOTED, flow[uneven])
    return Asked(
        texts=tuple(_group_text(counts[:, one].tolist(), texts) for one in groups.tolist()),
        calls=spread(numbers, UNKNOWN),
        size_bytes=spread(total, UNKNOWN),
        peer=spread(_only(first, stop, peer, is_work & (peer >= 0)), UNKNOWN),
        communicator=spread(_only(first, stop, ranges.communicator[listed], is_work), UNKNOWN),
        collective=spread(collective, 0).astype(np.bool_),
        exchange=spread(exchange, 0).astype(np.bool_),
        flow=flow,
        messages=messages,
    )


def _nothing(count: int) -> Asked:
    unknown, no = np.full(count, UNKNOWN, np.int64), np.zeros(count, np.bool_)
    none: Int64 = np.empty(0, np.int64)
    messages = Messages(none, np.empty(0, np.bool_), none, none)
    return Asked((), unknown, unknown, unknown, unknown, no, no, unknown * 0, messages)


def _uneven(messages: Messages) -> Int64:
    """Return the kernels that send to other ranks than they receive from."""
    peers = int(messages.peer.max(initial=0)) + 1
    ends = messages.kernel * peers + messages.peer
    uneven: Int64 = np.setxor1d(ends[messages.sends], ends[~messages.sends]) // peers
    return uneven


def _range_of(launch: Int32, api: ApiCalls, ranges: Ranges, listed: Int64) -> Int64:
    """Return, a kernel, the NCCL range that it was launched in: position in `listed`, or -1."""
    held = np.full(len(launch), UNKNOWN, np.int64)
    for thread in distinct(ranges.thread[listed]):
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
    Groups may lie in groups.
    """
    at = np.arange(len(listed))
    first, stop = at.copy(), at + 1
    if GROUP_END not in texts or GROUP_START not in texts:
        return first, stop
    opens, ends = kind == texts.index(GROUP_START), kind == texts.index(GROUP_END)
    marks = np.flatnonzero(opens | ends)
    depth = np.cumsum(opens[marks].astype(np.int64) - ends[marks]) + ends[marks]
    of_thread = thread[listed[marks]]
    # Start and end of one depth alternate in each thread.
    order = np.lexsort((depth, of_thread))
    before, after = order[:-1], order[1:]
    pairs = (
        opens[marks[before]]
        & ends[marks[after]]
        & (depth[before] == depth[after])
        & (of_thread[before] == of_thread[after])
    )
    first[marks[after[pairs]]] = marks[before[pairs]]
    return first, stop


def _between(first: Int64, stop: Int64, values: npt.NDArray[np.generic]) -> Int64:
    """Return the sum of `values` from `first` to `stop`."""
    total = np.concatenate(([0], np.cumsum(values.astype(np.int64))))
    return total[stop] - total[first]


def _only(first: Int64, stop: Int64, values: npt.NDArray[np.integer], counts: Bool) -> Int64:
    """Return the value that all from `first` to `stop` of those that count have, or -1."""
    known = np.flatnonzero(counts)
    low, high = np.searchsorted(known, first), np.searchsorted(known, stop)
    if not len(known):
        return np.full(len(first), UNKNOWN, np.int64)
    listed = values[known].astype(np.int64)
    changes = np.concatenate(([0], np.cumsum(np.diff(listed, prepend=listed[0]) != 0)))
    last = np.maximum(high, 1)
    same = (high > low) & (changes[last] == changes[np.minimum(low + 1, len(known))])
    return np.where(same, listed[np.minimum(low, len(known) - 1)], UNKNOWN)


def _group_text(counts: Sequence[int], texts: Sequence[str]) -> str:
    """Write what a group holds: ``2 ncclRecv + 2 ncclSend``."""
    parts = [
        text if count == 1 else f"{count} {text}"
        for count, text in zip(counts, texts, strict=True)
        if count
    ]
    return " + ".join(sorted(parts)) or GROUP_END
