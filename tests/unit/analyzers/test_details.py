"""Gaps, streams, engines, rates and contention: literal cases, and random traces in plain loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuscope import api, batches, samples
from gpuscope.analysis import Options, chosen, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.model.result import Analysis, MpiFigures, RangeResult, Scope
from gpuscope.model.tables import STAGED, KernelConfigs
from gpuscope.model.trace import Trace
from tests.make_trace import make_trace


def measured(trace: Trace, **options: Any) -> Analysis:
    return run_all(trace, chosen(ANALYZERS, ["details"]), Options(**options))


def device_scope(trace: Trace, **options: Any) -> Scope:
    (device,) = measured(trace, **options).devices
    return device.scope


# Gaps


def test_a_gap_and_what_surrounds_it() -> None:
    scope = device_scope(
        make_trace(
            kernels=[(0, 10, "s7", {"name": "k"}), (30, 31, "s7", {"name": "next"})],
            h2d=[(5, 20, "s8", {"name": "copy in"}), (30, 50, "s8")],
        )
    )
    gaps = scope.gaps
    assert gaps is not None
    assert (gaps.count, gaps.total_ns, scope.idle_ns) == (1, 10, 10)
    (gap,) = gaps.largest
    assert (gap.start_ns, gap.ns) == (20, 10)
    assert (gap.before.op_class, gap.before.name, gap.before.stream) == ("h2d", "copy in", 8)
    assert (gap.after.op_class, gap.after.name, gap.after.stream) == ("kernel", "next", 7)
    assert [(k.before, k.after, k.count, k.ns) for k in gaps.kinds] == [("h2d", "kernel", 1, 10)]


def test_operations_without_length_bound_no_gap_and_the_time_between_instances_is_none() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s1"), (15, 15, "s1"), (20, 30, "s1"), (90, 95, "s1")],
        ranges=[("a", 0, 40), ("a", 80, 100)],
    )
    (entry,) = measured(trace).ranges
    assert entry.scope.gaps is not None
    assert [(gap.start_ns, gap.ns) for gap in entry.scope.gaps.largest] == [(10, 10)]


def test_only_the_largest_gaps_are_listed_and_all_are_counted() -> None:
    rows = [(10 * i * i, 10 * i * i + 5, "s1") for i in range(9)]
    gaps = device_scope(make_trace(kernels=rows)).gaps
    assert gaps is not None
    assert (gaps.count, [gap.ns for gap in gaps.largest]) == (8, [145, 125, 105, 85, 65])


# Streams, engines, rates


def test_streams_and_engines() -> None:
    scope = device_scope(
        make_trace(kernels=[(0, 10, "s7"), (5, 12, "s7")], h2d=[(10, 20, "s7")], d2h=[(0, 4, "s3")])
    )
    assert scope.streams is not None
    assert [
        (s.stream, s.count, s.work_ns, s.busy_ns, s.idle_ns, dict(s.classes)) for s in scope.streams
    ] == [(3, 1, 4, 4, 16, {"d2h": 1}), (7, 3, 27, 20, 0, {"kernel": 2, "h2d": 1})]
    assert scope.engines is not None
    assert [(e.engine, e.count, e.work_ns, e.busy_ns, e.idle_ns) for e in scope.engines] == [
        ("kernel", 2, 17, 12, 8),
        ("h2d", 1, 10, 10, 10),
        ("d2h", 1, 4, 4, 16),
    ]


def test_one_copy_engine_is_one_line() -> None:
    scope = device_scope(
        make_trace(copy_engines=1, h2d=[(0, 10, "s1")], d2h=[(8, 20, "s2")], memset=[(0, 1, "s3")])
    )
    assert scope.engines is not None
    assert [(e.engine, e.busy_ns) for e in scope.engines] == [("memset", 1), ("d2h+h2d", 20)]
    assert scope.bound_ns == max(e.busy_ns for e in scope.engines)


def test_rates_by_direction_and_size() -> None:
    scope = device_scope(
        make_trace(
            h2d=[
                (0, 10, "s1", {"bytes": 4}),
                (5, 15, "s2", {"bytes": 7}),
                (20, 30, "s1", {"bytes": 8}),
            ],
            p2p=[(0, 4, "s3", {"bytes": 6, "src": 1, "dst": 0})],
        )
    )
    assert scope.rates is not None
    h2d, p2p = scope.rates
    assert (h2d.op_class, h2d.link, h2d.count, h2d.bytes) == ("h2d", None, 3, 19)
    assert (h2d.work_ns, h2d.busy_ns, h2d.rate_bytes_per_s) == (30, 25, 19e9 / 25)
    assert [(s.from_bytes, s.to_bytes, s.bytes, s.work_ns, s.busy_ns) for s in h2d.sizes] == [
        (4, 8, 11, 20, 15),
        (8, 16, 8, 10, 10),
    ]
    assert (p2p.op_class, p2p.link, p2p.rate_bytes_per_s) == ("p2p", "1>0", 1.5e9)


def test_a_copy_that_the_window_cuts_has_no_rate() -> None:
    trace = make_trace(
        kernels=[(0, 90, "s2")],
        h2d=[(0, 10, "s1", {"bytes": 10}), (20, 30, "s1", {"bytes": 20})],
    )
    rates = device_scope(trace, window_ns=(5, 80)).rates
    assert rates is not None
    assert [(each.count, each.bytes, each.busy_ns) for each in rates] == [(1, 20, 10)]


# Contention


def configured(trace: Trace, blocks: Sequence[int]) -> Trace:
    operations = np.arange(len(blocks))
    ones = np.ones(len(blocks), np.int32)
    shared, cooperative = ones.astype(int), np.zeros(len(blocks), np.uint8)
    return dataclasses.replace(
        trace,
        kernel_configs=KernelConfigs(operations, np.array(blocks), ones, ones, shared, cooperative),
    )


def test_a_kernel_is_stretched_beside_a_copy() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s1"), (20, 30, "s1"), (40, 55, "s1"), (60, 100, "s1")],
        h2d=[(45, 58, "s2", {"bytes": 100}), (97, 110, "s2", {"bytes": 100})],
        ranges=[("both", 40, 56)],
    )
    scope = device_scope(trace)
    assert scope.contention is not None
    # The last kernel is overlapped for 3 of its 40 ns: neither alone nor overlapped.
    kernel = scope.contention.classes["kernel"]
    assert (kernel.overlapped_count, kernel.overlapped_ns, kernel.expected_ns) == (1, 15, 10)
    assert (kernel.ratio, kernel.reason) == (1.5, None)
    h2d = scope.contention.classes["h2d"]
    assert (h2d.overlapped_count, h2d.compared_ns, h2d.expected_ns, h2d.ratio) == (1, 0, None, None)
    assert h2d.reason == "none like these ran alone in the trace"
    (row,) = scope.contention.largest
    assert (row.name, row.alone_count, row.alone_ns, row.ratio) == ("kernel", 2, 20, 1.5)
    assert (row.grid_blocks, row.block_threads) == (None, None)
    (entry,) = measured(trace).ranges
    assert entry.scope.contention == scope.contention


def test_what_the_window_cuts_is_not_compared() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s1"), (20, 35, "s1"), (40, 55, "s1")],
        h2d=[(20, 35, "s2"), (40, 55, "s2")],
    )
    scope = device_scope(trace, window_ns=(22, 60))
    assert scope.contention is not None
    kernel = scope.contention.classes["kernel"]
    assert (kernel.overlapped_count, kernel.overlapped_ns) == (1, 15)


def test_copies_are_compared_by_rate() -> None:
    trace = make_trace(
        kernels=[(20, 60, "s1")],
        h2d=[(0, 10, "s2", {"bytes": 1024}), (25, 49, "s2", {"bytes": 2047})],
    )
    contention = device_scope(trace).contention
    assert contention is not None
    (row,) = contention.largest
    assert (row.expected_ns, row.overlapped_ns) == (2047 * 10 // 1024, 24)
    assert (row.from_bytes, row.to_bytes) == (1024, 2048)


def test_kernels_of_another_grid_are_another_kind() -> None:
    trace = make_trace(kernels=[(0, 10, "s1"), (20, 50, "s1")], d2h=[(20, 50, "s2")])
    contention = device_scope(configured(trace, [1, 2])).contention
    assert contention is not None
    assert contention.classes["kernel"].ratio is None
    contention = device_scope(configured(trace, [2, 2])).contention
    assert contention is not None
    (row,) = contention.largest
    assert (row.grid_blocks, row.block_threads, row.ratio) == (2, 1, 3.0)


def test_large_copies_are_compared_exactly() -> None:
    size, time = 2**49 + 1, 10**15 + 3
    trace = make_trace(
        h2d=[(0, time, "s1", {"bytes": size}), (2 * time, 4 * time, "s1", {"bytes": size + 5})],
        kernels=[(2 * time, 4 * time, "s2")],
    )
    contention = device_scope(trace).contention
    assert contention is not None
    (row,) = contention.largest
    assert row.expected_ns == (size + 5) * time // size


def test_a_copy_that_the_driver_stages_has_no_rate() -> None:
    # Of a large one the first piece alone is timed, beside the bytes of all of it.
    staged = {"bytes": 1000, "src": 0, "dst": 1, "flags": STAGED}
    trace = make_trace(
        p2p=[(0, 1, "s1", staged), (10, 20, "s1", {"bytes": 100, "src": 0, "dst": 1})],
    )
    rates = {rate.link: rate.rate_bytes_per_s for rate in device_scope(trace).rates or ()}
    assert rates == {"0>1": 10e9}


def test_figures_not_asked_for_are_null() -> None:
    trace = make_trace(kernels=[(0, 10, "s1")])
    (device,) = run_all(trace, chosen(ANALYZERS, ["overlap"]), Options()).devices
    assert (device.scope.gaps, device.scope.streams, device.scope.rates) == (None, None, None)


# Random traces against plain loops

OPERATION = st.tuples(
    st.sampled_from(["kernels", "h2d", "d2h", "memset", "comm", "p2p"]),
    st.integers(0, 60),
    st.integers(0, 12),
    st.sampled_from(["s1", "s2", "s3"]),
    st.integers(0, 30),
    st.integers(0, 1),
    st.integers(0, 9),
)
RANGE = st.tuples(st.sampled_from("ab"), st.integers(0, 29), st.integers(1, 15))


@dataclasses.dataclass
class Op:
    op_class: str
    start: int
    end: int
    stream: str
    launch: int
    device: int
    size: int
    own: int = 0
    """From when on it does work of its own: a kernel that starts early waits for the one before."""

    @property
    def lane(self) -> tuple[str, str | None]:
        return self.op_class, "0>1" if self.op_class == "p2p" else None

    @property
    def kind(self) -> Any:
        size = 0 if self.op_class == "kernel" else self.size.bit_length()
        return self.device, self.lane, size

    def beside(self, everything: list[Op]) -> int:
        others = [o for o in everything if o is not self and o.device == self.device]
        return sum(any(o.own <= t < o.end for o in others) for t in range(self.own, self.end))


def busy(ops: list[Op]) -> int:
    return len({t for o in ops for t in range(o.start, o.end)})


def naive(groups: list[list[Op]], everything: list[Op]) -> dict[str, Any]:
    found: dict[str, Any] = {"gaps": 0, "idle": 0, "span": 0}
    found |= {"streams": {}, "engines": {}, "rates": {}, "sizes": {}, "stretch": {}}

    def add(what: str, key: Any, ops: list[Op]) -> None:
        values = (len(ops), sum(o.end - o.start for o in ops), busy(ops), sum(o.size for o in ops))
        old = found[what].get(key, (0, 0, 0, 0))
        found[what][key] = tuple(a + b for a, b in zip(old, values, strict=True))

    for ops in groups:
        lasting = [o for o in ops if o.end > o.start]
        active = sorted({t for o in lasting for t in range(o.start, o.end)})
        found["gaps"] += sum(b > a + 1 for a, b in pairwise(active))
        found["idle"] += active[-1] + 1 - active[0] - len(active) if active else 0
        found["span"] += active[-1] + 1 - active[0] if active else 0
        for stream in {o.stream for o in ops}:
            add("streams", stream, [o for o in ops if o.stream == stream])
        for lane in {o.lane for o in ops}:
            mine = [o for o in ops if o.lane == lane]
            add("engines", lane, mine)
            if lane[0] in ("h2d", "d2h", "p2p"):
                add("rates", lane, mine)
                for size in {o.size.bit_length() for o in mine}:
                    of_size = [o for o in mine if o.size.bit_length() == size]
                    add("sizes", (lane, size), of_size)
        for o in lasting:
            if o.op_class in ("memset", "comm") or o.own > o.start:
                continue
            if 2 * o.beside(everything) < o.end - o.start:
                continue
            like = [p for p in everything if p.kind == o.kind and p.end > p.start == p.own]
            like = [p for p in like if not p.beside(everything)]
            count, ns, size = found["stretch"].get((o.kind, len(like)), (0, 0, 0))
            found["stretch"][o.kind, len(like)] = (count + 1, ns + o.end - o.start, size + o.size)
    return found


def check(scope: Scope, groups: list[list[Op]], everything: list[Op]) -> None:
    expected = naive(groups, everything)
    assert scope.gaps is not None
    assert scope.streams is not None
    assert scope.engines is not None
    assert scope.rates is not None
    assert scope.contention is not None
    assert (scope.gaps.count, scope.gaps.total_ns) == (expected["gaps"], expected["idle"])
    assert scope.gaps.total_ns == scope.idle_ns
    assert {f"s{s.stream}": (s.count, s.work_ns, s.busy_ns) for s in scope.streams} == {
        key: value[:3] for key, value in expected["streams"].items()
    }
    assert all(s.idle_ns == expected["span"] - s.busy_ns for s in scope.streams)
    assert {e.engine: (e.count, e.work_ns, e.busy_ns) for e in scope.engines} == {
        " ".join(filter(None, key)): value[:3] for key, value in expected["engines"].items()
    }
    rates = {(r.op_class, r.link): r for r in scope.rates}
    assert {key: (r.count, r.work_ns, r.busy_ns, r.bytes) for key, r in rates.items()} == expected[
        "rates"
    ]
    assert {
        (key, s.to_bytes.bit_length() - 1): (s.count, s.work_ns, s.busy_ns, s.bytes)
        for key, r in rates.items()
        for s in r.sizes
    } == expected["sizes"]
    classes: dict[str, list[int]] = {}
    for (kind, _), (count, ns, _) in expected["stretch"].items():
        sums = classes.setdefault(kind[1][0], [0, 0])
        sums[0] += count
        sums[1] += ns
    assert {
        name: [each.overlapped_count, each.overlapped_ns]
        for name, each in scope.contention.classes.items()
    } == classes
    for row in scope.contention.largest:
        by_bytes = row.op_class != "kernel" and row.alone_bytes > 0
        part, whole = (
            (row.overlapped_bytes, row.alone_bytes)
            if by_bytes
            else (row.overlapped_count, row.alone_count)
        )
        assert row.expected_ns == Fraction(part * row.alone_ns, whole).__floor__()
        size = 0 if row.to_bytes is None else row.to_bytes.bit_length() - 1
        key = ((groups[0][0].device, (row.op_class, row.link), size), row.alone_count)
        assert expected["stretch"][key] == (
            row.overlapped_count,
            row.overlapped_ns,
            row.overlapped_bytes,
        )


NESTED = [(0, 3, "s1"), (1, 1, "s1"), (2, 1, "s2")]
"""A kernel that waited until its end, between two others that meet."""


@settings(max_examples=150)
@given(st.lists(OPERATION, min_size=1, max_size=14), st.lists(RANGE, max_size=5))
@example([("kernels", *times, 0, 0, 0) for times in NESTED], [])
def test_figures_equal_the_naive_ones(rows: list[Any], range_rows: list[Any]) -> None:
    ops = [
        Op("kernel" if c == "kernels" else c, s, s + length, stream, launch, device, size)
        for c, s, length, stream, launch, device, size in rows
    ]
    by_class: dict[str, Any] = {}
    for o in ops:
        size = 0 if o.op_class in ("kernel", "comm") else o.size
        o.size = size
        extra = {"launch": o.launch, "device": o.device, "bytes": size}
        if o.op_class == "p2p":
            extra |= {"src": 0, "dst": 1}
        key = "kernels" if o.op_class == "kernel" else o.op_class
        by_class.setdefault(key, []).append((o.start, o.end, o.stream, extra))
    reach: dict[Any, int] = {}
    recorded = [
        o
        for key in by_class
        for o in ops
        if {"kernel": "kernels"}.get(o.op_class, o.op_class) == key
    ]
    for o in sorted(recorded, key=lambda o: (o.start, o.end)):
        o.own = o.start
        if o.op_class in ("kernel", "comm"):
            before = reach.get((o.device, o.stream), 0)
            o.own = min(max(o.start, before), o.end)
            reach[o.device, o.stream] = max(before, o.end)
    listed = [(name, start, start + length) for name, start, length in range_rows]
    result = measured(make_trace(devices=2, ranges=listed, **by_class))
    for device in result.devices:
        check(device.scope, [[o for o in ops if o.device == device.device]], ops)
    for entry in result.ranges:
        check(entry.scope, instances(entry, ops, listed), ops)


def instances(entry: RangeResult, ops: list[Op], listed: list[Any]) -> list[list[Op]]:
    groups = [
        [o for o in ops if o.device == entry.device and start <= o.launch < end]
        for name, start, end in listed
        if name == entry.name
    ]
    return [group for group in groups if group]


@pytest.mark.parametrize("name", ["streams", "p2p", "hyperq", "jacobi_nccl_r0"])
@pytest.mark.parametrize("rows", [1, 7])
def test_a_time_line_in_pieces_gives_the_same(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measured(api.open_trace(samples.path(name)))
    monkeypatch.setattr(batches, "_CHUNK_ROWS", rows)
    assert measured(api.open_trace(samples.path(name))) == whole


@pytest.mark.parametrize("names", [["details"], ["details", "overlap", "ranges"]])
def test_details_run_with_the_scopes_that_they_complete(names: list[str]) -> None:
    assert [a.name for a in chosen(ANALYZERS, names)] == ["overlap", "ranges", "details"]
    assert chosen(ANALYZERS, []) == ANALYZERS


def test_a_window_without_work_has_no_scopes() -> None:
    assert measured(make_trace(kernels=[(0, 10, "s1")]), window_ns=(50, 60)).devices == ()


def test_a_window_with_mpi_calls_alone_has_no_scopes() -> None:
    trace = make_trace(kernels=[(0, 10, "s1")], mpi=[("MPI_Wait", 50, 60)])
    assert measured(trace, window_ns=(50, 60)).devices == ()


def test_calls_of_a_device_without_work_in_the_window_are_no_others() -> None:
    trace = make_trace(
        devices=3,
        kernels=[(60, 70, "s1"), (0, 10, "s1", {"device": 1}), (80, 90, "s1", {"device": 2})],
        mpi=[("MPI_Wait", 65, 75)],
    )
    devices = measured(trace, window_ns=(50, 100)).devices
    calls = [(each.device, each.scope.mpi) for each in devices]
    assert calls == [(0, MpiFigures(1, 10, 5, 5)), (2, MpiFigures(1, 10, 0, 10))]
