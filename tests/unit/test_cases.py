"""The ground of the causes: kinds of calls, regions, one case for all analyzers."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import cases
from gpuscope.analysis import Options
from gpuscope.analyzers import same_stream
from gpuscope.cases import CALL_KINDS, LEVELS, MAX_READ_BYTES, Case, Region, names_of
from gpuscope.model.result import Finding
from gpuscope.model.tables import PUSH_POP, START_END, ApiCalls, Ranges
from gpuscope.model.trace import Trace
from gpuscope.waits import call_name
from tests.make_trace import make_trace
from tests.unit.analyzers.test_causes_program import GAP_NS, MS, Program, findings


@pytest.mark.parametrize(("share", "blocking"), [(0.0, False), (0.5, False), (0.9, True)])
def test_a_copy_blocks_where_its_call_lasts_nearly_as_long(share: float, blocking: bool) -> None:
    program = Program()
    for _ in range(4):
        program.copy("h2d", 1, MS, pageable=True)
        program.rows[ApiCalls][-1]["end_ns"] += int(share * MS)
        program.host(2 * MS)

    found = Case.of(program.trace(), Options()).blocking_copies

    assert found.tolist() == [blocking] * 4


@pytest.mark.parametrize(("pause_ns", "read"), [(10_000, True), (200_000, False)])
def test_a_read_is_waited_for_at_once(pause_ns: int, read: bool) -> None:
    program = Program()
    program.kernel(1, MS)
    program.copy("d2h", 1, 1_000, size=4)
    program.host(pause_ns)
    program.wait(1)

    reads, waits = Case.of(program.trace(), Options()).reads

    assert reads.tolist() == [False, read]
    assert len(waits) == read


@pytest.mark.parametrize(("size", "read"), [(MAX_READ_BYTES, True), (MAX_READ_BYTES + 1, False)])
def test_reads_are_small_and_each_has_its_wait(size: int, read: bool) -> None:
    program = Program()
    for _ in range(2):
        program.kernel(1, MS)
        program.copy("d2h", 1, 1_000, size=size)
        program.wait(1)

    reads, waits = Case.of(program.trace(), Options()).reads

    assert reads.tolist() == [False, read] * 2
    assert len(waits) == 2 * read


def test_ranges_are_looked_into_so_deep() -> None:
    program = Program()
    with contextlib.ExitStack() as stack:
        for depth in range(LEVELS + 2):
            stack.enter_context(program.range(f"depth {depth}"))
            program.kernel(1, MS)

    case = Case.of(program.trace(), Options())

    assert [len(level) for level in case.levels] == [1] * LEVELS


@pytest.mark.parametrize(("cycles", "meant"), [(1, False), (2, True)])
def test_copying_and_computing_twice_in_one_stream_is_meant_to_overlap(
    cycles: int, meant: bool
) -> None:
    program = Program()
    for _ in range(cycles):
        program.copy("h2d", 1, MS)
        program.kernel(1, MS)

    (region,) = Case.of(program.trace(), Options()).levels[0]

    assert region.meant_to_overlap is meant


def test_operations_are_in_other_ranges_by_the_outermost_that_they_do_not_share() -> None:
    program = Program()
    for step in range(2):
        with program.range(f"step {step}"):
            with program.range("forward"):
                program.kernel(1, MS)
            with program.range("backward"):
                program.kernel(1, MS)
    case = Case.of(program.trace(), Options())
    forward, backward, again = np.array([0]), np.array([1]), np.array([2])

    assert case.in_other_ranges(forward, backward).tolist() == [True]
    # The next repetition, whose name has another number, and what lies in it.
    assert case.in_other_ranges(backward, again).tolist() == [False]


def test_names_of_calls() -> None:
    assert names_of([{"name": "a"}, {"name": "b"}, {"name": "a"}, {"name": "c"}]) == "a, b and c"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaStreamSynchronize_v3020", "wait"),
        ("cuCtxSynchronize", "wait"),
        ("cudaEventQuery_v3020", "poll"),
        ("cudaMemcpy_v3020", "copy"),
        ("cudaMemcpy2D_ptds_v7000", "copy"),
        ("cuMemcpyHtoD_v2", "copy"),
        ("cudaMemcpyAsync_v3020", "copy-async"),
        ("cuMemcpyHtoDAsync_v2", "copy-async"),
        ("cudaFree_v3020", "allocate"),
        ("cudaHostAlloc_v3020", "allocate"),
        ("cuModuleLoadData", "allocate"),
        ("cudaMallocAsync_v11020", None),
        ("cudaFreeAsync_v11020", None),
        ("cuMemAllocAsync", None),
        ("cudaLaunchKernelExC_v11060", "launch"),
        ("cuLaunchKernel", "launch"),
        ("cudaGetDevice_v3020", None),
    ],
)
def test_kinds_of_calls(name: str, kind: str | None) -> None:
    fits = [k for k, pattern in CALL_KINDS.items() if pattern.fullmatch(call_name(name))]

    assert fits[:1] == ([kind] if kind else [])


def test_one_case_is_kept_for_a_trace() -> None:
    trace, other = make_trace(kernels=[(0, 1, "s1")]), make_trace(kernels=[(0, 1, "s1")])
    transfer_ns = np.array([5])

    kept = Case.of(trace, Options())
    assert Case.of(trace, Options(transfer_ns=transfer_ns)) is kept
    assert Case.of(other, Options()).trace is other
    assert Case.of(trace, Options(ranges=("x",))).options.ranges == ("x",)
    assert Case.of(trace, Options()) is not kept


def nested() -> Program:
    program = Program()
    with program.range("outer"):
        for _ in range(3):
            with program.range("inner"):
                program.copy("h2d", 1, MS)
                program.kernel(1, MS)
                program.host(100)
    with program.range("ncclGroupEnd", domain="NCCL"):
        program.comm(2, MS)
    return program


def test_regions_are_the_outermost_ranges_and_what_none_covers() -> None:
    case = Case.of(nested().trace(), Options())

    names = [[(r.name, r.instances, len(r.rows)) for r in level] for level in case.levels]
    assert names == [[("outer", 1, 6), (None, 1, 1)], [("inner", 3, 6)]]


def test_chosen_ranges_are_the_only_ones() -> None:
    case = Case.of(nested().trace(), Options(ranges=("inn*",)))

    # What lies in other ranges, or in none, was not asked for.
    assert [region.name for region in case.levels[0]] == ["inner"]


def test_figures_of_a_region() -> None:
    region = Case.of(nested().trace(), Options()).levels[0][0]

    assert region.material == ("kernel", "h2d")
    assert region.cycles == 3
    assert region.meant_to_overlap
    assert region.class_busy_ns == {"kernel": 3 * MS, "h2d": 3 * MS}
    assert region.bound_ns == 3 * MS
    assert region.span_ns == 6 * MS + 5 * GAP_NS
    # One gap is filled by the communication outside of the range.
    assert region.foreign_ns == GAP_NS
    # Three chunks: the span, less the busiest engine, less a third of the other one.
    assert region.potential_ns == region.span_ns - GAP_NS - 3 * MS - MS


def test_what_runs_on_another_device_does_not_keep_this_one_busy() -> None:
    trace = make_trace(
        devices=2,
        kernels=[(0, 10, "s1"), (30, 40, "s1"), (0, 40, "s1", {"device": 1, "launch": 50})],
        ranges=[("r", 0, 45)],
    )

    region = Case.of(trace, Options()).levels[0][0]

    assert (region.device, region.span_ns, region.idle_ns, region.foreign_ns) == (0, 40, 20, 0)


def apart(kind: int) -> Trace:
    """Two ranges of a process that overlap, and launches of another thread within the first."""
    return make_trace(
        ranges=[
            ("part", 0, 100, {"kind": kind}),
            ("other", 60, 200, {"kind": kind}),
            ("part", 210, 300, {"kind": kind}),
        ],
        kernels=[
            (10, 40, "s1"),
            (40, 70, "s2", {"launch": 20, "thread": "worker"}),
            (110, 170, "s1"),
            (220, 290, "s2", {"thread": "worker"}),
        ],
    )


def test_ranges_that_are_started_and_ended_take_the_launches_of_all_threads() -> None:
    case = Case.of(apart(START_END), Options())

    assert [[(r.name, len(r.rows), r.instances) for r in level] for level in case.levels] == [
        [("part", 3, 2), (None, 1, 1)],
        [("other", 1, 1)],
    ]
    assert case.by_process(0)


def test_ranges_that_are_pushed_and_popped_take_those_of_their_thread() -> None:
    case = Case.of(apart(PUSH_POP), Options())

    assert [(r.name, len(r.rows)) for r in case.levels[0]][:2] == [("part", 1), (None, 3)]
    assert not case.by_process(0)


def test_regions_by_path() -> None:
    case = Case.of(nested().trace(), Options(by_path=True))

    assert [[r.name for r in level] for level in case.levels] == [
        ["outer", None],
        ["outer/inner"],
    ]
    (inner,) = Case.of(nested().trace(), Options(by_path=True, ranges=("outer/*",))).levels[0][:1]
    assert inner.name == "outer/inner"


def test_a_finding_names_the_ranges_inside_that_account_for_it() -> None:
    program = Program()
    with program.range("all"):
        for name in ("first", "second"):
            with program.range(name):
                for _ in range(6):
                    program.copy("h2d", 1, MS)
                    program.kernel(1, MS)
                    program.wait(1)

    found = findings(program, same_stream.ANALYZER)

    assert [finding.range for finding in found] == ["first", "second"]


def test_a_finding_that_names_no_holdup_is_as_large_as_its_saving() -> None:
    program = Program()
    with program.range("all"):
        for name in ("first", "second"):
            with program.range(name):
                program.kernel(1, MS)
    case = Case.of(program.trace(), Options())

    def rule(region: Region) -> Finding:
        return case.finding(
            region,
            id="made",
            claim="",
            mechanism="",
            advice="",
            evidence={},
            saving_ns=region.busy_ns,
        )

    assert [finding.range for finding in case.search(rule)] == ["first", "second"]


def test_a_finding_stays_with_the_range_whose_parts_do_not_show_it() -> None:
    program = Program()
    with program.range("all"):
        for number in range(6):
            with program.range(f"chunk {number}"):
                program.copy("h2d", 1, MS)
                program.kernel(1, MS)

    assert [f.range for f in findings(program, same_stream.ANALYZER)] == ["all"]


def test_small_ranges_belong_to_the_device() -> None:
    program = Program()
    with program.range("large"):
        program.kernel(1, 1000 * MS)
    program.wait()
    with program.range("small"):
        program.kernel(1, MS)

    regions = Case.of(program.trace(), Options()).levels[0]

    assert [region.name for region in regions] == ["large", None]


def test_what_no_range_covers_is_cut_where_a_range_begins() -> None:
    program = Program()
    for number in range(3):
        program.kernel(1, MS)
        program.kernel(1, MS)
        with program.range(f"phase {number}"):
            program.kernel(2, MS)

    regions = Case.of(program.trace(), Options()).levels[0]
    (rest,) = [region for region in regions if region.name is None]

    assert rest.instances == 3
    assert rest.instance.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_window_leaves_out_what_lies_outside() -> None:
    program = nested()

    case = Case.of(program.trace(), Options(window_ns=(0, 100_000)))

    assert sum(len(region.rows) for region in case.levels[0]) == 2


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(0, 1)), max_size=25)


@given(SPANS.map(sorted))
def test_ranges_take_the_first_lane_that_is_free(spans: list[tuple[int, int, int]]) -> None:
    columns = Ranges.empty().columns()
    columns = {name: np.zeros(len(spans), column.dtype) for name, column in columns.items()}
    columns["start_ns"] = np.array([start for start, _, _ in spans], np.int64)
    columns["end_ns"] = np.array([start + length for start, length, _ in spans], np.int64)
    columns["process"] = np.array([process for _, _, process in spans], np.int32)
    free_at: dict[tuple[int, int], int] = {}
    expected = []
    for start, length, process in spans:
        lane = next((i for i in range(LEVELS) if free_at.get((process, i), 0) <= start), LEVELS)
        free_at[process, lane] = start + length
        expected.append(lane)
    assert cases._lanes(Ranges(**columns)).tolist() == expected
