"""The causes of pipelines that do not overlap: each with a program that has it, and its twin."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.analyzers import allocation_sync, host_sync, pageable_copy, same_stream
from gpuscope.model.result import Finding
from tests.unit.analyzers.test_causes_program import (
    CALL_NS,
    GAP_NS,
    MS,
    Program,
    findings,
    pipeline,
)

PIPELINE = (
    pageable_copy.ANALYZER,
    same_stream.ANALYZER,
    host_sync.ANALYZER,
    allocation_sync.ANALYZER,
)
CHUNKS = 8


def only(program: Program, expected: str) -> Finding:
    found = findings(program, *PIPELINE)
    assert [finding.id for finding in found] == [expected]
    return found[0]


def chunk_by_chunk(program: Program, after: Any, **copy: Any) -> Program:
    with program.range("loop"):
        for chunk in range(CHUNKS):
            stream = 1 + chunk % 4
            program.copy("h2d", stream, MS, **copy)
            program.kernel(stream, MS)
            program.copy("d2h", stream, MS, **copy)
            after(stream)
    program.wait()
    return program


def test_a_healthy_pipeline_has_no_finding() -> None:
    program = Program()
    pipeline(program)

    assert findings(program, *PIPELINE) == []


def test_one_phase_without_repetition_has_no_finding() -> None:
    program = Program()
    with program.range("once"):
        program.copy("h2d", 1, MS)
        program.wait(1)
        program.kernel(1, MS)
        program.wait(1)
        program.copy("d2h", 1, MS)
        program.wait(1)

    assert findings(program, *PIPELINE) == []


# pageable-copy


def test_pageable_copies_that_block() -> None:
    program = chunk_by_chunk(Program(), lambda stream: None, pageable=True, blocking=True)

    finding = only(program, "pageable-copy")

    assert finding.range == "loop"
    assert finding.evidence["copies"] == 2 * CHUNKS
    assert finding.evidence["calls"] == [
        {"name": "cudaMemcpyAsync", "thread": 100, "count": 2 * CHUNKS - 1}
    ]
    # Each copy in could have begun with the kernel before it, but for the call that copies out.
    assert finding.evidence["held_ns"] == pytest.approx((CHUNKS - 1) * 2 * MS, rel=0.02)
    assert finding.removable == "if-independent"


def test_pageable_copies_that_do_not_block() -> None:
    program = chunk_by_chunk(Program(), lambda stream: None, pageable=True)

    assert findings(program, *PIPELINE) == []


def test_small_pageable_copies() -> None:
    program = chunk_by_chunk(
        Program(), lambda stream: None, pageable=True, blocking=True, size=64 * 1024
    )

    assert findings(program, pageable_copy.ANALYZER) == []


def test_pinned_copies_of_the_trace_tell_what_pinning_would_save() -> None:
    program = Program()
    program.copy("h2d", 9, MS // 4)
    program.copy("d2h", 9, MS // 4)
    chunk_by_chunk(program, lambda stream: None, pageable=True, blocking=True)

    finding = only(program, "pageable-copy")

    assert finding.evidence["faster_when_pinned_ns"] == 2 * CHUNKS * MS * 3 // 4


def test_on_one_copy_engine_pinning_makes_both_directions_shorter() -> None:
    program = Program(copy_engines=1)
    program.copy("h2d", 9, MS // 4)
    program.copy("d2h", 9, MS // 4)
    with program.range("loop"):
        for _ in range(CHUNKS):
            program.copy("h2d", 1, MS, pageable=True, blocking=True)
            program.copy("d2h", 2, MS, pageable=True, blocking=True)  # the kernel is ready
            program.kernel(1, MS)
    program.wait()

    evidence = only(program, "pageable-copy").evidence

    # The kernels are left, and a chunk's copies, of 0.25 ms each, in and out.
    assert evidence["limit_ns"] == evidence["span_ns"] - CHUNKS * MS - 2 * MS // 4


# host-sync


def test_waits_between_repetitions_of_one_range() -> None:
    """The healthy twin is `passes_in_turn` in test_causes_healthy."""
    program = Program()
    with program.range("measure"):
        for _ in range(12):
            with program.range("step"):
                for stream in (1, 2, 3):
                    program.copy("h2d", stream, MS)
                    program.kernel(stream, MS)
            program.wait()

    finding = only(program, "host-sync")

    assert finding.range == "measure"
    assert finding.evidence["count"] == 11


# same-stream, default-stream


@pytest.mark.parametrize(("stream", "expected"), [(0, "default-stream"), (5, "same-stream")])
def test_copies_and_kernels_in_one_stream(stream: int, expected: str) -> None:
    program = Program()
    with program.range("loop"):
        for _ in range(CHUNKS):
            program.copy("h2d", stream, MS)
            program.kernel(stream, MS)
            program.copy("d2h", stream, MS)
    program.wait()

    finding = only(program, expected)

    assert finding.evidence["stream"] == stream
    assert finding.evidence["cycles"] == CHUNKS
    # 24 ms, of which one class's 8 ms must stay, and an eighth of the 16 ms of the others.
    assert finding.saving_ns == pytest.approx(14 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("how", "calls", "advice"),
    [
        ("wait", "cudaStreamSynchronize", "; wait once, after the last"),
        ("copy", "cudaMemcpy", "; copy with cudaMemcpyAsync; pin the buffers"),
        ("pageable", "cudaMemcpyAsync", "; pin the buffers"),
        ("free", "cudaFree", "; allocate before the loop and free after it"),
    ],
)
def test_a_thread_that_waits_for_each_operation_in_one_stream(
    how: str, calls: str, advice: str
) -> None:
    program = Program()
    blocking = how in ("copy", "pageable")
    name = "cudaMemcpy" if how == "copy" else "cudaMemcpyAsync"
    with program.range("loop"):
        for _ in range(CHUNKS):
            for op_class in ("h2d", "kernel", "d2h"):
                if op_class == "kernel":
                    program.kernel(5, MS)
                else:
                    program.copy(op_class, 5, MS, pageable=blocking, blocking=blocking, name=name)
                if how == "wait":
                    program.wait(5)
            if how == "free":
                program.drain("cudaFree")
                program.call("cudaMalloc", 100_000)
    program.wait()

    finding = only(program, "same-stream")

    assert f"and the thread waits for them in {calls}: at most one" in finding.claim
    assert finding.advice == f"give every chunk a stream of its own, three or four in turn{advice}"
    assert [each["name"] for each in finding.evidence["waits"]] == [calls]
    assert finding.evidence["count"] == 3 * CHUNKS - 1
    # 24 ms of work, as above; the time in which nothing runs is not of the stream's making.
    assert finding.saving_ns == pytest.approx(14 * MS, rel=0.01)
    assert finding.evidence["held_ns"] == pytest.approx((3 * CHUNKS - 1) * MS, rel=0.02)


def test_results_that_are_read_between_operations_of_one_stream() -> None:
    program = Program()
    with program.range("loop"):
        for _ in range(CHUNKS):
            program.copy("h2d", 5, MS)
            program.kernel(5, MS)
            program.copy("d2h", 5, 1_000, size=4)
            program.wait(5)
    program.wait()

    finding = only(program, "same-stream")

    assert finding.advice.endswith("three or four in turn; read results a step behind")


def test_kernels_alone_in_one_stream() -> None:
    program = Program()
    for _ in range(50):
        program.kernel(0, MS)

    assert findings(program, *PIPELINE) == []


def test_copies_too_short_to_matter_in_one_stream() -> None:
    program = Program()
    for _ in range(CHUNKS):
        program.copy("h2d", 0, MS // 50)
        program.kernel(0, MS)

    assert findings(program, *PIPELINE) == []


def test_kernels_and_copies_of_two_streams() -> None:
    program = Program()
    for _ in range(CHUNKS):
        program.copy("h2d", 1, MS)
        program.kernel(2, MS)
    program.wait()

    assert findings(program, *PIPELINE) == []


# host-sync


@pytest.mark.parametrize("name", ["cudaStreamSynchronize_v3020", "cudaEventSynchronize_v3020"])
def test_a_wait_after_every_chunk(name: str) -> None:
    program = Program()
    chunk_by_chunk(program, lambda stream: program.wait(stream, name))

    finding = only(program, "host-sync")

    # The next copy in could have begun when this one ended: kernel and copy out are 2 ms.
    assert finding.evidence["held_ns"] == pytest.approx((CHUNKS - 1) * 2 * MS, rel=0.02)
    assert finding.evidence["count"] == CHUNKS - 1
    assert finding.saving_ns == finding.evidence["held_ns"]
    example = finding.evidence["examples"][0]
    assert example["call"] == name.removesuffix("_v3020")
    assert example["call_start_ns"] < example["start_ns"]


def test_a_wait_after_every_operation_ends_no_phase() -> None:
    program = Program()
    with program.range("loop"):
        for chunk in range(12):
            stream = 1 + chunk % 3
            for op_class in ("h2d", "kernel", "d2h"):
                if op_class == "kernel":
                    program.kernel(stream, MS)
                else:
                    program.copy(op_class, stream, MS)
                program.wait(stream)

    assert [finding.id for finding in findings(program, host_sync.ANALYZER)] == ["host-sync"]


def test_asking_again_and_again_is_waiting() -> None:
    program = Program()

    def poll(stream: int) -> None:
        while program.now < program.free[stream]:
            program.call("cudaStreamQuery_v3020")
            program.host(20_000)

    chunk_by_chunk(program, poll)

    assert only(program, "host-sync").evidence["held_ns"] == pytest.approx(14 * MS, rel=0.05)


def test_a_thread_that_only_waits_costs_nothing() -> None:
    program = Program()
    with program.range("pipeline"):
        for chunk in range(CHUNKS):
            stream = 1 + chunk % 4
            program.copy("h2d", stream, MS)
            program.kernel(stream, MS)
            program.copy("d2h", stream, MS)
    program.thread, program.now = 1, 5_000
    for stream in (1, 2, 3, 4):
        program.wait(stream)

    assert findings(program, *PIPELINE) == []


def test_waits_that_keep_a_saturated_kernel_fed_cost_nothing() -> None:
    program = Program()
    with program.range("double buffered"):
        for chunk in range(CHUNKS):
            stream = 1 + chunk % 2
            if chunk > 1:
                program.wait(stream)
            program.copy("h2d", stream, MS // 4)
            program.free[stream] = max(program.free[stream], program.free.get("kernel", 0))
            program.kernel(stream, 2 * MS)

    assert findings(program, *PIPELINE) == []


# allocation-sync


def test_frees_that_drain_the_gpu() -> None:
    program = Program()
    chunk_by_chunk(program, lambda stream: program.drain("cudaFree_v3020"))

    finding = only(program, "allocation-sync")

    assert finding.evidence["count"] == CHUNKS - 1
    assert finding.evidence["calls"] == [{"name": "cudaFree", "thread": 100, "count": CHUNKS - 1}]
    assert finding.evidence["held_ns"] == pytest.approx((CHUNKS - 1) * 2 * MS, rel=0.02)


@pytest.mark.parametrize("name", ["cudaFreeAsync_v11020", "cudaMalloc_v3020"])
def test_allocations_that_do_not_drain_the_gpu(name: str) -> None:
    program = Program()
    chunk_by_chunk(program, lambda stream: program.call(name))

    assert findings(program, *PIPELINE) == []


def test_allocations_beside_work_that_goes_on_drain_nothing() -> None:
    program = Program()
    with program.range("loop"):
        for _ in range(8):
            program.kernel(1, 10 * MS)
            program.host(MS)
            program.call("cudaMalloc_v3020", 4 * MS)
            program.copy("h2d", 2, 9 * MS)  # ready before, and launched behind the call
            program.wait()

    assert findings(program, allocation_sync.ANALYZER) == []


def test_allocations_that_take_their_time_themselves() -> None:
    program = Program()
    chunk_by_chunk(program, lambda stream: program.call("cuModuleLoadData", 10 * MS))

    assert findings(program, allocation_sync.ANALYZER) == []


def test_allocations_before_the_work() -> None:
    program = Program()
    for _ in range(20):
        program.call("cudaMalloc_v3020", MS)
    pipeline(program)

    assert findings(program, *PIPELINE) == []


@pytest.mark.parametrize(
    ("steps", "name"), [(20, "cudaFree"), (9, "cudaFree"), (20, "cudaFreeAsync")]
)
def test_freeing_between_kernels_alone(steps: int, name: str) -> None:
    program = Program()
    for _ in range(steps + 1):
        program.kernel(1, MS)
        program.drain(name)
        program.call("cudaMalloc", MS // 2)

    found = findings(program, allocation_sync.ANALYZER)

    if steps < 10 or name.endswith("Async"):
        assert found == []
        return
    (finding,) = found
    assert finding.evidence["count"] == steps
    # The call returns, memory is allocated, the next kernel is launched and starts.
    assert finding.saving_ns == steps * (CALL_NS + MS // 2 + CALL_NS + GAP_NS)


# same-stream, again


def test_three_copies_and_then_three_kernels_are_no_pipeline() -> None:
    program = Program()
    with program.range("once"):
        for _ in range(3):
            program.copy("h2d", 1, MS)
        for _ in range(3):
            program.kernel(1, MS)

    assert findings(program, same_stream.ANALYZER) == []


def test_work_that_is_launched_late_does_not_wait_for_its_stream() -> None:
    program = Program()
    with program.range("loop"):
        for _ in range(8):
            program.copy("h2d", 1, MS)
            program.host(MS + MS // 10)
            program.kernel(1, MS)
            program.host(MS + MS // 10)

    assert findings(program, same_stream.ANALYZER) == []


def test_work_that_is_launched_long_after_a_wait_does_not_wait_for_its_stream() -> None:
    program = Program()
    with program.range("loop"):
        for _ in range(8):
            program.copy("h2d", 1, MS)
            program.wait(1)
            program.host(MS // 10)
            program.kernel(1, MS)
            program.wait(1)
            program.host(MS // 10)

    assert findings(program, same_stream.ANALYZER) == []


# Where a finding belongs


def test_a_cause_in_an_inner_range_is_told_of_the_inner_range() -> None:
    program = Program()
    with program.range("main"):
        program.kernel(1, 1000 * MS)
        program.wait()
        chunk_by_chunk(program, lambda stream: program.wait(stream))

    assert only(program, "host-sync").range == "loop"


def test_without_ranges_it_is_told_of_the_device() -> None:
    finding = only(without_ranges(chunks=16), "host-sync")

    assert (finding.range, finding.device, finding.process) == (None, 0, 100)


def test_a_few_waits_without_ranges_may_end_parts_of_the_program() -> None:
    assert findings(without_ranges(chunks=8), *PIPELINE) == []


def without_ranges(chunks: int) -> Program:
    program = Program()
    for chunk in range(chunks):
        program.copy("h2d", 1 + chunk % 4, MS)
        program.kernel(1 + chunk % 4, MS)
        program.wait(1 + chunk % 4)
    return program


def test_instances_are_summed_into_one_finding() -> None:
    program = Program()
    for _ in range(3):
        chunk_by_chunk(program, lambda stream: program.wait(stream))

    finding = only(program, "host-sync")

    assert finding.evidence["instances"] == 3
    assert finding.evidence["count"] == 3 * (CHUNKS - 1)
    assert len(finding.evidence["examples"]) == 3
