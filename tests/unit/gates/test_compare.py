"""Two runs against each other: literal traces, what must be seen and what is noise."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpuscope import samples
from gpuscope.analysis import Options
from gpuscope.api import open_trace
from gpuscope.errors import CannotJudgeError
from gpuscope.gates import compare as comparing
from gpuscope.gates.compare import compare
from gpuscope.model.classes import CODE
from gpuscope.model.comparison import Change, Comparison, OperationChange, ScopeChange
from gpuscope.model.trace import Process, Trace
from tests.make_trace import make_trace

US = 1_000
MS = 1_000_000


def both(before: Trace | Sequence[Trace], after: Trace | Sequence[Trace]) -> Comparison:
    sides = [[side] if isinstance(side, Trace) else list(side) for side in (before, after)]
    return compare(sides[0], sides[1], [Options()] * sum(map(len, sides)))


def scope_of(comparison: Comparison, path: str | None) -> ScopeChange:
    (found,) = [scope for scope in comparison.scopes if scope.path == path]
    return found


def figure(comparison: Comparison, path: str | None, name: str) -> Change:
    (found,) = [change for change in scope_of(comparison, path).figures if change.figure == name]
    return found


def operation(comparison: Comparison, path: str | None, name: str) -> OperationChange:
    (found,) = [each for each in scope_of(comparison, path).operations if each.name == name]
    return found


def steps(
    spans: Sequence[int],
    *,
    hidden: int = 80,
    copies: int = 1,
    name: str = "k",
    shift: int = 0,
    **more: Any,
) -> Trace:
    """Instances of `step` with kernels of these µs, and copies of 100 µs, `hidden` of it under."""
    kernels: list[Any] = []
    h2d: list[Any] = []
    ranges: list[Any] = []
    for number, span in enumerate(spans):
        at = number * 5 * MS + shift
        ranges.append(("step", at, at + 4 * MS))
        kernels.append((at, at + span * US + number % 2, "s7", {"name": name}))
        first = at + (span - hidden) * US
        for copy in range(copies):
            begin = first + copy * 100 * US
            h2d.append((begin, begin + 100 * US, "s8", {"launch": at + 1 + copy, "name": "H2D"}))
    return make_trace(kernels=kernels, h2d=h2d, ranges=ranges, **more)


SIX = (1000, 1010, 990, 1005, 995, 1000)


def test_a_trace_is_identical_to_itself() -> None:
    comparison = both(steps(SIX), steps(SIX))

    assert comparison.outcome == "identical"
    assert not comparison.causes


def test_another_start_of_the_clock_is_no_change() -> None:
    assert both(steps(SIX), steps(SIX, shift=77 * MS)).outcome == "identical"


def test_medians_differences_and_intervals() -> None:
    change = figure(both(steps(SIX), steps([span + 500 for span in SIX])), "step", "busy")

    assert change.before == 1020 * US
    assert change.after == 1520 * US
    assert change.difference == 500 * US
    assert change.low is not None
    assert change.high is not None
    assert 480 * US <= change.low <= 500 * US <= change.high <= 520 * US
    assert change.outcome == "worse"
    assert (change.samples_before, change.samples_after) == (6, 6)


def test_directions() -> None:
    slower = both(steps(SIX), steps([span + 500 for span in SIX]))
    faster = both(steps([span + 500 for span in SIX]), steps(SIX))
    hidden = both(steps(SIX, hidden=20), steps(SIX, hidden=80))

    assert operation(slower, "step", "k").duration.outcome == "worse"  # type: ignore[union-attr]
    assert operation(faster, "step", "k").duration.outcome == "better"  # type: ignore[union-attr]
    assert figure(hidden, "step", "overlap(h2d, kernel)").outcome == "better"
    assert figure(hidden, "step", "overlap(h2d, kernel)").difference == pytest.approx(0.6, abs=0.01)
    assert figure(hidden, "step", "exposed(h2d)").outcome == "better"
    assert hidden.outcome == "changed"


def test_what_the_spread_explains_is_noise() -> None:
    wide = (1000, 1400, 700, 1250, 800, 1100)
    shuffled = (1150, 1430, 720, 1290, 830, 1060)

    change = figure(both(steps(wide), steps(shuffled)), "step", "busy")

    assert change.outcome == "noise"
    assert both(steps(wide), steps(shuffled)).outcome == "noise"


def test_what_is_too_small_to_matter_is_small() -> None:
    change = figure(both(steps(SIX), steps([span + 15 for span in SIX])), "step", "span")

    assert change.outcome == "small"


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((1000,), (1500,), "unclear"),
        ((1000,), (1500, 1510, 1490, 1500, 1500), "unclear"),
        ((1000, 1010), (1500, 1510), "worse"),  # 500 µs apart, 10 µs wide
        ((1000, 1200), (1500, 1510), "unclear"),  # 405 µs apart, 200 µs wide
    ],
)
def test_few_instances(before: Sequence[int], after: Sequence[int], outcome: str) -> None:
    change = figure(both(steps(before), steps(after)), "step", "busy")

    assert change.outcome == outcome
    assert change.low is None


def test_a_difference_of_one_instance_is_never_called_noise() -> None:
    assert both(steps((1000,)), steps((1500,))).outcome == "unclear"


def moved(trace: Trace, op_classes: Sequence[str], shift_ns: int) -> Trace:
    assert trace.operations is not None
    operations = trace.operations
    mine = np.isin(operations.op_class, [CODE[name] for name in op_classes])
    later = operations.take(slice(None))
    columns = later.columns()
    columns["start_ns"] = operations.start_ns + mine * shift_ns
    columns["end_ns"] = operations.end_ns + mine * shift_ns
    order = np.argsort(columns["start_ns"], kind="stable")
    return dataclasses.replace(
        trace, operations=type(later)(**{name: column[order] for name, column in columns.items()})
    )


@pytest.mark.parametrize("name", ["streams", "streams_run", "pinned", "default", "bidir"])
def test_copies_moved_by_100_ms_are_not_unchanged(name: str) -> None:
    trace = open_trace(samples.path(name))

    comparison = both(trace, moved(trace, ("h2d", "d2h"), 100 * MS))

    assert comparison.outcome in {"changed", "unclear"}
    if name == "streams_run":
        start = operation(comparison, "gs:measure/gs:iter/streamed", "h2d").start
        assert start is not None
        assert start.outcome == "changed"


def test_copies_that_only_move_where_nothing_overlaps_are_seen() -> None:
    """Span, busy, idle, exposed, overlap, counts and durations are all as before."""

    def trace(copy_ms: int) -> Trace:
        return make_trace(
            kernels=[(0, 10 * MS, "s7"), (500 * MS, 510 * MS + 1, "s7")],
            h2d=[(copy_ms * MS, (copy_ms + 10) * MS, "s8", {"launch": 1})],
            ranges=[("step", 0, 600 * MS)],
        )

    comparison = both(trace(100), trace(200))

    figures = scope_of(comparison, "step").figures
    assert {change.outcome for change in figures} == {"same"}
    start = operation(comparison, "step", "h2d").start
    assert start is not None
    assert start.difference == 100 * MS
    assert comparison.outcome == "unclear"  # there is one instance


def test_a_gpu_that_starts_later_after_its_launches_is_seen() -> None:
    """Everything moved alike: among themselves the operations lie as before."""
    trace = steps(SIX)

    comparison = both(trace, moved(trace, ("kernel", "h2d"), 100 * MS))

    delay = figure(comparison, "step", "delay")
    assert (delay.before, delay.after, delay.outcome) == (0, 100 * MS, "changed")


def test_new_gone_more_and_other_kernels() -> None:
    renamed = both(steps(SIX), steps(SIX, name="other"))
    more = both(steps(SIX), steps(SIX, copies=2))

    assert operation(renamed, "step", "k").state == "gone"
    assert operation(renamed, "step", "other").state == "new"
    assert renamed.outcome == "changed"
    count = operation(more, "step", "h2d").count
    assert (count.before, count.after, count.outcome) == (1, 2, "changed")


def test_a_kernel_in_some_instances_only_counts_as_none_in_the_others() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s7"), (100, 110, "s7"), (120, 131, "s7", {"name": "rare"})],
        ranges=[("a", 0, 50), ("a", 90, 200)],
    )

    assert operation(both(trace, trace), "a", "rare").count.before == 0.5


def test_new_and_gone_ranges() -> None:
    trace = make_trace(kernels=[(0, 11, "s7")], ranges=[("a", 0, 20)])
    other = make_trace(kernels=[(0, 11, "s7")], ranges=[("b", 0, 20)])

    comparison = both(trace, other)

    assert [(s.path, s.state) for s in comparison.scopes] == [
        (None, "both"),
        ("a", "gone"),
        ("b", "new"),
    ]
    assert comparison.outcome == "changed"


def test_ranges_are_matched_by_path() -> None:
    trace = make_trace(
        kernels=[(1, 11, "s7"), (101, 121, "s7")],
        ranges=[("train", 0, 50), ("step", 1, 20), ("eval", 100, 150), ("step", 101, 130)],
    )

    comparison = both(trace, trace)

    assert {scope.path for scope in comparison.scopes} == {
        None,
        "train",
        "train/step",
        "eval",
        "eval/step",
    }
    assert figure(comparison, "eval/step", "span").before == 20


def test_processes_are_matched_by_their_order_not_their_pid() -> None:
    trace = steps(SIX)
    again = dataclasses.replace(trace, processes=(Process(4711, "made", None),))

    assert both(trace, again).outcome == "identical"


def test_gpus_are_matched_by_their_order_not_their_number() -> None:
    trace = steps(SIX)
    other = dataclasses.replace(trace, devices=(dataclasses.replace(trace.devices[0], number=5),))
    assert both(trace, other).outcome == "identical"

    bad = open_trace(samples.path("default"))
    moved_bad = dataclasses.replace(
        bad, devices=tuple(dataclasses.replace(d, number=d.number + 3) for d in bad.devices)
    )
    assert not both(bad, moved_bad).causes


def test_repetitions_are_compared_by_run_where_there_are_enough() -> None:
    """Runs that differ more than their instances do: each instance alone would be a change."""
    before = [
        steps([base + wobble for wobble in (0, 2, 1)]) for base in (1000, 1100, 900, 1050, 950)
    ]
    after = [
        steps([base + wobble for wobble in (1, 0, 2)]) for base in (1080, 940, 1130, 1010, 960)
    ]

    change = figure(both(before, after), "step", "busy")

    assert (change.samples_before, change.samples_after) == (5, 5)
    assert change.outcome in {"noise", "small"}


def test_paths_choose_ranges() -> None:
    comparison = compare([steps(SIX)], [steps(SIX)], [Options()] * 2, paths=["st*"])

    assert [scope.path for scope in comparison.scopes] == ["step"]
    with pytest.raises(CannotJudgeError, match="nothing to compare"):
        compare([steps(SIX)], [steps(SIX)], [Options()] * 2, paths=["nope"])


def test_causes_that_appear_and_vanish() -> None:
    good, bad = (open_trace(samples.path(name)) for name in ("pinned", "default"))

    there = {(c.id, c.state) for c in both(good, bad).causes}
    back = {(c.id, c.state) for c in both(bad, good).causes}

    assert ("default-stream", "appeared") in there
    assert ("default-stream", "vanished") in back
    assert len(there) == len(back)


def test_a_cause_counts_if_most_runs_have_it() -> None:
    good, bad = (open_trace(samples.path(name)) for name in ("pinned", "default"))

    assert not both([good, good, bad], [good]).causes
    assert {c.state for c in both([good, bad, bad], [good]).causes} == {"vanished"}


def test_analyzers_that_see_one_side_only_are_named() -> None:
    trace = open_trace(samples.path("default"))
    without = dataclasses.replace(trace, api=None)

    comparison = both(trace, without)

    assert any(note.startswith("same-stream could look at one side") for note in comparison.notes)
    assert not any(cause.id == "default-stream" for cause in comparison.causes)


def test_other_gpus_damage_and_loss_are_noted() -> None:
    trace = steps(SIX)
    device = dataclasses.replace(trace.devices[0], name="another GPU")
    other = dataclasses.replace(trace, devices=(device,), damaged={"kernels": 2}, lost_records=3)

    notes = both(trace, other).notes

    assert "2 damaged rows" in notes[0]
    assert "3 GPU records" in notes[1]
    assert "different GPUs" in notes[2]


def test_intervals_are_those_of_the_plain_bootstrap() -> None:
    random = np.random.default_rng(7)
    a, b = np.sort(random.normal(100, 10, 41)), np.sort(random.normal(120, 10, 31))
    draws = [
        np.median(random.choice(b, len(b))) - np.median(random.choice(a, len(a)))
        for _ in range(4000)
    ]

    low, high = comparing._interval(a, b)

    assert low == pytest.approx(np.quantile(draws, 0.025), abs=1.5)
    assert high == pytest.approx(np.quantile(draws, 0.975), abs=1.5)
    assert comparing._interval(a, b) == (low, high)  # the same every time


def test_false_alarms_are_rare_on_pure_noise() -> None:
    random = np.random.default_rng(11)
    alarms = 0
    for _ in itertools.repeat(None, 400):
        a, b = random.normal(100, 10, 20), random.normal(100, 10, 20)
        change = comparing._compared("x", "time", a, b, floor=2.0, better=-1)
        alarms += change.outcome not in {"noise", "small"}

    assert alarms <= 12  # 3 %: the effect that is asked for leaves fewer than the interval's 5 %
