"""Expectations held against traces whose times are literals.

Every trace has two kernels far apart at odd times, so that the clock's step is 1 ns.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuscope import samples
from gpuscope.analysis import Options
from gpuscope.api import open_trace
from gpuscope.gates.grammar import parse
from gpuscope.gates.verify import CAUSES, verify
from gpuscope.model.gates import GateRow, Verification
from gpuscope.model.tables import START_END
from gpuscope.model.trace import Process, Trace
from tests.make_trace import make_trace

US = 1_000


def steps(*, far: bool = True, **more: Any) -> Trace:
    """Three instances of `step`: 60, 50 and 70 of 100 µs of h2d lie under the kernel of 100 µs."""
    kernels: list[Any] = []
    h2d: list[Any] = []
    ranges: list[Any] = []
    for number, shift in enumerate((40, 50, 30)):
        at = 1000 * number * US
        ranges.append(("step", at, at + 500 * US))
        kernels.append((at, at + 100 * US, "s7"))
        start = at + shift * US
        h2d.append((start, start + 100 * US, "s8", {"bytes": 5_000_000, "launch": at + 1}))
    if far:
        kernels.append((9_000_001, 9_000_002, "s7"))
    return make_trace(kernels=kernels, h2d=h2d, ranges=ranges, **more)


def check(text: str, *traces: Trace, attribute: str | None = None) -> GateRow:
    chosen = traces or (steps(),)
    done = verify(chosen, [parse(text, CAUSES)], [Options()] * len(chosen), attribute=attribute)
    return done.rows[0]


def value(text: str, trace: Trace) -> Any:
    return check(text, trace).scopes[0].value


@pytest.mark.parametrize(
    ("text", "met"),
    [
        # 180 of 300 µs
        ("step: hidden(h2d, kernel) >= 59.9 %", True),
        ("step: hidden(h2d, kernel) >= 60.1 %", False),
        ("step: hidden(h2d, kernel) > 59.9 %", True),
        ("step: hidden(h2d, kernel) > 60.1 %", False),
        ("step: hidden(h2d, kernel) <= 60.1 %", True),
        ("step: hidden(h2d, kernel) <= 59.9 %", False),
        ("step: hidden(h2d, kernel) < 60.1 %", True),
        ("step: hidden(h2d, kernel) < 59.9 %", False),
        ("step: hidden(h2d, kernel) != 61 %", True),
        ("step: hidden(h2d, kernel) == 61 %", False),
        # exact figures at their limits
        ("step: busy(kernel) >= 100us", True),
        ("step: busy(kernel) > 100us", False),
        ("step: busy(kernel) <= 100us", True),
        ("step: busy(kernel) < 100us", False),
        ("step: busy(kernel) == 100us", True),
        ("step: busy(kernel) != 100us", False),
        ("step: count(kernel) == 1", True),
        ("step: count(kernel).total == 3", True),
        ("step: busy(kernel).total == 300 us", True),
        ("step: count(p2p) == 0", True),
        ("count(kernel) == 4", True),
        ("step: instances == 3", True),
        ("step: rate(h2d) == 50 GB/s", True),
        ("step: bytes(h2d) == 5 MB", True),
        ("step: span.worst <= 150 us", True),
        ("step: span.worst < 150 us", False),
        ("step: span.worst >= 130 us", True),
        ("step: span.worst > 130 us", False),
        ("step: span.best < 131 us", True),
        ("step: span.worst == 140 us", False),
        ("step: span.best == 140 us", True),
        ("step: span.worst != 140 us", False),
        ("step: span.p10 == 130 us", True),
        ("step: span.p90 == 150 us", True),
        ("step: only(kernel).worst <= 50 us", True),
        ("step: only(kernel, h2d).total > 179 us", True),
        ("step: only(kernel, h2d).total > 181 us", False),
        ("step: idle == 0", True),
        ("step: exposed(h2d).worst <= 50us", True),
        ("step: exposed(h2d).worst <= 49us", False),
        ("step: busy.worst <= 150 us", True),
        ("step: peak == 2", True),
        ("step: at_once(1) == 80 us", True),
        ("step: at_once(2).total == 180 us", True),
        ("step: at_once(3) == 0", True),
        ("step: uncertainty(h2d, kernel) <= 10 ns", True),
        ("step: unattributed == 0", True),
        ("step: peak(kernel) == 1", True),
        ("step: streams(kernel) == 1", True),
        ("step: concurrency(kernel) == 1", True),
        ("step: serial == 200 us", True),
        ("step: bound == 100 us", True),
        ("step: schedule_bound > 1 us", True),
        ("schedule_bound > 1 us", True),
        ("step: work(h2d).best == 100 us", True),
        ("step: overlap_time(h2d, kernel) <= 61us", True),
        ("step: hidden_any(h2d, kernel) > 59.9 %", True),
        ("path step: span < 1 ms", True),
        ("step[device=0]: span < 1 ms", True),
        ("step[process=100]: span < 1 ms", True),
        ("[device=0]: span < 10 ms", True),
    ],
)
def test_outcome(text: str, met: bool) -> None:
    assert check(text).met is met, check(text).text


def test_statistics_are_values_that_occurred() -> None:
    trace = steps()

    assert value("step: hidden(h2d, kernel).median < 1", trace) == 0.6
    assert value("step: hidden(h2d, kernel).worst > 0", trace) == 0.5
    assert value("step: hidden(h2d, kernel).best > 0", trace) == 0.7
    assert value("step: hidden(h2d, kernel).worst < 1", trace) == 0.7
    assert value("step: hidden(h2d, kernel).best < 1", trace) == 0.5
    assert check("step: hidden(h2d, kernel).worst > 0", trace).scopes[0].instance == 1
    assert value("step: span.median < 1s", trace) == 140 * US
    assert check("step: span < 1s", trace).text == "140 µs, the median of 3 instances"
    assert check("step: span.worst < 1s", trace).text == "150 µs in instance 1, the worst of 3"


def test_median_of_two_is_their_mean() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s7"), (100, 121, "s7")], ranges=[("a", 0, 50), ("a", 90, 150)]
    )

    assert value("a: span < 1s", trace) == 15.5


def test_hidden_has_a_direction() -> None:
    trace = make_trace(
        kernels=[(0, 400 * US, "s7"), (9_000_001, 9_000_002, "s7")],
        h2d=[(300 * US, 500 * US, "s8")],
        ranges=[("a", 0, 600 * US)],
    )

    assert value("a: hidden(h2d, kernel) > 0", trace) == 0.5
    assert value("a: hidden(kernel, h2d) > 0", trace) == 0.25
    assert value("a: overlap(kernel, h2d) > 0", trace) == 0.5


def test_instances_without_a_class_are_left_out_and_named() -> None:
    trace = make_trace(
        kernels=[(0, 50, "s7"), (100, 150, "s7"), (200, 251, "s7")],
        h2d=[(10, 20, "s8")],
        ranges=[("a", 0, 60), ("a", 90, 160), ("a", 190, 260)],
    )

    assert check("a: exposed(h2d).worst == 0", trace).text.endswith(", 2 more have none")
    assert value("a: count(h2d) == 0", trace) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stop: span < 1s", "there is no range 'stop' in the trace; did you mean 'step'?"),
        ("path a/step: span < 1s", "there is no path 'a/step' in the trace"),
        ("step: busy(p2p) == 0", "no p2p in it, only kernel, h2d"),
        ("step: hidden(d2h, kernel) >= 0", "no d2h in it, only kernel, h2d"),
        ("step: rate(kernel) > 0", "no bytes of kernel are recorded"),
        ("step: exposed(kernel) == 0", "exposed of kernel is not known"),
        ("step[device=3]: span < 1s", "only on process 100 on GPU 0"),
        ("step[rank=0]: span < 1s", "only on process 100 on GPU 0"),
        ("no mpi-blocking in step", "mpi-blocking could not look: no MPI calls"),
        ("no host-sync in stop", "there is no range 'stop'"),
        ("no host-sync in step[device=3]", "only on process 100 on GPU 0"),
        ("bytes(0>1) > 0", "no 0>1 in it"),
    ],
)
def test_what_is_not_there_cannot_be_judged(text: str, reason: str) -> None:
    row = check(text)

    assert row.met is None
    assert reason in row.text


def test_missing_tables_cannot_be_judged() -> None:
    no_ranges = dataclasses.replace(steps(), ranges=None)
    no_api = dataclasses.replace(steps(launched=False))
    nothing = dataclasses.replace(steps(), operations=None)

    assert "no NVTX ranges" in check("step: span < 1s", no_ranges).text
    assert "no CUDA API calls" in check("step: span < 1s", no_api).text
    assert "no GPU activity" in check("span < 1s", nothing).text
    assert "holds no GPU work" in check("count(kernel) == 0", make_trace()).text
    assert "no CUDA API calls" in check("no host-sync", no_api).text


def test_lost_and_damaged_records_cannot_be_judged() -> None:
    lost = steps(lost_records=1000)
    damaged = dataclasses.replace(steps(), damaged={"kernels": 1})

    for text in ("span > 0s", "step: hidden(h2d, kernel) > 0.1", "no same-stream"):
        assert "about 1,000 GPU records were lost while recording" in check(text, lost).text
        assert "1 row of the trace is damaged" in check(text, damaged).text
        assert check(text, lost).met is check(text, damaged).met is None


def test_a_few_lost_records_are_told() -> None:
    trace = dataclasses.replace(open_trace(samples.path("streams_run")), lost_records=1)

    done = verify([trace], [parse("span > 0 ns", CAUSES)], [Options()])

    assert done.exit_code == 0
    assert done.notes == (f"{trace.path}: about 1 GPU record was lost while recording",)


def test_a_clock_too_coarse_to_decide_cannot_be_judged() -> None:
    coarse = steps(far=False)  # all times are multiples of 10 µs, but the launches

    assert check("step: hidden(h2d, kernel) >= 59 %", coarse).met is None
    assert "the clock's steps" in check("step: hidden(h2d, kernel).worst >= 49 %", coarse).text
    assert check("step: hidden(h2d, kernel) >= 1 %", coarse).met is True
    assert check("step: busy(kernel) == 100 us", coarse).met is True


def test_launches_of_other_threads_are_not_passed_over() -> None:
    trace = make_trace(
        kernels=[(0, 101, "s7"), (110, 120, "s7", {"thread": "other"})],
        ranges=[("a", 0, 200)],
    )

    assert "other threads launched 50.0 %" in check("a: count(kernel) == 1", trace).text
    assert check("a: unattributed <= 20 %", trace).met is False
    assert check("a: count(kernel) == 1", trace, attribute="thread").met is True
    assert check("a: count(kernel) == 2", trace, attribute="process").met is True


def test_a_range_of_another_threads_work_says_so() -> None:
    trace = make_trace(kernels=[(0, 101, "s7", {"thread": "other"})], ranges=[("a", 0, 200)])

    assert "launched no GPU work on its own thread" in check("a: count(kernel) == 1", trace).text


def test_graphs_traced_whole_and_shared_gpus_cannot_be_judged() -> None:
    graph = make_trace(kernels=[(0, 99, "s7")], graph=[(50, 150, "s8")], ranges=[("a", 0, 200)])

    assert "graphs were traced whole" in check("a: hidden(kernel, graph) > 0", graph).text
    assert "graphs were traced whole" in check("a: busy(kernel) > 0 ns", graph).text
    assert check("a: count(kernel) == 1", graph).met is True


def two_processes() -> Trace:
    trace = make_trace(
        kernels=[(0, 100, "s7"), (50, 151, "s7", {"device": 1})], devices=2, ranges=[("a", 0, 200)]
    )
    one, other = trace.devices
    assert trace.operations is not None
    return dataclasses.replace(
        trace,
        processes=(*trace.processes, Process(200, "other", 1)),
        devices=(one, dataclasses.replace(other, process=1, number=0, hardware=one.hardware)),
    )


def test_a_gpu_that_another_process_used_meanwhile_is_not_judged() -> None:
    row = check("busy(kernel) < 1s", two_processes())

    assert row.met is None
    assert "another process used this GPU" in row.text
    assert check("count(kernel) == 1", two_processes()).met is True


def test_the_worst_device_counts_and_selectors_choose() -> None:
    trace = make_trace(
        kernels=[(0, 100, "s7"), (0, 301, "s7", {"device": 1})], devices=2, ranges=[("a", 0, 200)]
    )
    row = check("a: busy(kernel) <= 200 ns", trace)

    assert row.met is False
    assert {scope.device: scope.met for scope in row.scopes} == {0: True, 1: False}
    assert row.text.endswith("(a, process 100, GPU 1, one of 2)")
    assert check("a[device=0]: busy(kernel) <= 200 ns", trace).met is True
    assert check("a[device=1]: busy(kernel) <= 200 ns", trace).met is False


def test_every_trace_of_a_run_must_have_the_range_unless_a_selector_picks_some() -> None:
    def rank(number: int, name: str) -> Trace:
        trace = make_trace(kernels=[(0, 101, "s7")], ranges=[(name, 0, 200)])
        return dataclasses.replace(trace, processes=(Process(100 + number, "made", number),))

    both = (rank(0, "a"), rank(1, "a"))
    odd = (rank(0, "a"), rank(1, "b"))

    assert check("a: span < 1s", *both).met is True
    assert check("a: span < 1s", *odd).met is None
    assert check("a[rank=0]: span < 1s", *odd).met is True
    assert check("a[rank=1]: span < 1s", *odd).met is None


def test_links_are_measured_by_direction() -> None:
    p2p = [
        (0, 100 * US, "s7", {"src": 0, "dst": 1, "bytes": 4000}),
        (50 * US, 150 * US + 1, "s8", {"src": 1, "dst": 0, "bytes": 8000}),
    ]
    trace = make_trace(p2p=p2p, devices=2)

    assert value("bytes(1>0) > 0", trace) == 8000
    assert value("busy(0>1) > 0", trace) == 100 * US
    assert value("overlap(0>1, 1>0) > 0", trace) == 0.5
    assert value("rate(0>1) > 0", trace) == 40_000_000


def test_failing_values_show_the_digits_that_make_them_fail() -> None:
    trace = make_trace(kernels=[(0, 100_001, "s7")], ranges=[("a", 0, 10)])

    assert check("a: busy(kernel) <= 100 us", trace).text == "100001 ns"


# ── causes ───────────────────────────────────────────────────────────────────────────────────────


def shipped(name: str) -> Trace:
    return open_trace(samples.path(name))


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("no same-stream in streamed", True),
        ("no same-stream in sequential", False),
        ("no same-stream", False),
        ("no host-sync|same-stream in seq*", False),
        ("no pageable-copy", True),
        # The finding names the outermost range in which it matters.
        ('no same-stream in "gs:iter"', False),
        ('no same-stream in "gs:measure"', False),
        ('no same-stream in path "gs:measure/gs:iter/sequential"', False),
        ('no same-stream in path "gs:measure/gs:iter/streamed"', True),
        ("no lost-records in streamed", True),
    ],
)
def test_causes_in_ranges(text: str, met: bool) -> None:
    assert check(text, shipped("streams_run")).met is met


def test_a_cause_is_looked_for_in_the_range_alone() -> None:
    trace = shipped("pageable")

    assert check("no pageable-copy in pageable", trace).met is False
    # One chunk by itself has nothing that it could have run under.
    assert check("no pageable-copy in chunk0", trace).met is True


def test_ranges_in_which_causes_are_not_looked_for_cannot_be_judged() -> None:
    started = make_trace(kernels=[(0, 101, "s7")], ranges=[("a", 0, 200, {"kind": START_END})])
    small = make_trace(
        kernels=[(0, 100_000_001, "s7"), (100_000_002, 100_000_003, "s7")],
        ranges=[("a", 0, 1), ("b", 100_000_002, 100_000_004)],
    )

    library = make_trace(kernels=[(0, 101, "s7")], ranges=[("a", 0, 200, {"domain": "NCCL"})])

    assert check("no host-sync in a", started).met is True
    assert "ranges of libraries" in check("no host-sync in a", library).text
    assert "under 1.0 % of what GPU 0 did" in check("no host-sync in b", small).text
    assert check("no host-sync in a", small).met is True


# ── the outcome ──────────────────────────────────────────────────────────────────────────────────


def outcome(*texts: str) -> Verification:
    return verify([steps()], [parse(text, CAUSES) for text in texts], [Options()])


def test_exit_codes() -> None:
    met, failed, unknown = "step: span < 1s", "step: span > 1s", "stop: span < 1s"

    assert outcome(met).exit_code == 0
    assert outcome(met, failed).exit_code == 4
    assert outcome(met, unknown).exit_code == 5
    assert outcome(unknown, failed).exit_code == 4


def test_causes_in_launches_of_other_threads_and_in_graphs_are_not_passed_over() -> None:
    threads = make_trace(
        kernels=[(0, 101, "s7"), (110, 220, "s7", {"thread": "other"})], ranges=[("a", 0, 300)]
    )
    graph = make_trace(kernels=[(0, 99, "s7")], graph=[(50, 150, "s8")], ranges=[("a", 0, 200)])

    assert "other threads launched 50.0 %" in check("no host-sync in a", threads).text
    assert check("no host-sync in a", threads).met is None
    assert check("no host-sync in a", threads, attribute="thread").met is True
    assert check("no other-thread in a", threads).met is False
    assert "graphs were traced whole" in check("no host-sync in a", graph).text
    assert check("no host-sync", graph).met is None


def test_causes_are_looked_for_in_the_frames_of_a_benchmark_too() -> None:
    trace = shipped("default")
    assert trace.ranges is not None
    outer = trace.ranges.take(trace.ranges.name == trace.strings.index("default"))
    names = tuple("gs:iter" if text == "default" else text for text in trace.strings)

    framed = dataclasses.replace(trace, strings=names, ranges=outer)

    assert check('no default-stream in "gs:iter"', framed).met is False


def test_what_a_filter_left_nothing_of_says_so() -> None:
    options = Options(domains=("other",), window_ns=(10**12, 10**12 + 1))

    def text(expectation: str) -> str:
        (row,) = verify([steps()], [parse(expectation, CAUSES)], [options]).rows
        assert row.met is None
        return row.text

    assert text("step: busy(kernel) > 0 ns") == (
        "the range 'step' is there, but not in the domain 'other' (--domain)"
    )
    assert text("nothing: busy(kernel) > 0 ns") == "there is no range 'nothing' in the trace"
    assert text("busy(kernel) > 0 ns") == "no GPU work lies in the window (--window)"
