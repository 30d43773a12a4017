"""Whether a recording can be trusted is checked on every trace and told with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuscope import api, samples
from gpuscope.model.trace import Trace
from gpuscope.readers import open_trace
from tests.make_export import Export

LAUNCH = "cudaLaunchKernel_v7000"
NVTX_NONE = "none: record with -t nvtx, and annotate the program's phases"


def write_kernels(export: Export, count: int = 20, step: int = 7) -> None:
    """Kernels of 3 steps, every 10 steps, each launched one step before."""
    for number in range(1, count + 1):
        start = 10 * step * number
        export.call(LAUNCH, start - step, start - 1, correlationId=number)
        export.operation("KERNEL", start, start + 3 * step, correlationId=number, shortName="k")


def warnings(trace: Trace) -> dict[str, str]:
    return {check.name: check.text for check in trace.checks if check.state == "warning"}


def states(trace: Trace) -> dict[str, str]:
    return {check.name: check.state for check in trace.checks}


def message(export: Export, text: str, severity: int = 1) -> None:
    export.add("DIAGNOSTIC_EVENT", timestamp=-5, severity=severity, text=text)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Trace]:
    def make(*more: Callable[[Export], object], **how: int) -> Trace:
        path = tmp_path / "trace.sqlite"
        with Export(path) as export:
            write_kernels(export, **how)
            for write in more:
                write(export)
        return open_trace(path)

    return make


def test_a_good_recording_has_nothing_to_say(made: Callable[..., Trace]) -> None:
    trace = made(
        lambda export: export.range("step", 0, 2000),
        lambda export: message(export, "Profiling has started."),
        lambda export: message(export, "Profiling has stopped."),
        lambda export: message(export, "Not all CUDA events might have been collected.", 2),
    )
    assert set(states(trace).values()) == {"ok"}
    assert trace.notes == ()


def test_launches_without_a_record_are_lost_records(made: Callable[..., Trace]) -> None:
    trace = made(
        lambda export: export.call(LAUNCH, 5000, 5001, correlationId=98),
        lambda export: export.call(LAUNCH, 5002, 5003, correlationId=99),
        lambda export: message(export, "Not all CUDA events might have been collected.", 2),
    )
    assert trace.lost_records == 2
    assert warnings(trace) == {
        "lost records": "about 2 kernel launches left no GPU record: busy times and overlap are "
        "too low",
        "NVTX ranges": NVTX_NONE,
        "recording": "the profiler may not have collected every event",
    }
    assert trace.notes == ("recording: the profiler may not have collected every event",)


def test_graphs_traced_whole_are_told(made: Callable[..., Trace]) -> None:
    trace = made(lambda export: export.operation("GRAPH_TRACE", 7000, 7700))
    assert warnings(trace)["CUDA graphs"].startswith("1 launch was traced whole, its inside")


HOW = "that went through the host, without peer access (cudaDeviceEnablePeerAccess)"


@pytest.mark.parametrize(
    ("leg_ns", "state", "text"),
    [
        (135_000, "ok", f"2 copies {HOW}"),
        (
            21_000,
            "warning",
            f"1 of 2 copies {HOW}, were recorded in their first piece alone: busy times and "
            "overlap are too low",
        ),
    ],
)
def test_a_copy_through_the_host_that_is_too_fast_for_it_was_not_recorded_whole(
    made: Callable[..., Trace], leg_ns: int, state: str, text: str
) -> None:
    """64 MiB take 134 µs at 500 GB/s."""

    def legs(export: Export) -> None:
        for start, ns, size in ((10_000_000, leg_ns, 64 << 20), (20_000_000, 3_400, 64 << 10)):
            both = {"srcKind": 2, "dstKind": 2, "bytes": size, "correlationId": start}
            export.operation("MEMCPY", start, start + ns, copyKind=2, **both)
            export.operation("MEMCPY", start, start + ns, copyKind=1, deviceId=1, **both)

    trace = made(legs)
    assert [(each.state, each.text) for each in trace.checks if each.name == "peer copies"] == [
        (state, text)
    ]
    assert trace.notes == (() if state == "ok" else (f"peer copies: {text}",))


def test_ranges_that_never_ended_are_counted(made: Callable[..., Trace]) -> None:
    trace = made(
        lambda export: export.range("whole", 0, 90),
        lambda export: export.range("broken off", 10, None),
    )
    assert trace.notes == (
        "open ranges: 1 NVTX ranges never ended: left out of the figures of ranges",
    )
    assert api.analyze_trace(trace).trace.notes == trace.notes


def test_overhead_counts_inside_the_gpu_work_only(made: Callable[..., Trace]) -> None:
    """GPU work from 70 to 1421; the profiler from -50 to 170 and, twice, from 1000 to 1100."""
    overhead = {"nameId": "CUPTI Buffer flush"}
    trace = made(
        lambda export: export.add("PROFILER_OVERHEAD", start=-50, end=170, **overhead),
        lambda export: export.add("PROFILER_OVERHEAD", start=1000, end=1100, **overhead),
        lambda export: export.add("PROFILER_OVERHEAD", start=1010, end=1090, **overhead),
        lambda export: export.add("PROFILER_OVERHEAD", start=3000, end=9000, **overhead),
    )
    assert warnings(trace)["profiler overhead"].startswith(
        "for 200 ns of the 1.35 µs from the first"
    )
    assert trace.notes == ()  # a finding speaks of it
    assert not trace.damaged


def test_a_coarse_clock_is_told(made: Callable[..., Trace]) -> None:
    assert warnings(made(step=1000))["clock"] == "all times are multiples of 1.00 µs"


def test_a_recording_that_broke_off_is_told(made: Callable[..., Trace]) -> None:
    trace = made(
        lambda export: message(export, "Profiling has started."),
        lambda export: message(export, "Target /home/me/app went away", 3),
        lambda export: message(
            export,
            "Installed CUDA driver version (13.2) is not supported by this build of Nsight "
            "Systems. CUDA trace will be collected using libraries for driver version 12.8",
            2,
        ),
    )
    assert trace.notes == (
        "recording: the recording broke off before it was stopped; the driver is newer than this "
        "profiler supports: use a newer Nsight Systems; the profiler reported 1 error: see it "
        "in its own page",
    )


def test_a_recording_without_gpu_work_leaves_the_checks_open(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    with Export(path) as export:
        export.range("step", 0, 100)
    assert states(open_trace(path)) == {
        "lost records": "unknown",
        "CUDA graphs": "unknown",
        "peer copies": "unknown",
        "NVTX ranges": "ok",
        "open ranges": "ok",
        "profiler overhead": "unknown",
        "clock": "unknown",
        "recording": "unknown",
        "damaged rows": "ok",
    }


def test_what_was_not_read_is_not_judged() -> None:
    trace = open_trace(samples.path("streams"), tables={"operations"})
    assert not {"NVTX ranges", "open ranges"} & states(trace).keys()


WARNED = {
    # Its kernel of Triton is compiled first, which keeps the profiler busy.
    "triton_kernel": {"profiler overhead"},
    "whole_graph": {"CUDA graphs"},
}


@pytest.mark.parametrize("name", samples.names())
def test_the_shipped_traces_can_be_trusted(name: str) -> None:
    assert set(warnings(open_trace(samples.path(name)))) == WARNED.get(name, set())
