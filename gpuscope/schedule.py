"""The bound of a schedule: the longest path through what the program itself put in order.

::

    stream 1   ├─ a ─┤├─── b ───┤
    stream 2            ·  ├─ c ─┤       c waits for an event behind a: the longest
                        event            path is a, b or a, c

An operation follows the one before it in its stream; the operations behind every event that its
stream was told to wait for; what the legacy null stream makes it follow; and whatever its thread
waited for before it launched it (a stream, an event, the device, a copy that blocked). The bound is
the sum of the durations along the longest such path. Engines, the time that the host needs, and
MPI are no part of it.

The paths of all groups of a batch are found together. Along a stream a finish is a sum of
durations, so that only *points* need be looked at, at which something else comes in: with G the
largest head start so far, ``finish(i) = work up to i + G``, and at a point ``G = max(G before,
finish(source) − work before i)``. Which of the two wins is guessed for all points, the paths are
summed by doubling, and the guesses improved until none can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.batches import Batch, spans
from gpuscope.cases import Case
from gpuscope.intervals import (
    BLOCK_ROWS,
    Axis,
    added,
    distinct,
    expanded,
    run_starts,
    spread,
    stable_order,
)
from gpuscope.model.classes import CODE
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities
from gpuscope.waits import (
    START_LATENCY_NS,
    call_name,
    event_links,
    null_stream_contexts,
    streams_with_work,
)

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

_DEVICE_CALLS = frozenset(
    {
        *("cudaDeviceSynchronize", "cudaThreadSynchronize", "cuCtxSynchronize"),
        *("cudaFree", "cuMemFree"),
    }
)
"""Calls that return when the device has nothing left to do; the last two do so on the quiet."""
_STREAM_CALLS = frozenset({"cudaStreamSynchronize", "cuStreamSynchronize"})


@dataclass(frozen=True, slots=True)
class HostWaits:
    """Calls in which a thread waited for GPU work, sorted by start: arrays alike in shape."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    process: Int64
    stream: Int64
    """What was waited for: index into Trace.streams; -1 the device."""
    before_ns: Int64
    """Only for what was launched before this."""


class Orders:
    """What a program put in order, of a whole trace."""

    def __init__(self, case: Case) -> None:
        trace, ops, api = case.trace, case.ops, case.api
        self.ops, self.streams = ops, len(trace.streams)
        self.threads = int(api.thread.max(initial=0)) + 2
        """More than there are: the last stands for work without a launching call."""
        self.unordered = (ops.graph_node >= 0) | (ops.op_class == CODE["graph"])
        """Operations of which neither stream nor launch says what they follow."""
        self.links = event_links(trace, ops, r"cu(da)?StreamWaitEvent").by_time(api.start_ns)
        self.link_ns = api.start_ns[self.links.call]
        host = event_links(trace, ops, r"cu(da)?EventSynchronize")
        name = np.array([call_name(text) for text in trace.strings] or [""], np.object_)
        device, stream = (
            np.flatnonzero(np.isin(name, list(calls))[api.name])
            for calls in (_DEVICE_CALLS, _STREAM_CALLS)
        )
        synced = np.full(len(api), -1, np.int64)
        if trace.syncs is not None:
            told = trace.syncs.take((trace.syncs.launch >= 0) & (trace.syncs.stream >= 0))
            synced[told.launch] = streams_with_work(trace, ops)[told.stream]
        unknown = stream[synced[stream] < 0]
        stream = stream[synced[stream] >= 0]
        blocking = np.flatnonzero(case.blocking_copies)
        copy_call = ops.launch[blocking].astype(np.int64)
        call = np.concatenate([device, stream, host.call, copy_call])
        order = np.argsort(api.start_ns[call], kind="stable")
        columns = (
            api.start_ns[call],
            api.end_ns[call],
            api.thread[call].astype(np.int64),
            api.process[call].astype(np.int64),
            np.concatenate(
                [np.full(len(device), -1), synced[stream], host.source, ops.stream[blocking]]
            ),
            np.concatenate(
                [
                    api.start_ns[device],
                    api.start_ns[stream],
                    host.record_ns,
                    api.start_ns[copy_call] + 1,
                ]
            ),
        )
        self.waits = HostWaits(*(column[order] for column in columns))
        rows = np.concatenate([self.links.unresolved, host.unresolved, unknown])
        rows = rows[np.argsort(api.start_ns[rows], kind="stable")]
        self.unresolved_ns, self.unresolved_process = api.start_ns[rows], api.process[rows]
        self.link_process = api.process[self.links.call].astype(np.int64)
        self.link_thread = api.thread[self.links.call]


class ScheduleBounds:
    """The longest paths of many entries, added batch by batch."""

    def __init__(self, trace: Trace, orders: Orders, activities: Activities, entries: int) -> None:
        self._orders, self._activities = orders, activities
        self._sum = np.zeros(entries, np.int64)
        self._known = np.ones(entries, np.bool_)
        self._context, self._is_null = null_stream_contexts(trace.streams)

    def add(self, batch: Batch) -> None:
        """Add the longest path of each group."""
        # Migrations are in no stream and have no launch.
        migrations = self._activities.op_class[batch.rows] == CODE["uvm"]
        if migrations.any():
            batch = batch.take(np.flatnonzero(~migrations))
        if not len(batch):
            return
        paths = _Paths(self._orders, self._activities, batch)
        paths.follow_events()
        paths.follow_host()
        paths.follow_null_stream(self._context, self._is_null)
        entry = batch.entry[paths.first]
        np.add.at(self._sum, entry, paths.longest())
        self._known[entry[~paths.known]] = False

    def results(self) -> list[int | None]:
        """Return the bound of every entry, None where something that orders it is not known."""
        pairs = zip(self._sum.tolist(), self._known.tolist(), strict=True)
        return [bound if known else None for bound, known in pairs]


class _Paths:
    """The operations of a batch in their streams, and the points where something comes in.

    Positions number the waits for events and the operations by (chain, launch), a chain being a
    stream in a group; then come the waits of the host, by (group, thread, end).
    """

    def __init__(self, orders: Orders, activities: Activities, batch: Batch) -> None:
        self._orders, self._activities, self._batch = orders, activities, batch
        self.first = run_starts(batch.group)
        sizes = np.diff(np.append(self.first, len(batch)))
        launch, stream = activities.launch_ns.take(batch.rows), activities.stream.take(batch.rows)
        operation = activities.operation.take(batch.rows)
        unknown = (launch < 0) | (stream < 0) | orders.unordered.take(operation)
        self._process = orders.ops.process[operation[self.first]]
        self._begin = np.minimum.reduceat(launch, self.first)
        self._finish = np.maximum.reduceat(launch, self.first)
        self._span = spans(batch.start, batch.end, self.first)
        self.known = ~np.logical_or.reduceat(unknown, self.first) & ~self._has_unresolved()

        # Waits for events stand in their streams as operations that take no time, before what was
        # launched in the same moment. Work of no stream is a chain of its own, in a group whose
        # path is not known.
        links = orders.links
        self._link_group, self._link = self._pairs(orders.link_ns, orders.link_process)
        self._width = orders.streams + 1
        number = np.arange(len(sizes))
        if len(sizes) * self._width < 1 << 31:
            number = number.astype(np.int32)
        key = spread(number * self._width + 1, sizes) + stream
        del operation, unknown, stream
        if len(self._link):
            of_link = self._link_group * self._width + links.stream[self._link] + 1
            key = np.concatenate([of_link, key])
            launch = np.concatenate([orders.link_ns[self._link], launch])
        order = stable_order(key)
        key = key.take(order)
        self._opens = run_starts(key)
        self._closes = np.append(self._opens[1:], len(key))
        self._chain_key = key[self._opens].astype(np.int64)
        del key
        self._group, self._stream = np.divmod(self._chain_key, self._width)
        self._stream -= 1
        self._chain = np.repeat(
            np.arange(len(self._opens), dtype=np.int32), self._closes - self._opens
        )
        launch = launch.take(order)
        self._line = _Line(launch, self._opens, self._closes)
        self._order = self._line.sort(order)
        """Index of each position: the waits for events, then the rows of the batch."""
        places = np.flatnonzero(self._order < len(self._link))
        self._place_of_link = places[np.argsort(self._order[places])]
        self._work_ns = self._work()
        """Work before each position, all chains one after the other; the last is that of all."""
        self._edges: list[Int64] = []
        """Rows: position, chain, source position, source chain, weight."""

    def _work(self) -> Int64:
        """Sum up the work along the chains; operations of one stream that overlap count once."""
        batch, links = self._batch, len(self._link)
        begin_of_link = batch.start[self.first[self._link_group]]
        total = np.zeros(len(self._order) + 1, np.int64)
        last_chain, reach = -1, 0
        for low in range(0, len(self._order), BLOCK_ROWS):
            part = slice(low, low + BLOCK_ROWS)
            at, chain = self._order[part], self._chain[part]
            start = batch.start.take(at - links, mode="clip")
            end = batch.end.take(at - links, mode="clip")
            waits = np.flatnonzero(at < links)
            start[waits] = end[waits] = begin_of_link[at[waits]]
            first = run_starts(chain)
            latest = np.maximum.reduceat(end, first)
            goes_on = chain[0] == last_chain
            if goes_on:
                latest[0] = max(latest[0], reach)
            axis = Axis.lay_out(np.minimum.reduceat(start, first), latest)
            shift = np.repeat(axis.shift, np.diff(np.append(first, len(chain))))
            start += shift
            end += shift
            own, top = added(start, end, reach + int(shift[0]) if goes_on else None)
            so_far = total[low + 1 : low + 1 + len(own)]
            np.cumsum(own, out=so_far)
            so_far += total[low]
            last_chain, reach = int(chain[-1]), top - int(shift[-1])
        return total

    def _before(self, position: Int64) -> Int64:
        """Return the work before each position in its chain."""
        return self._work_ns[position] - self._work_ns[self._opens[self._chain[position]]]

    def _after(self, position: Int64) -> Int64:
        """Return the work up to the end of each position in its chain."""
        return self._work_ns[position + 1] - self._work_ns[self._opens[self._chain[position]]]

    def _threads(self) -> Int32:
        """Return the launching thread of each position."""
        thread = self._activities.launch_thread.take(self._batch.rows)
        return np.concatenate([self._orders.link_thread[self._link], thread]).take(self._order)

    def _has_unresolved(self) -> Bool:
        """Return the groups in whose window an event or a stream was waited for that is unknown."""
        found = np.zeros(len(self._begin), np.bool_)
        orders = self._orders
        for process in distinct(orders.unresolved_process):
            time = orders.unresolved_ns[orders.unresolved_process == process]
            inside = np.searchsorted(time, self._finish, side="right") > np.searchsorted(
                time, self._begin
            )
            found |= inside & (self._process == process)
        return found

    def _chains_of(self, group: Int64, stream: Int64) -> Int64:
        """Return the chain of each (group, stream), -1 where there is none."""
        key = group * self._width + stream + 1
        at = np.minimum(np.searchsorted(self._chain_key, key), len(self._chain_key) - 1)
        return np.where((self._chain_key[at] == key) & (stream >= 0), at, -1)

    def _pairs(self, time: Int64, process: Int64) -> tuple[Int64, Int64]:
        """Return (group, index) of all calls between a group's first and last launch."""
        low = np.searchsorted(time, self._begin)
        high = np.searchsorted(time, self._finish, side="right")
        high = np.maximum(low, high)
        group, index = np.repeat(np.arange(len(low)), high - low), expanded(low, high)
        mine = process[index] == self._process[group]
        return group[mine], index[mine]

    def _last_before(self, chain: Int64, time: Int64) -> Int64:
        """Return the last position of each chain launched before a time, -1 for none."""
        at = self._line.first_from(chain, time) - 1
        return np.where((chain >= 0) & (at >= self._opens[chain]), at, -1)

    def _add(self, position: Int64, chain: npt.NDArray[Any], source: Int64, weight: Int64) -> None:
        self._edges.append(np.stack([position, chain, source, self._chain[source], weight]))

    def follow_events(self) -> None:
        """Add what streams were told to wait for."""
        links, target = self._orders.links, self._place_of_link
        origin = self._chains_of(self._link_group, links.source[self._link])
        source = self._last_before(origin, links.record_ns[self._link])
        some = source >= 0
        source, target = source[some], target[some]
        weight = self._after(source) - self._before(target)
        self._add(target, self._chain[target], source, weight)

    def follow_host(self) -> None:
        """Add what threads waited for before they went on launching."""
        waits = self._orders.waits
        group, index = self._pairs(waits.start_ns, waits.process)
        threads = self._orders.threads
        unit = group * threads + waits.thread[index]
        order = np.lexsort((waits.end_ns[index], unit))
        group, index, unit = group[order], index[order], unit[order]
        if not len(index):
            return
        position = len(self._chain) + np.arange(len(index))
        opens = run_starts(unit)
        host_chain = np.repeat(np.arange(len(opens)), np.diff(np.append(opens, len(unit))))
        host_chain += len(self._opens)
        line = _Line(waits.end_ns[index], opens, np.append(opens[1:], len(unit)))

        source = self._last_before(
            self._chains_of(group, waits.stream[index]), waits.before_ns[index]
        )
        some = np.flatnonzero(source >= 0)
        self._add(position[some], host_chain[some], source[some], self._after(source[some]))
        self._follow_device(group, index, position, host_chain)

        # Of each stream the first operation that a thread launched after it had waited.
        own = self._group[self._chain] * threads + self._threads() % threads
        at = np.minimum(np.searchsorted(unit[opens], own), len(opens) - 1)
        has = unit[opens][at] == own
        last = line.first_from(np.where(has, at, -1), self._line.times(self._chain) + 1) - 1
        last = np.where(has & (last >= opens[at]), last, -1)
        changed = np.ones(len(last), np.bool_)
        changed[1:] = (last[1:] != last[:-1]) | (self._chain[1:] != self._chain[:-1])
        target = np.flatnonzero((last >= 0) & changed)
        self._edges.append(
            np.stack(
                [
                    target,
                    self._chain[target],
                    position[last[target]],
                    host_chain[last[target]],
                    -self._before(target),
                ]
            )
        )

    def _follow_device(
        self, group: Int64, index: Int64, position: Int64, host_chain: Int64
    ) -> None:
        """Add waits for the device: for the last operation of each stream since the wait before.

        Where one process has several devices the call does not say which; one that still worked
        after the call's return was not waited for.
        """
        waits = self._orders.waits
        mine = np.flatnonzero(waits.stream[index] < 0)
        mine = mine[np.lexsort((waits.start_ns[index[mine]], group[mine]))]
        if not len(mine):
            return
        opens = run_starts(group[mine])
        closes = np.append(opens[1:], len(mine))
        line = _Line(waits.start_ns[index[mine]], opens, closes)
        listed = group[mine[opens]]
        at = np.minimum(np.searchsorted(listed, self._group), len(listed) - 1)
        at, has = at[self._chain], (listed[at] == self._group)[self._chain]
        following = line.first_from(np.where(has, at, -1), self._line.times(self._chain) + 1)
        following = np.where(has & (following < closes[at]), following, -1)
        last = np.ones(len(following), np.bool_)
        last[:-1] = (following[1:] != following[:-1]) | (self._chain[1:] != self._chain[:-1])
        source = np.flatnonzero((following >= 0) & last)
        wait = mine[following[source]]
        over = self._end_of(source) <= waits.end_ns[index[wait]] + START_LATENCY_NS
        source, wait = source[over], wait[over]
        self._add(position[wait], host_chain[wait], source, self._after(source))

    def _end_of(self, position: Int64) -> Int64:
        """Return the end of operations on the trace's clock; -1 for waits."""
        at = self._order[position] - len(self._link)
        row = self._activities.operation[self._batch.rows[np.maximum(at, 0)]]
        return np.where(at >= 0, self._orders.ops.end_ns[row], -1)

    def follow_null_stream(self, context: Int64, is_null: Bool) -> None:
        """Add the rule of the legacy null stream.

        Its work waits for what blocking streams of its context were given before, and theirs for
        what it was given before.
        """
        place = context[self._stream]  # the last one is that of no stream
        rows = np.flatnonzero((place >= 0)[self._chain])
        chain = self._chain[rows]
        null = is_null[self._stream[chain]]
        if not null.any() or null.all():
            return
        unit = self._group[chain] * (int(context.max()) + 1) + place[chain]
        order = np.lexsort((self._line.times(self._chain)[rows], unit))
        rows, unit, null = rows[order], unit[order], null[order]
        nulls = np.flatnonzero(null)
        seen = np.cumsum(null)
        before = np.where(seen > 0, nulls[np.maximum(seen - 1, 0)], -1)
        after = np.where(seen < len(nulls), nulls[np.minimum(seen, len(nulls) - 1)], -1)
        others = np.flatnonzero(~null)
        others = others[np.argsort(rows[others], kind="stable")]
        position = rows[others]
        same = self._chain[position[1:]] == self._chain[position[:-1]]
        same &= seen[others[1:]] == seen[others[:-1]]
        is_first, is_last = np.ones(len(others), np.bool_), np.ones(len(others), np.bool_)
        is_first[1:] = is_last[:-1] = ~same
        for earlier, kept, backwards in ((before, is_first, False), (after, is_last, True)):
            partner = earlier[others]
            good = kept & (partner >= 0) & (unit[np.maximum(partner, 0)] == unit[others])
            mine, theirs = position[good], rows[partner[good]]
            source, target = (mine, theirs) if backwards else (theirs, mine)
            weight = self._after(source) - self._before(target)
            self._add(target, self._chain[target], source, weight)

    def longest(self) -> Int64:
        """Return the longest path of each group, at most its span."""
        edges = np.concatenate(self._edges, axis=1) if self._edges else np.empty((5, 0), np.int64)
        edges = edges[:, np.argsort(edges[0], kind="stable")]
        position, chain, source, source_chain, weight = edges
        count = np.arange(len(position))
        before = np.where(np.diff(chain, prepend=-1) == 0, count - 1, -1)
        # A place of -1, before all points, is that of no chain.
        chain_at = np.append(chain, -1)
        at = np.searchsorted(position, source, side="right") - 1
        told = chain_at[at] == source_chain
        gain = np.append(longest_gains(before, np.where(told, at, -1), weight), 0)
        end = self._closes - 1
        last = np.searchsorted(position, end, side="right") - 1
        has = chain_at[last] == np.arange(len(end))
        finish = self._after(end) + np.where(has, gain[last], 0)
        found = np.zeros(len(self.first), np.int64)
        np.maximum.at(found, self._group, finish)
        return np.minimum(found, self._span)


class _Line:
    """Answers which of the times of a chain come first from a moment on."""

    def __init__(self, time: Int64, opens: Int64, closes: Int64) -> None:
        """Chains lie in `time` one after the other, from `opens` to `closes`."""
        self._earliest = np.minimum.reduceat(time, opens)
        self._latest = np.maximum.reduceat(time, opens)
        axis = Axis.lay_out(self._earliest, self._latest)
        self._shift = axis.shift
        self._places = time + spread(axis.shift, closes - opens)

    def sort(self, rows: Int64) -> Int64:
        """Put the times of each chain, which may fall, into order, and return `rows` likewise."""
        if not (self._places[1:] < self._places[:-1]).any():
            return rows
        order = np.argsort(self._places, kind="stable")
        self._places = self._places.take(order)
        return rows.take(order)

    def times(self, chain: Int32) -> Int64:
        """Return all times, given the chain of each."""
        found: Int64 = self._places - self._shift[chain]
        return found

    def first_from(self, chain: Int64, time: Int64) -> Int64:
        """Return the index of the first time at or after `time`; a chain's end where none is.

        A chain of -1 gives anything.
        """
        at = np.clip(time, self._earliest[chain], self._latest[chain] + 1)
        return np.searchsorted(self._places, at + self._shift[chain])


def longest_gains(before: Int64, other: Int64, weight: Int64) -> Int64:
    """Solve ``gain = max(0, gain[before], weight + gain[other])``, where -1 stands for a gain of 0.

    The points must form no cycle. Each round follows for every point the better of its two
    predecessors as last seen; the sums along these choices are exact when no choice improves.
    """
    count = len(weight)
    gain = np.zeros(count + 1, np.int64)
    before, other = (np.where(each < 0, count, each) for each in (before, other))
    while True:
        direct, through = gain[before], weight + gain[other]
        chosen = through > direct
        if np.array_equal(np.where(chosen, through, direct), gain[:-1]):
            return gain[:-1]
        parent = np.append(np.where(chosen, other, before), count)
        gain = np.append(np.where(chosen, weight, 0), 0)
        while (parent < count).any():
            gain, parent = gain + gain[parent], parent[parent]
