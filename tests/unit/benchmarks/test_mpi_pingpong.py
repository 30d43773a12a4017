from dataclasses import replace
from typing import Any

import pytest

from gpuscope.benchmarks import mpi_pingpong as benchmark
from gpuscope.benchmarks._harness import Expected, ExpectedPeak, Statistics

MS = 1_000_000
OPTIONS = benchmark._Options("staged-pipelined", 4 << 20, 8, 1, probed=False)


def test_sizes_go_by_four_from_a_byte_to_the_longest() -> None:
    assert benchmark.sizes_up_to(4 << 20) == [4**power for power in range(12)]
    assert benchmark.sizes_up_to(96) == [1, 4, 16, 64, 96]
    assert benchmark.sizes_up_to(1) == [1]


@pytest.mark.parametrize(("size", "rounds"), [(1, 50), (128 << 10, 50), (1 << 20, 8), (1 << 28, 5)])
def test_short_messages_go_round_more_often(size: int, rounds: int) -> None:
    assert benchmark.rounds_of(size) == rounds


def test_only_long_messages_are_cut_into_chunks_and_evenly() -> None:
    assert benchmark.is_pipelined(256 << 10, 8)
    assert not benchmark.is_pipelined(64 << 10, 8)
    assert not benchmark.is_pipelined(1 << 20, 3)


def test_the_host_comes_first_and_each_path_brings_those_before_it() -> None:
    sizes = [64 << 10, 1 << 20]
    short, long = sizes
    assert benchmark.plan_of("staged", sizes, 8) == [
        ("host", short), ("staged", short), ("host", long), ("staged", long),
    ]  # fmt: skip
    assert benchmark.plan_of("device", sizes, 8) == [
        ("host", short), ("staged", short), ("device", short),
        ("host", long), ("staged", long), ("staged-pipelined", long), ("device", long),
    ]  # fmt: skip


def test_bounds() -> None:
    assert benchmark.staged_bound_ns(80, 400, 80) == 560
    # 8 chunks: the first takes 10 + 50 + 10, seven more 50 each.
    assert benchmark.pipelined_bound_ns(80, 400, 80, 8) == 70 + 7 * 50
    assert benchmark.pipelined_bound_ns(80, 400, 80, 1) == 560


def figures(staged_ms: int) -> dict[str, float | None]:
    """One size, 1 MiB: 8 round trips."""
    passes = {
        name: Statistics.of([16 * each * MS])
        for name, each in (
            ("host 1M", 3),
            ("staged 1M", staged_ms),
            ("staged-pipelined 1M", 4),
        )
    }
    plan = benchmark.plan_of("staged-pipelined", [1 << 20], 8)
    return benchmark._figures(passes, plan, {1 << 20: (MS, 2 * MS)}, 8)


def test_half_a_round_trip_and_its_rate() -> None:
    found = figures(7)
    assert found["host_1M_half_ns"] == 3 * MS
    assert found["staged_1M_half_ns"] == 7 * MS
    assert found["staged_1M_rate_bytes_per_s"] == pytest.approx((1 << 20) / 7e-3)
    assert found["staged_1M_bound_ns"] == 6 * MS
    assert found["staged_pipelined_1M_bound_ns"] == round((6 + 7 * 3) / 8 * MS)
    lines = benchmark._lines(found, [1 << 20])
    assert lines[-1].split() == [
        "1M", "3.00", "ms", "6.00", "ms", "7.00", "ms", "4.00", "ms", "–", "262", "MB/s",
    ]  # fmt: skip


def test_a_staged_message_faster_than_its_parts_is_pointed_out() -> None:
    assert benchmark._notes(figures(6), [1 << 20]) == []
    (note,) = benchmark._notes(figures(5), [1 << 20])
    assert "staged messages of 1M took 5.00 ms, less than" in note


def test_the_longest_message_stands_beside_its_limits() -> None:
    found: Any = {"device_4M_rate_bytes_per_s": 90e9}
    for name in ("staged_4M", "staged_pipelined_4M"):
        found |= {f"{name}_half_ns": 500, f"{name}_bound_ns": 400}
    device = replace(OPTIONS, path="device")
    rows = benchmark._quantities(found, device, 450e9, "NVLink × 18")
    assert [(row.name, row.reached_ratio) for row in rows] == [
        ("staged, 4M", 0.8),
        ("staged-pipelined, 4M", 0.8),
        ("device, 4M", 0.2),
    ]


def test_messages_hide_all_but_one_chunk_or_as_much_as_they_last() -> None:
    assert benchmark.hidden_limit(80, 400, 8) == 7 / 8
    assert benchmark.hidden_limit(80, 40, 4) == 3 / 8


def test_what_the_trace_must_show() -> None:
    staged = [Expected("staged 4M", copy, "mpi", "serialized", 1.0) for copy in ("d2h", "h2d")]
    name = "staged-pipelined 4M"
    copies_ns, host_ns = (100, 200), 200.0
    hidden = [Expected(name, copy, "mpi", "overlapped", 7 / 8) for copy in ("d2h", "h2d")]
    on_host = replace(OPTIONS, path="staged")
    assert benchmark._expected(on_host, None, copies_ns, host_ns) == staged
    assert benchmark._expected(OPTIONS, None, copies_ns, host_ns) == staged + hidden
    # Of the copies in, messages half as long hide half.
    assert benchmark._expected(OPTIONS, None, copies_ns, 100.0) == [
        *staged, hidden[0], replace(hidden[1], ratio_limit=7 / 16),
    ]  # fmt: skip
    assert benchmark._expected(OPTIONS, "staged", copies_ns, host_ns) == staged + [
        Expected(name, copy, "mpi", "serialized", 1.0) for copy in ("d2h", "h2d")
    ]
    # A device buffer does not go through the host.
    with_device = replace(OPTIONS, path="device")
    assert benchmark._expected(with_device, None, copies_ns, host_ns)[-2:] == [
        ExpectedPeak("device 4M", copy, 0, 0) for copy in ("d2h", "h2d")
    ]


def test_ranks_that_share_a_gpu_are_not_judged() -> None:
    rows = benchmark._expected(replace(OPTIONS, path="device"), None, (1, 1), 1.0)
    assert {benchmark.unjudged(row).verdict for row in rows} == {"not judged"}
