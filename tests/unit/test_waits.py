"""What operations waited for: every reason from a trace written by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpuscope import contention, samples, waits
from gpuscope.model.classes import CODE
from gpuscope.model.trace import SmLimits, Trace
from gpuscope.readers import open_trace
from gpuscope.scopes import Activities
from gpuscope.waits import REASONS, START_LATENCY_NS, Waits, call_name
from tests.make_trace import make_trace
from tests.unit.analyzers.test_causes_program import CALL_NS, GAP_NS, MS, Program


def reasons(trace: Trace) -> list[str]:
    return [REASONS[code] for code in Waits.of(trace).reason.tolist()]


def copied_for_a_kernel() -> Program:
    """A kernel whose stream waits for an event behind a copy in another stream."""
    program = Program()
    program.copy("h2d", 1, MS)
    program.record("copied", 1)
    program.wait_event(2, "copied")
    program.kernel(2, MS)
    return program


def test_a_launch_that_comes_late_is_the_host() -> None:
    program = Program()
    program.kernel(1, 1_000)
    program.host(MS)
    program.kernel(1, 1_000)

    waits = Waits.of(program.trace())

    assert reasons(program.trace()) == ["host", "host"]
    # From the end of the first to the start of the second; nothing is known before the first.
    assert waits.cost_ns.tolist() == [-1, MS + CALL_NS - 1_000]
    assert waits.call_start_ns.tolist() == [0, MS + CALL_NS]


def test_the_operation_before_it_in_the_stream() -> None:
    program = Program()
    program.copy("h2d", 1, MS)
    program.kernel(1, MS)

    waits = Waits.of(program.trace())

    assert reasons(program.trace()) == ["host", "stream"]
    assert waits.stream_op.tolist() == [-1, 0]
    assert waits.stream_ns(np.arange(2)).tolist() == [-1, CALL_NS + GAP_NS + MS]
    # Alone, the kernel could have started when it was launched, at 2 µs.
    assert waits.cost_ns.tolist() == [-1, MS + GAP_NS]


def test_a_copy_engine_that_was_busy() -> None:
    program = Program()
    program.copy("h2d", 1, MS)
    program.copy("h2d", 2, MS)
    program.copy("d2h", 3, MS)

    waits = Waits.of(program.trace())

    assert sorted(reasons(program.trace())) == ["engine", "host", "host"]
    assert waits.engine_op.max() == 0


def test_one_copy_engine_serves_both_directions() -> None:
    program = Program(copy_engines=1)
    program.copy("h2d", 1, MS)
    program.copy("d2h", 2, MS)

    assert reasons(program.trace()) == ["host", "engine"]


def test_an_event_of_another_stream() -> None:
    program = copied_for_a_kernel()
    program.kernel(2, MS)

    trace = program.trace()
    waits = Waits.of(trace)

    assert reasons(trace) == ["host", "event", "stream"]
    assert waits.event_op.tolist() == [-1, 0, 0]
    assert (waits.waits_total, waits.waits_resolved) == (1, 1)


def test_an_event_of_the_own_stream_adds_nothing() -> None:
    program = Program()
    program.copy("h2d", 1, MS)
    program.record("copied", 1)
    program.wait_event(1, "copied")
    program.kernel(1, MS)

    trace = program.trace()
    waits = Waits.of(trace)

    assert reasons(trace) == ["host", "stream"]
    assert (waits.event_op.tolist(), waits.event_ns.tolist()) == ([-1, -1], [-1, -1])


def test_an_event_behind_no_work_is_reached_when_it_is_recorded() -> None:
    program = Program()
    program.kernel(1, MS)
    program.record("nothing", 2)
    recorded_ns = program.now - CALL_NS
    program.wait_event(3, "nothing")
    program.kernel(3, MS)

    waits = Waits.of(program.trace())

    assert waits.event_op.tolist() == [-1, -1]
    assert waits.event_ns.tolist() == [-1, recorded_ns]


@pytest.mark.parametrize("lost", ["launch", "stream"])
def test_a_record_without_its_call_or_stream_tells_of_no_event(lost: str) -> None:
    program = copied_for_a_kernel()
    trace = program.trace()
    assert trace.event_records is not None
    nothing: Any = {lost: np.array([-1], np.int32)}
    records = dataclasses.replace(trace.event_records, **nothing)

    waits = Waits.of(dataclasses.replace(trace, event_records=records))

    assert (waits.waits_total, waits.waits_resolved) == (1, 0)
    assert waits.event_op.tolist() == [-1, -1]


def test_of_what_ended_together_the_stream_is_named() -> None:
    """Neither alone costs anything: the other would have held the operation up as long."""
    program = Program()
    program.copy("h2d", 1, MS)
    program.kernel(2, MS - CALL_NS)  # it is launched, and so begins, a call later
    program.record("copied", 1)
    program.wait_event(2, "copied")
    program.kernel(2, MS)
    trace = program.trace()

    assert reasons(trace) == ["host", "host", "stream"]
    assert Waits.of(trace).event_op[2] == 0
    assert Waits.of(trace).cost_ns[2] == 0


@pytest.mark.parametrize("far", [1, 1 << 30, 1 << 52])
def test_numbers_of_events_may_be_any(far: int) -> None:
    """Each wait finds the record of its own event, however far apart their numbers are."""
    program = Program()
    for stream in (1, 2, 3):
        program.kernel(stream, stream * MS)
        program.record(f"done {stream}", stream)
    for stream in (1, 2, 3):
        program.wait_event(4 + stream, f"done {stream}")
        program.kernel(4 + stream, MS)
    trace = program.trace()
    assert trace.event_records is not None
    assert trace.syncs is not None
    records, syncs = trace.event_records, trace.syncs
    records = dataclasses.replace(
        records, event=records.event * far, event_sync=records.event_sync * far
    )
    syncs = dataclasses.replace(syncs, event=syncs.event * far, event_sync=syncs.event_sync * far)

    found = Waits.of(dataclasses.replace(trace, event_records=records, syncs=syncs))

    assert found.event_op.tolist() == [-1, -1, -1, 0, 1, 2]
    assert (found.waits_total, found.waits_resolved) == (3, 3)


def test_a_wait_without_its_record_is_unknown() -> None:
    program = copied_for_a_kernel()

    trace = dataclasses.replace(program.trace(), event_records=None)
    waits = Waits.of(trace)

    assert reasons(trace) == ["host", "unknown"]
    assert waits.cost_ns.tolist() == [-1, -1]
    assert (waits.waits_total, waits.waits_resolved) == (1, 0)


def test_a_wait_for_the_own_stream_adds_nothing() -> None:
    program = Program()
    program.kernel(1, MS)
    program.record("done", 1)
    program.wait_event(1, "done")
    program.kernel(1, MS)

    assert reasons(program.trace()) == ["host", "stream"]


@pytest.mark.parametrize(
    ("kind", "reason"), [("blocking", "null-stream"), ("non-blocking", "host")]
)
def test_the_null_stream_orders_blocking_streams(kind: str, reason: str) -> None:
    program = Program(stream_kind=kind)
    program.kernel(0, MS)
    program.kernel(1, MS)

    assert reasons(program.trace())[1] == reason


def test_work_of_the_null_stream_waits_for_blocking_streams() -> None:
    program = Program(stream_kind="blocking")
    program.kernel(1, MS)
    program.kernel(0, MS)

    waits = Waits.of(program.trace())

    assert reasons(program.trace()) == ["host", "null-stream"]
    assert waits.null_op.tolist() == [-1, 0]


def sm_program(blocks: int) -> Program:
    program = Program()
    program.kernel(1, MS, blocks=blocks)
    program.host(100_000)
    program.free[2] = MS  # what the model does not know: no room until then
    program.kernel(2, MS, blocks=blocks)
    return program


def test_a_kernel_without_room_waits_for_the_multiprocessors() -> None:
    waits = Waits.of(sm_program(blocks=10_000).trace())

    assert REASONS[waits.reason[1]] == "sm"
    assert waits.cost_ns[1] == MS + GAP_NS - (2 * CALL_NS + 100_000)


def test_with_room_left_the_reason_is_unknown() -> None:
    assert reasons(sm_program(blocks=10).trace())[1] == "unknown"


def test_a_kernel_that_filled_the_gpu_long_before_explains_nothing() -> None:
    program = Program()
    program.kernel(1, MS, blocks=10_000)
    program.wait()
    program.host(MS)
    program.free[2] = program.now + MS  # nothing tells why
    program.kernel(2, MS, blocks=10_000)

    assert reasons(program.trace()) == ["host", "unknown"]


def test_a_small_multiprocessor_is_full_sooner() -> None:
    """Blocks of 1024 threads: two fit at most anywhere, one where 1536 threads do."""
    trace = sm_program(blocks=200).trace()
    small = tuple(
        dataclasses.replace(device, sm_limits=SmLimits(threads=1536)) for device in trace.devices
    )

    assert reasons(trace)[1] == "unknown"
    assert reasons(dataclasses.replace(trace, devices=small))[1] == "sm"


def beside(blocks: int, *, cooperative: bool = True, others: tuple[int, ...] = (132,)) -> str:
    """Return what 512 threads times `blocks` waited for beside blocks of 1024, one an SM or so."""
    program = Program()
    for stream, grid in enumerate(others, 3):
        program.kernel(stream, MS, blocks=grid)
    program.host(100_000)
    program.free[2] = max(program.free.values())  # what the model does not know: no room until then
    program.comm(2, MS, blocks, cooperative)
    return reasons(program.trace())[-1]


def test_all_blocks_of_a_cooperative_kernel_need_room_at_once() -> None:
    """132 multiprocessors of 2048 threads: beside 132 blocks of 1024 there are 264 of 512."""
    assert beside(265) == "sm"
    assert beside(264) == "unknown"
    assert beside(265, cooperative=False) == "unknown"
    assert beside(133, others=(132, 66)) == "sm"
    assert beside(132, others=(132, 66)) == "unknown"
    assert beside(1, others=(10_000,)) == "sm"


def test_cooperative_kernels_take_their_own_room() -> None:
    program = Program()
    program.comm(1, MS, 300, cooperative=True)
    program.host(100_000)
    program.free[2] = program.free[1]
    program.comm(2, MS, 229, cooperative=True)
    fitting = Program()
    fitting.comm(1, MS, 300, cooperative=True)
    fitting.host(100_000)
    fitting.free[2] = fitting.free[1]
    fitting.comm(2, MS, 228, cooperative=True)

    assert reasons(program.trace()) == ["host", "sm"]
    assert reasons(fitting.trace()) == ["host", "unknown"]


def test_of_kernels_one_right_after_the_other_only_one_takes_room() -> None:
    program = Program()
    program.kernel(3, MS, blocks=132)
    ended_ns = program.free[3]
    program.free[4] = ended_ns - GAP_NS
    program.kernel(4, MS, blocks=132)  # begins as the other ends
    program.now = ended_ns - 15_000 - CALL_NS
    program.free[2] = ended_ns + 10_000 - GAP_NS
    program.comm(2, MS, 264, cooperative=True)

    assert reasons(program.trace()) == ["host", "unknown", "unknown"]


def test_how_many_multiprocessors_there_are_may_be_unknown() -> None:
    program = Program()
    program.kernel(1, MS, blocks=132)
    program.host(100_000)
    program.free[2] = program.free[1]
    program.comm(2, MS, 265, cooperative=True)
    trace = program.trace()
    unknown = tuple(dataclasses.replace(device, sm_count=None) for device in trace.devices)

    assert reasons(trace)[1] == "sm"
    assert reasons(dataclasses.replace(trace, devices=unknown))[1] == "unknown"


def test_a_kernel_that_starts_before_the_one_before_it_has_ended_is_chained_to_it() -> None:
    """As programmatic dependent launch lets it: no copy does so, nor another stream's kernel."""
    early = {"launch": 10}
    trace = make_trace(kernels=[(0, 100_000, "s1"), (50_000, 200_000, "s1", early)])
    copied = make_trace(kernels=[(0, 100_000, "s1")], h2d=[(50_000, 90_000, "s1", early)])
    behind = make_trace(h2d=[(0, 100_000, "s1")], kernels=[(50_000, 90_000, "s1", early)])
    beside = make_trace(kernels=[(0, 100_000, "s1"), (50_000, 200_000, "s2", early)])

    assert reasons(trace) == ["host", "stream"]
    assert Waits.of(trace).cost_ns.tolist()[1] == -1
    assert reasons(copied) == reasons(behind) == reasons(beside) == ["host", "unknown"]


def test_a_late_launch_holds_up_a_chained_kernel_too() -> None:
    trace = make_trace(kernels=[(0, 100_000, "s1"), (50_000, 200_000, "s1", {"launch": 45_000})])

    assert reasons(trace) == ["host", "host"]


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6])
def test_which_kernels_found_no_room_does_not_depend_on_how_the_rows_are_cut(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program()
    for _ in range(5):
        program.copy("h2d", 3, 1_000)
        program.kernel(1, MS, blocks=10_000)
        program.host(100_000)
        program.free[2] = program.free[1]  # what the model does not know: no room until then
        program.kernel(2, MS)
        program.wait()
    trace = program.trace()
    monkeypatch.setattr(waits, "BLOCK_ROWS", rows)

    assert reasons(trace) == ["host", "host", "sm"] * 5


def test_an_operation_whose_call_was_lost_has_none() -> None:
    trace = make_trace(kernels=[(0, 10, "s1"), (90_000, 90_010, "s2")])
    assert trace.operations is not None
    lost = dataclasses.replace(trace.operations, launch=np.array([0, -1], np.int32))

    found = Waits.of(dataclasses.replace(trace, operations=lost))

    assert found.call_start_ns.tolist() == [0, -1]
    assert found.call_end_ns.tolist() == [0, -1]


def test_what_is_in_no_stream_has_none_before_it() -> None:
    trace = make_trace(kernels=[(0, 10, "s1"), (20, 30, "s1")], uvm=[(5, 6, "s1"), (25, 26, "s1")])
    assert trace.operations is not None
    is_uvm = trace.operations.op_class == CODE["uvm"]
    stream = np.where(is_uvm, -1, trace.operations.stream).astype(np.int32)
    operations = dataclasses.replace(trace.operations, stream=stream)

    found = Waits.of(dataclasses.replace(trace, operations=operations))

    assert found.stream_op.tolist() == [-1, -1, 0, -1]
    assert found.engine_op.tolist() == [-1] * 4


def test_nodes_of_a_graph_are_not_explained_by_streams() -> None:
    node = {"launch": 0, "graph_node": 5}
    trace = make_trace(kernels=[(0, MS, "s1", node), (MS + 10, 2 * MS, "s1", node)])

    assert reasons(trace) == ["host", "unknown"]


def test_without_api_calls_only_the_gpu_is_known() -> None:
    trace = make_trace(
        kernels=[(0, MS, "s1"), (MS + 10, 2 * MS, "s1"), (9 * MS, 10 * MS, "s2")], launched=False
    )

    assert reasons(trace) == ["unknown", "stream", "unknown"]
    assert Waits.of(trace).cost_ns.tolist() == [-1, -1, -1]


def test_a_trace_without_operations() -> None:
    waits = Waits.of(dataclasses.replace(make_trace(), operations=None))

    assert len(waits.reason) == 0


def slow_reasons(trace: Trace) -> list[tuple[int, int]]:
    """(predecessor, engine predecessor), one operation after the other."""
    ops = trace.operations
    assert ops is not None
    stream, op_class, end = ops.stream.tolist(), ops.op_class.tolist(), ops.end_ns.tolist()
    found = []
    for i in range(len(ops)):
        in_stream = [j for j in range(i) if stream[j] == stream[i]]
        on_engine = [j for j in range(i) if op_class[j] == op_class[i] != CODE["kernel"]]
        found.append(
            (
                max(in_stream, key=lambda j: (end[j], j), default=-1),
                max(on_engine, key=lambda j: (end[j], j), default=-1),
            )
        )
    return found


def test_predecessors_against_a_plain_loop() -> None:
    random = np.random.default_rng(3)
    rows: dict[str, Any] = {"kernels": [], "h2d": [], "d2h": []}
    for start in range(0, 300):
        kind = list(rows)[random.integers(3)]
        rows[kind].append((start, start + int(random.integers(1, 60)), f"s{random.integers(5)}"))
    trace = make_trace(**rows)

    waits = Waits.of(trace)

    found = list(zip(waits.stream_op.tolist(), waits.engine_op.tolist(), strict=True))
    assert found == slow_reasons(trace)


def test_an_operation_starts_after_all_it_waited_for_on_real_traces() -> None:
    for name in samples.names():
        trace = open_trace(samples.path(name))
        waits = Waits.of(trace)
        ops = trace.operations
        assert ops is not None
        code = {reason: number for number, reason in enumerate(REASONS)}
        by_stream = np.flatnonzero(waits.reason == code["stream"])
        late = ops.start_ns[by_stream] - waits.stream_ns(by_stream)
        chained = by_stream[late < 0]
        assert len(chained) == (39 if name == "dependent_launch" else 0), name
        assert (waits.cost_ns[chained] == -1).all(), name
        assert (late <= START_LATENCY_NS).all(), name
        assert (waits.cost_ns >= -1).all(), name


def test_reasons_of_the_shipped_traces() -> None:
    def share(name: str, op_class: str, *wanted: str) -> float:
        trace = open_trace(samples.path(name))
        assert trace.operations is not None
        mine = Waits.of(trace).reason[trace.operations.op_class == CODE[op_class]]
        return float(np.mean([REASONS[code] in wanted for code in mine.tolist()]))

    assert share("default", "h2d", "stream") == 21 / 24
    assert share("pinned", "h2d", "engine") == 21 / 24
    assert share("sync", "h2d", "host") == 1.0
    assert share("pageable", "h2d", "host") == 1.0
    assert share("kbound", "kernel", "sm", "stream") == 1.0
    # 21 of 24 follow their cudaMalloc, which no wait explains.
    assert share("malloc", "h2d", "unknown") == 21 / 24


def test_the_name_of_a_call() -> None:
    assert call_name("cudaMemcpyAsync_ptsz_v7000") == "cudaMemcpyAsync"


def test_kinds_of_operations_are_the_same_however_the_rows_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = open_trace(samples.path("training"))
    activities = Activities.of(trace)
    whole = contention.Kinds(trace, activities)
    monkeypatch.setattr(contention, "BLOCK_ROWS", 7)
    cut = contention.Kinds(trace, activities)
    assert cut.columns == whole.columns
    assert cut.count > 10
    np.testing.assert_array_equal(cut.of_operation, whole.of_operation)


def test_a_node_of_a_graph_may_wait_for_an_edge_instead_of_room() -> None:
    program = Program()
    program.kernel(1, 2 * MS, blocks=10_000)
    program.free[2] = program.free[1]
    program.kernel(2, MS)
    trace = program.trace()
    assert trace.operations is not None
    node = dataclasses.replace(trace.operations, graph_node=np.array([-1, 7]))

    assert reasons(trace) == ["host", "sm"]
    assert reasons(dataclasses.replace(trace, operations=node)) == ["host", "unknown"]


@pytest.mark.parametrize("name", ["event_dependency", "gpu_full", "null_stream_work", "p2p"])
@pytest.mark.parametrize("rows", [1, 7])
def test_what_operations_waited_for_is_the_same_however_the_rows_are_cut(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = open_trace(samples.path(name))
    whole = Waits.of(trace)
    monkeypatch.setattr(waits, "BLOCK_ROWS", rows)
    cut = Waits.of(trace)
    for field in dataclasses.fields(Waits):
        np.testing.assert_array_equal(
            getattr(cut, field.name), getattr(whole, field.name), err_msg=field.name
        )
