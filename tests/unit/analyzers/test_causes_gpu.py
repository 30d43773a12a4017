"""Causes and limits on the GPU's side: each with a program that has it, and its negative twin."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpuscope.analysis import Analyzer, Options, run_all
from gpuscope.analyzers import (
    comm_after_compute,
    comm_skew,
    connections_limit,
    event_dependency,
    gpu_full,
    limits,
    null_stream_work,
    trust,
    uvm_migration,
)
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding
from gpuscope.model.tables import EVICTED, TO_HOST
from gpuscope.model.trace import Process, Trace
from gpuscope.waits import REASON, Waits
from tests.make_trace import make_trace
from tests.unit.analyzers.test_causes_program import GAP_NS, MS, Program, findings, pipeline

GPU = (
    null_stream_work.ANALYZER,
    event_dependency.ANALYZER,
    comm_after_compute.ANALYZER,
    gpu_full.ANALYZER,
    connections_limit.ANALYZER,
    uvm_migration.ANALYZER,
)
WAIT = "nvshmemi_signal_wait_until_on_stream_kernel"


def found_in(trace: Trace, analyzer: Analyzer) -> list[str]:
    return [finding.id for finding in run_all(trace, [analyzer], Options()).findings]


def only(program: Program, expected: str) -> Finding:
    found = findings(program, *GPU)
    assert [finding.id for finding in found] == [expected]
    return found[0]


def test_a_healthy_pipeline() -> None:
    program = Program()
    pipeline(program)

    assert findings(program, *GPU) == []


# null-stream-work


def null_between(kind: str, only_behind: int | None = None) -> Program:
    program = Program(stream_kind=kind)
    with program.range("loop"):
        for chunk in range(8):
            stream = 1 + chunk % 4
            program.copy("h2d", stream, MS)
            program.kernel(stream, MS)
            if only_behind in (None, chunk):
                program.kernel(0, MS // 50, name="touch")
    program.wait()
    return program


def test_null_stream_work_orders_blocking_streams() -> None:
    finding = only(null_between("blocking"), "null-stream-work")

    assert finding.evidence["null_stream_operations"] == 8
    assert finding.saving_ns == pytest.approx(7 * MS, rel=0.05)


def test_null_stream_work_once_in_a_while() -> None:
    assert findings(null_between("blocking", only_behind=3), *GPU) == []


def test_null_stream_work_beside_non_blocking_streams() -> None:
    assert findings(null_between("non-blocking"), *GPU) == []


def test_streams_of_unknown_kind() -> None:
    trace = null_between("blocking").trace()
    unknown = tuple(dataclasses.replace(stream, kind=None) for stream in trace.streams)

    analysis = run_all(
        dataclasses.replace(trace, streams=unknown), [null_stream_work.ANALYZER], Options()
    )

    assert analysis.findings == ()
    assert "which streams are blocking" in analysis.abstained[0].reason


# event-dependency


def with_events(needed: bool, kernel_ns: int = MS) -> Program:
    program = Program()
    with program.range("loop"):
        for chunk in range(8):
            program.copy("h2d", 1, MS)
            program.record(f"copied {chunk}", 1)
            program.wait_event(2, f"copied {chunk}")
            program.kernel(2, kernel_ns)
            program.record(f"computed {chunk}", 2)
            if not needed:
                program.wait_event(1, f"computed {chunk}")
    program.wait()
    return program


def test_events_that_keep_the_next_copy_behind_the_kernel() -> None:
    finding = only(with_events(needed=False), "event-dependency")

    assert finding.evidence["pairs"] == {"h2d behind kernel": 7}
    assert finding.evidence["unresolved_ratio"] == 0.0
    assert finding.saving_ns == pytest.approx(7 * MS, rel=0.02)


def test_work_held_up_for_longer_than_overlap_can_save() -> None:
    finding = only(with_events(needed=False, kernel_ns=4 * MS), "event-dependency")

    assert finding.evidence["held_ns"] == pytest.approx(7 * 4 * MS, rel=0.01)
    # All but the first copy could be hidden, and the gaps between operations.
    assert finding.saving_ns == finding.evidence["limit_ns"]
    assert finding.saving_ns == pytest.approx(7 * MS, rel=0.01)


def test_events_that_only_order_what_must_be() -> None:
    assert findings(with_events(needed=True), *GPU) == []


def test_waits_without_records_abstain() -> None:
    trace = dataclasses.replace(with_events(needed=False).trace(), event_records=None)

    analysis = run_all(trace, [event_dependency.ANALYZER], Options())

    assert analysis.findings == ()
    assert analysis.abstained[0].reason.startswith("none of 16 stream waits")


# comm-after-compute


def training(overlap: bool) -> Program:
    program = Program()
    with program.range("step"):
        for step in range(6):
            program.kernel(1, 2 * MS)
            program.record(f"bucket {step}", 1)
            if overlap:
                program.kernel(1, 2 * MS)
            program.wait_event(2, f"bucket {step}")
            program.comm(2, MS)
            if not overlap:
                program.record(f"reduced {step}", 2)
                program.wait_event(1, f"reduced {step}")
    program.wait()
    return program


def test_messages_that_wait_for_all_compute() -> None:
    found = findings(training(overlap=False), comm_after_compute.ANALYZER)

    (finding,) = found
    assert finding.id == "comm-after-compute"
    assert finding.evidence["count"] == 6
    assert finding.evidence["exposed_ns"] == 6 * MS


@pytest.mark.parametrize(
    ("moving_ns", "exposed_ns"), [(MS * 3 // 4, 6 * MS * 3 // 4), (MS // 4, 0)]
)
def test_messages_that_wait_for_a_late_rank_are_not_behind_compute(
    moving_ns: int, exposed_ns: int
) -> None:
    trace = training(overlap=False).trace()
    assert trace.operations is not None
    times = np.where(trace.operations.op_class == CODE["comm"], moving_ns, -1).astype(np.int64)
    found = run_all(trace, [comm_after_compute.ANALYZER], Options(transfer_ns=times)).findings

    assert [finding.evidence["exposed_ns"] for finding in found] == [exposed_ns] * bool(exposed_ns)
    assert all(finding.evidence["waiting_left_out"] for finding in found)


def test_messages_that_no_other_rank_tells_of_count_whole() -> None:
    trace = training(overlap=False).trace()
    assert trace.operations is not None
    times = np.full(len(trace.operations), -1)
    times[np.flatnonzero(trace.operations.op_class == CODE["comm"])[:3]] = MS
    found = run_all(trace, [comm_after_compute.ANALYZER], Options(transfer_ns=times)).findings

    assert [(f.evidence["count"], f.evidence["exposed_ns"]) for f in found] == [(6, 6 * MS)]


def test_a_third_of_the_messages_behind_compute_is_too_few() -> None:
    program = Program()
    with program.range("step"):
        for _ in range(6):
            program.kernel(1, 2 * MS)
            program.comm(1, MS)
            for _ in range(2):
                program.copy("h2d", 1, 1_000)
                program.comm(1, MS)

    assert findings(program, comm_after_compute.ANALYZER) == []


@pytest.mark.parametrize("event", [True, False])
def test_messages_right_behind_one_that_is_behind_compute(event: bool) -> None:
    program = Program()
    with program.range("step"):
        for step in range(6):
            program.kernel(1, 3 * MS)
            if event:
                program.record(f"backward {step}", 1)
                program.wait_event(2, f"backward {step}")
            for _ in range(3):
                program.comm(2 if event else 1, MS)
            if event:
                program.record(f"reduced {step}", 2)
                program.wait_event(1, f"reduced {step}")

    (found,) = findings(program, comm_after_compute.ANALYZER)

    assert (found.evidence["count"], found.evidence["messages"]) == (18, 18)
    assert found.evidence["exposed_ns"] == 18 * MS
    assert (
        "the compute before them ended, 12 of them behind another that did: 18.0 ms" in found.claim
    )


def test_a_wait_for_a_signal_behind_compute_is_no_message() -> None:
    program = Program()
    with program.range("step"):
        for _ in range(6):
            program.kernel(1, 2 * MS)
            program.comm(1, MS, name=WAIT)

    assert findings(program, comm_after_compute.ANALYZER) == []


def test_one_message_behind_compute_is_no_pattern() -> None:
    program = Program()
    with program.range("step"):
        program.kernel(1, 2 * MS)
        program.comm(1, MS)
        program.host(9 * MS)
        program.kernel(1, 2 * MS)

    assert findings(program, comm_after_compute.ANALYZER) == []


def test_messages_mostly_under_compute() -> None:
    program = Program()
    with program.range("step"):
        for step in range(6):
            program.kernel(1, MS)
            program.record(f"bucket {step}", 1)
            program.kernel(1, MS * 7 // 10)
            program.wait_event(2, f"bucket {step}")
            program.comm(2, MS)
            program.record(f"reduced {step}", 2)
            program.wait_event(1, f"reduced {step}")

    assert findings(program, comm_after_compute.ANALYZER) == []


def test_messages_behind_copies_are_not_behind_compute() -> None:
    program = Program()
    with program.range("step"):
        for _ in range(6):
            program.copy("h2d", 2, MS)
            program.comm(2, MS)
            program.free[1] = program.free[2]
            program.kernel(1, MS)
            program.free[2] = program.free[1]

    assert findings(program, comm_after_compute.ANALYZER) == []


def test_messages_under_compute() -> None:
    assert findings(training(overlap=True), comm_after_compute.ANALYZER) == []


# comm-skew


def skewed(transfer_ns: int | None, under_compute: bool) -> list[tuple[str, str]]:
    program = Program()
    with program.range("step"):
        for _ in range(5):
            program.kernel(1, 2 * MS if under_compute else 1_000)
            program.comm(2, MS)
            program.wait()
    trace = program.trace()
    assert trace.operations is not None
    times = None
    if transfer_ns is not None:
        is_comm = trace.operations.op_class == CODE["comm"]
        times = np.where(is_comm, transfer_ns, -1).astype(np.int64)
    analysis = run_all(trace, [comm_skew.ANALYZER], Options(transfer_ns=times))
    assert len(analysis.abstained) == (transfer_ns is None)
    return [(finding.id, finding.severity) for finding in analysis.findings]


def test_messages_that_wait_for_another_rank() -> None:
    assert skewed(MS // 10, under_compute=False) == [("comm-skew", "warning")]
    assert skewed(MS // 10, under_compute=True) == [("comm-skew", "info")]


def test_what_is_not_matched_or_runs_on_another_gpu_says_nothing_of_waiting() -> None:
    trace = make_trace(
        devices=2,
        comm=[(0, 100, "s1"), (200, 300, "s1")],
        kernels=[(0, 500, "s1", {"device": 1})],
    )
    assert trace.operations is not None
    times = np.full(3, -1)
    times[np.flatnonzero(trace.operations.op_class == CODE["comm"])[0]] = 10

    (finding,) = run_all(trace, [comm_skew.ANALYZER], Options(transfer_ns=times)).findings

    assert (finding.evidence["count"], finding.evidence["wait_ns"]) == (1, 90)
    assert finding.evidence["exposed_wait_ns"] == 90


def test_messages_that_hardly_wait_or_cannot_be_matched() -> None:
    assert skewed(MS * 9 // 10, under_compute=False) == []
    assert skewed(None, under_compute=False) == []


# gpu-full


def crowded(blocks: int, waits: int) -> Program:
    program = Program()
    with program.range("step"):
        for step in range(6):
            program.kernel(1, 2 * MS, blocks=blocks)
            if step < waits:
                program.free[2] = program.free[1]  # what the model does not know: no room
            program.comm(2, MS)
            program.host(3 * MS)
    return program


def test_one_message_that_finds_no_room_is_no_pattern() -> None:
    assert findings(crowded(blocks=10_000, waits=1), gpu_full.ANALYZER) == []
    assert len(findings(crowded(blocks=10_000, waits=2), gpu_full.ANALYZER)) == 1


def test_messages_that_find_no_room() -> None:
    finding = only(crowded(blocks=10_000, waits=6), "gpu-full")

    assert finding.evidence["count"] == 6
    assert finding.evidence["held_ns"] == pytest.approx(6 * 2 * MS, rel=0.01)


def in_parts(program: Program, parts: dict[int, tuple[int, int | None]]) -> Trace:
    """Put streams into green contexts: of each stream its number, and its multiprocessors."""
    trace = program.trace()
    nowhere = (None, None)
    streams = tuple(
        dataclasses.replace(stream, part=part, part_sm_count=sms)
        for stream in trace.streams
        for part, sms in (parts.get(stream.number, nowhere),)
    )
    return dataclasses.replace(trace, streams=streams)


@pytest.mark.parametrize(
    ("blocks", "parts", "found"),
    [
        (64, {1: (2, 16), 2: (2, 16)}, True),  # two blocks of 1024 threads for each of 16
        (31, {1: (2, 16), 2: (2, 16)}, False),
        (64, {1: (2, 16), 2: (3, 116)}, False),  # the message has room of its own
        (64, {1: (2, 16)}, False),  # and so has one that may use all of the GPU
        (10_000, {2: (3, 116)}, True),  # what fills the GPU fills every part of it
        (64, {1: (2, None), 2: (2, None)}, False),
    ],
)
def test_messages_in_green_contexts(
    blocks: int, parts: dict[int, tuple[int, int | None]], found: bool
) -> None:
    trace = in_parts(crowded(blocks, waits=6), parts)

    analysis = run_all(trace, [gpu_full.ANALYZER], Options())

    assert [finding.id for finding in analysis.findings] == ["gpu-full"] * found
    known = parts.get(2) != (2, None)
    assert [a.analyzer for a in analysis.abstained] == ["gpu-full"] * (not known)


def test_a_share_of_the_gpu_that_nobody_recorded() -> None:
    program = crowded(10, waits=6)
    program.environment = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}

    analysis = run_all(program.trace(), [gpu_full.ANALYZER], Options())

    (abstention,) = analysis.abstained
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is set" in abstention.reason
    own = dataclasses.replace(program.trace(), format="cupti-sqlite")  # the share is what it holds
    assert run_all(own, [gpu_full.ANALYZER], Options()).abstained == ()


def test_messages_beside_small_kernels() -> None:
    assert findings(crowded(blocks=10, waits=6), gpu_full.ANALYZER) == []


def test_messages_that_find_room() -> None:
    assert findings(crowded(blocks=10_000, waits=0), gpu_full.ANALYZER) == []


def test_compute_behind_compute_is_no_loss() -> None:
    program = Program()
    for _ in range(8):
        program.kernel(1, MS, blocks=10_000)
        program.free[2] = program.free[1]
        program.kernel(2, MS, blocks=10_000)

    assert findings(program, *GPU) == []


def test_without_launch_configurations_it_abstains() -> None:
    trace = dataclasses.replace(crowded(10, waits=6).trace(), kernel_configs=None)

    analysis = run_all(trace, [gpu_full.ANALYZER], Options())

    assert "launch configurations" in analysis.abstained[0].reason


# connections-limit


def shared_queue(limit: str | None) -> Program:
    environment = {} if limit is None else {"CUDA_DEVICE_MAX_CONNECTIONS": limit}
    program = Program(environment=environment)
    with program.range("loop"):
        for _ in range(6):
            program.copy("h2d", 1, MS)
            program.kernel(1, MS)
            # In the same queue: it starts behind the kernel, which waits for its copy.
            program.free[2] = program.free[1] - MS
            program.free["d2h"] = program.free[2]
            program.host(100_000)
            program.free[3] = max(program.free.get(3, 0), program.free[2])
            program.kernel(3, MS // 2)
    program.wait()
    return program


def test_kernels_that_find_no_room_share_no_queue() -> None:
    program = Program(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    with program.range("loop"):
        for _ in range(6):
            program.kernel(1, 2 * MS, blocks=10_000)
            for stream in (2, 3):  # both begin when the multiprocessors are free
                program.free[stream] = program.free[1]
                program.kernel(stream, MS)
            program.copy("h2d", 3, MS)
            program.wait()

    assert Waits.of(program.trace()).reason.tolist().count(REASON["sm"]) == 12
    assert "connections-limit" not in [finding.id for finding in findings(program, *GPU)]


def test_streams_in_one_queue() -> None:
    finding = only(shared_queue("1"), "connections-limit")

    assert (finding.evidence["limit"], finding.evidence["streams"]) == (1, 2)
    assert finding.evidence["count"] >= 3


@pytest.mark.parametrize("limit", [None, "8"])
def test_enough_queues_or_an_unknown_number(limit: str | None) -> None:
    assert findings(shared_queue(limit), *GPU) == []


# uvm-migration


def migrating(ns: int) -> Trace:
    return make_trace(kernels=[(0, MS, "s1")], uvm=[(MS // 2, MS // 2 + ns, "s1")])


def migration(trace: Trace) -> Finding:
    (finding,) = run_all(trace, GPU, Options()).findings
    assert finding.id == "uvm-migration"
    return finding


def test_kernels_wait_for_pages_that_come_to_their_gpu() -> None:
    moved = [
        (MS // 2, MS, "s1", {"bytes": 1000}),
        (MS, 2 * MS, "s1", {"bytes": 4000}),
    ]
    finding = migration(make_trace(kernels=[(0, MS, "s1")], uvm=moved))

    assert finding.claim == (
        "migrations of unified memory: 2 to the GPU move 5.00 kB in 1.50 ms, 500 µs of it while "
        "kernels run, which wait for them"
    )
    assert finding.evidence["to_device"] == {
        "count": 2,
        "bytes": 5000,
        "ns": MS + MS // 2,
        "under_kernels_ns": MS // 2,
    }
    assert finding.evidence["to_host"]["count"] == finding.evidence["evicted"]["count"] == 0
    assert "before the kernel" in finding.advice
    assert "cudaCpuDeviceId" not in finding.advice


def test_pages_go_to_the_host_when_the_cpu_touches_them() -> None:
    """Also while a kernel runs: it does not wait for them."""
    moved = [(MS // 2, 2 * MS, "s1", {"bytes": 1000, "flags": TO_HOST})]
    finding = migration(make_trace(kernels=[(0, MS, "s1")], uvm=moved))

    assert finding.claim == (
        "migrations of unified memory: 1 to the host, as pages go that the CPU touches, move "
        "1.00 kB in 1.50 ms"
    )
    assert finding.evidence["to_host"]["under_kernels_ns"] == MS // 2
    assert "(cudaMemLocationTypeHost, before CUDA 13 cudaCpuDeviceId)" in finding.advice
    assert "before the kernel" not in finding.advice


def test_pages_are_evicted_where_the_memory_is_full() -> None:
    moved = [
        (0, MS, "s1", {"bytes": 1000}),
        (0, MS, "s1", {"bytes": 2000, "flags": TO_HOST | EVICTED}),
    ]
    finding = migration(make_trace(kernels=[(0, MS, "s1")], uvm=moved))

    assert finding.claim == (
        "migrations of unified memory: 1 to the GPU move 1.00 kB in 1.00 ms, 1.00 ms of it while "
        "kernels run, which wait for them; 1 evict 2.00 kB in 1.00 ms from a GPU whose memory is "
        "full"
    )
    assert finding.evidence["migration_ns"] == MS
    assert finding.evidence["evicted"]["bytes"] == 2000
    assert finding.evidence["to_host"]["count"] == 0
    assert "parts of the data that fit" in finding.advice


def test_kernels_of_another_gpu_wait_for_no_pages() -> None:
    elsewhere = [(0, 5 * MS, "s1", {"device": 1})]
    trace = make_trace(devices=2, kernels=elsewhere, uvm=[(0, MS, "s1", {"bytes": 1000})])

    assert migration(trace).evidence["to_device"]["under_kernels_ns"] == 0


def test_migrations_too_short_to_matter() -> None:
    assert run_all(migrating(1_000), GPU, Options()).findings == ()


# limits


def limits_of(program: Program) -> list[str]:
    return [finding.id for finding in findings(program, limits.ANALYZER)]


def test_one_copy_engine_is_told_where_both_directions_matter() -> None:
    single, double = Program(copy_engines=1), Program(copy_engines=2)
    one_way = Program(copy_engines=1)
    pipeline(single)
    pipeline(double)
    for _ in range(8):
        one_way.copy("h2d", 1, MS)
        one_way.kernel(2, MS)

    assert "one-engine" in limits_of(single)
    assert "one-engine" not in limits_of(double)
    assert "one-engine" not in limits_of(one_way)


def test_a_saturated_engine() -> None:
    program = Program()
    for _ in range(8):
        program.copy("h2d", 1, MS)
        program.kernel(2, MS // 4)

    (finding,) = findings(program, limits.ANALYZER)
    assert finding.id == "engine-saturated"
    assert finding.severity == "info"
    assert finding.evidence["engine"] == "h2d"


def limits_of_messages(
    transfer_ns: int | None, unmatched: int = 0, kernel_ns: int = MS // 4
) -> list[Finding]:
    program = Program()
    for _ in range(8):
        program.comm(1, MS)
        program.kernel(2, kernel_ns)
    trace = program.trace()
    assert trace.operations is not None
    times = None
    if transfer_ns is not None:
        is_comm = trace.operations.op_class == CODE["comm"]
        times = np.where(is_comm, transfer_ns, -1).astype(np.int64)
        times[np.flatnonzero(is_comm)[:unmatched]] = -1
    return list(run_all(trace, [limits.ANALYZER], Options(transfer_ns=times)).findings)


def test_messages_that_wait_for_another_rank_saturate_no_engine() -> None:
    assert limits_of_messages(MS // 4) == []


@pytest.mark.parametrize(("transfer_ns", "unmatched"), [(None, 0), (MS, 1)])
def test_messages_that_may_wait_saturate_an_engine_with_a_reserve(
    transfer_ns: int | None, unmatched: int
) -> None:
    (finding,) = limits_of_messages(transfer_ns, unmatched)

    assert finding.evidence["engine"] == "comm"
    assert "unless they wait for late peers" in finding.claim


def test_messages_that_move_data_all_the_time_saturate_an_engine() -> None:
    (finding,) = limits_of_messages(MS * 97 // 100)

    assert finding.claim.startswith("communication kernels move data")
    assert "wait" not in finding.claim
    assert finding.evidence["bound_ns"] == 8 * (MS * 97 // 100)


def test_messages_at_the_same_time_are_one_busy_engine() -> None:
    program = Program()
    for _ in range(8):
        program.comm(1, MS)
        program.comm(3, MS)
        program.kernel(2, MS // 4)

    (finding,) = findings(program, limits.ANALYZER)
    assert finding.evidence["engine"] == "comm"
    assert 0.9 < finding.evidence["share"] <= 1


def test_kernels_alone_saturate_nothing() -> None:
    program = Program()
    for _ in range(8):
        program.kernel(1, MS)

    assert limits_of(program) == []


def test_work_too_uneven_to_gain_from_overlap() -> None:
    program = Program()
    for _ in range(4):
        program.copy("h2d", 1, MS // 50)
        program.kernel(1, MS)

    assert limits_of(program) == ["imbalance"]


def test_messages_that_wait_are_as_long_as_their_data_takes() -> None:
    (finding,) = [f for f in limits_of_messages(MS // 50, kernel_ns=MS) if f.id == "imbalance"]

    assert finding.evidence["bound_ns"] == 8 * MS
    assert finding.evidence["at_most_ns"] == 8 * (MS // 50)
    # Kernels and messages of equal length, as far as one rank alone can tell.
    assert "imbalance" not in [f.id for f in limits_of_messages(None, kernel_ns=MS)]


@pytest.mark.parametrize(
    ("transfer_ns", "advice"), [(MS, "shorten comm, or"), (None, "read the reports of all ranks")]
)
def test_long_messages_may_be_waiting_where_one_rank_alone_tells(
    transfer_ns: int | None, advice: str
) -> None:
    found = limits_of_messages(transfer_ns, kernel_ns=MS // 50)
    (finding,) = [f for f in found if f.id == "imbalance"]

    assert finding.advice.startswith(advice)


def test_a_wait_for_a_signal_is_no_work_of_an_engine() -> None:
    program = Program()
    for _ in range(4):
        program.copy("h2d", 1, MS // 50)
        program.kernel(2, MS)
        program.comm(1, MS * 3 // 2, name=WAIT)
        program.free[2] = program.free[1]

    (finding,) = findings(program, limits.ANALYZER)
    assert finding.id == "imbalance"
    assert finding.evidence["bound_ns"] == 4 * MS
    assert finding.evidence["at_most_ns"] == 4 * (MS // 50)


def test_work_that_is_no_transfer_tells_no_imbalance() -> None:
    rows = [(0, 97 * MS, "s1")]
    with_copies = make_trace(kernels=rows, h2d=[(97 * MS, 100 * MS, "s1")])
    with_sets = make_trace(kernels=rows, memset=[(97 * MS, 100 * MS, "s1")])

    assert found_in(with_copies, limits.ANALYZER) == ["imbalance"]
    assert found_in(with_sets, limits.ANALYZER) == []


def test_even_work_in_one_stream_is_no_imbalance() -> None:
    program = Program()
    for _ in range(4):
        program.copy("h2d", 1, MS)
        program.kernel(1, MS)

    assert limits_of(program) == []


# trust


def lost(program: Program) -> Finding | None:
    found = findings(program, trust.ANALYZER)
    return next((finding for finding in found if finding.id == "lost-records"), None)


def test_lost_records() -> None:
    program = Program()
    pipeline(program)
    program.lost_records = 5

    finding = lost(program)

    assert finding is not None
    assert finding.evidence == {"lost": 5, "recorded": 24}


def test_where_every_record_is_missing_recording_less_does_not_help() -> None:
    nothing = dataclasses.replace(make_trace(), lost_records=7)
    few = dataclasses.replace(make_trace(kernels=[(0, MS, "s1")]), lost_records=7)

    advice = [
        next(f.advice for f in run_all(trace, [trust.ANALYZER], Options()).findings)
        for trace in (nothing, few)
    ]
    assert "no other profiler" in advice[0]
    assert "record again with less" in advice[1]


def test_one_lost_record_of_many() -> None:
    program = Program()
    pipeline(program, chunks=100)
    program.lost_records = 1

    assert lost(program) is None


@pytest.mark.parametrize(("step_ns", "found"), [(1_000, ["coarse-clock"]), (999, [])])
def test_a_coarse_clock(step_ns: int, found: list[str]) -> None:
    trace = make_trace(kernels=[(step_ns * 2 * i, step_ns * (2 * i + 1), "s1") for i in range(20)])

    assert found_in(trace, trust.ANALYZER) == found


def two_processes(hardware: str, second_ns: int = 50) -> Trace:
    second_kernel = (second_ns, second_ns + 100, "s1", {"device": 1})
    trace = make_trace(kernels=[(0, 100, "s1"), second_kernel], devices=2)
    first, second = trace.devices
    operations = trace.operations
    assert operations is not None
    return dataclasses.replace(
        trace,
        processes=(Process(1, "a", None), Process(2, "b", None)),
        devices=(first, dataclasses.replace(second, process=1, hardware=hardware)),
        operations=dataclasses.replace(
            operations, process=np.where(operations.device == 1, 1, 0).astype(np.int32)
        ),
    )


def test_two_processes_on_one_gpu() -> None:
    (finding,) = run_all(two_processes("gpu 0"), [trust.ANALYZER], Options()).findings

    assert finding.id == "time-sliced"
    assert finding.evidence == {"window_ns": [50, 100], "processes": [1, 2]}


def test_two_processes_one_after_the_other() -> None:
    assert found_in(two_processes("gpu 0", second_ns=100), trust.ANALYZER) == []


def test_two_processes_on_two_gpus() -> None:
    assert run_all(two_processes("gpu 1"), [trust.ANALYZER], Options()).findings == ()


def test_gaps_between_operations_are_as_in_the_model() -> None:
    program = Program()
    program.kernel(1, MS)
    program.kernel(1, MS)
    operations = program.trace().operations

    assert operations is not None
    assert int(operations.start_ns[1] - operations.end_ns[0]) == GAP_NS
