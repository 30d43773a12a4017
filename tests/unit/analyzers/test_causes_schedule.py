"""Causes in how work is issued and what it shares: each with a program that has it, and a twin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import (
    issue_order,
    jit_autotune,
    overlap_with_slowdown,
    peer_through_host,
    ranges,
    slow_link,
    timing_events,
)
from gpuscope.model.result import Finding
from gpuscope.model.tables import MEMORY_KINDS, STAGED
from gpuscope.model.trace import Trace
from tests.make_trace import make_trace
from tests.unit.analyzers.test_causes_program import GAP_NS, MS, Program, findings, pipeline

SCHEDULE = (
    issue_order.ANALYZER,
    jit_autotune.ANALYZER,
    overlap_with_slowdown.ANALYZER,
    peer_through_host.ANALYZER,
    slow_link.ANALYZER,
    timing_events.ANALYZER,
)


def only(program: Program, expected: str) -> Finding:
    found = findings(program, *SCHEDULE)
    assert [finding.id for finding in found] == [expected]
    return found[0]


def of(trace: Trace) -> list[Finding]:
    return list(run_all(trace, SCHEDULE, Options()).findings)


def test_a_healthy_pipeline() -> None:
    program = Program()
    pipeline(program)

    assert findings(program, *SCHEDULE) == []


# issue-order


def one_engine(breadth_first: bool) -> Program:
    program = Program(copy_engines=1)
    with program.range("pipeline"):
        for group in range(2):
            streams = range(1 + 4 * group, 5 + 4 * group)
            if breadth_first:
                for stream in streams:
                    program.copy("h2d", stream, MS)
                for stream in streams:
                    program.kernel(stream, MS)
                for stream in streams:
                    program.copy("d2h", stream, MS)
            else:
                for stream in streams:
                    program.copy("h2d", stream, MS)
                    program.kernel(stream, MS)
                    program.copy("d2h", stream, MS)
    program.wait()
    return program


def span_ns(program: Program) -> int:
    operations = program.trace().operations
    assert operations is not None
    return int(operations.end_ns.max() - operations.start_ns[0])


def test_depth_first_on_one_copy_engine() -> None:
    finding = only(one_engine(breadth_first=False), "issue-order")

    assert finding.evidence["order"] == "depth first"
    assert finding.evidence["count"] == 7
    saved = span_ns(one_engine(breadth_first=False)) - span_ns(one_engine(breadth_first=True))
    assert finding.saving_ns == pytest.approx(saved, rel=0.25)


def test_breadth_first_on_one_copy_engine() -> None:
    assert findings(one_engine(breadth_first=True), *SCHEDULE) == []


def test_an_unknown_number_of_copy_engines_abstains() -> None:
    trace = one_engine(breadth_first=False).trace()
    devices = tuple(dataclasses.replace(device, copy_engines=None) for device in trace.devices)

    analysis = run_all(
        dataclasses.replace(trace, devices=devices), [issue_order.ANALYZER], Options()
    )

    assert [a.analyzer for a in analysis.abstained] == ["issue-order"]
    assert analysis.findings == ()


def longest_first(lengths_ms: Sequence[int]) -> Program:
    """Kernels side by side, each with its copy out; the copies go in the order of their calls."""
    program = Program(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    with program.range("loop"):
        for stream, length_ms in enumerate(lengths_ms, start=1):
            program.kernel(stream, length_ms * MS)
            program.copy("d2h", stream, MS)
    return program


def test_all_copies_behind_the_waiting_one_are_held_by_it() -> None:
    finding = only(longest_first([5, 3, 2, 1]), "issue-order")

    assert finding.evidence["count"] == 3
    assert finding.evidence["order"] == "depth first"
    saved = span_ns(longest_first([5, 3, 2, 1])) - span_ns(longest_first([1, 2, 3, 5]))
    assert finding.saving_ns == pytest.approx(saved, rel=0.25)
    assert findings(longest_first([1, 2, 3, 5]), *SCHEDULE) == []


def test_what_is_held_saves_nothing_where_one_stream_takes_the_time() -> None:
    """The longest kernels and their copies make up the whole span, whatever comes first."""
    program = Program(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    with program.range("loop"):
        for _ in range(4):
            for stream, ns in ((1, 4 * MS), (2, MS)):
                program.kernel(stream, ns)
                program.copy("d2h", stream, MS)

    assert findings(program, *SCHEDULE) == []


# timing-events


def events(gap_ns: int, kernel_ns: int = 100_000) -> Trace:
    """Six kernels of a stream, an event between the first three pairs, `gap_ns` behind each."""
    program = Program()
    with program.range("loop"):
        for step in range(8):
            program.kernel(1, kernel_ns)
            if step % 2:
                program.record(f"step {step}", 1)
                program.free[1] += gap_ns
    return program.trace()


def test_events_that_delay_what_follows() -> None:
    (finding,) = of(events(8_000))

    assert finding.id == "timing-events"
    assert finding.evidence["count"] == 3
    assert finding.evidence["median_gap_ns"] == 8_000 + GAP_NS
    assert finding.saving_ns == 3 * 8_000
    assert finding.removable == "yes"


@pytest.mark.parametrize(("gap_ns", "kernel_ns"), [(0, 100_000), (900, 100_000), (900, 10_000)])
def test_events_that_delay_nothing(gap_ns: int, kernel_ns: int) -> None:
    assert of(events(gap_ns, kernel_ns)) == []


def test_copies_behind_an_event_begin_late_anyway() -> None:
    program = Program()
    with program.range("loop"):
        for step in range(8):
            program.kernel(1, 100_000)
            program.kernel(1, 100_000)
            program.record(f"step {step}", 1)
            program.free[1] += 8_000
            program.copy("d2h", 1, 100_000)

    assert findings(program, timing_events.ANALYZER) == []


def test_kernels_that_start_early_are_no_measure_of_those_behind_an_event() -> None:
    """Programmatic dependent launch starts kernels early, but for those behind an event."""
    program = Program()
    with program.range("loop"):
        for step in range(8):
            program.kernel(1, 100_000)
            program.free[1] -= 20_000
            program.kernel(1, 100_000)
            program.record(f"step {step}", 1)

    assert findings(program, timing_events.ANALYZER) == []


def in_lock_step() -> Program:
    """Steps in which two streams wait for each other, and each begins 8 µs late for that."""
    program = Program()
    with program.range("loop"):
        for step in range(8):
            for stream, other in ((1, 2), (2, 1)):
                if step:
                    program.wait_event(stream, f"step {step - 1} of {other}")
                    program.free[stream] += 8_000
                program.kernel(stream, 100_000)
                program.kernel(stream, 100_000)
                program.record(f"step {step} of {stream}", stream)
    return program


def test_kernels_that_wait_for_another_stream_tell_nothing_of_its_events() -> None:
    trace = in_lock_step().trace()
    assert run_all(trace, [timing_events.ANALYZER], Options()).findings == ()


def test_timing_where_no_wait_is_traced_to_its_record_abstains() -> None:
    trace = dataclasses.replace(in_lock_step().trace(), syncs=None)
    (abstained,) = run_all(trace, [timing_events.ANALYZER], Options()).abstained
    assert abstained.reason == "none of 14 stream waits can be traced to its event record"


def test_timing_without_records_abstains() -> None:
    trace = dataclasses.replace(events(8_000), event_records=None)

    analysis = run_all(trace, [timing_events.ANALYZER], Options())

    assert [a.analyzer for a in analysis.abstained] == ["timing-events"]


# jit-autotune


def compiling(call: str, ns: int) -> Program:
    program = Program()
    with program.range("loop"):
        for chunk in range(4):
            program.host(ns)
            program.call(call, 50_000)
            program.copy("h2d", 1, MS)
            program.kernel(1, MS, name=f"variant {chunk}")
            program.wait()
    return program


def test_code_compiled_in_the_loop() -> None:
    finding = only(compiling("cuModuleLoadData", 10 * MS), "jit-autotune")

    assert finding.severity == "info"
    assert finding.evidence["count"] == 3  # before the first operation nothing is idle
    assert finding.evidence["calls"] == [{"name": "cuModuleLoadData", "thread": 100, "count": 3}]
    assert finding.evidence["held_ns"] == pytest.approx(3 * 10 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("call", "ns"), [("cudaGetDevice_v3020", 10 * MS), ("cuModuleLoadData", 100_000)]
)
def test_a_busy_host_or_a_short_load_is_no_compilation(call: str, ns: int) -> None:
    assert findings(compiling(call, ns), *SCHEDULE) == []


def test_code_loaded_in_passing_is_no_compilation() -> None:
    program = compiling("cuModuleLoadData", 2 * MS)
    with program.range("loop"):
        program.kernel(1, 800 * MS)

    assert findings(program, jit_autotune.ANALYZER) == []


def verdicts(compiled: int, instances: int, call: str = "cuModuleLoadData") -> tuple[str, str]:
    """Return the verdict on copies and kernels, where the first instances compile in between."""
    program = Program()
    for number in range(instances):
        with program.range("loop"):
            program.copy("h2d", 1, MS)
            if number < compiled:
                program.wait()
                program.host(10 * MS)
                program.call(call, 50_000)
            program.kernel(2, MS)
            program.wait()
    (found,) = run_all(program.trace(), [ranges.ANALYZER], Options()).ranges
    (pair,) = found.scope.pairs
    return pair.verdict, pair.reason


def test_instances_that_compile_code_do_not_count_where_others_do() -> None:
    verdict, reason = verdicts(compiled=1, instances=5)
    assert verdict == "overlapped"
    assert reason.endswith("; 1 of 5 instances compile code and do not count")

    assert verdicts(1, 5, call="cudaGetDevice")[0] != "overlapped"  # a host that is just busy
    verdict, reason = verdicts(compiled=5, instances=5)  # there is nothing else to judge
    assert verdict == "serialized"
    assert reason.endswith("; code is compiled in every instance: this is no warm program")
    assert verdicts(compiled=0, instances=5)[1].endswith("of h2d runs under kernel")


# slow-link

SIZE = 55_000_000
PINNED = MEMORY_KINDS.index("pinned")


def copies(
    durations: Sequence[int], size: int = SIZE, covered: bool = False, **extra: int | str
) -> Trace:
    """Copies one after the other on one device; a kernel for each, in the time between.

    Where they are `covered`, a long kernel runs beside all.
    """
    start, rows, kernels = 0, [], []
    facts = {"bytes": size, "src_kind": PINNED, "api": "cudaMemcpyAsync", **extra}
    for ns in durations:
        rows.append((start, start + ns, "s1", facts))
        kernels.append((start + ns, start + ns + 500_000, "s1"))
        start += ns + 600_000
    if covered:
        kernels.append((0, start, "s2"))
    return make_trace(h2d=rows, kernels=kernels, ranges=[("loop", 0, start)])


def test_copies_far_below_their_links_rate() -> None:
    (finding,) = of(copies([MS] * 4 + [2 * MS] * 4))

    assert finding.id == "slow-link"
    assert finding.evidence["count"] == 4
    assert finding.evidence["link_rate_bytes_per_s"] == 55_000_000_000
    assert finding.evidence["rate_bytes_per_s"] == 27_500_000_000
    assert finding.saving_ns == 4 * MS


@pytest.mark.parametrize(
    "trace",
    [
        copies([MS] * 8),
        copies([MS] * 4 + [1_500_000] * 4),  # two thirds of the rate
        copies([MS] * 4 + [2 * MS] * 4, size=1 << 20),
        copies([MS] * 4 + [2 * MS] * 4, src_kind=MEMORY_KINDS.index("pageable")),
        copies([MS] * 4 + [2 * MS] * 4, flags=STAGED),
        copies([MS] * 4 + [2 * MS] * 4, api="cudaMemcpy2DAsync_v3020"),
        copies([MS] * 4 + [2 * MS] * 4, api="cuMemcpy3DAsync_v2"),
    ],
    ids=["alike", "not far below", "small", "pageable", "staged", "of rows", "of planes"],
)
def test_copies_that_say_nothing_of_a_link(trace: Trace) -> None:
    assert [found for found in of(trace) if found.id == "slow-link"] == []


def test_two_gpus_of_which_one_has_a_worse_path() -> None:
    facts = {"bytes": SIZE, "src_kind": PINNED}
    near = [(i * 8 * MS, i * 8 * MS + MS, "s1", facts) for i in range(4)]
    far = [
        ((2 + i * 8) * MS, (2 + i * 8) * MS + 3 * MS, "s2", {**facts, "device": 1})
        for i in range(4)
    ]

    (finding,) = of(make_trace(h2d=near + far, devices=2))

    assert (finding.id, finding.device) == ("slow-link", 1)

    # GPUs of two models have links of their own.
    trace = make_trace(h2d=near + far, devices=2)
    first, second = trace.devices
    unlike = (first, dataclasses.replace(second, name="an older GPU"))
    assert of(dataclasses.replace(trace, devices=unlike)) == []


def test_slow_copies_under_a_kernel_cost_nothing() -> None:
    assert of(copies([MS] * 4 + [2 * MS] * 4, covered=True)) == []


def test_copies_that_share_the_link_are_not_held_against_it() -> None:
    facts = {"bytes": SIZE, "src_kind": PINNED}
    alone = [(i * 8 * MS, i * 8 * MS + MS, "s1", facts) for i in range(4)]
    shared = [((2 + i * 8) * MS, (4 + i * 8) * MS, "s1", facts) for i in range(4)]
    beside = [((2 + i * 8) * MS, (4 + i * 8) * MS, "s2", facts) for i in range(4)]

    trace = make_trace(h2d=alone + shared, d2h=beside)
    assert run_all(trace, [slow_link.ANALYZER], Options()).findings == ()


# peer-through-host


def staged(*pieces: tuple[int, int, int], flags: int = STAGED, source: int = 0) -> Trace:
    """Copies from GPU 0 to GPU 1: (start, end, bytes) on this side; kernels before and after."""
    rows = [
        (start, end, "s2", {"bytes": size, "flags": flags, "src": source, "dst": 1})
        for start, end, size in pieces
    ]
    kernels = [(0, 10 * MS, "s1"), (20 * MS, 30 * MS, "s1")]
    return make_trace(p2p=rows, kernels=kernels, ranges=[("loop", 0, 30 * MS)])


def test_copies_between_gpus_that_go_through_the_host() -> None:
    (finding,) = of(staged((11 * MS, 13 * MS, 0), (19 * MS, 22 * MS, 5_000_000)))
    assert (finding.id, finding.range, finding.saving_ns) == ("peer-through-host", "loop", None)
    assert finding.claim == (
        "copies GPU 0 > GPU 1 go through the host: 2 pieces of them on this GPU, 5.00 MB arriving, "
        "3.00 ms of it under no kernel"
    )
    assert finding.evidence["bare_ns"] == 3 * MS
    (finding,) = of(staged((11 * MS, 13 * MS, 5_000_000), source=-1))
    assert finding.claim.startswith("copies between GPUs go through the host: 1 piece of them")


def test_a_copy_of_which_the_first_piece_alone_was_recorded_counts_by_its_bytes() -> None:
    piece = (11 * MS, 11 * MS + 20_000)
    assert [found.id for found in of(staged((*piece, 200_000_000)))] == ["peer-through-host"]
    assert of(staged((*piece, 2_000_000))) == []


def test_copies_with_peer_access_and_those_under_kernels_are_no_concern() -> None:
    assert of(staged((11 * MS, 19 * MS, 5_000_000), flags=0)) == []
    assert of(staged((1 * MS, 9 * MS, 5_000_000))) == []


# overlap-with-slowdown


def together(ns: int, op_class: str = "p2p", alone: int = 4) -> Trace:
    """A kernel and a copy of 1 ms each: some times apart, then four times together in `ns`."""
    apart = [(i * 4 * MS, i * 4 * MS + MS) for i in range(alone)]
    close = [((20 + i * 4) * MS, (20 + i * 4) * MS + ns) for i in range(4)]
    kernels = [(a, b, "s1", {"name": "stencil"}) for a, b in apart + close]
    other = [(a + 2 * MS, b + 2 * MS, "s2") for a, b in apart] + [(a, b, "s2") for a, b in close]
    ranges = [("apart", -1, 19 * MS), ("together", 19 * MS, 40 * MS)]
    if op_class == "comm":
        return make_trace(kernels=kernels, ranges=ranges, comm=other)
    return make_trace(kernels=kernels, ranges=ranges, p2p=other)


def test_overlap_that_gains_nothing() -> None:
    (finding,) = of(together(2 * MS))

    assert (finding.id, finding.range) == ("overlap-with-slowdown", "together")
    assert finding.evidence["count"] == 8
    assert finding.evidence["overlap_ns"] == 8 * MS
    assert finding.evidence["lost_ns"] == 8 * MS
    assert finding.evidence["net_ns"] == 0
    assert "nothing is gained" in finding.claim


def test_what_is_gained_is_told() -> None:
    (finding,) = of(together(1_500_000))

    assert finding.evidence["net_ns"] == 2 * MS
    assert "2.00 ms is gained" in finding.claim


def test_kernels_of_unlike_length_alone_tell_nothing() -> None:
    trace = together(2 * MS)
    assert trace.operations is not None
    ends = trace.operations.end_ns.copy()
    ends[0] += MS  # the first runs alone for twice as long as the other three
    varied = dataclasses.replace(
        trace, operations=dataclasses.replace(trace.operations, end_ns=ends)
    )

    (finding,) = of(varied)

    assert finding.evidence["count"] == 4  # the copies are still compared


def test_kernels_chained_in_one_stream_are_no_overlap() -> None:
    """Each is launched early, and waits for 600 µs for the one before: that is no slowdown."""
    alone = [(i * 2 * MS, i * 2 * MS + MS, "s1") for i in range(4)]
    chain = [(10 * MS + i * MS - 600_000, 11 * MS + i * MS, "s1") for i in range(1, 9)]
    ranges = [("alone", -1, 9 * MS), ("chained", 9 * MS, 40 * MS)]
    in_one = make_trace(kernels=[*alone, (10 * MS, 11 * MS, "s1"), *chain], ranges=ranges)
    others = [(a, b, f"s{2 + i % 2}") for i, (a, b, _) in enumerate(chain)]
    in_two = make_trace(kernels=[*alone, (10 * MS, 11 * MS, "s1"), *others], ranges=ranges)

    assert of(in_one) == []
    assert [finding.id for finding in of(in_two)] == ["overlap-with-slowdown"]


@pytest.mark.parametrize(
    "trace",
    [together(1_100_000), together(1_300_000, "comm"), together(2 * MS, alone=2)],
    ids=["hardly slower", "the other may have waited for its peer", "too few ran alone to tell"],
)
def test_overlap_that_pays(trace: Trace) -> None:
    assert of(trace) == []
