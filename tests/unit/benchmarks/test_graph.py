from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuscope.benchmarks import graph
from gpuscope.benchmarks._harness import Pipeline, Session, StageTimes, pass_term
from gpuscope.benchmarks.graph import _Options, _Workload

EQUAL = Pipeline(StageTimes(3_000_000, 3_000_000, 3_000_000), chunks=8, streams=4)


@pytest.fixture
def work(cupy: Any) -> _Workload:
    session = cast("Session", SimpleNamespace(cp=cupy))
    made = _Workload(session, _Options(2, 2, 64, 5), 64)
    cupy.log.clear()
    cupy.events = 0
    return made


def test_the_graph_forks_to_all_streams_and_joins_them(cupy: Any, work: _Workload) -> None:
    work.capture(linear=False)
    assert cupy.log == [
        "capture s1", "e1 in s1", "s2 waits for e1",
        "h2d b2 s1", "fma_steps_from s1", "d2h b2 s1",
        "h2d b3 s2", "fma_steps_from s2", "d2h b3 s2",
        "e2 in s2", "s1 waits for e2", "captured s1", "upload s1",
    ]  # fmt: skip
    cupy.log.clear()
    work.launch_graph()
    assert cupy.log == ["launch s1"]


def test_the_linear_graph_is_one_chain(cupy: Any, work: _Workload) -> None:
    work.capture(linear=True)
    assert {line.split()[-1] for line in cupy.log} == {"s1"}


def test_each_pass_adds_its_own_number_though_the_graph_is_always_the_same(
    work: _Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms: list[int] = []
    monkeypatch.setattr(work.term, "fill", terms.append)
    for _ in range(3):
        work.prepare()
    assert terms == [pass_term(1), pass_term(2), pass_term(3)]


@pytest.mark.parametrize(("twin", "verdict"), [(None, "overlapped"), ("linear", "serialized")])
def test_only_the_graph_of_the_twin_is_serialized(twin: str | None, verdict: str) -> None:
    found = {row.range: row.verdict for row in graph._expected(EQUAL, twin)}
    assert found == {"sequential": "serialized", "streamed": "overlapped", "graph": verdict}
