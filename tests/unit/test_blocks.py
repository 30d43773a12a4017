"""Rows are handled in blocks: the answers do not depend on where one block ends."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import api, batches, cases, contention, intervals, samples, schedule, waits
from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.model.result import Analysis
from gpuscope.scopes import Activities
from tests.make_trace import make_trace

NAMES = [
    "hyperq",
    "training",
    "jacobi_nccl_r0",
    "null_stream_work",
    "event_dependency",
    "gpu_full",
    "p2p",
    "graph_node",
]


def analyzed(name: str) -> Analysis:
    return run_all(api.open_trace(samples.path(name)), ANALYZERS, Options())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 5])
def test_the_analysis_is_the_same_however_the_rows_are_cut(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = analyzed(name)
    for module in (waits, contention, schedule, cases):
        monkeypatch.setattr(module, "BLOCK_ROWS", rows)
    monkeypatch.setattr(batches, "_CHUNK_ROWS", rows)
    assert analyzed(name) == whole


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=20).map(sorted)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_time_line_is_cut_where_nothing_runs(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_CHUNK_ROWS", rows)

    @given(SPANS)
    def check(spans: list[tuple[int, int]]) -> None:
        trace = make_trace(kernels=[(start, start + length, "s1") for start, length in spans])
        activities = Activities.of(trace)
        mine = np.arange(len(activities.start_ns))
        pieces = [piece.tolist() for piece in batches.cut_where_idle(activities, mine)]
        assert list(chain.from_iterable(pieces)) == mine.tolist()
        assert all(pieces)
        for before, after in pairwise(pieces):
            last = activities.end_ns[before].max()
            assert last < activities.start_ns[after].min()
        # It is cut in every block in which nothing runs at some moment.
        reach = np.maximum.accumulate(activities.end_ns)
        idle = np.flatnonzero(activities.start_ns[1:] > reach[:-1]) + 1
        firsts = {int(idle[idle // rows == block][0]) for block in np.unique(idle // rows)}
        assert [piece[0] for piece in pieces[1:]] == sorted(firsts)

    check()


@given(SPANS, st.integers(0, 20))
def test_added_times_sum_up_to_the_union(spans: list[tuple[int, int]], cut: int) -> None:
    start = np.array([each[0] for each in spans], np.int64)
    end = start + np.array([each[1] for each in spans], np.int64)
    total, reach = 0, None
    for part in (slice(None, cut), slice(cut, None)):
        if len(start[part]):
            own, reach = intervals.added(start[part], end[part], reach)
            total += int(own.sum())
    assert total == intervals.length(intervals.union(start, end))
