"""What traces are called on the page: by rank, by run folder, by file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gpuscope.model.trace import Trace, shown_name, shown_names, shown_title, told_apart
from tests.make_trace import make_trace, of_rank


def named(path: str, rank: int | None = None) -> Trace:
    trace = make_trace(kernels=[(0, 10, "s7")])
    return dataclasses.replace(of_rank(trace, rank), path=path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/b.sqlite", "b.sqlite"),
        ("runs/streams-1/trace.sqlite", "streams-1"),
        ("trace.sqlite", "trace.sqlite"),
    ],
)
def test_a_trace_is_called_by_its_run_or_its_file(path: str, name: str) -> None:
    assert shown_name(Path(path)) == name
    assert shown_names([named(path, 0)]) == [name]


def test_ranks_tell_the_traces_of_a_run_apart() -> None:
    ranks = [named(f"runs/job/rank{rank}/trace.sqlite", rank) for rank in (0, 1)]
    assert shown_names(ranks) == ["rank 0", "rank 1"]
    assert shown_title(ranks) == "job: 2 ranks"
    twice = [named("runs/a/trace.sqlite", 0), named("runs/b/trace.sqlite", 0)]
    assert shown_names(twice) == ["a", "b"]
    assert shown_title(twice) == "a + b"


@pytest.mark.parametrize(
    ("ranks", "known"),
    [
        ([{1}, {0}], [1, 0]),
        ([{0}], []),  # one trace has nobody to be told from
        ([{0}, {0}], []),
        ([{0}, {None}], []),
        ([{0, 1}, {2}], []),  # a trace of two ranks
        ([{0, 1}, {None}], []),
        ([set(), {0}], []),
    ],
)
def test_ranks_count_only_where_they_tell_traces_apart(
    ranks: list[set[int | None]], known: list[int]
) -> None:
    assert told_apart(ranks) == known
