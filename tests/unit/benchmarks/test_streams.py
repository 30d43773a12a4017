import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuscope.benchmarks import streams
from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    Measured,
    Pipeline,
    Session,
    StageTimes,
    Statistics,
    add_common_arguments,
    pass_term,
)
from gpuscope.benchmarks.streams import BENCHMARK, _Options, _Workload
from gpuscope.errors import UsageError

EQUAL = Pipeline(StageTimes(3_000_000, 3_000_000, 3_000_000), chunks=8, streams=4)
SERIALIZED_TWINS = [
    "default-stream", "one-stream", "pageable", "event-chain", "host-sync", "alloc-free",
]  # fmt: skip


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    BENCHMARK.add_arguments(parser)
    add_common_arguments(parser, BENCHMARK)
    return parser.parse_args(arguments)


def make_workload(cupy: Any, twin: str | None, chunks: int = 3, count: int = 2) -> _Workload:
    session = cast("Session", SimpleNamespace(cp=cupy))
    work = _Workload(session, _Options(None, chunks, count, 64, 5), 64, twin)
    cupy.log.clear()
    return work


def issued(cupy: Any, twin: str | None, chunks: int = 3) -> list[str]:
    """What the streamed pass of a twin asks of the GPU."""
    work = make_workload(cupy, twin, chunks)
    streams._STREAMED.get(twin or "", _Workload.streamed)(work)
    return list(cupy.log)


def test_defaults_are_calibrated() -> None:
    assert streams._resolve(parse()) == _Options(None, 8, 4, None, None)


def test_the_seed_preset_and_options_over_it() -> None:
    seed = _Options("seed", 4, 4, 256 * MIB, 1024)
    assert streams._resolve(parse("--preset", "seed")) == seed
    assert streams._resolve(parse("--preset", "seed", "--size", "64M")).size_bytes == 64 * MIB


def test_the_cold_baseline_is_the_published_experiment() -> None:
    assert streams._resolve(parse("--twin", "cold-baseline")).size_bytes == 256 * MIB


def test_the_tiny_kernel_has_one_step() -> None:
    assert streams._resolve(parse("--twin", "tiny-kernel")).kernel_steps == 1


def test_a_plan_decides_over_the_options(tmp_path: Path) -> None:
    options = {
        "preset": None,
        "chunks": 6,
        "streams": 3,
        "size_bytes": 4096,
        "kernel_steps": 77,
        "kernel_ratio": None,
    }
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"benchmark": "streams", "options": options}))
    found = streams._resolve(parse("--plan", str(plan), "--chunks", "8"))
    assert found == _Options(None, 6, 3, 4096, 77)


def test_no_more_streams_than_chunks() -> None:
    assert streams._resolve(parse("--chunks", "3")).streams == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--streams", "1"], "cannot overlap"),
        (["--chunks", "1"], "cannot overlap"),
        (["--kernel-steps", "1000000"], "at most"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        streams._resolve(parse(*arguments))


def test_chunks_are_issued_depth_first_to_streams_and_buffers_in_turn(cupy: Any) -> None:
    assert issued(cupy, None) == [
        "h2d b1 s1", "fma_steps b1 s1", "d2h b1 s1",
        "h2d b2 s2", "fma_steps b2 s2", "d2h b2 s2",
        "h2d b1 s1", "fma_steps b1 s1", "d2h b1 s1",
    ]  # fmt: skip


def test_the_sequential_pass_uses_one_stream(cupy: Any) -> None:
    make_workload(cupy, None).sequential()
    assert cupy.log == ["h2d b1 s1", "fma_steps b1 s1", "d2h b1 s1"] * 3


@pytest.mark.parametrize(("twin", "stream"), [("default-stream", "null"), ("one-stream", "s1")])
def test_twins_on_a_single_stream(cupy: Any, twin: str, stream: str) -> None:
    assert {line.split()[-1] for line in issued(cupy, twin)} == {stream}


def test_the_event_chain_orders_the_chunks(cupy: Any) -> None:
    assert issued(cupy, "event-chain", chunks=2) == [
        "h2d b1 s1", "fma_steps b1 s1", "d2h b1 s1", "e1 in s1",
        "s2 waits for e1", "h2d b2 s2", "fma_steps b2 s2", "d2h b2 s2", "e2 in s2",
    ]  # fmt: skip


def test_the_host_waits_for_each_chunk(cupy: Any) -> None:
    assert issued(cupy, "host-sync", chunks=2) == [
        "h2d b1 s1", "fma_steps b1 s1", "d2h b1 s1", "host waits for s1",
        "h2d b2 s2", "fma_steps b2 s2", "d2h b2 s2", "host waits for s2",
    ]  # fmt: skip


def test_a_buffer_is_allocated_and_freed_for_each_chunk(cupy: Any) -> None:
    assert issued(cupy, "alloc-free", chunks=2) == [
        "malloc", "h2d new s1", "fma_steps new s1", "d2h new s1", "free new",
        "malloc", "h2d new s2", "fma_steps new s2", "d2h new s2", "free new",
    ]  # fmt: skip


def test_the_shared_buffer_is_one(cupy: Any) -> None:
    assert {line.split()[1] for line in issued(cupy, "shared-buffer")} == {"b1"}


def test_only_the_pageable_twin_leaves_pinned_memory(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def pinned(size_bytes: int) -> bytearray:
        taken.append(size_bytes)
        return bytearray(size_bytes)

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", pinned)
    make_workload(cupy, None, chunks=3)
    assert taken == [64] * 3
    make_workload(cupy, "pageable", chunks=3)
    assert len(taken) == 3


def test_every_pass_changes_the_data(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = make_workload(cupy, None)
    terms: list[float] = []

    def kernel(grid: Any, block: Any, arguments: Any) -> None:
        terms.append(float(arguments[-1]))

    monkeypatch.setattr(work.kernel, "_kernel", kernel)
    work.sequential()
    work.streamed()
    assert terms == [pass_term(1)] * 3 + [pass_term(2)] * 3


@pytest.mark.parametrize("twin", SERIALIZED_TWINS)
def test_twins_that_must_not_overlap(twin: str) -> None:
    rows = streams._expected(EQUAL, twin)
    assert len(rows) == 6
    assert {row.verdict for row in rows} == {"serialized"}


def test_the_benchmark_must_overlap_where_it_is_streamed() -> None:
    for twin in (None, "cold-baseline", CORRUPT.name):
        rows = {(row.range, row.a, row.b): row for row in streams._expected(EQUAL, twin)}
        assert {row.verdict for key, row in rows.items() if key[0] == "sequential"} == {
            "serialized"
        }
        assert {row.verdict for key, row in rows.items() if key[0] == "streamed"} == {"overlapped"}
        assert rows["streamed", "d2h", "h2d"].ratio_limit == 0.75


def test_a_tiny_kernel_is_immaterial_and_the_copies_overlap() -> None:
    tiny = Pipeline(StageTimes(3_000_000, 40_000, 3_000_000), chunks=8, streams=4)
    found = {
        (row.range, row.a, row.b): row.verdict for row in streams._expected(tiny, "tiny-kernel")
    }
    assert found == {
        ("sequential", "d2h", "h2d"): "serialized",
        ("sequential", "d2h", "kernel"): "immaterial",
        ("sequential", "h2d", "kernel"): "immaterial",
        ("streamed", "d2h", "h2d"): "overlapped",
        ("streamed", "d2h", "kernel"): "immaterial",
        ("streamed", "h2d", "kernel"): "immaterial",
    }


def test_a_kernel_that_was_calibrated_beside_a_slow_copy_is_pointed_out(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = make_workload(cupy, None)
    work.session = cast("Session", SimpleNamespace(pcie_limit_bytes_per_s=lambda readings: None))
    monkeypatch.setattr(work, "kernel_ns", lambda steps: 1000 * steps)
    monkeypatch.setattr(work, "both_ways_ns", lambda: (None, None))
    times = Statistics.of([1_000_000])
    measured = cast("Measured", SimpleNamespace(passes={"a": times, "b": times}, readings=None))

    def notes() -> tuple[str, ...]:
        pipeline = Pipeline(StageTimes(600_000, 1000 * work.steps, 600_000), 3, 2)
        return work.report(pipeline, measured, "a", "b").notes

    assert notes() == ()  # the steps were given
    monkeypatch.setattr(work, "h2d_ns", lambda: 800_000)
    work.calibrate(2.0)
    assert [note for note in notes() if "2.67 times the copy, not 2 times" in note]
    monkeypatch.setattr(work, "h2d_ns", lambda: 600_000)
    work.calibrate(2.0)
    assert notes() == ()
