import pytest

from gpuscope.benchmarks._harness.pipeline import (
    Pipeline,
    StageTimes,
    efficiency_ratio,
    pipeline_figures,
    pipeline_quantities,
    pipeline_remarks,
)
from gpuscope.benchmarks._harness.stats import Statistics

EQUAL = StageTimes(1_000_000, 1_000_000, 1_000_000)


def verdicts(pipeline: Pipeline, *, overlapping: bool) -> dict[tuple[str, str], str]:
    rows = pipeline.expected("streamed", overlapping=overlapping)
    return {(row.a, row.b): row.verdict for row in rows}


def test_bound_is_one_chunk_and_the_longest_stage_of_every_other() -> None:
    pipeline = Pipeline(StageTimes(10, 30, 20), chunks=5, streams=4)
    assert pipeline.bound_ns == 60 + 4 * 30
    assert pipeline.sequential_ns == 300
    assert pipeline.speedup_max == 300 / 180


def test_the_published_speedup_is_beyond_the_bound() -> None:
    # 2.36× over four chunks of three equal stages: the largest possible one is 12 / 6.
    assert Pipeline(EQUAL, chunks=4, streams=4).speedup_max == 2.0


def test_replay_of_equal_chunks_is_a_staircase() -> None:
    done = Pipeline(StageTimes(10, 10, 10), chunks=3, streams=3).replay()
    assert done == {
        "h2d": [(0, 10), (10, 20), (20, 30)],
        "kernel": [(10, 20), (20, 30), (30, 40)],
        "d2h": [(20, 30), (30, 40), (40, 50)],
    }


def test_a_chunk_waits_for_its_stream() -> None:
    # Two streams: chunk 2 shares chunk 0's stream and buffer, and waits for its copy out.
    done = Pipeline(StageTimes(10, 10, 10), chunks=3, streams=2).replay()
    assert done["h2d"] == [(0, 10), (10, 20), (30, 40)]


def test_one_stream_replays_without_overlap() -> None:
    pipeline = Pipeline(EQUAL, chunks=8, streams=1)
    assert pipeline.makespan_ns() == pipeline.sequential_ns
    assert set(pipeline.ratio_limits().values()) == {0.0}


def test_limits_of_eight_equal_chunks() -> None:
    assert Pipeline(EQUAL, chunks=8, streams=4).ratio_limits() == {
        ("d2h", "h2d"): 0.75,
        ("d2h", "kernel"): 0.875,
        ("h2d", "kernel"): 0.875,
    }


def test_a_long_kernel_hides_all_copies_but_the_first_and_the_last() -> None:
    limits = Pipeline(StageTimes(10, 100, 10), chunks=4, streams=4).ratio_limits()
    assert limits["h2d", "kernel"] == limits["d2h", "kernel"] == 0.75


def test_copies_that_share_the_link_are_slower_only_while_they_do() -> None:
    # h2d alone in [0, 20), both at half speed from 20 on: chunk 2's copy in and chunk 0's out.
    pipeline = Pipeline(StageTimes(10, 10, 10), chunks=3, streams=3)
    done = pipeline.replay(both_ways=StageTimes(20, 10, 20))
    assert done["h2d"] == [(0, 10), (10, 20), (20, 40)]
    assert done["d2h"] == [(20, 40), (40, 50), (50, 60)]
    assert pipeline.makespan_ns(StageTimes(20, 10, 20)) == 60


def test_one_copy_engine_does_one_copy_at_a_time() -> None:
    pipeline = Pipeline(EQUAL, chunks=8, streams=4, copy_engines=1)
    assert pipeline.bound_ns == 16_000_000
    assert pipeline.makespan_ns() >= pipeline.bound_ns
    assert pipeline.ratio_limits()["d2h", "h2d"] == 0
    assert verdicts(pipeline, overlapping=True)["d2h", "h2d"] == "not judged"


@pytest.mark.parametrize("copy_engines", [1, 2])
@pytest.mark.parametrize("stages", [(7, 3, 5), (2, 9, 2), (1, 1, 30)])
def test_no_schedule_beats_the_bound(stages: tuple[int, int, int], copy_engines: int) -> None:
    for chunks in range(1, 9):
        pipeline = Pipeline(StageTimes(*stages), chunks, streams=chunks, copy_engines=copy_engines)
        assert pipeline.bound_ns <= pipeline.makespan_ns() <= pipeline.sequential_ns
        if copy_engines == 2:
            assert pipeline.makespan_ns() == pipeline.bound_ns


def test_expected_of_the_pipeline_and_of_the_sequential_pass() -> None:
    pipeline = Pipeline(EQUAL, chunks=8, streams=4)
    rows = pipeline.expected("streamed", overlapping=True)
    assert [(row.range, row.a, row.b, row.verdict, row.ratio_limit) for row in rows] == [
        ("streamed", "d2h", "h2d", "overlapped", 0.75),
        ("streamed", "d2h", "kernel", "overlapped", 0.875),
        ("streamed", "h2d", "kernel", "overlapped", 0.875),
    ]
    assert set(verdicts(pipeline, overlapping=False).values()) == {"serialized"}


def test_a_small_class_is_immaterial_and_one_at_the_edge_is_not_judged() -> None:
    tiny = verdicts(Pipeline(StageTimes(1_000_000, 20_000, 1_000_000), 8, 4), overlapping=True)
    assert tiny == {
        ("d2h", "h2d"): "overlapped",
        ("d2h", "kernel"): "immaterial",
        ("h2d", "kernel"): "immaterial",
    }
    edge = verdicts(Pipeline(StageTimes(1_000_000, 56_000, 1_000_000), 8, 4), overlapping=True)
    assert edge["h2d", "kernel"] == "not judged"


def test_what_is_too_short_or_cannot_overlap_is_not_judged() -> None:
    short = Pipeline(StageTimes(1_000, 1_000, 1_000), chunks=8, streams=4)
    assert set(verdicts(short, overlapping=True).values()) == {"not judged"}
    # With two equal chunks the second copy in ends where the first copy out begins.
    rows = Pipeline(EQUAL, chunks=2, streams=2).expected("streamed", overlapping=True)
    assert (rows[0].verdict, rows[0].ratio_limit) == ("not judged", None)
    assert (rows[1].verdict, rows[1].ratio_limit) == ("overlapped", 0.5)


def test_efficiency() -> None:
    assert efficiency_ratio(100, 40, 40) == 1.0
    assert efficiency_ratio(100, 70, 40) == 0.5
    assert efficiency_ratio(40, 40, 40) is None


EIGHT = Pipeline(StageTimes(3_000_000, 3_000_000, 3_000_000), chunks=8, streams=4)


def test_figures() -> None:
    sequential, streamed = Statistics.of([72_000_000]), Statistics.of([36_000_000])
    found = pipeline_figures(EIGHT, (3_300_000, 3_300_000), sequential, streamed, 150_000_000)
    assert found["t_lb_ns"] == 30_000_000
    assert found["speedup"] == 2.0
    assert found["speedup_max"] == 2.4
    assert found["kernel_copy_ratio"] == 1
    assert found["pipeline_efficiency"] == pytest.approx(36 / 42)
    assert found["h2d_rate_bytes_per_s"] == 50e9
    # Six of the eight copies in share the link: 6 × 3.3 ms, and the other steps stay.
    assert found["t_lb_contended_ns"] == 4 * 3_000_000 + 6 * 3_300_000
    copy_in, copy_out, whole = pipeline_quantities(found, streamed, 62.5e9)
    assert (copy_in.reached_ratio, copy_out.reached_ratio) == (0.8, 0.8)
    assert whole.reached_ratio == pytest.approx(30 / 36)


def test_figures_of_pageable_memory_have_no_contended_bound() -> None:
    times = Statistics.of([72_000_000])
    found = pipeline_figures(EIGHT, (None, None), times, times, 150_000_000)
    assert found["t_lb_contended_ns"] is None
    assert found["pipeline_efficiency_contended"] is None
    assert found["h2d_contended_rate_bytes_per_s"] is None
    assert found["pipeline_efficiency"] == 0


def test_a_speedup_beyond_the_possible_one_is_called_cold() -> None:
    (remark,) = pipeline_remarks({"speedup": 2.36, "speedup_max": 2.0}, copy_engines=2)
    assert "2.36× is more than the 2.00×" in remark
    assert pipeline_remarks({"speedup": 2.05, "speedup_max": 2.0}, copy_engines=2) == []


def test_one_copy_engine_is_said() -> None:
    (remark,) = pipeline_remarks({"speedup": 1.5, "speedup_max": 2.0}, copy_engines=1)
    assert "one copy engine" in remark


def test_a_stage_that_does_not_exist_is_in_no_pair() -> None:
    slices = Pipeline(StageTimes(0, 1_000_000, 1_000_000), chunks=4, streams=4)
    (row,) = slices.expected("streamed", overlapping=True)
    assert (row.a, row.b, row.verdict) == ("d2h", "kernel", "overlapped")
    assert row.ratio_limit == pytest.approx(0.75, abs=1e-5)
