"""Communication over the ranks of one run: which operations belong together, and who waited.

A communication kernel spins until its peers arrive, so its duration is not its own. Of the kernels
that form one collective or one exchange, the one that arrived last waited least: the shortest
duration over the ranks is the time that the data took, and the rest of each duration is waiting,
which comes first: ::

    rank 0   ├──── wait ────┤─ transfer ─┤
    rank 1                  ├─ transfer ─┤
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gpuscope.model.classes import CODE
from gpuscope.model.trace import Trace

Int64 = npt.NDArray[np.int64]

UNKNOWN = -1
"""Transfer time of an operation for which it is not known."""


def transfer_times(traces: Sequence[Trace]) -> list[Int64 | None]:
    """Return, a trace, the transfer time of each of its operations.

    The traces are taken for ranks of one run if they overlap in time and their communication
    kernels, in the order of their launches, are equally many and named alike: the k-th of each then
    belong together.

    Returns
    -------
    list
        Of a trace, an int64 array shaped as its operations, in ns, UNKNOWN for all that is no
        matched communication kernel; None where nothing could be matched.
    """
    sequences = _matched(traces)
    if sequences is None:
        return [None] * len(traces)
    durations = np.stack([_durations(t, rows) for t, rows in zip(traces, sequences, strict=True)])
    return list(_spread(traces, sequences, durations.min(axis=0)))


def late_ranks(traces: Sequence[Trace]) -> list[Int64 | None]:
    """Return, a trace, the rank that arrived last at each of its operations' messages.

    It is the one that waited least; a trace that does not tell its rank has its position as rank.
    As :func:`transfer_times`: UNKNOWN for all that is no matched communication kernel.
    """
    sequences = _matched(traces)
    if sequences is None:
        return [None] * len(traces)
    durations = np.stack([_durations(t, rows) for t, rows in zip(traces, sequences, strict=True)])
    ranks = [
        _rank(trace, rows, position)
        for position, (trace, rows) in enumerate(zip(traces, sequences, strict=True))
    ]
    return list(_spread(traces, sequences, np.array(ranks)[durations.argmin(axis=0)]))


def _rank(trace: Trace, rows: Int64, position: int) -> int:
    assert trace.operations is not None
    rank = trace.processes[trace.operations.process[rows[0]]].rank
    return position if rank is None else rank


def _matched(traces: Sequence[Trace]) -> list[Int64] | None:
    """Return the communication kernels of each trace, the k-th of each belonging together."""
    sequences = [_communication(trace) for trace in traces]
    names = [_names(trace, rows) for trace, rows in zip(traces, sequences, strict=True)]
    alike = len(traces) > 1 and bool(names[0]) and all(each == names[0] for each in names)
    return sequences if alike and _same_time(traces) else None


def _spread(traces: Sequence[Trace], sequences: Sequence[Int64], values: Int64) -> Iterator[Int64]:
    """Yield, a trace, an array shaped as its operations with `values` at its communication."""
    for trace, rows in zip(traces, sequences, strict=True):
        assert trace.operations is not None
        of_trace = np.full(len(trace.operations), UNKNOWN, np.int64)
        of_trace[rows] = values
        yield of_trace


def _communication(trace: Trace) -> Int64:
    """Return the rows of the communication kernels, in the order of their launches."""
    if trace.operations is None:
        return np.empty(0, np.int64)
    rows = np.flatnonzero(trace.operations.op_class == CODE["comm"])
    # Calls are numbered in the order of their start; without them the kernels' own order holds.
    return rows[np.argsort(trace.operations.launch[rows], kind="stable")]


def _names(trace: Trace, rows: Int64) -> list[str]:
    if trace.operations is None:
        return []
    return [trace.strings[name] for name in trace.operations.name[rows].tolist()]


def _durations(trace: Trace, rows: Int64) -> Int64:
    assert trace.operations is not None
    return trace.operations.end_ns[rows] - trace.operations.start_ns[rows]


def _same_time(traces: Sequence[Trace]) -> bool:
    """Whether the traces, as far as their clocks are known, have a moment in common."""
    spans = [
        (trace.start_utc_ns + trace.origin_ns, trace.start_utc_ns + trace.origin_ns + length)
        for trace in traces
        if trace.start_utc_ns is not None and (length := trace.duration_ns)
    ]
    if len(spans) < len(traces):
        return False
    return max(start for start, _ in spans) < min(end for _, end in spans)
