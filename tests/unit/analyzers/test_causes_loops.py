"""Programs with a range a step: causes that lie between the steps, or are one a step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpuscope.analysis import Analyzer, Options, run_all
from gpuscope.analyzers import ANALYZERS, host_busy, host_read, host_sync, not_seen, same_stream
from gpuscope.cases import Case
from tests.make_trace import make_trace
from tests.unit.analyzers.test_causes_program import CALL_NS, GAP_NS, MS, Program, findings

STEPS = 12


def training(steps: int = STEPS, name: str = "step", program: Program | None = None) -> Program:
    """Load a batch, train, and read the loss, which ends every step."""
    program = program or Program()
    for step in range(steps):
        with program.range(name.format(step)):
            program.host(MS)
            for _ in range(5):
                program.kernel(1, MS)
            program.copy("d2h", 1, 1_000, size=4)
            program.wait(1)
    return program


@pytest.mark.parametrize(("name", "told"), [("step", "step"), ("step {}", "step *")])
def test_what_happens_once_a_step_between_two_steps(name: str, told: str) -> None:
    found = {each.id: each for each in findings(training(name=name), host_read.ANALYZER)}

    assert list(found) == ["host-read"]
    assert found["host-read"].range == told
    assert found["host-read"].evidence["count"] == STEPS - 1
    assert found["host-read"].evidence["instances"] == 1
    # The wait returns, the loader works, the first kernel is launched and starts.
    assert found["host-read"].saving_ns == (STEPS - 1) * (MS + 2 * CALL_NS + GAP_NS)


def test_a_data_loader_between_two_steps() -> None:
    busy, *more = findings(training(), host_busy.ANALYZER)

    assert more == []
    assert (busy.id, busy.range, busy.evidence["count"]) == ("host-busy", "step", STEPS - 1)
    assert busy.saving_ns == (STEPS - 1) * MS


@pytest.mark.parametrize("analyzer", [host_read.ANALYZER, host_busy.ANALYZER])
def test_a_few_steps_are_no_loop(analyzer: object) -> None:
    assert findings(training(steps=9), analyzer) == []  # type: ignore[arg-type]


def test_a_loader_that_is_slow_in_some_steps_is_no_pattern() -> None:
    program = Program()
    for step in range(STEPS):
        with program.range("step"):
            program.host(5 * MS if step < STEPS // 2 else 0)
            program.kernel(1, MS)
            program.wait(1)

    assert findings(program, host_busy.ANALYZER) == []


def test_turns_of_several_ranges() -> None:
    program = Program()
    for _ in range(STEPS):
        with program.range("load"):
            program.host(3 * MS)
            program.copy("h2d", 1, MS)
        with program.range("train"):
            program.kernel(1, MS)
            program.copy("d2h", 1, 1_000, size=4)
            program.wait(1)

    (busy,) = findings(program, host_busy.ANALYZER)
    (stream,) = findings(program, same_stream.ANALYZER)

    assert busy.range == stream.range == "load … train"
    assert busy.saving_ns == (STEPS - 1) * 3 * MS
    assert stream.saving_ns == pytest.approx((STEPS - 1) * MS, rel=0.01)


def test_what_is_launched_between_two_ranges_belongs_to_their_loop() -> None:
    program = Program()
    for step in range(STEPS):
        with program.range(f"forward {step}"):
            program.host(MS)
            program.kernel(1, MS)
        program.kernel(1, MS)
        program.copy("d2h", 1, 1_000, size=4)
        program.wait(1)

    (found,) = findings(program, host_read.ANALYZER)

    assert (found.range, found.evidence["busy_ns"]) == (
        "forward *",
        (2 * STEPS - 1) * MS + (STEPS - 1) * 1_000,
    )


def test_steps_that_wait_at_their_end() -> None:
    program = Program()
    for _ in range(STEPS):
        with program.range("step"):
            for stream in range(1, 5):
                program.copy("h2d", stream, MS)
                program.kernel(stream, MS)
            program.wait()

    (found,) = findings(program, host_sync.ANALYZER)

    assert (found.range, found.evidence["count"]) == ("step", STEPS - 1)


def test_passes_of_a_benchmark_are_apart_on_purpose() -> None:
    program = Program()
    with program.range("gs:measure"):
        training(program=program)

    assert Case.of(program.trace(), Options()).loops == ()
    assert findings(program, host_read.ANALYZER) == []


def test_a_cause_inside_the_steps_is_told_of_them_and_not_of_their_loop() -> None:
    program = Program()
    for _ in range(STEPS):
        with program.range("step"):
            for _ in range(5):
                program.kernel(1, MS)
                program.copy("d2h", 1, 1_000, size=4)
                program.wait(1)
                program.host(MS)

    (found,) = findings(program, host_read.ANALYZER)

    assert (found.range, found.evidence["instances"]) == ("step", STEPS)


def test_launches_of_another_thread_are_missed_by_the_loop() -> None:
    program = Program()
    for step in range(STEPS):
        with program.range(f"step {step}"):
            program.kernel(1, MS)
            program.thread = 1
            program.kernel(1, MS)
            program.thread = 0
    program.wait()

    (found,) = findings(program, not_seen.ANALYZER)

    assert (found.id, found.range) == ("other-thread", "step *")
    assert (found.evidence["own"], found.evidence["missed"]) == (STEPS, STEPS)


def test_the_figures_of_the_steps_stay_apart() -> None:
    result = run_all(training(name="step {}").trace(), ANALYZERS, Options())

    assert {entry.name for entry in result.ranges} == {f"step {step}" for step in range(STEPS)}


@pytest.mark.parametrize("analyzer", [host_read.ANALYZER, host_busy.ANALYZER])
def test_loops_of_one_name_on_two_devices_have_their_own_turns(analyzer: Analyzer) -> None:
    program = training()
    program.thread = 1
    trace = training(program=program).trace()
    assert trace.operations is not None
    half = len(trace.operations) // 2
    device = np.repeat(np.array([0, 1], np.int32), half)
    trace = dataclasses.replace(
        trace,
        devices=(*trace.devices, dataclasses.replace(trace.devices[0], number=1)),
        operations=dataclasses.replace(trace.operations, device=device),
    )

    found = run_all(trace, [analyzer], Options()).findings

    assert [(each.device, each.evidence["count"]) for each in found] == [
        (0, STEPS - 1),
        (1, STEPS - 1),
    ]


@pytest.mark.parametrize("analyzer", [host_read.ANALYZER, host_busy.ANALYZER])
def test_turns_outside_the_window_are_not_counted(analyzer: Analyzer) -> None:
    trace = training(steps=4 * STEPS).trace()
    assert trace.ranges is not None
    window_ns = (0, int(trace.ranges.end_ns[STEPS - 1]))

    (found,) = run_all(trace, [analyzer], Options(window_ns=window_ns)).findings

    assert (found.range, found.evidence["count"]) == ("step", STEPS - 1)


@pytest.mark.parametrize(
    ("ranges", "attribute", "level", "expected"),
    [
        # Crossing ranges of two domains put c on the level of b, which goes on after c.
        (
            [
                ("a", 0, 40, {"domain": "x"}),
                ("b", 20, 100, {"domain": "y"}),
                ("c", 50, 70, {"domain": "x"}),
            ],
            "thread",
            1,
            [None, "b", "c", "b", None],
        ),
        # A range of another thread begins and ends while a goes on.
        ([("a", 0, 100), ("b", 20, 50, {"thread": "other"})], "process", 0, [*"abaa", None]),
    ],
)
def test_a_range_goes_on_after_one_of_its_level_that_began_later(
    ranges: list[tuple[object, ...]], attribute: str, level: int, expected: list[str | None]
) -> None:
    trace = make_trace(ranges=ranges, kernels=[(at, at + 5, "s1") for at in (10, 30, 60, 85, 110)])
    case = Case.of(trace, Options(attribute=attribute))

    names: list[str | None] = [None] * len(expected)
    for region in case.levels[level]:
        for row in region.rows.tolist():
            names[row] = region.name

    assert names == expected
