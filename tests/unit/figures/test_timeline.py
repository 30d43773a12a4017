"""The timeline: rows, what a view of them holds, an operation's details, the table."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.analyzers import overlap
from gpuscope.figures.details import details
from gpuscope.figures.listing import (
    COLUMNS,
    CSV_COLUMNS,
    HAS,
    Condition,
    csv_rows,
    listing,
    shown_columns,
)
from gpuscope.figures.names import PatternError
from gpuscope.figures.overlap import Together
from gpuscope.figures.timeline import MOST_MARKS, OPEN_DEVICES, Timeline, plain, spread
from gpuscope.model.classes import CLASSES, HOST_CODES
from gpuscope.model.tables import EVICTED, TO_HOST
from gpuscope.model.trace import Process, Stream, Trace
from tests.make_trace import make_trace, of_rank

MS = 1_000_000


def two_processes() -> Trace:
    """Return a trace in which two processes use their device 0 at once."""
    trace = make_trace(devices=2, kernels=[(0, MS, "s7"), (0, MS, "s7", {"device": 1})])
    first, second = trace.devices
    return dataclasses.replace(
        trace,
        processes=(Process(100, "made", 0), Process(101, "made", None)),
        devices=(first, dataclasses.replace(second, process=1, number=0, hardware=first.hardware)),
    )


def tree(timeline: Timeline) -> list[str]:
    """Return the rows by kind and label, indented."""
    return ["  " * row.level + f"{row.kind} {row.label}".strip() for row in timeline.rows]


def marks(timeline: Timeline, kind: str, low: int, high: int, **options: Any) -> list[Any]:
    """Return (start, length, name, row) of every mark in the rows of a kind."""
    rows = [number for number, row in enumerate(timeline.rows) if row.kind == kind]
    seen = timeline.view(low, high, 1_200, rows, **options)
    return [
        (start, length, seen["names"][name], row)
        for row, drawn in seen["rows"].items()
        for _, *columns in drawn["marks"]
        for start, length, _, name in zip(*columns, strict=True)
    ]


def row_of(timeline: Timeline, kind: str, label: str = "") -> int:
    return next(
        number
        for number, row in enumerate(timeline.rows)
        if row.kind == kind and row.label.startswith(label)
    )


def test_rows_are_a_tree_of_devices_streams_and_threads() -> None:
    trace = make_trace(
        kernels=[(0, 2 * MS, "s9")],
        h2d=[(1 * MS, 3 * MS, "s7")],
        ranges=[("step", 0, 2 * MS)],
        mpi=[("MPI_Waitall", 0, MS)],
    )
    trace = dataclasses.replace(
        trace, streams=(Stream(0, 0, 1, 9, -5, "blocking"), Stream(0, 0, 1, 7, 0, "null"))
    )
    timeline = Timeline([trace])
    assert tree(timeline) == [
        "device GPU 0",
        "  idle idle: why",
        "  range NVTX",
        "  stream null stream 7",
        "  stream stream 9",
        "  group engines",
        "    engine kernel",
        "    engine h2d",
        "thread thread 100",
        "  nvtx NVTX",
        "  mpi MPI",
    ]
    assert timeline.rows[4].note == "blocking · priority -5"
    assert timeline.range_windows(0)["step"] == (0, 3 * MS)
    assert "nothing" not in timeline.range_windows(0)
    assert marks(timeline, "mpi", 0, MS) == [(0, MS, "MPI_Waitall", 10)]
    assert marks(timeline, "nvtx", 0, MS) == [(0, 2 * MS, "step", 9)]


def test_what_has_no_stream_has_a_row_of_its_own() -> None:
    trace = make_trace(kernels=[(0, 10, "s7"), (10, 20, "s8")])
    assert trace.operations is not None
    ops = dataclasses.replace(trace.operations, stream=np.array([0, -1], np.int32))
    timeline = Timeline([dataclasses.replace(trace, operations=ops)])
    assert [row.label for row in timeline.rows if row.kind == "stream"] == ["stream 7", "no stream"]
    number = row_of(timeline, "stream", "no stream")
    assert [start for start, *_, row in marks(timeline, "stream", 0, 30) if row == number] == [10]
    assert dict(details(timeline, number, 1)["facts"])["stream"] == "no stream"
    assert listing(timeline, 0, 30)["rows"][1]["row"] == number
    assert [row[3] for batch in csv_rows(timeline, 0, 30) for row in batch] == ["stream", 7, None]


def test_peer_copies_of_each_direction_have_a_row() -> None:
    there, back = {"src": 0, "dst": 1}, {"src": 1, "dst": 0}
    trace = make_trace(p2p=[(0, 10, "s7", there), (5, 15, "s8", back), (20, 30, "s7", there)])
    timeline = Timeline([trace])
    assert tree(timeline)[-4:-1] == ["    engine p2p", "      engine 0>1", "      engine 1>0"]
    row = row_of(timeline, "engine", "0>1")
    found = [start for start, *_, each in marks(timeline, "engine", 0, 40) if each == row]
    assert found == [0, 20]
    alone = Timeline([make_trace(p2p=[(0, 10, "s7", there)])])
    assert "      engine 0>1" not in tree(alone)


def test_of_many_devices_the_bands_are_seen_first() -> None:
    def unfolded(devices: int) -> set[bool]:
        rows = [(0, 10, "s7", {"device": device}) for device in range(devices)]
        timeline = Timeline([make_trace(kernels=rows, devices=devices)])
        return {row.unfolded for row in timeline.rows if row.kind == "device"}

    assert unfolded(OPEN_DEVICES) == {True}
    assert unfolded(OPEN_DEVICES + 1) == {False}


def test_gates_have_no_row() -> None:
    trace = make_trace(kernels=[(0, MS, "s7")], gate=[(0, MS, "s8")])
    assert "  stream stream 8" not in tree(Timeline([trace]))


def test_processes_on_one_device_number_are_told_apart() -> None:
    timeline = Timeline([two_processes()])
    assert [timeline.device_label(0, device) for device in timeline.row_of_device[0]] == [
        "GPU 0 · rank 0",
        "GPU 0 · pid 101",
    ]
    assert tree(timeline)[0] == "group rank 0 · process 100 made"


def test_several_traces_share_one_clock() -> None:
    one = dataclasses.replace(make_trace(kernels=[(100, 200, "s7")]), start_utc_ns=5_000)
    two = dataclasses.replace(make_trace(kernels=[(0, 50, "s7")]), start_utc_ns=5_300)
    timeline = Timeline([one, two])
    assert [(start, length) for start, length, *_ in marks(timeline, "stream", 0, 400)] == [
        (0, 100),
        (200, 50),
    ]
    assert timeline.end_ns == 250
    assert "by the time of day." in timeline.alignment.note
    late = Timeline([one, dataclasses.replace(two, start_utc_ns=10**12)])
    assert {start for start, *_ in marks(late, "stream", 0, 400)} == {0}
    assert "are they of one run?" in late.alignment.note
    assert (timeline.alignment.common, late.alignment.common) == (True, False)
    unknown = Timeline([one, dataclasses.replace(two, start_utc_ns=None)])
    assert {start for start, *_ in marks(unknown, "stream", 0, 400)} == {0}


def test_a_trace_without_gpu_work_moves_no_other() -> None:
    worked = dataclasses.replace(make_trace(kernels=[(700, 800, "s7")]), start_utc_ns=5_000)
    idle = dataclasses.replace(make_trace(mpi=[("MPI_Barrier", 100, 900)]), start_utc_ns=5_000)
    for other in (idle, dataclasses.replace(idle, mpi=None)):
        timeline = Timeline([worked, other])
        assert timeline.alignment.common
        found = [(start, length) for start, length, *_ in marks(timeline, "stream", 0, 400)]
        assert found == [(0, 100)]
    assert Timeline([idle, idle]).alignment.common


def test_communication_kernels_that_end_together_set_the_clocks() -> None:
    """The second clock is 40 ns ahead: what ends at 100 on the first ends at 140 on it."""
    one = dataclasses.replace(make_trace(comm=[(50, 100, "s7")]), start_utc_ns=5_000)
    two = dataclasses.replace(make_trace(comm=[(80, 140, "s7")]), start_utc_ns=5_000)
    timeline = Timeline([one, two])
    assert "end together (1, to within 0 ns)" in timeline.alignment.note
    assert [(start, length) for start, length, *_ in marks(timeline, "stream", 0, 400)] == [
        (10, 50),
        (0, 60),
    ]


def test_ranges_that_overlap_lie_beside_each_other() -> None:
    start = np.array([0, 10, 12, 30, 35, 50])
    end = np.array([10, 20, 22, 40, 45, 60])
    rows, count = spread(start, end, 4)
    assert rows.tolist() == [0, 0, 1, 0, 1, 0]
    assert count == 2
    rows, count = spread(start, end, 1)
    assert (rows.tolist(), count) == ([0] * 6, 1)
    assert spread(start[:0], end[:0], 4)[1] == 0


def test_overlapping_instances_take_rows_of_their_own() -> None:
    trace = make_trace(
        kernels=[(10, 30, "s7", {"launch": 0}), (20, 40, "s8", {"launch": 2})],
        ranges=[("a", 0, 1), ("b", 2, 3)],
    )
    found = marks(Timeline([trace]), "range", 0, 50)
    assert [(start, length, name) for start, length, name, _ in found] == [
        (0, 20, "a"),
        (10, 20, "b"),
    ]
    assert len({row for *_, row in found}) == 2


def test_the_band_says_what_ran_together_and_the_gap_why() -> None:
    trace = make_trace(
        kernels=[(0, 100, "s7"), (250, 300, "s7", {"launch": 240})],
        h2d=[(60, 160, "s8")],
    )
    timeline = Timeline([trace])
    assert sorted(marks(timeline, "device", 0, 400))[:4] == [
        (0, 60, "kernel", 0),
        (60, 40, "h2d + kernel", 0),
        (100, 60, "h2d", 0),
        (250, 50, "kernel", 0),
    ]
    assert marks(timeline, "idle", 0, 400) == [(160, 90, "host", 1)]


def test_short_names_in_bars() -> None:
    trace = make_trace(
        kernels=[
            (0, 10 * MS, "s7", {"name": "void ns::gemm<int>(int)", "api": "cudaLaunchKernel_v7000"})
        ],
        h2d=[(0, 10 * MS, "s8", {"name": "H2D copy"})],
    )
    timeline = Timeline([trace])
    assert {name for _, _, name, _ in marks(timeline, "stream", 0, MS)} == {"gemm", "H2D copy"}
    assert "cudaLaunchKernel" in {name for _, _, name, _ in marks(timeline, "thread", -1, 1)}


def test_a_view_is_small_whatever_the_trace_holds() -> None:
    timeline = Timeline(
        [
            make_trace(
                kernels=[(1_000 * i, 1_000 * i + 300, f"s{i % 4}") for i in range(0, 20_000, 2)],
                h2d=[(1_000 * i, 1_000 * i + 300, f"s{i % 4}") for i in range(1, 20_000, 2)],
            )
        ]
    )
    rows = range(len(timeline.rows))
    for low, high in (
        (0, timeline.end_ns),
        (5 * MS, 6 * MS),
        (5 * MS, 5 * MS + 1_000),
        (0, 1 << 61),
    ):
        seen = timeline.view(low, high, 4_096, rows)
        count = sum(len(m[1]) for drawn in seen["rows"].values() for m in drawn["marks"])
        assert count <= 2 * MOST_MARKS
        for drawn in seen["rows"].values():
            for _, text in drawn["columns"]:
                assert len(base64.b64decode(text)) <= 4_097
        json.dumps(seen)
    whole = timeline.view(0, timeline.end_ns, 1_000, [row_of(timeline, "stream")])
    ((_, share),) = whole["rows"][row_of(timeline, "stream")]["columns"]
    assert set(base64.b64decode(share)) <= set(range(0, 80))  # 300 of every 4,000 ns


def test_a_pattern_leaves_what_it_names() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s7", {"name": "gemm"}), (20, 30, "s7", {"name": "softmax"})],
        ranges=[("step", 0, 30)],
    )
    timeline = Timeline([trace])
    assert [name for *_, name, _ in marks(timeline, "stream", 0, 40, pattern="GE.m")] == ["gemm"]
    assert marks(timeline, "nvtx", 0, 40, pattern="gemm") == []
    assert len(marks(timeline, "device", 0, 40, pattern="gemm")) == 2
    with pytest.raises(PatternError):
        timeline.view(0, 40, 100, [0], pattern="(")


@pytest.mark.parametrize("name", samples.names())
def test_a_window_has_the_figures_that_the_analyzer_measures(name: str) -> None:
    trace = api.open_trace(samples.path(name))
    timeline = Timeline([trace])
    shift = timeline.placed[0].shift_ns
    host = {CLASSES[code] for code in HOST_CODES}
    random = np.random.default_rng(7)
    for _ in range(12):
        low, high = np.sort(random.integers(0, timeline.end_ns, 2)).tolist()
        options = Options(window_ns=(low - shift, high - shift))
        for entry in overlap.ANALYZER.run(trace, options).devices:
            device = next(
                index
                for index, each in enumerate(trace.devices)
                if (trace.processes[each.process].pid, each.number) == (entry.process, entry.device)
            )
            expected = Together.of_scope(entry.scope)
            found = timeline.together(0, device, low, high)
            assert found is not None
            assert found.span_ns == expected.span_ns
            assert {n: t for n, t in found.busy_ns.items() if n not in host} == {
                n: t for n, t in expected.busy_ns.items() if t and n not in host
            }
            assert {(p.classes, p.ns) for p in found.partition} == {
                (p.classes, p.ns) for p in expected.partition if p.ns
            }
            for pair, time in expected.overlap_ns.items():
                if not set(pair) & host:
                    assert found.overlap_ns.get(pair, 0) == time


def test_an_operation_says_what_it_is_and_what_it_waited_for() -> None:
    copies = {"bytes": 4_000_000, "src_kind": 1, "dst_kind": 2, "name": "H2D copy", "launch": 1}
    trace = make_trace(
        h2d=[(10, MS + 10, "s7", copies), (MS + 10, 2 * MS, "s7", {**copies, "launch": 2})],
    )
    timeline = Timeline([trace])
    known = details(timeline, row_of(timeline, "stream"), 1)
    facts = dict(known["facts"])
    assert known["title"] == "H2D copy"
    assert facts["size"] == "4.00 MB · 4.00 GB/s"
    assert facts["memory"] == "pinned → device"
    assert facts["of its path"].startswith("100 % of the fastest")
    assert facts["siblings"].startswith("2 alike")
    assert known["why"].startswith("It started 0 ns after the operation before it in its stream")
    assert [(arrow["kind"], arrow["decisive"]) for arrow in known["arrows"]] == [
        ("launch", False),
        ("stream", True),
        ("engine", False),
    ]
    assert known["mark"]["start"] == MS
    call = details(timeline, row_of(timeline, "thread"), 0)
    assert dict(call["facts"])["launched"] == "1 operation"
    assert call["arrows"][0]["item"] == 0


def test_a_range_on_the_gpu_has_the_times_of_its_work_there() -> None:
    trace = make_trace(
        kernels=[
            (50, 80, "s7", {"launch": 1}),
            (60, 90, "s7", {"launch": 2, "device": 1}),
        ],
        ranges=[("step", 0, 10), ("idle", 20, 30)],
        devices=2,
    )
    timeline = Timeline([trace])
    first, second = (n for n, row in enumerate(timeline.rows) if row.kind == "range")
    shift = timeline.placed[0].shift_ns

    known = details(timeline, first, 0)
    assert (known["mark"]["start"], known["mark"]["end"]) == (50 + shift, 80 + shift)
    facts = dict(known["facts"])
    assert facts["duration"] == "30 ns"
    assert facts["start"] == f"at {(50 + shift) / 1e6:.6f} ms"
    assert facts["on the host"] == f"10 ns at {shift / 1e6:.6f} ms"
    assert details(timeline, second, 0)["mark"]["start"] == 60 + shift
    host = details(timeline, row_of(timeline, "nvtx"), 0)
    assert (host["mark"]["start"], host["mark"]["end"]) == (shift, 10 + shift)
    with pytest.raises(IndexError):
        details(timeline, first, 1)  # launched nothing


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (0, "pages to the GPU"),
        (TO_HOST, "pages to the host"),
        (TO_HOST | EVICTED, "pages to the host, evicted from a full memory"),
    ],
)
def test_a_migration_says_where_it_goes(flags: int, expected: str) -> None:
    timeline = Timeline([make_trace(uvm=[(0, MS, "s7", {"flags": flags})])])

    facts = dict(details(timeline, row_of(timeline, "stream"), 0)["facts"])
    assert facts["memory"] == expected


@pytest.mark.parametrize(("row", "item"), [(-1, 0), (99, 0), (0, 0), (2, -1), (2, 5)])
def test_there_are_no_details_of_nothing(row: int, item: int) -> None:
    timeline = Timeline([make_trace(kernels=[(0, 10, "s7")])])
    with pytest.raises(IndexError):
        details(timeline, row, item)


def test_the_table_is_sorted_and_cut_to_the_window() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s7", {"name": "b"}), (20, 50, "s8", {"name": "a"})],
        h2d=[(30, 32, "s7", {"bytes": 64, "name": "c"})],
    )
    timeline = Timeline([trace])

    def names(**options: Any) -> list[str]:
        return [row["name"] for row in listing(timeline, 0, 100, **options)["rows"]]

    assert names() == ["b", "a", "c"]
    assert names(descending=True) == ["c", "a", "b"]
    assert names(descending=True, most=1) == ["c"]
    assert names(sort="duration", descending=True) == ["a", "b", "c"]
    assert names(sort="name") == ["a", "b", "c"]
    assert names(sort="size", descending=True, most=1) == ["c"]
    assert names(pattern="^A$") == ["a"]
    for column in COLUMNS:
        assert len(names(sort=column)) == 3
    assert listing(timeline, 15, 31)["total"] == 2
    rows = [row for batch in csv_rows(timeline, 15, 31) for row in batch]
    assert rows[0] == CSV_COLUMNS
    assert [row[5:8] for row in rows[1:]] == [("a", 20, 50), ("c", 30, 32)]


def test_the_table_is_filtered_by_its_columns() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s7", {"name": "b"}), (20, 50, "s8", {"name": "a"})],
        h2d=[(30, 32, "s7", {"bytes": 64, "name": "c"})],
    )
    timeline = Timeline([trace])

    def names(*conditions: tuple[str, str, Any]) -> list[str]:
        asked = [Condition(*each) for each in conditions]
        assert all(each.is_one for each in asked)
        found = listing(timeline, 0, 100, conditions=asked)
        (_, *rows) = [row for batch in csv_rows(timeline, 0, 100, "", asked) for row in batch]
        assert [row[5] for row in rows] == [row["name"] for row in found["rows"]]
        assert found["total"] == len(rows)
        return [row["name"] for row in found["rows"]]

    assert names(("duration", ">", 10)) == ["a"]
    assert names(("duration", ">=", 10)) == ["b", "a"]
    assert names(("class", HAS, "KERN"), ("start", "<", 20)) == ["b"]
    assert names(("stream", HAS, "7")) == ["b", "c"]
    assert names(("size", "=", 64)) == ["c"]
    assert names(("rate", ">", 31e9)) == ["c"]  # 64 bytes in 2 ns
    assert names(("name", HAS, "c"), ("duration", "<=", 1)) == []


def test_the_table_of_several_ranks_says_whose_an_operation_is() -> None:
    traces = [
        make_trace(kernels=[(0, 10, "s7", {"name": "m"})]),
        make_trace(kernels=[(0, 10, "s8", {"name": "a"}), (20, 30, "s7", {"name": "z"})]),
    ]
    timeline = Timeline([of_rank(trace, rank) for rank, trace in enumerate(traces)])

    def cells(**options: Any) -> list[str]:
        rows = listing(timeline, 0, 100, **options)["rows"]
        at = list(shown_columns(timeline)).index("device")
        return [f"{row['name']} {row['cells'][at]}" for row in rows]

    m, a, z = "m GPU 0 · rank 0", "a GPU 0 · rank 1", "z GPU 0 · rank 1"
    assert cells() == [m, a, z]
    assert cells(sort="name") == [a, m, z]
    assert cells(sort="name", descending=True) == [z, m, a]
    assert cells(sort="stream") == [m, z, a]
    assert cells(sort="device", descending=True) == [a, z, m]
    assert cells(conditions=[Condition("device", HAS, "rank 1")]) == [a, z]


def test_the_table_of_one_device_does_not_name_it() -> None:
    timeline = Timeline([make_trace(kernels=[(0, 10, "s7")])])
    assert "device" not in shown_columns(timeline)
    (row,) = listing(timeline, 0, 100)["rows"]
    assert len(row["cells"]) == len(shown_columns(timeline))


@pytest.mark.parametrize(
    "condition",
    [("secret", "<", 1), ("start", HAS, "1"), ("name", "<", 1), ("size", "<", float("nan"))],
)
def test_what_is_no_condition(condition: tuple[str, str, Any]) -> None:
    assert not Condition(*condition).is_one


@pytest.mark.parametrize("name", ["a\nb\x1b[31m", "x" * 100_000])
def test_names_are_one_printable_line(name: str) -> None:
    trace = make_trace(kernels=[(0, MS, "s7", {"name": name})], ranges=[(name, 0, MS)])
    timeline = Timeline([trace])
    text = json.dumps(timeline.view(0, MS, 100, range(len(timeline.rows)))["names"])
    assert "\\u001b" not in text
    assert "\\n" not in text
    assert len(text) < 1_500
    assert plain("gemm<float>") == "gemm<float>"


def test_laying_out_says_how_far_it_is() -> None:
    told: list[tuple[str, int, int]] = []
    traces = [make_trace(kernels=[(0, 10, "s7")])] * 2
    Timeline(traces, lambda what, done, total: told.append((what, done, total)))
    assert told == [("laying out", done, 4) for done in range(4)]
