"""Why every operation started when it did, and where the time before it went.

An operation starts when its launch has reached the GPU, the operation before it in its stream has
ended, every event its stream waits for is reached, and its engine is free. :class:`Waits` finds
when each of these came true, and hence which one was last: the *reason*. ::

    launch call     ├──┤                    ready: the predecessor ended last,
    predecessor  ├──────────┤               so the reason is `stream`; the cost is
    event             ├──┤  ·               what it held the operation up beyond
    operation               ├──────┤        the launch and the event

A kernel that starts before the kernel before it in its stream has ended, as programmatic dependent
launch lets it, is one link of a chain with it: the reason is `stream` too, and nothing tells what
it cost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import (
    BLOCK_ROWS,
    EXACT_FLOAT,
    distinct,
    number_rows,
    order_by,
    run_starts,
    running_max,
    stable_order,
    union,
)
from gpuscope.model.classes import CLASSES, CODE, KERNEL_CODES
from gpuscope.model.tables import KernelConfigs, Operations, in_classes
from gpuscope.model.trace import BLOCKING, NULL_STREAM, Device, Stream, Trace

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

START_LATENCY_NS = 20_000
"""An operation starts within this time after the last thing it waited for: on an H200 2 to 13 µs
pass between two operations of one stream, and 1 to 3 µs after the return of a launch."""
REASONS = ("host", "stream", "event", "null-stream", "engine", "sm", "unknown")
"""What an operation can have waited for last; the position is the code in `Waits.reason`."""
REASON = {name: code for code, name in enumerate(REASONS)}
_REASON_OF_TIME = np.array(
    [REASON[name] for name in ("stream", "event", "null-stream", "engine")], np.uint8
)
_ENGINE = 3
"""Position of the engine among these."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What every operation of a trace waited for: arrays of shape (operations,).

    Times are on the trace's clock, -1 where there is nothing to wait for or nothing is known.
    """

    call_start_ns: Int64
    """Start of the launching call: the operation never starts before."""
    call_end_ns: Int64
    stream_op: Int32
    """The operation before it in its stream: index into Trace.operations."""
    event_op: Int32
    """The operation behind the last event its stream waited for; -1 also for an event that was
    reached at once."""
    event_ns: Int64
    null_op: Int32
    """The operation that the rule of the legacy null stream makes it wait for."""
    null_ns: Int64
    engine_op: Int32
    """The copy before it on its copy engine."""
    ready_ns: Int64
    """When the GPU could have begun it: the last of stream, event, null stream and engine."""
    turn_ns: Int64
    """End of everything of its class that began before it on its device."""
    reason: UInt8
    """Code of the last thing it waited for, see REASONS."""
    cost_ns: Int64
    """How much earlier it could have started without that alone; -1 where that is unknown."""
    waits_total: int
    """Stream waits for events in the trace."""
    waits_resolved: int
    """Those whose event record is in the trace too."""
    end_ns: Int64
    """End of the operations themselves."""

    def stream_ns(self, rows: Int64) -> Int64:
        """Return when the operation before each of `rows` in its stream ended."""
        return self._end_of(self.stream_op[rows])

    def engine_ns(self, rows: Int64) -> Int64:
        """Return when the copy before each of `rows` on its copy engine ended."""
        return self._end_of(self.engine_op[rows])

    def _end_of(self, operation: Int32) -> Int64:
        return np.where(operation >= 0, self.end_ns[operation], -1)

    @classmethod
    def of(cls, trace: Trace) -> Waits:
        """Find what every operation of `trace` waited for."""
        ops = trace.operations or Operations.empty()
        count = len(ops)
        call_start, call_end = _launch_times(trace, ops)
        null_op, null_ns = _null_times(trace, ops, call_start)
        events = _Events(trace, ops, call_start)
        room = _Room(trace, ops)
        streams, engines = _Before(len(trace.streams)), _Engines(trace)
        turns = _Before(len(trace.devices) * len(CLASSES))
        stream_op, engine_op = np.empty(count, np.int32), np.empty(count, np.int32)
        all_ready, turn_ns = np.empty(count, np.int64), np.empty(count, np.int64)
        all_reasons, all_costs = np.empty(count, np.uint8), np.empty(count, np.int64)
        for begin in range(0, count, BLOCK_ROWS):
            part = slice(begin, begin + BLOCK_ROWS)
            block, start = ops.take(part), ops.start_ns[part]
            stream_op[part], stream_ns = streams.follow(block.stream, block.end_ns)
            engine_op[part], engine_ns = engines.follow(block)
            lane = block.device * np.int32(len(CLASSES)) + block.op_class
            _, turn_ns[part] = turns.follow(lane, block.end_ns)
            events.drop_own(part, block.stream, stream_op[part], ops.stream)
            times = (stream_ns, events.time_ns[part], null_ns[part], engine_ns)
            np.maximum(np.maximum(*times[:2]), np.maximum(*times[2:]), out=all_ready[part])

            # The last of these to come true, and the last but one; the first of equals counts.
            called, returned = call_start[part], call_end[part]
            ready, last = np.full(len(start), -1, np.int64), np.zeros(len(start), np.uint8)
            second = called.copy()
            for code, time in enumerate(times):
                # What is over only after the start held nothing up: two operations that overlap.
                time = np.where(time > start, -1, time)
                later = time > ready
                np.maximum(second, np.minimum(time, ready), out=second)
                np.copyto(ready, time, where=later)
                np.copyto(last, code, where=later)

            in_graph = block.graph_node >= 0
            known = called >= 0
            by_gpu = (ready >= 0) & (ready >= called) & (start - ready <= START_LATENCY_NS)
            # Ready before the call returned, started after: the launch came last.
            by_gpu &= (ready >= returned) | (start < returned)
            # Edges of a graph are not in the trace: streams and events say nothing about a node.
            by_gpu &= ~in_graph | (last == _ENGINE)
            by_host = ~by_gpu & known & (start <= returned + START_LATENCY_NS)
            others = ~by_gpu & ~by_host & known & ~in_graph
            by_chain = others & (stream_ns > start) & in_classes(block.op_class, KERNEL_CODES)
            by_chain[by_chain] = in_classes(ops.op_class[stream_op[part][by_chain]], KERNEL_CODES)
            sm_ready = np.maximum(ready, returned)
            by_sm = others & ~by_chain & room.none(part, sm_ready, start)

            reason, cost = all_reasons[part], all_costs[part]
            reason[:] = REASON["unknown"]
            np.copyto(reason, _REASON_OF_TIME[last], where=by_gpu)
            reason[by_host] = REASON["host"]
            reason[by_chain] = REASON["stream"]
            reason[by_sm] = REASON["sm"]
            cost[:] = -1
            np.copyto(cost, ready - second, where=by_gpu & (second >= 0))
            np.copyto(cost, np.maximum(start - ready, 0), where=by_host & (ready >= 0))
            np.copyto(cost, start - sm_ready, where=by_sm)
        return cls(
            call_start_ns=call_start,
            call_end_ns=call_end,
            stream_op=stream_op,
            event_op=events.operation,
            event_ns=events.time_ns,
            null_op=null_op,
            null_ns=null_ns,
            engine_op=engine_op,
            ready_ns=all_ready,
            turn_ns=turn_ns,
            reason=all_reasons,
            cost_ns=all_costs,
            waits_total=events.total,
            waits_resolved=events.resolved,
            end_ns=ops.end_ns,
        )


def _launch_times(trace: Trace, ops: Operations) -> tuple[Int64, Int64]:
    """Return start and end of each operation's launching call, -1 without one."""
    times = np.full((2, len(ops)), -1, np.int64)
    if trace.api:
        none = ops.launch < 0
        for found, time in zip(times, (trace.api.start_ns, trace.api.end_ns), strict=True):
            time.take(ops.launch, out=found, mode="clip")
            found[none] = -1
    return times[0], times[1]


class _Before:
    """Finds the earlier row of equal key that ends last, of rows that come block by block."""

    def __init__(self, keys: int) -> None:
        """Keys are integers below `keys`; a negative key is no key."""
        self._end_ns = np.full(keys + 1, -1, np.int64)
        self._row = np.full(keys + 1, -1, np.int64)
        self._rows = 0

    def follow(self, key: npt.NDArray[Any], end: Int64) -> tuple[Int64, Int64]:
        """Return that row, and its end, of each of the next rows; -1 for none.

        Rows are in order of their starts.
        """
        key = np.maximum(key, -1) + 1
        order = stable_order(key)
        grouped = key.take(order)
        position, reach = running_max(grouped, end.take(order))
        latest = order.take(position) + self._rows
        first = run_starts(grouped)
        earlier, time = np.empty_like(latest), np.empty_like(reach)
        earlier[1:], time[1:] = latest[:-1], reach[:-1]
        earlier[first], time[first] = -1, -1
        # Of the blocks before.
        carried = self._end_ns.take(grouped)
        np.copyto(earlier, self._row.take(grouped), where=carried > time)
        np.maximum(time, carried, out=time)
        last = np.append(first[1:], len(grouped))[: len(first)] - 1
        last = last[(reach[last] >= self._end_ns[grouped[last]]) & (grouped[last] > 0)]
        self._end_ns[grouped[last]], self._row[grouped[last]] = reach[last], latest[last]
        self._rows += len(key)
        found, found_ns = np.empty_like(earlier), np.empty_like(time)
        found[order], found_ns[order] = earlier, time
        none = key == 0
        found[none] = -1
        found_ns[none] = -1
        return found, found_ns


class _Engines:
    """Finds the copy before each copy on its engine: one a direction, a link, or one in all."""

    _LINKS = 64

    def __init__(self, trace: Trace) -> None:
        self._single = np.array([each.copy_engines == 1 for each in trace.devices] or [False])
        self._lanes = 2 + self._LINKS
        self._before = _Before(max(1, len(trace.devices)) * self._lanes)

    def follow(self, block: Operations) -> tuple[Int64, Int64]:
        """Return that copy, and its end, of each of the next operations; -1 for none."""
        h2d, d2h, p2p = (block.op_class == CODE[name] for name in ("h2d", "d2h", "p2p"))
        lane = np.where(d2h & ~self._single[block.device], 1, 0)
        np.copyto(lane, 2 + np.clip(block.dst_device, 0, self._LINKS - 1), where=p2p)
        key = np.where(h2d | d2h | p2p, block.device * self._lanes + lane, -1)
        return self._before.follow(key, block.end_ns)


def _nothing(ops: Operations) -> tuple[Int32, Int64]:
    """Return -1 for the row and the time of every operation, in no memory: not to be written to."""
    return np.broadcast_to(np.int32(-1), len(ops)), np.broadcast_to(np.int64(-1), len(ops))


def null_stream_contexts(streams: Sequence[Stream]) -> tuple[Int64, Bool]:
    """Return, a stream, its context if the legacy null stream's rule concerns it; whether it is it.

    Contexts are numbered; -1 where a stream takes no part. The last row is that of no stream.
    """
    contexts: dict[tuple[int, int, int], int] = {}
    context_of = np.full(len(streams) + 1, -1, np.int64)
    is_null = np.zeros(len(streams) + 1, np.bool_)
    for number, stream in enumerate(streams):
        if stream.kind in (NULL_STREAM, BLOCKING):
            place = (stream.process, stream.device, stream.context)
            context_of[number] = contexts.setdefault(place, len(contexts))
            is_null[number] = stream.kind == NULL_STREAM
    return context_of, is_null


def _null_times(trace: Trace, ops: Operations, call_start: Int64) -> tuple[Int32, Int64]:
    """Apply the rule of the legacy null stream, in the order of the launches.

    Work of the null stream waits for what blocking streams of its context were given before, and
    their work for what the null stream was given before. Streams of unknown kind take no part.
    """
    context_of, is_null = null_stream_contexts(trace.streams)
    rows = np.flatnonzero((context_of[ops.stream] >= 0) & (call_start >= 0))
    null = is_null[ops.stream[rows]]
    if not null.any() or null.all():
        return _nothing(ops)
    found = np.full(len(ops), -1, np.int32)
    time = np.full(len(ops), -1, np.int64)
    rows = rows[order_by(context_of[ops.stream[rows]], call_start[rows])]
    null = is_null[ops.stream[rows]]
    context = context_of[ops.stream[rows]]
    for mine, others in ((null, ~null), (~null, null)):
        position, reach = running_max(context, np.where(others, ops.end_ns[rows], -1))
        told = mine & (reach >= 0)
        found[rows[told]] = rows[position[told]]
        time[rows[told]] = reach[told]
    return found, time


class _Events:
    """When the last event was reached that each operation's stream had been told to wait for."""

    def __init__(self, trace: Trace, ops: Operations, call_start: Int64) -> None:
        self.operation, self.time_ns = _nothing(ops)
        links = event_links(trace, ops, r"cu(da)?StreamWaitEvent")
        self.resolved = len(links.call)
        self.total = self.resolved + len(links.unresolved)
        if trace.api is None or not self.resolved:
            return
        wait_at = trace.api.start_ns[links.call]
        line = _Line(min(int(links.record_ns.min()), int(wait_at.min())))
        # When was the event reached: the end of what its stream had been given before the record.
        launched = np.flatnonzero(call_start >= 0)
        if not len(launched):
            return
        self.operation = np.full(len(ops), -1, np.int32)
        self.time_ns = np.full(len(ops), -1, np.int64)
        launched = launched[order_by(ops.stream[launched], call_start[launched])]
        stream = ops.stream[launched]
        position, reach = running_max(stream, ops.end_ns[launched])
        places = line.place(stream, call_start[launched])
        at = np.searchsorted(places, line.place(links.source, links.record_ns)) - 1
        behind = (at >= 0) & (stream[np.maximum(at, 0)] == links.source)
        reached_ns = np.where(behind, reach[np.maximum(at, 0)], links.record_ns)
        reached_op = np.where(behind, launched[position[np.maximum(at, 0)]], -1)

        # Every later operation of the waiting stream waits for it.
        order = order_by(links.stream, wait_at)
        waiting, asked = links.stream[order], wait_at[order]
        last, time = running_max(waiting, reached_ns[order])
        at = np.searchsorted(line.place(waiting, asked), places) - 1
        told = (at >= 0) & (waiting[np.maximum(at, 0)] == stream)
        self.time_ns[launched[told]] = time[at[told]]
        self.operation[launched[told]] = reached_op[order][last[at[told]]]

    def drop_own(self, part: slice, stream: Int32, predecessor: Int32, streams: Int32) -> None:
        """Forget events behind what a stream itself was given: they add nothing to its order.

        `stream` and `predecessor` are of the operations in `part`, `streams` of all.
        """
        operation = self.operation[part]
        if not operation.flags.writeable:
            return
        own = (operation >= 0) & ((operation == predecessor) | (streams[operation] == stream))
        self.time_ns[part][own] = -1
        operation[own] = -1


@dataclass(frozen=True, slots=True)
class EventLinks:
    """Calls that wait for an event, each with the record of it: arrays alike in shape."""

    call: Int64
    """The waiting call: index into Trace.api."""
    stream: Int64
    """The stream that waits: index into Trace.streams; -1 where the host does."""
    source: Int64
    """The stream that the event was recorded in."""
    record_ns: Int64
    """Start of the recording call: the event stands for what the stream was given before."""
    unresolved: Int64
    """Calls of this kind whose record is not in the trace."""

    def by_time(self, call_start_ns: Int64) -> EventLinks:
        """Return the links in the order of the waiting calls."""
        order = np.argsort(call_start_ns[self.call], kind="stable")
        names = ("call", "stream", "source", "record_ns")
        return replace(self, **{name: getattr(self, name)[order] for name in names})


def event_links(trace: Trace, ops: Operations, call: str) -> EventLinks:
    """Match the waits for events made by calls named `call` (a pattern) with the records."""
    empty = np.empty(0, np.int64)
    if not trace.api:
        return EventLinks(empty, empty, empty, empty, empty)
    is_wait = _named(trace, call)[trace.api.name]
    records, syncs = trace.event_records, trace.syncs
    if not trace.streams or records is None or syncs is None or not is_wait.any():
        return EventLinks(empty, empty, empty, empty, np.flatnonzero(is_wait))
    syncs = syncs.take((syncs.launch >= 0) & (syncs.event >= 0))
    syncs = syncs.take(is_wait[syncs.launch])
    records = records.take((records.launch >= 0) & (records.stream >= 0))
    if not len(records):
        return EventLinks(empty, empty, empty, empty, np.flatnonzero(is_wait))
    streams = streams_with_work(trace, ops)
    record_at = trace.api.start_ns[records.launch]
    wait_at = trace.api.start_ns[syncs.launch]
    record_key, wait_key = _event_keys(trace, records, syncs)
    line = _Line(min(int(record_at.min(initial=0)), int(wait_at.min(initial=0))))
    order = order_by(record_key, record_at)
    keys, times = record_key[order], line.place(record_key[order], record_at[order])
    at = np.searchsorted(times, line.place(wait_key, wait_at)) - 1
    hit = (at >= 0) & (keys[np.maximum(at, 0)] == wait_key)
    waits, found = np.flatnonzero(hit), order[at[hit]]
    waiting = syncs.stream[waits]
    is_wait[syncs.launch[waits]] = False
    return EventLinks(
        call=syncs.launch[waits].astype(np.int64),
        stream=np.where(waiting >= 0, streams[waiting], -1),
        source=streams[records.stream[found]],
        record_ns=record_at[found],
        unresolved=np.flatnonzero(is_wait),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """Places pairs (unit, time) on one line, in lexicographic order."""

    begin_ns: int

    def place(self, unit: npt.NDArray[Any], time_ns: Int64) -> npt.NDArray[np.complex128]:
        """Return numbers that sort by unit, then by time."""
        return unit.astype(np.float64) + 1j * (time_ns - self.begin_ns).astype(np.float64)


def _event_keys(trace: Trace, records: Any, syncs: Any) -> tuple[Int64, Int64]:
    """Give equal (process, context, event, event_sync) of records and waits equal numbers.

    A wait of the host names no stream, and hence no context: it stands for the process's only one.
    """
    places: dict[tuple[int, int], int] = {}
    place_of = np.array(
        [places.setdefault((s.process, s.context), len(places)) for s in trace.streams], np.int64
    )
    only = np.full(len(trace.processes), -1, np.int64)
    for process, _ in places:
        mine = [number for place, number in places.items() if place[0] == process]
        only[process] = mine[0] if len(mine) == 1 else -1
    columns = [
        np.concatenate(
            [
                place_of[records.stream],
                np.where(syncs.stream >= 0, place_of[syncs.stream], only[syncs.process]),
            ]
        ),
        np.concatenate([records.event, syncs.event]),
        np.concatenate([records.event_sync, syncs.event_sync]),
    ]
    key, distinct_keys = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        code = column.astype(np.int64)
        code -= code.min(initial=0)
        width = int(code.max(initial=0)) + 1
        if distinct_keys * width >= EXACT_FLOAT:  # they go into places on a line
            values, code = np.unique(code, return_inverse=True)
            numbers, key = np.unique(key, return_inverse=True)
            distinct_keys, width = len(numbers), len(values)
        key = key * width + code
        distinct_keys *= width
    return key[: len(records)], key[len(records) :]


def streams_with_work(trace: Trace, ops: Operations) -> Int64:
    """Map every stream to the one of equal context and number that has operations.

    Records of events and waits name the device that was current, not the stream's own.
    """
    used = np.zeros(len(trace.streams), np.bool_)
    used[ops.stream[ops.stream >= 0]] = True
    exact: dict[tuple[int, int, int], int] = {}
    loose: dict[tuple[int, int], list[int]] = {}
    for number, stream in enumerate(trace.streams):
        if used[number]:
            exact[(stream.process, stream.context, stream.number)] = number
            loose.setdefault((stream.process, stream.number), []).append(number)
    mapped = np.arange(len(trace.streams))
    for number, stream in enumerate(trace.streams):
        if not used[number]:
            alike = loose.get((stream.process, stream.number), [])
            only = alike[0] if len(alike) == 1 else number
            mapped[number] = exact.get((stream.process, stream.context, stream.number), only)
    return mapped


class _Room:
    """The times during which kernels that fill the GPU leave no room for those of a stream."""

    def __init__(self, trace: Trace, ops: Operations) -> None:
        self._full: list[tuple[Int64, Int64, Int64]] = []
        """Kernels, sorted, and starts and ends of the times in which they have no room."""
        configs = trace.kernel_configs
        if not configs:
            return
        device = ops.device[configs.operation]
        limits = [item.sm_limits for item in trace.devices]
        threads = np.maximum(configs.block_threads, 1).astype(np.int64)
        blocks = np.array([limit.blocks for limit in limits], np.int64)[device]
        for held, taken in (
            ([limit.threads for limit in limits], threads),
            ([limit.registers for limit in limits], configs.registers_per_thread * threads),
            ([limit.shared_bytes for limit in limits], configs.shared_bytes),
        ):
            room = np.array(held, np.int64)[device] // np.maximum(taken, 1)
            np.minimum(blocks, room, out=blocks)
        # Of each stream the part of the GPU it has, and its size; the last entry is of no stream.
        stream = ops.stream[configs.operation]
        parts = [-1 if one.part is None else one.part for one in trace.streams]
        part = np.array([*parts, -1], np.int64)[stream]
        sms = np.array([item.sm_count or 0 for item in trace.devices], np.int64)[device]
        if max(parts, default=-1) >= 0:
            own_sms = np.array([one.part_sm_count or 0 for one in trace.streams] + [0], np.int64)
            sms = np.where(part < 0, sms, own_sms[stream])
        fills = (sms > 0) & (configs.grid_blocks >= sms * np.maximum(blocks, 1))
        wholes = [(number, -1) for number in range(len(trace.devices))]
        made = zip([one.device for one in trace.streams], parts, strict=True)
        for number, own in sorted({*wholes, *made}):
            here = device == number
            # What fills the GPU leaves no room in any part of it.
            filling = configs.operation[fills & here & ((part == own) | (part < 0))]
            if not len(filling):
                continue
            # One after the other, as they follow on each other's last blocks, they fill it as one.
            times = union(ops.start_ns[filling], ops.end_ns[filling] + START_LATENCY_NS)
            self._full.append((configs.operation[here & (part == own)], *times))
        for number in distinct(device[(configs.cooperative > 0) & (part < 0) & (sms > 0)]):
            here = np.flatnonzero((device == number) & (part < 0))
            size = sms[here] * np.maximum(blocks[here], 1)
            self._hold_off(configs.take(here), size, ops, trace.devices[number])

    def _hold_off(
        self, configs: KernelConfigs, size: Int64, ops: Operations, device: Device
    ) -> None:
        """Note when kernels, of which `size` blocks fit at once, leave cooperative ones no room.

        All blocks of such a one must fit beside those that are there. Where threads, registers,
        shared memory or blocks of all together are more than the GPU holds, they surely do not.
        """
        limit, threads = device.sm_limits, configs.block_threads.astype(np.int64)
        holds = (limit.threads, limit.registers, limit.shared_bytes, limit.blocks)
        takes = np.stack(
            [
                threads,
                configs.registers_per_thread * threads,
                configs.shared_bytes,
                np.ones_like(threads),
            ]
        )
        start, end = ops.start_ns[configs.operation], ops.end_ns[configs.operation]
        # At each time the blocks that start are there, and those that end are not: these go first.
        time = np.concatenate([end, start])
        order = np.argsort(time, kind="stable")
        there = takes * np.minimum(configs.grid_blocks, size)
        used = np.cumsum(np.concatenate([-there, there], axis=1)[:, order], axis=1)
        whole = np.array(holds, np.int64)[:, np.newaxis] * (device.sm_count or 0)
        cooperative = np.flatnonzero(configs.cooperative)
        needs = takes[:, cooperative] * configs.grid_blocks[cooperative]
        kind, first = number_rows(list(needs))
        for code, example in enumerate(first.tolist()):
            full = np.any(used + needs[:, [example]] > whole, axis=0)[:-1]
            if not full.any():
                continue
            begin, finish = time[order[:-1]][full], time[order[1:]][full]
            mine = configs.operation[cooperative[kind == code]]
            self._full.append((mine, *union(begin, finish + START_LATENCY_NS)))

    def none(self, part: slice, ready: Int64, start: Int64) -> Bool:
        """Return which operations in `part` had no room from when they were ready to their start.

        `ready` and `start` are those of the part.
        """
        busy = np.zeros(len(ready), np.bool_)
        for operations, begin, end in self._full:
            low, high = np.searchsorted(operations, (part.start, part.stop))
            mine = operations[low:high] - part.start
            at = np.searchsorted(begin, ready[mine] + START_LATENCY_NS, side="right") - 1
            busy[mine] |= (at >= 0) & (end[np.maximum(at, 0)] >= start[mine])
        return busy


_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")


def call_name(name: str) -> str:
    """Return the name of an API call as it is written in a program.

    >>> call_name("cudaMemcpyAsync_v3020")
    'cudaMemcpyAsync'
    """
    return _SUFFIX.sub("", name)


def _named(trace: Trace, pattern: str) -> Bool:
    """Return, an index of Trace.strings, whether the call's name matches."""
    compiled = re.compile(pattern)
    return np.array(
        [compiled.fullmatch(call_name(text)) is not None for text in trace.strings], np.bool_
    )
