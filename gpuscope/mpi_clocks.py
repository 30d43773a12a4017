"""The clocks of ranks, set right by MPI's collectives: nobody leaves one before all have entered.

Each collective bounds how far two clocks are apart, from both sides. Where the recorded times keep
within what all of them leave open, they stay; else the middle of that is the offset. ::

    rank 0     ├─ MPI_Barrier ─┤
    rank 1                    ├┤          may be moved from where it ends as rank 0 begins …
    rank 1     ├┤                         … to where it begins as rank 0 ends
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuscope.model.exchange import Clock
from gpuscope.model.trace import Trace

Int64 = npt.NDArray[np.int64]

TOGETHER = frozenset(
    f"MPI_{name}"
    for name in (
        "Barrier",
        "Allreduce",
        "Allgather",
        "Allgatherv",
        "Alltoall",
        "Alltoallv",
        "Alltoallw",
        "Reduce_scatter",
        "Reduce_scatter_block",
    )
)
"""Calls that return on a rank when all others have begun them, and not before."""
_LEAST = 2
"""Collectives that must fit: any one alone would."""


def clocks(traces: Sequence[Trace]) -> list[Clock | None]:
    """Return, a trace, how its clock stands to the first one's; None for all where that is open.

    The traces are those of the ranks of one run. It is open where a rank did not record the same
    collectives as the others, on the communicator that it used most for them, or where they cannot
    have been one and the same: ranks of different subgroups do not wait for each other.
    """
    nothing: list[Clock | None] = [None] * len(traces)
    found = [_collectives(trace) for trace in traces]
    (names, enter, leave), *others = found
    if len(traces) < 2 or len(names) < _LEAST:
        return nothing
    offsets: list[Clock | None] = [Clock(0, 0, 0, len(names))]
    for own, entered, left in others:
        if own != names:
            return nothing
        least, most = int((enter - left).max()), int((leave - entered).min())
        if least > most:
            return nothing
        offset = 0 if least <= 0 <= most else (least + most) // 2
        open_ns = max(most - offset, offset - least)
        offsets.append(Clock(offset, open_ns, open_ns, len(names)))
    return offsets


def _collectives(trace: Trace) -> tuple[list[str], Int64, Int64]:
    """Return names, and UTC times of entering and leaving, of the collectives of a trace."""
    calls, nothing = trace.mpi, np.empty(0, np.int64)
    if calls is None or trace.start_utc_ns is None:
        return [], nothing, nothing
    wanted = np.array([text in TOGETHER for text in trace.strings], np.bool_)
    rows = np.flatnonzero(wanted[calls.name])
    handles, of_row = np.unique(calls.communicator[rows], return_inverse=True)
    if len(handles):
        rows = rows[of_row == np.bincount(of_row).argmax()]
    names = [trace.strings[name] for name in calls.name[rows].tolist()]
    zero = trace.start_utc_ns
    return names, calls.start_ns[rows] + zero, calls.end_ns[rows] + zero
