"""Communication kernels of several ranks, matched: which of them took part in the same messages.

The k-th collective of a communicator on one rank belongs to the k-th on its other ranks. Of sends
and receives the k-th from one rank to another belongs to the k-th receive there, so that the
partners of a kernel may differ from those of its partners: ::

    rank 0    [ 1 ]──┐
    rank 1    [ 0, 2 ]──┐        a row of neighbours: what rank 1 does takes until rank 2 is there,
    rank 2           [ 1 ]       which is nothing to rank 0

Kernels whose communicator is not known are matched by their order alone.

Where ranks were not recorded over the same time, one has kernels at its edges that another lacks.
Then the order is shifted, such that the ends of matched kernels are equally far apart on the two
clocks: they come together, and whatever else is paired scatters as the program does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import stable_order
from gpuscope.model.exchange import UNKNOWN
from gpuscope.model.tables import Int64

Bool = npt.NDArray[np.bool_]

DIFFERENT = "the ranks' communication kernels differ in number or in name"
UNEQUAL = "the ranks' collectives of a communicator differ in number, in name or in bytes"
UNPAIRED = "the sends and receives of a communicator do not fit each other"
NO_PEER = "of a communicator there is one rank only"
EDGES = "the recording of another rank begins later or ends earlier"
MISSING = "messages go to ranks, or come from ranks, whose traces are not here"
REASONS = (DIFFERENT, UNEQUAL, UNPAIRED, NO_PEER, EDGES, MISSING)

SHIFTS = 16
"""How far from the shift that the times of day suggest others are tried, and from none."""
LEAST_SHIFTED = 8
"""With fewer kernels two shifts cannot be told apart."""
LEAST_SHARE = 0.5
"""Share of the kernels of the rank with fewer that must be matched after a shift."""
CLEARER = 5
"""So many times further must the ends scatter with any other shift, no shift included: those of
matched kernels scatter by less than a microsecond, the steps of a program by tens."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The communication kernels of all ranks, one rank after the other, in the order of launches.

    Names and calls are numbers that mean the same on all ranks; -1 where nothing is known.
    """

    rank: Int64
    end_ns: Int64
    """By the time of day that the rank's report states."""
    name: Int64
    call: Int64
    size_bytes: Int64
    communicator: Int64
    collective: Bool
    """It was launched for collectives alone, which are the same on all ranks."""
    exchange: Bool
    """It was launched for sends and receives alone, which are those below."""
    message_kernel: Int64
    """Sends and receives in the order of their calls: of which kernel."""
    message_sends: Bool
    message_peer: Int64
    """The rank of the other side in the communicator."""
    message_bytes: Int64


@dataclass(frozen=True, slots=True)
class Matches:
    """Which kernels belong together."""

    group: Int64
    """Of each kernel; those of one group took part in the same and end together. -1: in none."""
    kernel: Int64
    """Kernels in no group whose partners are known, ascending, once for each partner."""
    partner: Int64
    """The partner; each kernel is one of its own."""
    reason: Int64
    """Why a kernel has neither group nor partners, by number in :data:`REASONS`; -1: it has."""

    @property
    def matched(self) -> Bool:
        """Which kernels have a group, or partners."""
        matched: Bool = self.reason == UNKNOWN
        return matched


def match(kernels: Kernels, order: Sequence[int]) -> Matches:
    """Match the kernels of all ranks.

    Parameters
    ----------
    kernels
        What is known of them.
    order
        The ranks as communicators number them: sends and receives name their peers by it.
    """
    matcher = _Matcher(kernels, order)
    communicators, of_kernel = np.unique(kernels.communicator, return_inverse=True)
    parts = zip(
        communicators.tolist(),
        _split(of_kernel, len(communicators)),
        _split(of_kernel[kernels.message_kernel], len(communicators)),
        strict=True,
    )
    for communicator, rows, messages in parts:
        matcher.add(communicator, rows, messages)
    return matcher.matches()


def _split(numbers: Int64, count: int) -> list[Int64]:
    """Return, for each number below `count`, where it stands in `numbers`, ascending."""
    order = stable_order(numbers)
    return np.split(order, np.searchsorted(numbers[order], np.arange(1, count)))


class _Matcher:
    def __init__(self, kernels: Kernels, order: Sequence[int]) -> None:
        self._kernels, self._order = kernels, order
        self._group = np.full(len(kernels.rank), UNKNOWN, np.int64)
        self._groups = 0
        self._reason = np.full(len(kernels.rank), UNKNOWN, np.int64)
        self._pairs: list[Int64] = [np.empty((2, 0), np.int64)]

    def add(self, communicator: int, rows: Int64, messages: Int64) -> None:
        """Match the kernels of one communicator, which are at `rows`, by its sends and receives."""
        if communicator == UNKNOWN:
            self._by_order(rows, DIFFERENT)
            return
        exchange = self._kernels.exchange[rows]
        self._by_order(rows[~exchange], UNEQUAL)
        present = set(np.unique(self._kernels.rank[rows]).tolist())
        members = [rank for rank in self._order if rank in present]
        here = self._kernels.message_peer[messages] < len(members)
        if self._by_messages(members, messages[here]):
            self._reason[self._kernels.message_kernel[messages[~here]]] = REASONS.index(MISSING)
        elif here.all():
            self._by_order(rows[exchange], UNPAIRED)
        else:
            self._reason[rows[exchange]] = REASONS.index(MISSING)

    def _by_order(self, rows: Int64, reason: str) -> None:
        """Match the k-th of `rows` on each rank with the k-th on the others."""
        if not len(rows):
            return
        k = self._kernels
        ranks, counts = np.unique(k.rank[rows], return_counts=True)
        if len(ranks) < 2:
            self._reason[rows] = REASONS.index(DIFFERENT if reason == DIFFERENT else NO_PEER)
            return
        table = self._together(np.split(rows, np.cumsum(counts)[:-1]))
        if table is None:
            self._reason[rows] = REASONS.index(reason)
            return
        self._reason[np.setdiff1d(rows, table)] = REASONS.index(EDGES)
        self._group[table] = self._groups + np.arange(table.shape[1])
        self._groups += table.shape[1]

    def _together(self, of_ranks: Sequence[Int64]) -> Int64 | None:
        """Return which kernels of the ranks belong together, a row a rank; None: it cannot be told.

        All of them where they are equally many and alike, else those that all ranks have.
        """
        first = of_ranks[0]
        shifts = []
        for rows in of_ranks:
            guess = self._guess(first, rows)
            whole = len(rows) == len(first) and self._alike(first, rows)
            shift = 0 if whole and not guess else self._shift(first, rows, guess, whole=whole)
            if shift is None:
                return None
            shifts.append(shift)
        begin = max(-shift for shift in shifts)
        stop = min(len(rows) - shift for rows, shift in zip(of_ranks, shifts, strict=True))
        if any(shifts) and stop - begin < LEAST_SHIFTED:
            return None
        return np.stack(
            [rows[begin + at : stop + at] for rows, at in zip(of_ranks, shifts, strict=True)]
        )

    def _alike(self, one: Int64, other: Int64) -> bool:
        """Whether kernels can be the same: by name, and collectives by call and bytes, too."""
        k = self._kernels
        collective = k.collective[one]
        return bool(
            (k.name[one] == k.name[other]).all()
            and (collective == k.collective[other]).all()
            and (k.call[one] == k.call[other])[collective].all()
            and (k.size_bytes[one] == k.size_bytes[other])[collective].all()
        )

    def _guess(self, one: Int64, other: Int64) -> int:
        """Return how many places later in `other` the kernels nearest in time are."""
        ends, theirs = self._kernels.end_ns[one], self._kernels.end_ns[other]
        ordered = np.maximum.accumulate(theirs)
        after = np.minimum(np.searchsorted(ordered, ends), len(ordered) - 1)
        before = np.maximum(after - 1, 0)
        near = np.where(ends - ordered[before] < ordered[after] - ends, before, after)
        values, counts = np.unique(near - np.arange(len(near)), return_counts=True)
        return int(values[counts.argmax()])

    def _shift(self, one: Int64, other: Int64, guess: int, *, whole: bool) -> int | None:
        """Return how many places later in `other` the kernels of `one` are; None: not to tell.

        If they fit as a `whole`, that is what they do unless another shift is clearly the better.
        """
        ends, theirs = self._kernels.end_ns[one], self._kernels.end_ns[other]
        least = max(LEAST_SHIFTED, LEAST_SHARE * min(len(one), len(other)))
        tried = {at + by for at in (0, guess) for by in range(-SHIFTS, SHIFTS + 1)}
        scatter = []
        for shift in sorted(tried):
            begin, stop = max(0, -shift), min(len(one), len(other) - shift)
            mine, its = one[begin:stop], other[begin + shift : stop + shift]
            if stop - begin < least or not self._alike(mine, its):
                continue
            apart = ends[begin:stop] - theirs[begin + shift : stop + shift]
            scatter.append((float(np.median(np.abs(apart - np.median(apart)))), shift))
        scatter.sort()
        if scatter and (len(scatter) == 1 or CLEARER * scatter[0][0] < scatter[1][0]):
            return scatter[0][1]
        return 0 if whole else None

    def _by_messages(self, members: Sequence[int], chosen: Int64) -> bool:
        """Pair the sends among the members of a communicator; False where they do not fit."""
        k = self._kernels
        kernel, sends = k.message_kernel[chosen], k.message_sends[chosen]
        position = np.full(max(self._order) + 1, UNKNOWN, np.int64)
        position[members] = np.arange(len(members))
        own, peer = position[k.rank[kernel]], k.message_peer[chosen]
        between = np.stack([np.where(sends, own, peer), np.where(sends, peer, own)])
        sent, received = (
            one[np.lexsort(between[::-1, one])]
            for one in (np.flatnonzero(sends), np.flatnonzero(~sends))
        )
        size = k.message_bytes[chosen]
        if not np.array_equal(between[:, sent], between[:, received]) or not np.array_equal(
            size[sent], size[received]
        ):
            return False
        self._pairs.append(np.stack([kernel[sent], kernel[received]]))
        return True

    def matches(self) -> Matches:
        """Tell exchanges of all with all, which are groups, from those with other partners."""
        count = len(self._group)
        sent, received = np.concatenate(self._pairs, axis=1)
        one = np.concatenate([sent, received, sent, received])
        other = np.concatenate([received, sent, sent, received])
        code = np.sort(one * count + other)
        code = code[np.diff(code, prepend=UNKNOWN) != 0]
        kernel, partner = code // max(count, 1), code % max(count, 1)
        first = np.flatnonzero(np.diff(kernel, prepend=UNKNOWN))
        if len(first):
            # Equal sums of 64 mixed bits are equal sets of partners.
            sums = np.zeros(count, np.uint64)
            sums[kernel[first]] = np.add.reduceat(_mixed(partner), first)
            # A rank that is not here is a partner that the others do not have.
            sums[self._reason == REASONS.index(MISSING)] += np.uint64(1)
            alike = np.logical_and.reduceat(sums[kernel] == sums[partner], first)
            closed = kernel[first][alike]
            self._group[closed] = self._groups + partner[first][alike]
        open_ = self._group[kernel] == UNKNOWN
        return Matches(self._group, kernel[open_], partner[open_], self._reason)


def _mixed(values: Int64) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each value that look random, by the finalizer of SplitMix64."""
    mixed = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
