"""Programs that do well, in the ways real ones do: nothing is to be said about them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuscope.analyzers import ANALYZERS
from gpuscope.model.result import Finding
from tests.unit.analyzers.test_causes_program import MS, Program, findings

DOUBTS = ("coarse-clock",)  # the model's clock ticks in microseconds


def warnings_of(program: Program) -> list[Finding]:
    found = findings(program, *ANALYZERS)
    return [f for f in found if f.severity == "warning" and f.id not in DOUBTS]


def training_with_prefetch() -> Program:
    """The next batch is copied under the kernels, a loss is read every tenth step."""
    program = Program()
    program.copy("h2d", 2, MS)
    program.record("batch 0", 2)
    for step in range(40):
        with program.range("step"):
            program.wait_event(1, f"batch {step}")
            program.copy("h2d", 2, MS)
            program.record(f"batch {step + 1}", 2)
            for _ in range(8):
                program.kernel(1, MS // 2)
            if step % 10 == 9:
                program.copy("d2h", 1, 1_000, size=4, pageable=True, blocking=True)
    return program


def synchronous_copies_under_kernels() -> Program:
    """Copies in block the host, but the kernels of the step before last for longer."""
    program = Program()
    for _ in range(20):
        program.kernel(1, 4 * MS)
        program.copy("h2d", 2, MS, name="cudaMemcpy_v3020", blocking=True)
    return program


def pool_allocations() -> Program:
    """Memory comes from a pool, ordered by the stream."""
    program = Program()
    with program.range("loop"):
        for chunk in range(16):
            stream = 1 + chunk % 4
            program.call("cudaMallocAsync_v11020")
            program.copy("h2d", stream, MS)
            program.kernel(stream, MS)
            program.copy("d2h", stream, MS)
            program.call("cudaFreeAsync_v11020")
    program.wait()
    return program


def two_threads() -> Program:
    """Each thread has streams of its own and waits for them; the other keeps the GPU busy."""
    program = Program()
    clocks = [0, 0]
    for turn in range(40):
        program.thread = turn % 2
        program.now = clocks[program.thread]
        stream = 1 + program.thread
        program.copy("h2d", stream, MS)
        program.kernel(stream, 2 * MS)
        program.copy("d2h", stream, MS)
        program.wait(stream)
        clocks[program.thread] = program.now
    return program


def requests() -> Program:
    """A server: streams in turn, a wait for each answer, and nothing to do in between."""
    program = Program()
    for request in range(20):
        stream = 1 + request % 2
        program.copy("h2d", stream, MS)
        program.kernel(stream, MS)
        program.copy("d2h", stream, MS)
        program.wait(stream)
        program.call("cudaGetDevice_v3020")
        program.host(40_000)
        for _ in range(200):
            program.call("cudaGetDevice_v3020")
            program.host(40_000)
    return program


def three_streams_in_order() -> Program:
    """Copy in, compute and copy out have a stream each; events hand the chunks on."""
    program = Program()
    with program.range("pipeline"):
        for chunk in range(16):
            program.copy("h2d", 1, MS)
            program.record(f"in {chunk}", 1)
            program.wait_event(2, f"in {chunk}")
            program.kernel(2, MS)
            program.record(f"computed {chunk}", 2)
            program.wait_event(3, f"computed {chunk}")
            program.copy("d2h", 3, MS)
    program.wait()
    return program


def double_buffer_with_waits() -> Program:
    """The host waits before it reuses a buffer; kernels never run dry."""
    program = Program()
    with program.range("loop"):
        for chunk in range(20):
            stream = 1 + chunk % 2
            if chunk > 1:
                program.wait(stream)
            program.copy("h2d", stream, MS // 2)
            program.free[stream] = max(program.free[stream], program.free.get("kernel", 0))
            program.kernel(stream, 2 * MS)
    return program


def measured_phases() -> Program:
    """A benchmark: phases of their own kind, with the device waited for between them."""
    program = Program()
    for _ in range(3):
        with program.range("repetition"):
            for op_class in ("h2d", "d2h"):
                for stream in (1, 2, 3):
                    program.copy(op_class, stream, MS)
                program.wait()
            for _ in range(3):
                program.kernel(1, MS)
            program.wait()
    return program


def phases_without_ranges() -> Program:
    """The same a dozen times, with nothing in the trace that says so."""
    program = Program()
    for _ in range(12):
        for op_class in ("h2d", "d2h"):
            for stream in (1, 2, 3):
                program.copy(op_class, stream, MS)
            program.wait(1)
            program.wait(2)
            program.wait(3)
    return program


def kernels_that_are_waited_for() -> Program:
    """A solver that looks at its residual; there is nothing to overlap."""
    program = Program()
    for _ in range(30):
        program.kernel(1, MS)
        program.wait(1)
    return program


def passes_in_turn() -> Program:
    """A benchmark that compares two ways, each a range, and waits for each pass."""
    program = Program()
    with program.range("measure"):
        for repetition in range(12):
            with program.range("one way" if repetition % 2 else "another"):
                for stream in (1, 2, 3):
                    program.copy("h2d", stream, MS)
                    program.kernel(stream, MS)
            program.wait()
    return program


HEALTHY = (
    passes_in_turn,
    training_with_prefetch,
    synchronous_copies_under_kernels,
    pool_allocations,
    two_threads,
    three_streams_in_order,
    double_buffer_with_waits,
    measured_phases,
    phases_without_ranges,
    kernels_that_are_waited_for,
)


@pytest.mark.parametrize("make", HEALTHY, ids=lambda make: make.__name__)
def test_no_warning(make: Callable[[], Program]) -> None:
    assert warnings_of(make()) == []


def test_a_server_waits_for_requests_not_for_the_gpu() -> None:
    ids = {finding.id for finding in warnings_of(requests())}

    assert "host-sync" not in ids


def test_one_cause_does_not_drag_in_others() -> None:
    program = Program()
    with program.range("pipeline"):
        for chunk in range(16):
            program.copy("h2d", 1, MS)
            program.record(f"in {chunk}", 1)
            program.wait_event(2, f"in {chunk}")
            program.kernel(2, MS)
            program.record(f"computed {chunk}", 2)
            program.wait_event(3, f"computed {chunk}")
            program.copy("d2h", 3, MS)
            program.wait(3)

    assert [finding.id for finding in warnings_of(program)] == ["host-sync"]
