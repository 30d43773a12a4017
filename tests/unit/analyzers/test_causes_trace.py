"""What the driver or the profiler did to the trace, and what it cannot show."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import ANALYZERS, driver_model, host_busy, launch_bound, not_seen, trust
from gpuscope.model import quality
from gpuscope.model.result import Finding
from gpuscope.model.trace import Trace
from tests.make_trace import make_trace
from tests.unit.analyzers.test_causes_program import MS, Program, findings, pipeline

WINDOWS = "Microsoft Windows 11 Pro"


def of(trace: Trace, *analyzers: object, options: Options | None = None) -> list[Finding]:
    chosen = [analyzer for analyzer in ANALYZERS if analyzer in analyzers]
    return list(run_all(trace, chosen, options or Options()).findings)


# wddm-batching


def bursts(kept_back_ns: int, system: str = WINDOWS, every: int = 1) -> Trace:
    """Launches in groups of four; the GPU begins some groups long after their launches returned."""
    program = Program()
    for group in range(40):
        for _ in range(4):
            if group % every == 0:
                program.free[1] = max(program.free.get(1, 0), program.now + kept_back_ns)
            program.kernel(1, 10_000)
        program.wait(1)
        program.host(300_000)
    return dataclasses.replace(program.trace(), system=system)


def test_launches_sent_in_bursts() -> None:
    (finding,) = of(bursts(400_000), driver_model.ANALYZER)

    assert (finding.id, finding.severity) == ("wddm-batching", "info")
    assert finding.evidence["count"] >= 10
    assert WINDOWS in finding.mechanism


@pytest.mark.parametrize(
    "trace",
    [bursts(0), bursts(400_000, system="Ubuntu 24.04"), bursts(400_000, every=3)],
    ids=["at once", "linux", "now and then"],
)
def test_launches_sent_at_once_or_elsewhere(trace: Trace) -> None:
    assert of(trace, driver_model.ANALYZER) == []


def test_bursts_on_an_unknown_system_are_left_undecided() -> None:
    for kept_back_ns, abstained in ((400_000, ["driver-model"]), (0, [])):
        trace = dataclasses.replace(bursts(kept_back_ns), system=None)
        analysis = run_all(trace, [driver_model.ANALYZER], Options())
        assert analysis.findings == ()
        assert [a.analyzer for a in analysis.abstained] == abstained


def test_other_rules_are_silent_about_idle_time_under_bursts() -> None:
    idle = (host_busy.ANALYZER, launch_bound.ANALYZER)

    assert [f.id for f in of(bursts(400_000, system="Ubuntu 24.04"), *idle)] == ["host-busy"]
    assert of(bursts(400_000), *idle) == []


# confidential-computing


def synchronous(blocking: int, copies: int = 10, size: int = 1 << 25) -> list[Finding]:
    program = Program()
    for number in range(copies):
        program.copy("h2d", 1, MS, blocking=number < blocking, size=size)
    return findings(program, driver_model.ANALYZER)


def test_asynchronous_copies_of_pinned_memory_that_all_block() -> None:
    (finding,) = synchronous(blocking=10)

    assert (finding.id, finding.severity) == ("confidential-computing", "info")
    assert finding.evidence["count"] == finding.evidence["copies"] == 10


def test_asynchronous_copies_that_do_not_all_block() -> None:
    assert synchronous(blocking=8) == []


def test_too_few_copies_to_tell() -> None:
    assert synchronous(blocking=7, copies=7) == []


def test_copies_so_small_that_any_may_block() -> None:
    assert synchronous(blocking=10, size=64 << 10) == []


def test_copies_of_pageable_memory_block_everywhere() -> None:
    program = Program()
    for _ in range(10):
        program.copy("h2d", 1, MS, blocking=True, pageable=True)

    assert findings(program, driver_model.ANALYZER) == []


# not-observable


@pytest.mark.parametrize(
    ("trace", "library"),
    [
        (make_trace(comm=[(0, 9, "s1", {"name": "nvshmemi_transfer_rma<int>"})]), "NVSHMEM"),
        (make_trace(kernels=[(0, 9, "s1", {"name": "dispatch"})]), None),
        (
            make_trace(kernels=[(0, 9, "s1")], ranges=[("read", 0, 9, {"domain": "libkvikio"})]),
            "GPUDirect Storage",
        ),
        (make_trace(kernels=[(0, 9, "s1")], ranges=[("cuFileRead", 0, 9)]), "GPUDirect Storage"),
        (make_trace(comm=[(0, 9, "s1", {"name": "ncclDevKernel_SendRecv"})]), None),
    ],
)
def test_libraries_whose_transfers_leave_no_rows(trace: Trace, library: str | None) -> None:
    found = [f for f in of(trace, not_seen.ANALYZER) if f.id == "not-observable"]

    assert [library in finding.claim for finding in found if library] == [True] * bool(library)
    assert len(found) == bool(library)
    assert all(finding.severity == "info" for finding in found)


# profiler-overhead, perturbed


def test_a_profiler_at_work_in_the_program() -> None:
    operations = make_trace(kernels=[(0, 1_000, "s1")]).operations
    check = quality.profiler_overhead(operations, np.array([100]), np.array([300]))
    trace = dataclasses.replace(make_trace(kernels=[(0, 1_000, "s1")]), checks=(check,))

    (finding,) = of(trace, trust.ANALYZER)

    assert finding.id == "profiler-overhead"
    assert finding.claim.startswith("for 200 ns of the 1.00 µs from the first")


def test_a_profiler_that_keeps_out_of_the_way() -> None:
    operations = make_trace(kernels=[(0, 1_000, "s1")]).operations
    check = quality.profiler_overhead(operations, np.array([100]), np.array([110]))
    trace = dataclasses.replace(make_trace(kernels=[(0, 1_000, "s1")]), checks=(check,))

    assert of(trace, trust.ANALYZER) == []


def events_in(stamped: bool) -> Trace:
    program = Program()
    pipeline(program)
    program.record("done", 1)
    trace = program.trace()
    assert trace.event_records is not None
    if not stamped:
        return trace
    stamps = dataclasses.replace(trace.event_records, timestamp_ns=np.array([5]))
    return dataclasses.replace(trace, event_records=stamps)


def test_events_traced_on_the_gpu() -> None:
    found = [f for f in of(events_in(stamped=True), trust.ANALYZER) if f.id == "perturbed"]

    assert [finding.evidence["traced_events"] for finding in found] == [1]
    assert [f for f in of(events_in(stamped=False), trust.ANALYZER) if f.id == "perturbed"] == []


def test_a_run_that_took_longer_under_the_profiler_marks_every_finding() -> None:
    trace = dataclasses.replace(make_trace(kernels=[(0, 9, "s1")]), lost_records=5)

    found = of(trace, trust.ANALYZER, options=Options(perturbed={"streamed": 0.25}))

    assert {finding.id for finding in found} == {"lost-records", "perturbed"}
    (perturbed,) = (finding for finding in found if finding.id == "perturbed")
    assert "streamed 25.0 % longer" in perturbed.claim
    assert all(f.evidence["perturbed"] for f in found if f.id == "lost-records")
    assert all("perturbed" not in f.evidence for f in of(trace, trust.ANALYZER))
