"""Level of detail: nothing that ran disappears, and gaps that dominate do not look solid."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given

from gpuscope.figures.levels import FULL, MAX_WIDE, Part, split, view

INTERVALS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=40)


def part(rows: list[tuple[int, int]]) -> Part:
    rows = sorted((start, start + length) for start, length in rows)
    start, end = (np.array(side, np.int64) for side in zip(*rows, strict=True))
    return Part(start, end, np.arange(len(rows), dtype=np.int32))


def covered(rows: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Return, a nanosecond from 0 to 400, whether an interval covers it."""
    line = np.zeros(400, np.bool_)
    for start, length in rows:
        line[start : start + length] = True
    return line


@given(INTERVALS)
def test_covered_time_is_that_of_the_union(rows: list[tuple[int, int]]) -> None:
    expected = np.concatenate(([0], np.cumsum(covered(rows))))
    assert part(rows).covered(np.arange(401)).tolist() == expected.tolist()


@given(INTERVALS, st.integers(1, 70))
def test_a_column_is_empty_only_where_nothing_ran_and_full_only_without_gaps(
    rows: list[tuple[int, int]], width: int
) -> None:
    edges = np.arange(0, 400 - width, width)
    line = covered(rows)
    starts = np.array([start for start, _ in rows])
    for number, share in enumerate(part(rows).columns(np.append(edges, edges[-1] + width))):
        piece = line[edges[number] : edges[number] + width]
        begun = ((starts >= edges[number]) & (starts < edges[number] + width)).any()
        if piece.any():
            assert share == -(-int(piece.sum()) * FULL // width)
        else:
            assert share == int(begun)


def test_near_every_interval_is_a_mark() -> None:
    parts = {3: part([(1_000 * i, 600) for i in range(100_000)])}
    seen = view(parts, 5_000_000, 5_100_000, 100, most=200)
    assert not seen.columns
    assert len(seen.marks[3]) == 100
    assert (seen.marks[3].end_ns - seen.marks[3].start_ns).tolist() == [600] * 100
    assert seen.marks[3].item.tolist() == list(range(5_000, 5_100))


def test_far_out_classes_that_take_turns_keep_their_shares() -> None:
    parts = {
        0: part([(1_000 * i, 300) for i in range(0, 100_000, 2)]),
        3: part([(1_000 * i, 100) for i in range(1, 100_000, 2)]),
    }
    seen = view(parts, 0, 100_000_000, 100_000, most=200)
    assert set(seen.columns[0].tolist()) == {39}  # 300 of 2,000 ns, rounded up
    assert set(seen.columns[3].tolist()) == {13}
    assert not len(seen.marks[0])


def test_far_out_what_is_wide_on_the_screen_is_still_a_mark() -> None:
    rows = [(1_000 * i, 500) for i in range(50_000)]
    seen = view({0: part([*rows, (60_000_000, 900_000)])}, 0, 100_000_000, 100_000, most=200)
    assert seen.marks[0].item.tolist() == [50_000]
    assert seen.columns[0][600:609].tolist() == [FULL] * 9


@pytest.mark.parametrize("count", [10, 10_000])
def test_marks_are_bounded_where_long_intervals_overlap(count: int) -> None:
    marks = part([(i, 10_000) for i in range(count)]).marks(0, 20_000, 4)
    assert len(marks) == min(count, MAX_WIDE)


@given(INTERVALS, st.integers(0, 300), st.integers(1, 200), st.integers(0, 60))
def test_marks_are_the_intervals_that_are_seen(
    rows: list[tuple[int, int]], low: int, size: int, shortest: int
) -> None:
    found = part(rows).marks(low, low + size, shortest)
    expected = [
        (start, start + length)
        for start, length in sorted(rows, key=lambda row: (row[0], row[0] + row[1]))
        if start + length > low and start < low + size and length >= shortest
    ]
    assert list(zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)) == expected


@given(INTERVALS, st.integers(0, 300), st.integers(1, 200), st.integers(1, 6), st.booleans())
def test_the_first_and_the_last_that_are_seen(
    rows: list[tuple[int, int]], low: int, size: int, most: int, last: bool
) -> None:
    whole = part(rows)
    seen = whole.marks(low, low + size).item.tolist()
    found = whole.first_within(low, low + size, most, last=last).tolist()
    assert found == (seen[-most:] if last else seen[:most])


def test_intervals_go_to_their_rows_by_paint() -> None:
    numbers = np.arange(6)
    rows = split(
        np.array([0, 1, 0, 1, 0, 0], np.int32),
        np.array([2, 2, 2, 7, 5, 2], np.int32),
        numbers * 10,
        numbers * 10 + 5,
        numbers.astype(np.int32),
    )
    assert {
        row: {p: part.item.tolist() for p, part in parts.items()} for row, parts in rows.items()
    } == {
        0: {2: [0, 2, 5], 5: [4]},
        1: {2: [1], 7: [3]},
    }
    empty = np.empty(0, np.int64)
    none = empty.astype(np.int32)
    assert split(none, none, empty, empty, none) == {}
