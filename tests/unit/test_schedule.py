"""The schedule bound: programs written by hand, and random ones run step by step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuscope import api, samples, schedule
from gpuscope.analysis import Options, chosen, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.model.result import Analysis
from gpuscope.model.tables import ApiCalls, SyncRecords
from gpuscope.model.trace import Trace
from gpuscope.schedule import longest_gains
from tests.unit.analyzers.test_causes_program import Program

US = 1000


class Synced(Program):
    """A program whose waits of the host leave their records."""

    def wait_stream(self, stream: int) -> None:
        self.wait(stream)
        self._sync(stream=self._stream(stream), sync_type=2, event=-1, event_sync=-1)

    def wait_for_event(self, event: str) -> None:
        number, reached = self.events[event]
        self.call("cudaEventSynchronize_v3020", max(reached - self.now, 0) + US)
        self._sync(stream=-1, sync_type=1, event=7, event_sync=number)

    def _sync(self, **row: int) -> None:
        number = len(self.rows[ApiCalls]) - 1
        self._add(SyncRecords, start_ns=self.now, end_ns=self.now, launch=number, **row)


def analyzed(trace: Trace) -> Analysis:
    return run_all(trace, chosen(ANALYZERS, ["schedule"]), Options())


def bound(trace: Trace) -> int | None:
    (device,) = analyzed(trace).devices
    return device.scope.schedule_bound_ns


def test_a_stream_is_an_order_and_two_streams_are_none() -> None:
    program = Synced()
    program.kernel(1, 10 * US)
    program.copy("h2d", 2, 30 * US)
    program.kernel(1, 15 * US)
    assert bound(program.trace()) == 30 * US
    program.kernel(1, 10 * US)
    assert bound(program.trace()) == 35 * US


def test_an_event_is_an_order_also_through_a_stream_without_work() -> None:
    program = Synced()
    program.copy("h2d", 1, 10 * US)
    program.record("a", 1)
    program.wait_event(2, "a")
    program.record("b", 2)
    program.wait_event(3, "b")
    program.kernel(3, 20 * US)
    program.kernel(1, 5 * US)
    assert bound(program.trace()) == 30 * US


def test_what_the_host_waited_for_comes_before_what_it_launched_then() -> None:
    program = Synced()
    program.copy("h2d", 1, 10 * US)
    program.copy("h2d", 3, 70 * US)
    program.wait_stream(1)
    program.kernel(2, 20 * US)
    assert bound(program.trace()) == 70 * US
    program.wait()
    program.kernel(4, 1 * US)
    assert bound(program.trace()) == 71 * US
    program.copy("d2h", 5, 9 * US, blocking=True, name="cudaMemcpy")
    program.kernel(6, 1 * US)
    assert bound(program.trace()) == 80 * US


def test_a_quiet_wait_for_the_device_orders_too() -> None:
    program = Synced()
    program.kernel(1, 10 * US)
    program.drain("cudaFree")
    program.kernel(2, 10 * US)
    assert bound(program.trace()) == 20 * US


def test_the_null_stream_stands_between_blocking_streams() -> None:
    for kind, expected in (("blocking", 30), ("non-blocking", 10)):
        program = Synced(stream_kind=kind)
        program.kernel(1, 10 * US)
        program.kernel(0, 10 * US)
        program.kernel(2, 10 * US)
        assert bound(program.trace()) == expected * US, kind


def test_it_is_null_where_an_order_is_not_known() -> None:
    program = Synced()
    with program.range("before"):
        program.kernel(1, 10 * US)
        program.kernel(2, 10 * US)
    with program.range("with events"):
        program.kernel(1, 10 * US)
        program.record("a", 1)
        program.wait_event(2, "a")
        program.kernel(2, 10 * US)
    trace = dataclasses.replace(program.trace(), event_records=None)
    assert bound(trace) is None
    found = {entry.name: entry.scope.schedule_bound_ns for entry in analyzed(trace).ranges}
    assert found == {"before": 10 * US, "with events": None}
    # A wait for a stream of which there is no record, and one whose record names no stream.
    for recorded in (False, True):
        program = Synced()
        program.kernel(1, 10 * US)
        program.wait(1)
        if recorded:
            program._sync(stream=-1, sync_type=2, event=-1, event_sync=-1)
        program.kernel(2, 10 * US)
        assert bound(program.trace()) is None


def test_nodes_of_a_graph_have_an_order_that_is_not_recorded() -> None:
    program = Synced()
    program.kernel(1, 10 * US)
    trace = program.trace()
    assert trace.operations is not None
    nodes = dataclasses.replace(trace.operations, graph_node=np.array([3]))
    assert bound(dataclasses.replace(trace, operations=nodes)) is None


def test_work_of_no_stream_has_no_order() -> None:
    program = Synced()
    program.kernel(1, 10 * US)
    program.kernel(2, 10 * US)
    trace = program.trace()
    assert trace.operations is not None
    astray = dataclasses.replace(trace.operations, stream=np.array([-1, 0], np.int32))
    assert bound(dataclasses.replace(trace, operations=astray)) is None


def test_without_calls_there_is_no_order() -> None:
    program = Synced()
    program.kernel(1, 10 * US)
    assert bound(dataclasses.replace(program.trace(), api=None)) is None


# Random programs, with the finish of every stream kept step by step

STEP = st.tuples(
    st.sampled_from(
        ["kernel", "kernel", "h2d", "record", "wait event", "stream", "event", "device", "block"]
    ),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(1, 40),
)


class Naive:
    """What must have finished before what, as the program goes."""

    def __init__(self, blocking: bool) -> None:
        self.blocking = blocking
        self.finish: dict[int, int] = {}
        self.host = 0
        self.events: dict[str, int] = {}

    def before(self, stream: int) -> int:
        """Return the head start of what a stream is given next."""
        found = [self.host, self.finish.get(stream, 0)]
        if self.blocking:
            found += [at for other, at in self.finish.items() if (other == 0) != (stream == 0)]
        return max(found)

    def give(self, stream: int, ns: int) -> None:
        self.finish[stream] = self.before(stream) + ns


def play(steps: list[Any], kind: str) -> tuple[Trace, list[int], int]:
    """Run steps, in ranges of three; return the trace, each range's path and the whole one's."""
    program, whole = Synced(stream_kind=kind), Naive(kind == "blocking")
    paths = []
    for begin in range(0, len(steps), 3):
        part = Naive(kind == "blocking")
        with program.range("part"):
            for step in steps[begin : begin + 3]:
                act(program, [whole, part], *step)
        if part.finish:
            paths.append(max(part.finish.values()))
    return program.trace(), paths, max(whole.finish.values(), default=0)


def act(program: Synced, naives: list[Naive], what: str, stream: int, event: int, us: int) -> None:
    ns, name = us * US, f"e{event}"
    if what in ("kernel", "h2d", "block"):
        if what == "kernel":
            program.kernel(stream, ns)
        else:
            blocks = what == "block"
            program.copy("h2d", stream, ns, blocking=blocks, name="cudaMemcpy" if blocks else "x")
        for naive in naives:
            naive.give(stream, ns)
            if what == "block":
                naive.host = max(naive.host, naive.finish[stream])
    elif what == "record":
        program.record(name, stream)
        for naive in naives:
            naive.events[name] = naive.finish.get(stream, 0)
    elif what == "wait event" and name in program.events:
        program.wait_event(stream, name)
        for naive in naives:
            reached = naive.events.get(name, 0)
            if naive.finish or reached:
                naive.finish[stream] = max(naive.before(stream), reached)
    elif what == "stream" and program.free:
        program.wait_stream(stream)
        for naive in naives:
            naive.host = max(naive.host, naive.finish.get(stream, 0))
    elif what == "event" and name in program.events:
        program.wait_for_event(name)
        for naive in naives:
            naive.host = max(naive.host, naive.events.get(name, 0))
    elif what == "device" and program.free:
        program.wait()
        for naive in naives:
            naive.host = max([naive.host, *naive.finish.values()])


@settings(max_examples=300)
@given(st.lists(STEP, max_size=24), st.sampled_from(["blocking", "non-blocking"]))
@example(
    [("kernel", 2, 0, 7), ("record", 0, 0, 1), ("wait event", 0, 0, 1), ("kernel", 1, 0, 1)],
    "blocking",
)
@example(
    [
        *[("kernel", 0, 0, 1)] * 5,
        ("record", 0, 0, 1),
        ("kernel", 2, 0, 1),
        ("wait event", 0, 0, 1),
        ("kernel", 1, 0, 1),
    ],
    "blocking",
)
def test_bounds_equal_the_naive_ones(steps: list[Any], kind: str) -> None:
    trace, paths, whole = play(steps, kind)
    if trace.operations is None or not len(trace.operations):
        return
    analysis = analyzed(trace)
    (device,) = analysis.devices
    assert device.scope.schedule_bound_ns == whole
    assert whole <= device.scope.span_ns
    (entry,) = analysis.ranges
    assert entry.scope.schedule_bound_ns == sum(paths)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(-9, 9)), max_size=40))
def test_gains_equal_those_found_one_after_the_other(rows: list[tuple[int, int, int]]) -> None:
    before = [
        number - 1 - a if number - 1 - a >= 0 else -1 for number, (a, _, _) in enumerate(rows)
    ]
    other = [number - 1 - b if number - 1 - b >= 0 else -1 for number, (_, b, _) in enumerate(rows)]
    expected: list[int] = []
    for a, b, (_, _, weight) in zip(before, other, rows, strict=True):
        above = [expected[k] if k >= 0 else 0 for k in (a, b)]
        expected.append(max(above[0], weight + above[1]))
    weights = np.array([row[2] for row in rows], np.int64)
    found = longest_gains(np.array(before, np.int64), np.array(other, np.int64), weights)
    assert found.tolist() == expected


@pytest.mark.parametrize("name", samples.names())
def test_on_real_traces_it_lies_between_the_busiest_stream_and_the_span(name: str) -> None:
    analysis = api.analyze_trace(
        api.open_trace(samples.path(name)),
        analyzers=chosen(ANALYZERS, ["details", "schedule"]),
    )
    scopes = [device.scope for device in analysis.devices]
    scopes += [entry.scope for entry in analysis.ranges]
    for scope in scopes:
        if scope.schedule_bound_ns is not None:
            busiest = max((stream.busy_ns for stream in scope.streams or ()), default=0)
            assert busiest <= scope.schedule_bound_ns <= scope.span_ns
        assert scope.gaps is not None
        assert scope.gaps.total_ns == scope.idle_ns
        assert max((each.busy_ns for each in scope.engines or ()), default=0) <= scope.busy_ns


@pytest.mark.parametrize("name", ["default", "sync", "malloc", "pageable"])
def test_a_program_that_puts_all_in_line_has_no_shorter_schedule(name: str) -> None:
    (entry,) = [
        each for each in analyzed(api.open_trace(samples.path(name))).ranges if each.name == name
    ]
    assert entry.scope.schedule_bound_ns == entry.scope.serial_ns
    assert entry.scope.bound_ns < 0.7 * entry.scope.serial_ns


def test_work_of_no_stream_tells_nothing_of_the_range_before() -> None:
    program = Synced()
    for name, ns in (("short", 5 * US), ("long", 90 * US)):
        with program.range(name):
            program.kernel(1, ns)
            program.kernel(2, ns)
    trace = program.trace()
    assert trace.operations is not None
    stream = trace.operations.stream.copy()
    stream[2:] = -1
    operations = dataclasses.replace(trace.operations, stream=stream)
    analysis = analyzed(dataclasses.replace(trace, operations=operations))
    bounds = {entry.name: entry.scope.schedule_bound_ns for entry in analysis.ranges}
    assert bounds == {"short": 5 * US, "long": None}


def test_operations_of_a_stream_that_overlap_count_once_from_block_to_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Synced()
    program.kernel(1, 50 * US)
    program.kernel(1, 10 * US)
    program.kernel(1, 20 * US)
    program.kernel(1, 10 * US)
    trace = program.trace()
    assert trace.operations is not None
    start = trace.operations.start_ns.copy()
    length = trace.operations.end_ns - start
    start[1:] = start[0] + np.array([1, 40 * US, 200 * US])
    operations = dataclasses.replace(trace.operations, start_ns=start, end_ns=start + length)
    trace = dataclasses.replace(trace, operations=operations)
    for rows in (1, 2, 3):
        monkeypatch.setattr(schedule, "BLOCK_ROWS", rows)
        (device,) = analyzed(dataclasses.replace(trace)).devices
        assert device.scope.schedule_bound_ns == 70 * US


def test_waits_of_one_thread_order_nothing_that_another_launches() -> None:
    program = Synced()
    program.thread = 1
    with program.range("backward"):
        program.kernel(2, 10 * US)
        program.thread = 0
        with program.range("forward"):
            program.kernel(1, 100 * US)
            program.wait()
            program.kernel(1, 10 * US)
        program.thread = 1
        program.kernel(3, 40 * US)
    analysis = analyzed(program.trace())
    bounds = {entry.name: entry.scope.schedule_bound_ns for entry in analysis.ranges}
    assert bounds == {"backward": 40 * US, "forward": 110 * US}


def test_a_path_is_no_longer_than_the_span_of_what_takes_time() -> None:
    program = Synced()
    program.kernel(1, 30 * US)
    program.call("cudaDeviceSynchronize", 20 * US)  # by the clocks it is over too early
    program.kernel(2, 30 * US)
    program.host(100 * US)
    program.kernel(1, 0)
    (device,) = analyzed(program.trace()).devices
    assert device.scope.schedule_bound_ns == device.scope.span_ns == 52 * US
