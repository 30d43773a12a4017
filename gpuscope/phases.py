"""What a program that computes and communicates spends its time on, and what of that is hidden.

A transfer is hidden where a kernel that computes runs on the same device, but not under one that
communicates at once. A communication kernel counts from where its data began to move, if the ranks
together tell: before, it waited. Kernels of NVSHMEM that wait for a signal count for nothing.
Kernels that pack what is to be sent count for themselves; they are told by their name. Host time in
MPI counts apart: a call that waits beside a kernel moves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuscope.communication import WAITS, named
from gpuscope.intervals import Axis, Cover, run_starts, sum_by, union
from gpuscope.model.classes import CLASSES, CODE
from gpuscope.model.result import Phases
from gpuscope.model.tables import in_classes
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities, Entry, Groups

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

PACKS = re.compile(r"(?<![a-z])(un)?pack", re.IGNORECASE)
"""Names of kernels that pack or unpack: ``pack_halo``, ``UnpackRows``; not ``compact``."""
_COMPUTE = [CODE["kernel"], CODE["fused"]]
_TRANSFER = [CODE["h2d"], CODE["d2h"], CODE["p2p"], CODE["comm"]]
_TELLS = [CODE["p2p"], CODE["comm"], CODE["mpi"]]
"""Classes by which a program is known to communicate: copies to the host alone are no sign."""


def communicates(activities: Activities) -> bool:
    """Say whether anything shows that the program communicates."""
    counts = np.bincount(activities.op_class, minlength=len(CLASSES))
    return bool(counts[_TELLS].any())


class PhaseSums:
    """The phases of many entries, added group by group."""

    def __init__(self, trace: Trace, activities: Activities, entries: Sequence[Entry]) -> None:
        self._activities = activities
        self._packs = _named(trace, activities, "kernel", PACKS)
        self._waits = _named(trace, activities, "comm", WAITS)
        self._sums = np.zeros((6, len(entries)), np.int64)
        self._tells = np.zeros(len(entries), np.bool_)

    def add(self, groups: Groups) -> None:
        """Add the operations and MPI calls of each group."""
        a, rows = self._activities, groups.rows
        group = groups.group_of_rows()
        kept = in_classes(a.op_class[rows], [*_COMPUTE, *_TRANSFER, CODE["mpi"]])
        kept &= ~self._waits[rows]
        rows, group = rows[kept], group[kept]
        if not len(rows):
            return
        op_class, packs = a.op_class[rows], self._packs[rows]
        self._tells[groups.entry[group[in_classes(op_class, _TELLS)]]] = True
        start, end = np.maximum(a.start_ns[rows], a.moving_ns[rows]), a.end_ns[rows]
        first = run_starts(group)
        axis = Axis.of_runs(start, end, first)
        shift = np.repeat(axis.shift, np.diff(np.append(first, len(rows))))
        start, end = start + shift, end + shift
        entry_of = groups.entry[group[first]]

        def busy(mask: Bool) -> tuple[Int64, Int64, Int64]:
            begin, finish = union(start[mask], end[mask])
            return begin, finish, entry_of[axis.group_at(begin)]

        n = self._sums.shape[1]
        parts = [
            busy(in_classes(op_class, _COMPUTE) & ~packs),
            busy(packs),
            busy(in_classes(op_class, _TRANSFER)),
            busy(op_class == CODE["mpi"]),
        ]
        for number, (begin, finish, entry) in enumerate(parts):
            self._sums[number] += sum_by(finish - begin, entry, n)
        cover = Cover(busy((op_class == CODE["kernel"]) & ~packs)[:2])
        for number, (begin, finish, entry) in enumerate(parts[2:], len(parts)):
            self._sums[number] += sum_by(cover.within(begin, finish), entry, n)

    def results(self) -> list[Phases | None]:
        """Return the phases of every entry, None where nothing shows that it communicates."""
        return [
            Phases(
                compute_ns=compute,
                pack_ns=pack,
                transfer_ns=transfer,
                transfer_hidden_ns=hidden,
                transfer_exposed_ns=transfer - hidden,
                mpi_ns=mpi,
                mpi_hidden_ns=mpi_hidden,
            )
            if tells
            else None
            for (compute, pack, transfer, mpi, hidden, mpi_hidden), tells in zip(
                self._sums.T.tolist(), self._tells.tolist(), strict=True
            )
        ]


def _named(trace: Trace, activities: Activities, op_class: str, pattern: re.Pattern[str]) -> Bool:
    """Return which activities are operations of a class with a name like `pattern`: shape (n,)."""
    found: Bool = np.zeros(len(activities.op_class), np.bool_)
    rows = np.flatnonzero(activities.op_class == CODE[op_class])
    if trace.operations is not None and len(rows):
        found[rows] = named(trace.strings, pattern)[
            trace.operations.name[activities.operation[rows]]
        ]
    return found
