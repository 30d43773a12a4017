"""The story of an operation and of a range, from programs written by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.cases import Case
from gpuscope.model.classes import CODE
from gpuscope.report.story import story_text
from gpuscope.story import (
    MOST_BARS,
    Explanation,
    Step,
    operation_at,
    tell_operation,
    tell_range,
)
from gpuscope.units import format_ns
from tests.make_trace import make_trace
from tests.unit.analyzers.test_causes_program import CALL_NS, GAP_NS, MS, Program


def case_of(program: Program, **options: str) -> Case:
    return Case.of(program.trace(), Options(**options))  # type: ignore[arg-type]


def test_an_operation_behind_its_predecessor() -> None:
    program = Program()
    program.copy("h2d", 1, MS)
    with program.range("work"):
        program.kernel(1, MS)

    story = tell_operation(case_of(program), 1)

    begin = CALL_NS + GAP_NS
    assert (story.op_class, story.name, story.stream) == ("kernel", "compute", "stream 1")
    assert (story.process, story.device, story.range) == (100, 0, "work")
    assert story.launch == Step("launch", "cudaLaunchKernel, thread 100", 2_000, 4_000, None)
    assert story.waited_for == (Step("stream", "h2d, 33.6 MB, stream 1", begin, begin + MS, 0),)
    assert (story.ready_ns, story.reason) == (begin + MS, "stream")
    assert story.cost_ns == begin + MS - 2_000
    assert story.told.startswith("it started 2.00 µs after the operation before it in its stream")
    assert story.host == ()


def test_a_kernel_chained_to_its_predecessor() -> None:
    kernels = [(0, MS, "s1"), (MS // 2, 2 * MS, "s1", {"launch": 10})]

    story = tell_operation(Case.of(make_trace(kernels=kernels), Options()), 1)

    assert (story.reason, story.cost_ns) == ("stream", None)
    assert story.told.startswith("it started before the kernel before it in its stream had ended")
    assert story.waited_for == (Step("stream", "kernel, stream 1", 0, MS, 0),)


def test_an_operation_that_the_host_launched_late() -> None:
    program = Program()
    program.kernel(1, MS)
    program.wait(1)
    program.host(50_000)
    program.mpi("MPI_Barrier", 20_000)
    program.kernel(1, MS)

    story = tell_operation(case_of(program), 1)

    assert story.reason == "host"
    ready = CALL_NS + GAP_NS + MS
    waited = ready + CALL_NS
    assert story.host == (
        Step("host", "cudaStreamSynchronize, thread 100", ready, waited, None),
        Step("host", "in no CUDA or MPI call", waited, waited + 50_000, None),
        Step("host", "MPI_Barrier", waited + 50_000, waited + 70_000, None),
    )
    assert story.cost_ns == CALL_NS + 70_000 + CALL_NS + GAP_NS


def test_an_operation_behind_an_event() -> None:
    program = Program()
    program.kernel(1, MS)
    program.record("done", 1)
    program.wait_event(2, "done")
    program.copy("h2d", 2, MS)

    story = tell_operation(case_of(program), 1)

    assert [step.kind for step in story.waited_for] == ["event"]
    assert (story.reason, story.waited_for[0].operation) == ("event", 0)
    assert "by an event" in story.told


def test_an_operation_without_api_calls_has_no_launch() -> None:
    program = Program()
    program.kernel(1, MS)
    trace = program.trace()
    story = tell_operation(Case.of(dataclasses.replace(trace, api=None), Options()), 0)

    assert story.launch is None
    assert (story.reason, story.cost_ns) == ("unknown", None)


@pytest.mark.parametrize(
    ("time_ns", "operation"),
    [(0, 0), (4_000, 0), (4_100, 1), (4_000 + 2 * MS, 1), (99 * MS, None)],
)
def test_the_operation_at_a_time(time_ns: int, operation: int | None) -> None:
    """Kernels from 4.0 µs for 100 ns, and from 6.0 µs for 3 ms."""
    program = Program()
    program.kernel(1, 100)
    program.kernel(2, 3 * MS)

    assert operation_at(program.trace(), time_ns) == operation


def test_a_lane_of_many_operations_is_drawn_in_cells() -> None:
    program = Program()
    for _ in range(MOST_BARS):
        program.kernel(1, 1_000)
    for _ in range(MOST_BARS):
        program.copy("h2d", 1, 1_000)

    case = case_of(program)
    (lane,) = tell_range(case, case.levels[0][0]).lanes

    assert len(lane.bars) <= MOST_BARS
    classes = [bar.op_class for bar in lane.bars]
    assert classes == ["kernel"] * classes.count("kernel") + ["h2d"] * classes.count("h2d")
    assert 0.9 < classes.count("kernel") / classes.count("h2d") < 1.1


def test_work_of_no_stream_has_a_lane_of_its_own_and_may_be_all_there_is() -> None:
    made = make_trace(kernels=[(0, MS, "s7")], uvm=[(0, MS, "s7")])
    assert made.operations is not None
    alone = made.operations.take(made.operations.op_class == CODE["uvm"])
    some = dataclasses.replace(made.operations, stream=np.array([0, -1], np.int32))
    none = dataclasses.replace(alone, stream=np.array([-1], np.int32))

    for operations, streams, lanes in (
        (some, made.streams, ["no stream", "stream 7"]),
        (none, (), ["no stream"]),
    ):
        trace = dataclasses.replace(made, operations=operations, streams=streams)
        case = Case.of(trace, Options())
        (region,) = case.levels[0]
        assert [lane.stream for lane in tell_range(case, region).lanes] == lanes


def test_waits_of_queued_operations_sum_to_more_than_the_span_and_the_text_tells_the_mean() -> None:
    program = Program()
    with program.range("queued"):
        for _ in range(5):
            program.kernel(1, MS)
        program.wait(1)
    case = case_of(program)

    story = tell_range(case, case.levels[0][0])

    text = story_text(Explanation("", (), (story,), 0), 0)
    (waited,) = (entry for entry in story.reasons if entry.reason == "stream")
    mean = format_ns(waited.cost_ns / 4)
    assert waited.cost_ns > story.span_ns
    assert f"kernel waited for stream (4 ×, {mean} each)" in text


def test_a_range() -> None:
    program = Program()
    for pause_ns in (0, 5 * MS, MS):
        with program.range("step"):
            program.kernel(1, MS)
            program.wait(1)
            program.host(pause_ns)
            program.kernel(2, MS)
            program.copy("d2h", 2, MS)
            program.wait(2)

    case = case_of(program)
    (region,) = case.levels[0]
    story = tell_range(case, region)

    assert (story.range, story.instances) == ("step", 3)
    assert story.span_ns == story.busy_ns + story.idle_ns
    assert story.drawn == 2  # the one in the middle by length
    assert [(lane.stream, [bar.op_class for bar in lane.bars]) for lane in story.lanes] == [
        ("stream 1", ["kernel"]),
        ("stream 2", ["kernel", "d2h"]),
    ]
    reasons = {(entry.op_class, entry.reason): entry.count for entry in story.reasons}
    assert reasons == {("d2h", "stream"): 3, ("kernel", "host"): 6}
    # The first operations of the instances waited for nothing that belongs to the range.
    assert [worst.operation for worst in story.worst] == [4, 7, 2]


def test_other_work_is_neither_the_ranges_own_nor_idle_time() -> None:
    case = Case.of(api.open_trace(samples.path("nccl_one")), Options(ranges=("exchange",)))
    (region,) = (each for each in case.levels[0] if each.name == "exchange")
    story = tell_range(case, region)

    assert story.foreign_ns > 17 * MS
    assert story.span_ns == story.busy_ns + story.foreign_ns + story.idle_ns
    text = story_text(Explanation("", (), (story,), 0), 0)
    assert "busy 16.4 ms, only other work 17.3 ms, idle 3.48 ms" in text


def test_streams_are_drawn_by_their_numbers() -> None:
    program = Program()
    program.copy("h2d", 10, MS)
    program.copy("h2d", 9, MS)
    case = case_of(program)
    lanes = tell_range(case, case.levels[0][0]).lanes
    assert [lane.stream for lane in lanes] == ["stream 9", "stream 10"]


def test_a_copy_names_its_memory_and_a_kernel_has_none() -> None:
    case = Case.of(api.open_trace(samples.path("pageable")), Options())
    told = [tell_operation(case, number) for number in range(3)]
    assert [(story.op_class, story.memory) for story in told] == [
        ("h2d", "pageable → device"),
        ("kernel", None),
        ("d2h", "device → pageable"),
    ]


def test_a_migration_says_where_its_pages_go() -> None:
    case = Case.of(api.open_trace(samples.path("uvm_migration")), Options())
    h2d = int(np.flatnonzero(case.ops.op_class == CODE["h2d"])[0])
    told = [tell_operation(case, number) for number in (0, h2d, 400)]
    assert [(story.op_class, story.memory) for story in told] == [
        ("uvm", "pages to the host"),
        ("h2d", "pages that were prefetched"),
        ("uvm", "pages to the GPU"),
    ]
    assert "4.10 kB, pages to the GPU)" in story_text(Explanation("", (told[2],), (), 0), 0)
