"""Causes on the host's side: each with a program that has it, and its negative twin."""

from __future__ import annotations

import dataclasses

import pytest

from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import (
    host_busy,
    host_func,
    host_read,
    host_sync,
    launch_bound,
    lazy_loading,
    mpi_blocking,
    not_seen,
    synchronous_copy,
)
from gpuscope.model.result import Finding
from gpuscope.model.tables import START_END, ApiCalls, Operations
from gpuscope.units import format_ns
from tests.make_trace import make_trace
from tests.unit.analyzers.test_causes_program import (
    CALL_NS,
    GAP_NS,
    MS,
    Program,
    findings,
    pipeline,
)

HOST = (
    synchronous_copy.ANALYZER,
    host_read.ANALYZER,
    host_busy.ANALYZER,
    launch_bound.ANALYZER,
    mpi_blocking.ANALYZER,
    lazy_loading.ANALYZER,
    host_func.ANALYZER,
    host_sync.ANALYZER,
)


def only(program: Program, expected: str) -> Finding:
    found = findings(program, *HOST)
    assert [finding.id for finding in found] == [expected]
    return found[0]


# synchronous-copy


def copies(name: str, blocking: bool, chunks: int = 6) -> Program:
    program = Program()
    with program.range("loop"):
        for chunk in range(chunks):
            stream = 1 + chunk % 3
            program.copy("h2d", stream, MS, name=name, blocking=blocking)
            program.kernel(stream, MS)
            program.copy("d2h", stream, MS, name=name, blocking=blocking)
    program.wait()
    return program


def test_synchronous_copies_that_hold_up_work() -> None:
    finding = only(copies("cudaMemcpy_v3020", blocking=True), "synchronous-copy")

    assert finding.evidence["calls"][0]["name"] == "cudaMemcpy"
    assert finding.evidence["held_ns"] == pytest.approx(5 * 2 * MS, rel=0.02)
    assert finding.evidence["pageable"] == 0


def test_asynchronous_copies() -> None:
    assert findings(copies("cudaMemcpyAsync_v3020", blocking=False), *HOST) == []


def test_synchronous_copies_that_cost_nothing() -> None:
    program = Program()
    with program.range("loop"):
        for _ in range(6):
            program.kernel(1, 5 * MS)
            program.copy("h2d", 2, MS, name="cudaMemcpy_v3020", blocking=True)

    assert findings(program, *HOST) == []


# host-read


def reads(every: int) -> Program:
    program = Program()
    with program.range("train"):
        for step in range(20):
            for _ in range(5):
                program.kernel(1, MS // 5)
            if step % every == 0:
                program.copy("d2h", 1, 1_000, pageable=True, blocking=True, size=4)
                program.host(100_000)
    program.wait()
    return program


def test_reading_a_scalar_every_step() -> None:
    finding = only(reads(every=1), "host-read")

    # After each read but the last: its call returns, the host, the launching call, the start.
    assert finding.evidence["count"] == 19
    assert finding.saving_ns == 19 * (CALL_NS + 100_000 + CALL_NS + GAP_NS)


@pytest.mark.parametrize("wait", [True, False])
def test_a_read_that_is_waited_for_in_a_call_of_its_own(wait: bool) -> None:
    program = Program()
    with program.range("train"):
        for _ in range(20):
            program.kernel(1, MS)
            program.copy("d2h", 1, 1_000, size=4)
            if wait:
                program.wait(1)
            program.host(100_000)
            program.copy("h2d", 2, MS)
    program.wait()

    found = findings(program, *HOST)

    assert [finding.id for finding in found] == ["host-read"] * wait


def prefetching(every: int) -> Program:
    """Learn from a batch while the next is copied, which is issued after the loss was read."""
    program = Program()
    with program.range("train"):
        for step in range(20):
            program.kernel(1, MS)
            if step % every == 0:
                program.copy("d2h", 1, 1_000, pageable=True, blocking=True, size=4)
            program.copy("h2d", 2, MS // 2)
            program.record(f"batch {step}", 2)
            program.wait_event(1, f"batch {step}")
    program.wait()
    return program


def test_a_read_that_keeps_the_next_batch_from_being_hidden() -> None:
    finding = only(prefetching(every=1), "host-read")

    spans = []
    for every in (1, 20):
        operations = prefetching(every).trace().operations
        assert operations is not None
        spans.append(int(operations.end_ns.max() - operations.start_ns[0]))
    saved = spans[0] - spans[1]
    assert finding.saving_ns == pytest.approx(saved, rel=0.25)
    # The claim says what the saving is made of.
    idle_ns, bare_ns = (finding.evidence[key] for key in ("held_ns", "laid_bare_ns"))
    assert finding.saving_ns == idle_ns + bare_ns
    assert bare_ns > idle_ns
    assert f"the GPU is idle for {format_ns(idle_ns)} behind them" in finding.claim
    assert finding.claim.endswith(f"lies bare for another {format_ns(bare_ns)}")


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaMemcpy"])
def test_waiting_for_a_read_is_no_other_cause_as_well(name: str) -> None:
    program = Program()
    with program.range("train"):
        for step in range(20):
            program.kernel(1, MS)
            program.copy("d2h", 1, 1_000, size=4, name=name, blocking=name == "cudaMemcpy")
            if name == "cudaMemcpyAsync":
                program.wait(1)
            program.copy("h2d", 2, MS // 2)
            program.record(f"batch {step}", 2)
            program.wait_event(1, f"batch {step}")
    program.wait()

    assert [finding.id for finding in findings(program, *HOST)] == ["host-read"]


def test_a_read_holds_up_its_own_thread_alone() -> None:
    program = Program()
    for _ in range(20):
        program.kernel(1, MS)
        program.copy("d2h", 1, 1_000, size=4, blocking=True)
        program.thread = 1 - program.thread  # the next work is another thread's
        program.host(100_000)

    assert findings(program, host_read.ANALYZER) == []


def test_in_one_stream_a_read_lays_nothing_bare() -> None:
    program = Program()
    with program.range("train"):
        for _ in range(20):
            program.copy("h2d", 1, MS // 2)
            program.kernel(1, MS)
            program.copy("d2h", 1, 1_000, size=4)
            program.wait(1)
            program.host(20_000)

    (finding,) = findings(program, host_read.ANALYZER)

    assert finding.evidence["laid_bare_ns"] == 0


def test_a_message_that_is_copied_out_and_sent_is_no_read() -> None:
    program = Program()
    with program.range("train"):
        for _ in range(20):
            program.kernel(1, MS)
            program.copy("d2h", 1, 1_000, size=4)
            program.wait(1)
            program.mpi("MPI_Send", 100_000)
    program.wait()

    assert "host-read" not in [finding.id for finding in findings(program, *HOST)]


def test_compiling_is_no_busy_host() -> None:
    def compiling(call: str) -> Program:
        program = Program()
        with program.range("loop"):
            for _ in range(5):
                program.host(5 * MS)
                program.call(call, 50_000)
                program.kernel(1, MS)
        return program

    assert findings(compiling("cuModuleLoadData"), *HOST) == []
    assert [f.id for f in findings(compiling("cudaGetDevice"), *HOST)] == ["host-busy"]


@pytest.mark.parametrize(
    ("kernel_ns", "saved_ns"),
    [
        # Behind each read but the last: its wait returns, the host, the launching call, the start.
        (500_000, 40 * (CALL_NS + 14_000 + CALL_NS + GAP_NS)),
        # A GPU that has long been done: the copy's call and its wait, each time.
        (5_000, 41 * (CALL_NS + GAP_NS + 1_000 + CALL_NS)),
    ],
)
def test_a_read_saves_no_more_than_the_host_spends_in_it(kernel_ns: int, saved_ns: int) -> None:
    program = Program()
    with program.range("train"):
        for _ in range(41):
            program.kernel(1, kernel_ns)
            program.host(30_000)
            program.copy("d2h", 1, 1_000, size=4)
            program.wait(1)
            program.host(14_000)

    (finding,) = findings(program, host_read.ANALYZER)

    assert finding.saving_ns == saved_ns
    assert finding.evidence["held_ns"] == 40 * (CALL_NS + 14_000 + CALL_NS + GAP_NS)


def test_reading_a_scalar_now_and_then() -> None:
    assert findings(reads(every=10), *HOST) == []


# host-busy


def steps(host_ns: int, first_ns: int = 0, once_ns: int = 0) -> Program:
    program = Program()
    program.host(first_ns)
    for step in range(10):
        with program.range("step"):
            for kernel in range(5):
                program.host(host_ns)
                if step == 0:
                    program.host(first_ns)
                if (step, kernel) == (4, 2):
                    program.host(once_ns)
                program.kernel(1, MS)
    return program


def test_a_host_slower_than_the_gpu() -> None:
    finding = only(steps(host_ns=2 * MS), "host-busy")

    assert finding.range == "step"
    # A step's first kernel begins it: four of five gaps lie within.
    assert finding.evidence["count"] == 40
    assert finding.saving_ns == pytest.approx(40 * MS, rel=0.01)
    assert finding.evidence["threads"] == [100]


def test_a_gap_that_does_not_recur_is_no_saving() -> None:
    finding = only(steps(host_ns=2 * MS, once_ns=100 * MS), "host-busy")

    assert finding.evidence["held_ns"] == pytest.approx(140 * MS, rel=0.01)
    # It counts for ten of the others.
    assert finding.saving_ns == pytest.approx((39 + 10) * MS, rel=0.01)


def test_a_host_faster_than_the_gpu() -> None:
    assert findings(steps(host_ns=MS // 2), *HOST) == []


def test_warming_up_is_no_busy_host() -> None:
    assert findings(steps(host_ns=0, first_ns=50 * MS), *HOST) == []


def test_setting_up_twice_an_instance_is_no_busy_host() -> None:
    program = Program()
    for _ in range(5):
        with program.range("step"):
            for kernel in range(6):
                program.host(5 * MS if kernel in (2, 4) else 0)
                program.kernel(1, MS)

    assert findings(program, *HOST) == []


def test_one_long_gap_among_short_ones_is_no_busy_host() -> None:
    program = Program()
    for _ in range(5):
        with program.range("step"):
            for kernel in range(6):
                program.kernel(1, MS)
                program.wait(1)
                program.host(50 * MS if kernel == 2 else 60_000)

    assert findings(program, *HOST) == []


# launch-bound


def small_kernels(ns: int) -> Program:
    program = Program()
    with program.range("small"):
        for _ in range(200):
            program.host(3_000)
            program.kernel(1, ns)
    return program


def test_kernels_shorter_than_their_launches() -> None:
    finding = only(small_kernels(ns=1_000), "launch-bound")

    assert finding.evidence["count"] == 200
    # 4 µs of every 5 are idle, of which the profiler is given one.
    assert finding.saving_ns == 199 * 3_000


def test_kernels_longer_than_their_launches() -> None:
    assert findings(small_kernels(ns=50_000), *HOST) == []


def test_waiting_after_every_small_kernel_is_not_launching() -> None:
    program = Program()
    for _ in range(200):
        program.kernel(1, 1_000)
        program.wait(1)
        program.call("cudaStreamSynchronize_v3020", 20_000)

    assert [finding.id for finding in findings(program, *HOST)] == ["host-sync"]


def test_work_between_steps_does_not_hide_that_a_step_is_bound_by_launching() -> None:
    program = Program()
    for _ in range(10):
        program.host(400_000)
        for _ in range(100):
            program.host(5_000)
            program.kernel(1, 2_000)
        program.copy("d2h", 1, 1_000, size=4)
        program.wait(1)

    (finding,) = findings(program, launch_bound.ANALYZER)

    # 7 µs from call to call, less the kernel and what the profiler adds; not the 0.4 ms.
    assert finding.saving_ns == pytest.approx(10 * 100 * (7_000 - 2_000 - 1_000), rel=0.01)


# host-sync where nothing is meant to overlap


def kernel_by_kernel(host_ns: int, wait: bool = True, kernels: int = 1) -> Program:
    program = Program()
    for _ in range(40):
        for _ in range(kernels):
            program.kernel(1, 100_000)
        if wait:
            program.wait(1)
        program.host(host_ns)
    return program


@pytest.mark.parametrize("kernels", [1, 3])
def test_waiting_for_every_kernel(kernels: int) -> None:
    finding = only(kernel_by_kernel(30_000, kernels=kernels), "host-sync")

    assert finding.evidence["count"] == 39
    # The wait returns, the host works, the launching call, the start.
    assert finding.saving_ns == 39 * (CALL_NS + 30_000 + CALL_NS + GAP_NS)
    assert "the thread waits in cudaStreamSynchronize 39 times" in finding.claim


def test_without_the_wait_a_host_that_is_slower_than_the_gpu_stays_so() -> None:
    found = {each.id: each for each in findings(kernel_by_kernel(300_000), *HOST)}

    assert set(found) == {"host-busy", "host-sync"}
    # What the thread spends in the waits, and no more.
    assert found["host-sync"].saving_ns == 39 * (100_000 + GAP_NS + CALL_NS)


@pytest.mark.parametrize(
    "program",
    [
        kernel_by_kernel(30_000, wait=False),
        kernel_by_kernel(5_000, kernels=3),  # 11 of 315 µs are at stake
    ],
)
def test_kernels_that_nothing_waits_for(program: Program) -> None:
    assert findings(program, *HOST) == []


@pytest.mark.parametrize("message", [True, False])
def test_a_wait_for_what_is_sent_next(message: bool) -> None:
    program = Program()
    with program.range("halo"):
        for _ in range(20):
            program.copy("d2h", 1, MS)
            program.wait(1)
            if message:
                program.mpi("MPI_Isend", 2_000)
            program.kernel(2, MS)
            program.copy("h2d", 1, 1_000)
            program.wait(2)
            if message:
                program.mpi("MPI_Isend", 2_000)

    found = [each.id for each in findings(program, host_sync.ANALYZER)]

    assert found == ([] if message else ["host-sync"])


def test_messages_and_results_are_waited_for() -> None:
    program = Program()
    for step in range(40):
        program.kernel(1, 100_000)
        program.wait(1)
        if step % 2:
            program.mpi("MPI_Sendrecv", 30_000)
        else:
            program.copy("d2h", 1, 1_000, size=4)
            program.wait(1)
        program.host(30_000)

    assert [each.id for each in findings(program, host_sync.ANALYZER)] == []


@pytest.mark.parametrize("beside", ["cudaStreamSynchronize_v3020", "MPI_Test", None])
def test_where_other_calls_take_a_fifth_of_the_idle_time_they_are_the_cause(
    beside: str | None,
) -> None:
    program = Program()
    with program.range("small"):
        for _ in range(200):
            program.host(3_000)
            program.kernel(1, 1_000)
            if beside is None:
                program.host(2_000)
            elif beside.startswith("MPI"):
                program.mpi(beside, 2_000)
            else:
                program.call(beside, 2_000)

    found = [finding.id for finding in findings(program, launch_bound.ANALYZER)]
    assert found == ([] if beside else ["launch-bound"])


# mpi-blocking


def halo(message_ns: int, kernel_ns: int = MS, pause_ns: int = 10_000) -> Program:
    program = Program()
    with program.range("iterate"):
        for _ in range(10):
            program.kernel(1, kernel_ns)
            program.wait(1)
            program.mpi("MPI_Sendrecv", message_ns)
            program.host(pause_ns)
        program.kernel(1, kernel_ns)
    return program


def test_messages_while_the_gpu_is_idle() -> None:
    finding = only(halo(MS // 2), "mpi-blocking")

    assert finding.evidence["calls"] == [{"name": "MPI_Sendrecv", "thread": 100, "count": 10}]
    assert finding.saving_ns == 10 * MS // 2


def test_messages_under_a_kernel() -> None:
    program = Program()
    for _ in range(10):
        program.kernel(1, 2 * MS)
        program.mpi("MPI_Sendrecv", MS)

    assert findings(program, *HOST) == []


def test_messages_long_before_the_next_launch_are_not_what_held_it() -> None:
    for message_ns in (MS // 2, 2 * MS):
        found = findings(halo(message_ns, pause_ns=MS), *HOST)

        assert [finding.id for finding in found] == ["host-busy"]


def exchange(*calls: str, pause_ns: int = 10_000, copies: bool = False) -> Program:
    """Return a program that makes some MPI calls of half a millisecond between any two launches."""
    program = Program()
    with program.range("iterate"):
        for _ in range(10):
            if copies:
                program.copy("h2d", 1, MS)
            else:
                program.kernel(1, MS)
            program.wait(1)
            for call in calls:
                program.mpi(call, MS // 2)
                program.host(pause_ns)
        program.copy("d2h", 1, MS)
    return program


def test_messages_that_follow_each_other_hold_the_gpu_up_together() -> None:
    finding = only(exchange("MPI_Sendrecv", "MPI_Sendrecv"), "mpi-blocking")

    assert finding.evidence["count"] == 20
    assert finding.evidence["held_ns"] == finding.saving_ns == 10 * MS
    assert "MPI_Isend" in finding.advice


def test_messages_with_other_work_after_each_are_no_block() -> None:
    found = findings(exchange("MPI_Sendrecv", "MPI_Sendrecv", pause_ns=MS), *HOST)

    assert "mpi-blocking" not in [finding.id for finding in found]


def test_only_the_messages_right_before_the_launch_held_it() -> None:
    program = Program()
    with program.range("iterate"):
        for _ in range(10):
            program.kernel(1, MS)
            program.wait(1)
            program.mpi("MPI_Sendrecv", MS // 2)
            program.host(200_000)
            program.mpi("MPI_Barrier", MS // 2)
        program.kernel(1, MS)

    (finding,) = findings(program, mpi_blocking.ANALYZER)

    assert [each["name"] for each in finding.evidence["calls"]] == ["MPI_Barrier"]
    assert finding.evidence["held_ns"] == 10 * MS // 2


def test_ranks_that_meet_behind_a_start_gate_hold_nothing_up() -> None:
    program = Program()
    with program.range("iterate"):
        for _ in range(10):
            program.kernel(1, MS)
            program.wait(1)
            program._launch("cudaLaunchKernel", "gate", 2, MS, name="gs_gate")
            program.host(GAP_NS)
            program.mpi("MPI_Barrier", MS // 2)
        program.kernel(1, MS)

    assert findings(program, mpi_blocking.ANALYZER) == []


def test_the_calls_that_held_the_gpu_up_longest_are_named_first() -> None:
    program = Program()
    with program.range("iterate"):
        for _ in range(10):
            program.kernel(1, MS)
            program.wait(1)
            for _ in range(4):
                program.mpi("MPI_Isend", 5_000)
            program.mpi("MPI_Waitall", MS // 2)
        program.kernel(1, MS)

    (finding,) = findings(program, mpi_blocking.ANALYZER)

    assert [(each["name"], each["count"]) for each in finding.evidence["calls"]] == [
        ("MPI_Waitall", 10),
        ("MPI_Isend", 40),
    ]
    assert "after the launches" in finding.advice


def test_another_threads_messages_hold_nothing_up() -> None:
    program = Program()
    for _ in range(10):
        begin = program.now
        program.thread = 1
        program.mpi("MPI_Recv", MS + 10_000)
        received = program.now
        program.now, program.thread = begin, 0
        program.host(MS)
        program.kernel(1, 2 * MS)  # ends the idle time
        program.now, program.thread = received, 1
        program.kernel(2, MS)
        program.now = max(program.free.values())

    assert findings(program, mpi_blocking.ANALYZER) == []


def test_a_launch_between_messages_makes_two_blocks_of_them() -> None:
    program = Program()
    with program.range("iterate"):
        program.kernel(1, MS)
        program.wait(1)
        program.mpi("MPI_Recv", MS)
        program.kernel(1, 1_000)
        program.mpi("MPI_Send", MS)
        program.kernel(1, MS)

    assert only(program, "mpi-blocking").evidence["count"] == 2


def test_one_exchange_of_several_calls_is_no_pattern() -> None:
    program = Program()
    with program.range("iterate"):
        program.kernel(1, MS)
        program.wait(1)
        program.mpi("MPI_Recv", MS)
        program.mpi("MPI_Send", MS)
        program.kernel(1, MS)

    assert findings(program, *HOST) == []


def test_messages_without_kernels_have_nothing_to_run_under_them() -> None:
    assert findings(exchange("MPI_Sendrecv", copies=True), mpi_blocking.ANALYZER) == []


def test_no_more_is_saved_than_kernels_could_fill() -> None:
    program = halo(2 * MS, kernel_ns=MS // 10)

    finding = only(program, "mpi-blocking")

    assert finding.evidence["held_ns"] == 20 * MS
    assert finding.saving_ns == 11 * MS // 10


@pytest.mark.parametrize("call", ["MPI_Wait", "MPI_Waitall", "MPI_Waitany"])
def test_messages_that_are_completed_too_early_are_nonblocking_already(call: str) -> None:
    advice = only(exchange(call), "mpi-blocking").advice

    assert "after the launches" in advice
    assert "MPI_Isend" not in advice


@pytest.mark.parametrize("call", ["MPI_Isend", "MPI_Ireduce"])
def test_messages_that_are_started_too_early_are_nonblocking_already(call: str) -> None:
    advice = only(exchange(call), "mpi-blocking").advice

    assert advice == "launch the work that needs no message before the call"


# lazy-loading


def loading(first_ns: int, later: int = 4) -> Program:
    program = Program()
    with program.range("run"):
        program.kernel(1, MS)
        for name in ("a", "b", "c"):
            program.kernel(1, MS, name=name)
            slow_down_last_launch(program, first_ns)
            for _ in range(later):
                program.kernel(1, MS, name=name)
    return program


def slow_down_last_launch(program: Program, ns: int) -> None:
    """Let the last launching call take longer, and its kernel start so much later if it must."""
    api, operation = program.rows[ApiCalls][-1], program.rows[Operations][-1]
    stream = program.streams[operation["stream"]]
    program.now = api["end_ns"] = api["end_ns"] + ns
    later = max(0, program.now + GAP_NS - operation["start_ns"])
    operation["start_ns"] += later
    operation["end_ns"] += later
    program.free[stream] = operation["end_ns"]


def test_first_launches_that_load_code() -> None:
    finding = only(loading(20 * MS), "lazy-loading")

    assert finding.evidence["kernels"] == ["a", "b", "c"]
    assert finding.removable == "yes"


def test_kernels_launched_too_rarely_tell_no_usual_time() -> None:
    assert findings(loading(20 * MS, later=2), lazy_loading.ANALYZER) == []
    assert len(findings(loading(20 * MS, later=3), lazy_loading.ANALYZER)) == 1


def test_first_launches_as_fast_as_the_others() -> None:
    assert findings(loading(0), *HOST) == []


def test_first_launches_hidden_by_work() -> None:
    program = Program()
    with program.range("run"):
        program.kernel(1, 50 * MS)
        program.kernel(2, MS, name="a")
        slow_down_last_launch(program, 20 * MS)
        for _ in range(4):
            program.kernel(2, MS, name="a")

    assert findings(program, *HOST) == []


# host-func


def host_functions(name: str, beside_ns: int = MS) -> Program:
    program = Program()
    with program.range("stream"):
        program.kernel(2, beside_ns)
        for _ in range(5):
            program.kernel(1, MS)
            program.call(name)
            program.free[1] += MS  # the function runs for so long, or whatever it is
            program.copy("d2h", 1, MS)
    return program


def test_operations_behind_a_host_function() -> None:
    finding = only(host_functions("cudaLaunchHostFunc_v10000"), "host-func")

    assert finding.evidence["count"] == 5
    assert finding.saving_ns == 5 * (MS + GAP_NS)


def test_a_host_function_that_another_stream_hides_saves_nothing() -> None:
    assert findings(host_functions("cudaLaunchHostFunc_v10000", beside_ns=15 * MS), *HOST) == []


def test_a_host_function_of_another_thread_explains_nothing() -> None:
    program = Program()
    with program.range("stream"):
        program.kernel(2, MS)
        for _ in range(5):
            program.kernel(1, MS)
            program.thread = 1
            program.call("cudaLaunchHostFunc_v10000")
            program.thread = 0
            program.free[1] += MS
            program.copy("d2h", 1, MS)

    assert findings(program, host_func.ANALYZER) == []


def test_a_gap_without_a_host_function_stays_unexplained() -> None:
    assert findings(host_functions("cudaGetDevice_v3020"), *HOST) == []


# A healthy program has none of these


def test_a_healthy_pipeline() -> None:
    program = Program()
    pipeline(program, chunks=40)

    assert findings(program, *HOST) == []


# not-seen: other-thread, graph-opaque


def two_threads(others: int) -> Program:
    program = Program()
    with program.range("step"):
        for _ in range(10):
            program.kernel(1, MS)
        program.thread = 1
        for _ in range(others):
            program.kernel(2, MS)
        program.thread = 0
    return program


def test_a_range_that_misses_another_threads_launches() -> None:
    (finding,) = findings(two_threads(others=10), not_seen.ANALYZER)

    assert finding.id == "other-thread"
    assert (finding.evidence["own"], finding.evidence["missed"]) == (10, 10)
    assert finding.evidence["threads"] == [101]


def test_a_range_that_misses_little() -> None:
    assert findings(two_threads(others=2), not_seen.ANALYZER) == []


def test_counting_by_process_misses_nothing() -> None:
    trace = two_threads(others=10).trace()

    analysis = run_all(trace, [not_seen.ANALYZER], Options(attribute="process"))

    assert analysis.findings == ()


def test_threads_with_ranges_of_their_own_miss_nothing() -> None:
    trace = make_trace(
        kernels=[
            *((10 * i, 10 * i + 5, "s1") for i in range(10)),
            *((10 * i + 5, 10 * i + 9, "s2", {"thread": "b"}) for i in range(10)),
        ],
        ranges=[("a", 0, 200), ("b", 0, 200, {"thread": "b"})],
    )

    assert run_all(trace, [not_seen.ANALYZER], Options()).findings == ()


def test_ranges_that_are_started_and_ended_miss_no_thread() -> None:
    trace = make_trace(
        kernels=[(10 * i, 10 * i + 5, "s1") for i in range(10)],
        ranges=[("a", 0, 200, {"kind": START_END})],
    )

    assert run_all(trace, [not_seen.ANALYZER], Options()).findings == ()


def test_graphs_traced_whole() -> None:
    whole = make_trace(graph=[(0, 1000, "s1")], kernels=[(2000, 3000, "s1")])
    nodes = make_trace(kernels=[(0, 1000, "s1", {"graph_node": 3}), (2000, 3000, "s1")])

    (finding,) = run_all(whole, [not_seen.ANALYZER], Options()).findings
    assert (finding.id, finding.severity) == ("graph-opaque", "info")
    assert run_all(nodes, [not_seen.ANALYZER], Options()).findings == ()


def test_without_api_calls_the_analyzers_abstain() -> None:
    trace = dataclasses.replace(two_threads(5).trace(), api=None)

    analysis = run_all(trace, HOST, Options())

    assert {a.analyzer for a in analysis.abstained} == {analyzer.name for analyzer in HOST}
