"""Names that are searched for: each thing once, in the order of time, round and round."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.figures.names import PatternError
from gpuscope.figures.search import Place, found
from gpuscope.figures.timeline import Timeline
from tests.make_trace import make_trace


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    """Two streams on which kernels begin at once, ranges with and without work on the GPU."""
    return Timeline(
        [
            make_trace(
                kernels=[
                    (100, 200, "s7", {"name": "gemm", "launch": 20}),
                    (100, 150, "s8", {"name": "gemm", "launch": 30}),
                    (300, 400, "s7", {"name": "gemm", "launch": 40}),
                    (400, 500, "s7", {"name": "softmax", "launch": 45}),
                ],
                ranges=[("forward", 10, 50), ("forward", 60, 70)],
                mpi=[("MPI_Send", 80, 90)],
            )
        ]
    )


def walk(timeline: Timeline, pattern: str, step: int, times: int) -> list[tuple[str, int, int]]:
    """Return kind of row, start and number of what is gone to, step by step."""
    at, seen = Place(0, -1, -1), []
    for _ in range(times):
        answer: Any = found(timeline, pattern, at, step)
        mark = answer["mark"]
        at = Place(mark["start"], mark["row"], mark["item"])
        kind = timeline.rows[mark["row"]].kind
        seen.append((kind, mark["start"], answer["number"]))
    return seen


def test_operations_that_begin_at_once_are_gone_through_one_by_one(timeline: Timeline) -> None:
    assert found(timeline, "GEMM") == {"total": 3, "number": 0, "mark": None}
    # The page's clock begins with the first operation.
    onward = [("stream", 0, 1), ("stream", 0, 2), ("stream", 200, 3), ("stream", 0, 1)]
    assert walk(timeline, "gemm", 1, 4) == onward
    assert walk(timeline, "gemm", -1, 4) == [("stream", 200, 3), *onward[1::-1], onward[2]]
    last: Any = found(timeline, "gemm", Place(0, -1, -1), -1)
    row = timeline.row_of_operation(0, 2)
    assert last["mark"] == {"row": row, "item": 2, "start": 200, "end": 300, "name": "gemm"}


def test_a_range_is_found_where_its_work_ran_and_else_on_its_thread(timeline: Timeline) -> None:
    assert walk(timeline, "^forward$", -1, 2) == [("nvtx", -40, 1), ("range", 0, 2)]


def test_calls_are_found_on_their_threads(timeline: Timeline) -> None:
    assert walk(timeline, "mpi_send", 1, 1) == [("mpi", -20, 1)]
    assert [kind for kind, _, _ in walk(timeline, "cudaLaunch", -1, 4)] == ["thread"] * 4


def test_nothing_is_called_so(timeline: Timeline) -> None:
    assert found(timeline, "zzz", Place(0, -1, -1)) == {"total": 0, "number": 0, "mark": None}
    with pytest.raises(PatternError):
        found(timeline, "(")
