from types import SimpleNamespace
from typing import Any, cast

from gpuscope.benchmarks import multicopy
from gpuscope.benchmarks._harness import Pipeline, Session, StageTimes
from gpuscope.benchmarks.multicopy import _Options, _Workload

MATCHED = Pipeline(StageTimes(310_000, 310_000, 310_000), chunks=10, streams=4)
TINY = Pipeline(StageTimes(310_000, 5_000, 310_000), chunks=10, streams=4)


def make_workload(cupy: Any) -> _Workload:
    session = cast("Session", SimpleNamespace(cp=cupy))
    work = _Workload(session, _Options(3, 2, 64, None), 64, 5)
    cupy.log.clear()
    return work


def streams(cupy: Any) -> list[Any]:
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]


def test_a_cycle_is_a_kernel_the_next_copy_in_and_the_copy_out(cupy: Any) -> None:
    make_workload(cupy).overlapped(streams(cupy))
    assert cupy.log == [
        "h2d b1 s1",
        "fma_steps b1 s1", "h2d b2 s2", "d2h b1 s1",
        "fma_steps b2 s2", "h2d b1 s1", "d2h b2 s2",
        "fma_steps b1 s1", "d2h b1 s1",
    ]  # fmt: skip


def test_the_sequential_pass_uses_one_stream(cupy: Any) -> None:
    make_workload(cupy).sequential(streams(cupy))
    assert cupy.log == ["h2d b1 s1", "fma_steps b1 s1", "d2h b1 s1"] * 3


def test_the_three_limits_of_a_cycle() -> None:
    assert multicopy._cycle_limits_ns(StageTimes(310, 200, 300)) == (810, 610, 310)
    assert multicopy._cycle_limits_ns(StageTimes(310, 900, 300)) == (1510, 900, 900)


def test_without_a_kernel_only_the_copies_are_judged() -> None:
    def verdicts(twin: str | None) -> dict[tuple[str, str, str], str]:
        rows = multicopy._expected(MATCHED, TINY, twin)
        return {(row.range, row.a, row.b): row.verdict for row in rows}

    found = verdicts(None)
    assert found["tiny-overlapped", "d2h", "h2d"] == "overlapped"
    assert found["tiny-overlapped", "h2d", "kernel"] == "immaterial"
    for pair in (("d2h", "h2d"), ("d2h", "kernel"), ("h2d", "kernel")):
        assert found["matched-overlapped", *pair] == "overlapped"
        assert found["matched-sequential", *pair] == "serialized"
        assert verdicts("one-stream")["matched-overlapped", *pair] == "serialized"
    assert verdicts("one-stream")["tiny-overlapped", "d2h", "h2d"] == "serialized"
