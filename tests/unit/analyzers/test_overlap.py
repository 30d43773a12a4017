"""The overlap engine: literal cases, and random traces against marking every nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope import scopes
from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import links, overlap
from gpuscope.analyzers import ranges as range_scopes
from gpuscope.model.classes import CODE
from gpuscope.model.result import Analysis, RangeResult, Scope
from gpuscope.model.tables import STAGED
from gpuscope.model.trace import Category, Trace
from tests.make_trace import make_trace

US = 1000
TICK = [(1, 2, "s9")]
"""An operation at odd times, by which the clock counts in nanoseconds."""


def measured(trace: Trace, **options: Any) -> Analysis:
    analyzers = (overlap.ANALYZER, range_scopes.ANALYZER, links.ANALYZER)
    return run_all(trace, analyzers, Options(**options))


def device_scope(trace: Trace, **options: Any) -> Scope:
    (device,) = measured(trace, **options).devices
    return device.scope


def ranges(trace: Trace, **options: Any) -> dict[str, RangeResult]:
    result = measured(trace, **options)
    return {entry.path or entry.name: entry for entry in result.ranges}


# Figures


def test_two_classes_on_two_streams() -> None:
    scope = device_scope(make_trace(kernels=[(0, 10, "s7")], h2d=[(5, 15, "s8")]))
    pair = scope.pair("kernel", "h2d")
    assert pair is not None
    assert (pair.a, pair.b, pair.overlap_ns) == ("h2d", "kernel", 5)
    assert (scope.span_ns, scope.busy_ns, scope.idle_ns, scope.serial_ns) == (15, 15, 0, 20)
    assert (pair.overlap_ratio, pair.hidden_ratio_a, pair.hidden_ratio_b) == (0.5, 0.5, 0.5)
    assert scope.classes["h2d"].exposed_ns == 5
    assert scope.classes["kernel"].exposed_ns is None
    assert {part.classes: part.ns for part in scope.partition} == {
        ("kernel",): 5,
        ("h2d",): 5,
        ("h2d", "kernel"): 5,
    }
    assert dict(scope.concurrency.streams_ns) == {"1": 10, "2": 5}
    assert (scope.bound_ns, scope.overlap_efficiency) == (10, 0.5)


def test_half_open_intervals_that_touch_do_not_overlap() -> None:
    scope = device_scope(make_trace(kernels=[(0, 10, "s7")], h2d=[(10, 20, "s8")]))
    pair = scope.pair("h2d", "kernel")
    assert pair is not None
    assert pair.overlap_ns == 0
    assert scope.concurrency.peak == 1


def test_an_operation_without_length_counts_and_moves_nothing() -> None:
    scope = device_scope(make_trace(kernels=[(0, 0, "s1"), (10, 20, "s1"), (90, 90, "s1")]))
    assert scope.classes["kernel"].count == 3
    assert (scope.span_ns, scope.busy_ns) == (10, 10)


def test_copies_within_one_class_are_busy_once_and_work_twice() -> None:
    scope = device_scope(make_trace(h2d=[(0, 10, "s1"), (5, 15, "s2")]))
    figures = scope.classes["h2d"]
    assert (figures.work_ns, figures.busy_ns, figures.streams) == (20, 15, 2)
    assert scope.concurrency.classes["h2d"].peak == 2
    assert scope.overlap_efficiency is None  # one engine only


def test_gates_stand_outside_every_figure() -> None:
    scope = device_scope(make_trace(kernels=[(50, 60, "s1")], gate=[(0, 50, "s1")]))
    assert (scope.span_ns, scope.busy_ns, list(scope.classes)) == (10, 10, ["kernel"])


def test_host_work_pairs_but_is_no_engine() -> None:
    trace = make_trace(kernels=[(0, 10, "s1")], h2h=[(5, 30, "s2")], mpi=[("MPI_Send", 2, 40)])
    scope = device_scope(trace)
    assert (scope.span_ns, scope.busy_ns, scope.serial_ns, scope.bound_ns) == (10, 10, 10, 10)
    overlaps = {(pair.a, pair.b): pair.overlap_ns for pair in scope.pairs}
    assert overlaps == {("h2h", "kernel"): 5, ("h2h", "mpi"): 25, ("kernel", "mpi"): 8}


def test_one_copy_engine_is_one_engine() -> None:
    copies: dict[str, Any] = {"h2d": [(0, 10, "s1")], "d2h": [(10, 20, "s2")]}
    assert device_scope(make_trace(copy_engines=2, **copies)).bound_ns == 10
    one = device_scope(make_trace(copy_engines=1, kernels=[(0, 15, "s3")], **copies))
    assert one.bound_ns == 20
    assert one.overlap_efficiency == 1.0


def test_pages_that_migrate_gain_nothing() -> None:
    """Their overlap is told; neither a verdict nor the efficiency takes it for a gain."""
    work: dict[str, Any] = {"kernels": [(0, 100, "s1")], "h2d": [(60, 140, "s2")]}
    without = device_scope(make_trace(**work))
    scope = device_scope(make_trace(**work, uvm=[(10, 50, "s3"), (150, 160, "s3")]))
    pair = scope.pair("kernel", "uvm")
    assert pair is not None
    assert (pair.overlap_ns, pair.overlap_ratio, pair.verdict) == (40, 0.8, "inconclusive")
    assert "hides nothing" in pair.reason
    assert scope.overlap_efficiency == without.overlap_efficiency == 0.5
    assert (scope.busy_ns, scope.serial_ns, scope.bound_ns) == (150, 230, 100)
    longest = device_scope(make_trace(**work, uvm=[(10, 500, "s3")]))
    assert (longest.bound_ns, longest.overlap_efficiency) == (490, 0.5)


def test_each_direction_of_p2p_is_an_engine() -> None:
    trace = make_trace(
        p2p=[(0, 10, "s1", {"src": 0, "dst": 1}), (10, 20, "s2", {"src": 1, "dst": 0})]
    )
    scope = device_scope(trace)
    assert scope.bound_ns == 10
    result = measured(trace)
    (pair,) = result.link_pairs
    assert (pair.a, pair.b, pair.overlap_ns, pair.verdict) == ("0>1", "1>0", 0, "inconclusive")


def test_links_pair_over_all_devices_of_a_process() -> None:
    trace = make_trace(
        devices=2,
        memset=TICK,
        p2p=[
            (0, 100 * US, "s1", {"src": 0, "dst": 1, "device": 0, "bytes": 7}),
            (10 * US, 100 * US, "s1", {"src": 1, "dst": 0, "device": 1, "bytes": 9}),
        ],
        ranges=[("both", 0, 100 * US)],
    )
    result = measured(trace)
    assert [(link.src, link.dst, link.bytes, link.busy_ns) for link in result.links] == [
        (0, 1, 7, 100 * US),
        (1, 0, 9, 90 * US),
    ]
    assert [pair.verdict for pair in result.link_pairs] == ["overlapped"]
    assert [entry.link_pairs[0].overlap_ns for entry in result.ranges] == [90 * US, 90 * US]


def test_instances_too_short_to_count_make_no_directions_overlap() -> None:
    there, back = {"src": 0, "dst": 1}, {"src": 1, "dst": 0, "device": 1}
    rows, windows = [], []
    for number, length in enumerate([100 * US] * 10 + [US] * 20):
        begin = number * 300 * US
        late = begin + 100 * US if number < 2 else begin  # two of ten one after the other
        rows += [(begin, begin + length, "s1", there), (late, late + length, "s1", back)]
        windows.append(("r", begin, begin + 250 * US))
    (entry, *_) = measured(make_trace(devices=2, memset=TICK, p2p=rows, ranges=windows)).ranges
    (pair,) = entry.link_pairs
    assert pair.verdict == "partial"
    assert "only 8 of 10 instances overlap" in pair.reason


def test_turns_of_a_link_are_counted_inside_each_instance() -> None:
    there, back = {"src": 0, "dst": 1}, {"src": 1, "dst": 0, "device": 1}
    trace = make_trace(
        devices=2,
        p2p=[
            (0, 5, "s1", there), (10, 15, "s1", back), (20, 25, "s1", there), (30, 35, "s1", there),
            (100, 105, "s1", back), (110, 115, "s1", there),
            (120, 125, "s1", {"src": 0, "dst": 2}), (130, 135, "s1", back),
        ],
        ranges=[("r", 0, 50), ("r", 100, 150)],
    )  # fmt: skip
    result = measured(trace)
    turns = {(pair.a, pair.b): pair.turns for pair in result.ranges[0].link_pairs}
    # there, back, there, there: 2; then back, there, (elsewhere), back: 2.
    assert turns == {("0>1", "1>0"): 4, ("0>1", "0>2"): 1, ("0>2", "1>0"): 2}
    (whole,) = (pair for pair in result.link_pairs if (pair.a, pair.b) == ("0>1", "1>0"))
    assert whole.turns == 5


def test_a_copy_that_the_driver_stages_counts_on_no_link() -> None:
    # Of a large one the first piece alone is timed.
    way = {"src": 0, "dst": 1, "bytes": 100}
    staged = (20, 21, "s1", {**way, "flags": STAGED})
    result = measured(make_trace(devices=2, p2p=[(0, 10, "s1", way), staged]))
    assert [(link.count, link.bytes, link.busy_ns) for link in result.links] == [(1, 100, 10)]


def test_copies_that_the_driver_stages_are_an_engine_without_a_link() -> None:
    scope = device_scope(
        make_trace(
            kernels=[(0, 10, "s7")],
            h2d=[(0, 10, "s8")],
            p2p=[(10, 40, "s9", {"src": 0, "dst": 1, "flags": STAGED})],
        )
    )
    assert (scope.busy_ns, scope.bound_ns) == (40, 30)
    assert scope.overlap_efficiency == 10 / 20


def test_a_copy_to_a_device_that_was_not_recorded_is_on_no_link() -> None:
    for ends in ({"src": 1}, {"dst": 1}, {}):
        found = measured(make_trace(p2p=[(0, 10, "s8", ends)], devices=2))
        assert (found.links, found.devices[0].scope.bound_ns) == ((), 10)


def test_a_window_clips_at_its_edges() -> None:
    scope = device_scope(
        make_trace(kernels=[(0, 10, "s1"), (30, 40, "s1")], h2d=[(8, 20, "s2")]),
        window_ns=(9, 30),
    )
    assert (scope.span_ns, scope.classes["kernel"].count, scope.classes["kernel"].busy_ns) == (
        11,
        1,
        1,
    )


# Ranges


def test_a_range_takes_operations_whole_by_their_launch() -> None:
    trace = make_trace(
        kernels=[(100, 200, "s1", {"launch": 5}), (200, 300, "s1", {"launch": 20})],
        ranges=[("step", 0, 10), ("step", 10, 30)],
    )
    entry = ranges(trace)["step"]
    assert (entry.instances, entry.instances_total) == (2, 2)
    assert entry.scope.span_ns == 200
    assert entry.scope.classes["kernel"].count == 2


def test_the_end_of_a_range_is_outside() -> None:
    trace = make_trace(kernels=[(50, 60, "s1", {"launch": 10})], ranges=[("a", 0, 10)])
    assert ranges(trace) == {}


def test_another_thread_s_launches_are_unattributed() -> None:
    trace = make_trace(
        kernels=[
            (10, 20, "s1", {"launch": 1}),
            (20, 30, "s1", {"launch": 2, "thread": "backward"}),
            (30, 40, "s1", {"launch": 3, "thread": "backward"}),
        ],
        ranges=[("step", 0, 9)],
    )
    entry = ranges(trace)["step"]
    assert entry.scope.classes["kernel"].count == 1
    assert entry.unattributed_ratio == pytest.approx(2 / 3)
    whole = ranges(trace, attribute="process")["step"]
    assert whole.scope.classes["kernel"].count == 3
    assert whole.unattributed_ratio == 0


def test_start_end_ranges_take_the_launches_of_every_thread() -> None:
    trace = make_trace(
        kernels=[(10, 20, "s1", {"launch": 1, "thread": "other"})],
        ranges=[("phase", 0, 9, {"kind": 1})],
    )
    assert ranges(trace)["phase"].instances == 1


def test_ranges_without_an_end_are_not_used() -> None:
    trace = make_trace(kernels=[(10, 20, "s1", {"launch": 5})], ranges=[("open", 0, None)])
    assert ranges(trace) == {}


def test_paths_tell_nested_ranges_apart() -> None:
    trace = make_trace(
        kernels=[(10, 20, "s1", {"launch": 2}), (30, 45, "s1", {"launch": 12})],
        ranges=[("step", 0, 9), ("fwd", 1, 5), ("eval", 10, 19), ("fwd", 11, 15)],
    )
    assert ranges(trace)["fwd"].instances == 2
    by_path = ranges(trace, by_path=True)
    assert sorted(by_path) == ["eval", "eval/fwd", "step", "step/fwd"]
    assert by_path["eval/fwd"].scope.span_ns == 15
    assert sorted(ranges(trace, by_path=True, ranges=("*/fwd",))) == ["eval/fwd", "step/fwd"]


def test_ranges_that_cross_nest_in_neither() -> None:
    # A load is started in one step and ends in the next.
    trace = make_trace(
        kernels=[(at, at + 1, "s1") for at in (1, 11, 21, 13)],
        ranges=[
            ("step", 0, 10), ("load", 5, 15, {"kind": 1}), ("step", 10, 20), ("fwd", 12, 14),
            ("step", 20, 30), ("mark", 30, 30), ("fwd", 22, 22),
        ],
    )  # fmt: skip
    entries = ranges(trace, by_path=True)
    assert {path: each.instances_total for path, each in entries.items()} == {
        "load": 1,
        "step": 3,
        "step/fwd": 2,
    }


def test_a_name_with_a_slash_is_kept_in_a_path() -> None:
    trace = make_trace(kernels=[(5, 6, "s1")], ranges=[("net", 0, 9), ("layer/1", 4, 6)])
    assert ranges(trace, by_path=True)["net/layer/1"].name == "layer/1"


def test_a_category_is_a_number_of_its_domain_and_process() -> None:
    trace = make_trace(
        kernels=[(10, 20, "s1"), (40, 50, "s1"), (70, 80, "s1")],
        ranges=[
            ("a", 0, 30, {"domain": "left", "category": 5}),
            ("b", 31, 60, {"domain": "right", "category": 5}),
            ("c", 61, 90, {"domain": "left", "category": 6}),
        ],
    )
    left, right = map(trace.strings.index, ("left", "right"))
    names = [(0, left, 5, "copying"), (0, right, 5, "computing"), (1, left, 6, "copying")]
    trace = replace(trace, categories=tuple(Category(*each) for each in names))

    assert sorted(ranges(trace, categories=("copying",))) == ["a"]
    assert sorted(ranges(trace, categories=("c*ing",))) == ["a", "b"]
    assert sorted(ranges(trace, categories=("5",))) == ["a", "b"]


def test_a_star_in_a_path_stands_for_any_number_of_levels() -> None:
    trace = make_trace(
        kernels=[(10, 15, "s1"), (20, 25, "s1"), (30, 35, "s1")],
        ranges=[("a", 0, 50), ("b", 5, 40), ("c", 8, 28), ("d", 18, 27)],
    )

    assert sorted(ranges(trace, by_path=True, ranges=("a/*",))) == ["a/b", "a/b/c", "a/b/c/d"]
    assert sorted(ranges(trace, by_path=True, ranges=("a/*/d",))) == ["a/b/c/d"]


def test_recursion_counts_every_instance() -> None:
    trace = make_trace(kernels=[(10, 20, "s1", {"launch": 3})], ranges=[("f", 0, 9), ("f", 2, 5)])
    entry = ranges(trace)["f"]
    assert (entry.instances, entry.scope.busy_ns) == (2, 20)


def test_domains_are_selectable() -> None:
    trace = make_trace(
        kernels=[(10, 20, "s1", {"launch": 3})],
        ranges=[("mine", 0, 9), ("theirs", 1, 8, {"domain": "lib"})],
    )
    assert sorted(ranges(trace)) == ["mine", "theirs"]
    assert sorted(ranges(trace, domains=("lib",))) == ["theirs"]
    assert sorted(ranges(trace, domains=("",))) == ["mine"]


def test_instances_have_scopes_of_their_own() -> None:
    trace = make_trace(
        kernels=[(10, 20, "s1", {"launch": 1}), (30, 60, "s1", {"launch": 12})],
        ranges=[("step", 0, 9), ("idle", 9, 10), ("step", 10, 19)],
    )
    per_instance = ranges(trace, instances=True)["step"].per_instance
    assert per_instance is not None
    assert [(one.index, one.start_ns, one.end_ns, one.scope.busy_ns) for one in per_instance] == [
        (0, 10, 20, 10),
        (1, 30, 60, 30),
    ]
    assert ranges(trace)["step"].spread.median_ns == 20


# Verdicts


def pipeline(n: int, copy: tuple[int, int], kernel: tuple[int, int], step: int) -> dict[str, Any]:
    """n instances; copy and kernel as (start, end) within each, in µs."""
    at = [i * step for i in range(n)]
    return {
        "memset": TICK,
        "h2d": [((t + copy[0]) * US, (t + copy[1]) * US, "s1", {"launch": t * US}) for t in at],
        "kernels": [
            ((t + kernel[0]) * US, (t + kernel[1]) * US, "s2", {"launch": t * US + 1}) for t in at
        ],
        "ranges": [("step", t * US, t * US + 10) for t in at],
    }


def verdict(trace: Trace, **options: Any) -> str:
    pair = ranges(trace, **options)["step"].scope.pair("h2d", "kernel")
    assert pair is not None
    return pair.verdict


def test_overlapped_and_serialized() -> None:
    assert verdict(make_trace(**pipeline(5, (0, 100), (10, 110), 200))) == "overlapped"
    assert verdict(make_trace(**pipeline(5, (0, 100), (100, 180), 200))) == "serialized"
    assert verdict(make_trace(**pipeline(5, (0, 100), (70, 170), 200))) == "partial"


def test_a_prefetch_under_the_previous_step_is_pipelined() -> None:
    # Each kernel runs while the next instance's copy does, in another instance of the range.
    trace = make_trace(**pipeline(10, (0, 100), (100, 200), 100))
    assert verdict(trace) == "pipelined"
    pair = ranges(trace)["step"].scope.pair("h2d", "kernel")
    assert pair is not None
    assert (pair.overlap_ns, pair.a_under_any_b_ns) == (0, 900 * US)


def test_too_short_to_judge() -> None:
    assert verdict(make_trace(**pipeline(3, (0, 6), (0, 6), 200))) == "inconclusive"
    assert verdict(make_trace(**pipeline(30, (0, 4), (0, 4), 200))) == "inconclusive"
    assert verdict(make_trace(**pipeline(4, (0, 6), (0, 6), 200))) == "overlapped"


def test_what_is_small_is_immaterial() -> None:
    assert verdict(make_trace(**pipeline(5, (0, 1000), (0, 10), 2000))) == "immaterial"


def test_most_instances_must_overlap_by_themselves() -> None:
    rows = pipeline(10, (0, 100), (0, 100), 1000)
    for bad in (3, 7):
        start = rows["kernels"][bad][0]
        rows["kernels"][bad] = (start + 100 * US, start + 200 * US, *rows["kernels"][bad][2:])
    pair = ranges(make_trace(**rows))["step"].scope.pair("h2d", "kernel")
    assert pair is not None
    assert pair.verdict == "pipelined"
    assert "only 8 of 10 instances" in pair.reason


def test_a_ratio_limit_is_what_the_schedule_allows() -> None:
    trace = make_trace(**pipeline(5, (0, 100), (50, 150), 200))
    assert verdict(trace) == "partial"
    limit = {("step", "h2d", "kernel"): 0.75}
    assert verdict(trace, ratio_limits=limit) == "overlapped"
    assert verdict(trace, ratio_limits={("step", "h2d", "kernel"): None}) == "inconclusive"


def test_lost_records_and_whole_graphs_are_inconclusive() -> None:
    rows = pipeline(5, (0, 100), (0, 100), 200)
    assert verdict(make_trace(lost_records=50, **rows)) == "inconclusive"
    assert verdict(make_trace(lost_records=0, **rows)) == "overlapped"
    graph = [(0, 50 * US, "s3", {"launch": 2})]
    trace = make_trace(graph=graph, **rows)
    scope = ranges(trace)["step"].scope
    assert {pair.verdict for pair in scope.pairs} == {"inconclusive"}
    pair = scope.pair("graph", "h2d")
    assert pair is not None
    assert pair.overlap_ns is None


def test_a_coarse_clock_is_said() -> None:
    # 64 µs of 100: more than 60 %, but the clock ticks in steps of 4 µs.
    rows = pipeline(5, (0, 100), (36, 136), 200)
    assert verdict(make_trace(**rows)) == "overlapped"
    assert verdict(make_trace(**{**rows, "memset": []})) == "inconclusive"


# Against a naive implementation

CLASSES = ("kernels", "h2d", "d2h", "comm")
_END = 50
OPERATION = st.tuples(
    st.sampled_from(CLASSES),
    st.integers(0, _END - 1),
    st.integers(0, 15),
    st.sampled_from(["s1", "s2", "s3"]),
    st.integers(0, 30),
    st.sampled_from(["main", "other"]),
    st.integers(0, 1),
)
RANGE = st.tuples(
    st.sampled_from(["a", "b"]),
    st.integers(0, 29),
    st.integers(0, 15),
    st.sampled_from(["main", "other"]),
)


def naive_scope(operations: list[Any]) -> dict[str, Any]:
    """Compute figures by marking every nanosecond."""
    named = [("kernel" if c == "kernels" else c, s, e, stream) for c, s, e, stream in operations]
    active = [{c for c, s, e, _ in named if s <= at < e} for at in range(_END + 20)]
    streams = [{x for _, s, e, x in named if s <= at < e} for at in range(_END + 20)]
    lasting = [(s, e) for _, s, e, _ in named if e > s]
    classes = sorted({c for c, *_ in named})
    partition: dict[tuple[str, ...], int] = {}
    span = (min(s for s, _ in lasting), max(e for _, e in lasting)) if lasting else (0, 0)
    for at in range(*span):
        key = tuple(sorted(active[at]))
        partition[key] = partition.get(key, 0) + 1
    return {
        "span": span[1] - span[0],
        "busy": sum(bool(at) for at in active),
        "work": {c: sum(e - s for d, s, e, _ in named if d == c) for c in classes},
        "class_busy": {c: sum(c in at for at in active) for c in classes},
        "overlap": {
            (a, b): sum(a in at and b in at for at in active) for a, b in combinations(classes, 2)
        },
        "partition": partition,
        "streams": {str(k): n for k in (1, 2, 3) if (n := sum(len(at) == k for at in streams))},
        "peak": {
            c: max(sum(d == c and s <= at < e for d, s, e, _ in named) for at in range(_END + 20))
            for c in classes
        },
    }


def figures(scope: Scope) -> dict[str, Any]:
    return {
        "span": scope.span_ns,
        "busy": scope.busy_ns,
        "work": {c: f.work_ns for c, f in sorted(scope.classes.items())},
        "class_busy": {c: f.busy_ns for c, f in sorted(scope.classes.items())},
        "overlap": {(pair.a, pair.b): pair.overlap_ns for pair in scope.pairs},
        "partition": {part.classes: part.ns for part in scope.partition},
        "streams": dict(scope.concurrency.streams_ns),
        "peak": {c: f.peak for c, f in sorted(scope.concurrency.classes.items())},
    }


def summed(parts: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict):
                pick: Callable[[int, int], int] = max if key == "peak" else int.__add__
                into = total.setdefault(key, {})
                for name, amount in value.items():
                    into[name] = pick(into.get(name, 0), amount)
            else:
                total[key] = total.get(key, 0) + value
    classes = sorted(total["work"])
    total["overlap"] = {pair: total["overlap"].get(pair, 0) for pair in combinations(classes, 2)}
    return total


def build(
    operations: list[Any], range_rows: list[Any], calls: Sequence[tuple[int, int]] = ()
) -> Trace:
    by_class: dict[str, Any] = {name: [] for name in CLASSES}
    for op_class, start, size, stream, launch, thread, device in operations:
        extra = {"launch": launch, "thread": thread, "device": device}
        by_class[op_class].append((start, start + size, stream, extra))
    listed = [(name, start, start + size, {"thread": t}) for name, start, size, t in range_rows]
    mpi = [("MPI_Wait", start, start + size) for start, size in calls]
    return make_trace(devices=2, ranges=listed, mpi=mpi, **by_class)


def within(start: int, size: int, thread: str) -> Callable[[Any], bool]:
    """Return whether an operation was launched in a range."""
    return lambda o: start <= o[4] < start + size and o[5] == thread


def picked(operations: list[Any], device: int, keep: Callable[[Any], bool]) -> list[Any]:
    return [(o[0], o[1], o[1] + o[2], o[3]) for o in operations if o[6] == device and keep(o)]


@settings(max_examples=150)
@given(st.lists(OPERATION, min_size=1, max_size=12), st.lists(RANGE, max_size=6))
def test_figures_equal_the_naive_ones(operations: list[Any], range_rows: list[Any]) -> None:
    result = measured(build(operations, range_rows))
    for entry in result.devices:
        mine = picked(operations, entry.device, lambda _: True)
        assert figures(entry.scope) == naive_scope(mine)
    seen = set()
    for one in result.ranges:
        seen.add((one.name, one.device))
        instances = []
        for name, start, size, thread in range_rows:
            mine = picked(
                operations,
                one.device,
                within(start, size, thread),
            )
            if name == one.name and mine:
                instances.append(naive_scope(mine))
        assert one.instances == len(instances)
        assert figures(one.scope) == summed(instances)
    for name, start, size, thread in range_rows:
        for device in (0, 1):
            mine = picked(operations, device, within(start, size, thread))
            assert not mine or (name, device) in seen


MPI_CALL = st.tuples(st.integers(0, _END - 1), st.integers(0, 15))


@settings(max_examples=150)
@given(st.lists(OPERATION, min_size=1, max_size=12), st.lists(MPI_CALL, max_size=3), st.data())
def test_a_time_line_in_pieces_gives_the_same_figures(
    operations: list[Any], calls: list[tuple[int, int]], data: st.DataObject
) -> None:
    trace = build(operations, [], calls)
    assert trace.operations is not None
    known = trace.operations.op_class == CODE["comm"]
    moved = data.draw(st.lists(st.integers(0, 15), min_size=len(known), max_size=len(known)))
    options = Options(transfer_ns=np.where(known, moved, -1))
    whole = overlap.ANALYZER.run(trace, options)
    size = data.draw(st.integers(1, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scopes, "_CHUNK_ROWS", size)
        assert overlap.ANALYZER.run(trace, options) == whole


@settings(max_examples=100)
@given(st.lists(OPERATION, min_size=2, max_size=12), st.lists(RANGE, min_size=1, max_size=4))
def test_time_under_any_of_the_device(operations: list[Any], range_rows: list[Any]) -> None:
    result = measured(build(operations, range_rows))
    for one in result.ranges:
        everything = picked(operations, one.device, lambda _: True)
        for pair in one.scope.pairs:
            expected = 0
            for name, start, size, thread in range_rows:
                if name != one.name:
                    continue
                own = picked(
                    operations,
                    one.device,
                    within(start, size, thread),
                )
                for at in range(_END + 20):
                    covers = [
                        {("kernel" if c == "kernels" else c) for c, s, e, _ in rows if s <= at < e}
                        for rows in (own, everything)
                    ]
                    expected += pair.a in covers[0] and pair.b in covers[1]
            assert pair.a_under_any_b_ns == expected
