"""Every interval function against a naive one that marks each nanosecond."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscope import intervals

Int64 = npt.NDArray[np.int64]

_END = 60
PAIRS = st.lists(
    st.tuples(st.integers(0, _END - 1), st.integers(0, 20)).map(
        lambda pair: (pair[0], min(_END, pair[0] + pair[1]))
    ),
    max_size=12,
)


def arrays(pairs: list[tuple[int, int]]) -> tuple[Int64, Int64]:
    return (
        np.array([start for start, _ in pairs], np.int64),
        np.array([end for _, end in pairs], np.int64),
    )


def marked(pairs: list[tuple[int, int]]) -> list[bool]:
    line = [False] * _END
    for start, end in pairs:
        for at in range(start, end):
            line[at] = True
    return line


def marks(disjoint: intervals.Disjoint) -> list[bool]:
    return marked(list(zip(disjoint[0].tolist(), disjoint[1].tolist(), strict=True)))


def is_disjoint(disjoint: intervals.Disjoint) -> bool:
    start, end = disjoint
    return bool((end > start).all() and (start[1:] > end[:-1]).all())


@given(PAIRS)
def test_union_marks_the_same_line(pairs: list[tuple[int, int]]) -> None:
    result = intervals.union(*arrays(pairs))
    assert is_disjoint(result)
    assert marks(result) == marked(pairs)
    assert intervals.length(result) == sum(marked(pairs))


def test_union_joins_what_touches() -> None:
    start, end = intervals.union(np.array([5, 0]), np.array([9, 5]))
    assert (start.tolist(), end.tolist()) == ([0], [9])


@given(PAIRS, PAIRS)
def test_intersect_and_subtract(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, other = intervals.union(*arrays(a)), intervals.union(*arrays(b))
    both = intervals.intersect(one, other)
    only = intervals.subtract(one, other)
    assert is_disjoint(both)
    assert is_disjoint(only)
    assert marks(both) == [x and y for x, y in zip(marked(a), marked(b), strict=True)]
    assert marks(only) == [x and not y for x, y in zip(marked(a), marked(b), strict=True)]


@given(PAIRS)
def test_gaps_fill_the_union_up(pairs: list[tuple[int, int]]) -> None:
    whole = intervals.union(*arrays(pairs))
    start, end = intervals.gaps(whole)
    between = intervals.length((start, end))
    if len(whole[0]):
        assert between + intervals.length(whole) == whole[1][-1] - whole[0][0]
    else:
        assert between == 0


@given(st.lists(PAIRS, min_size=1, max_size=5))
def test_coverage_names_the_active_parts(parts: list[list[tuple[int, int]]]) -> None:
    pieces = intervals.coverage([intervals.union(*arrays(part)) for part in parts])
    lines = [marked(part) for part in parts]
    expected = [sum(1 << i for i, line in enumerate(lines) if line[at]) for at in range(_END)]
    found = [0] * _END
    for start, end, mask in zip(
        pieces.start.tolist(), pieces.end.tolist(), pieces.mask.tolist(), strict=True
    ):
        assert end > start
        for at in range(start, end):
            found[at] = mask
    assert found == expected


@given(PAIRS)
def test_depth_counts_the_active_intervals(pairs: list[tuple[int, int]]) -> None:
    times, active = intervals.depth(*arrays(pairs))
    found = [0] * _END
    for position in range(len(times) - 1):
        for at in range(int(times[position]), int(times[position + 1])):
            found[at] = int(active[position])
    expected = [sum(start <= at < end for start, end in pairs) for at in range(_END)]
    assert found == expected


def test_depth_of_touching_intervals_is_one() -> None:
    _, active = intervals.depth(np.array([0, 5]), np.array([5, 9]))
    assert active.max() == 1


@given(PAIRS, PAIRS)
def test_cover_measures_any_stretch(
    part: list[tuple[int, int]], stretches: list[tuple[int, int]]
) -> None:
    cover = intervals.Cover(intervals.union(*arrays(part)))
    line = marked(part)
    expected = [sum(line[start:end]) for start, end in stretches]
    assert cover.within(*arrays(stretches)).tolist() == expected


@given(st.lists(PAIRS.filter(lambda pairs: bool(pairs)), min_size=1, max_size=5))
def test_axis_keeps_groups_apart(groups: list[list[tuple[int, int]]]) -> None:
    earliest = np.array([min(start for start, _ in group) for group in groups])
    latest = np.array([max(end for _, end in group) for group in groups])
    axis = intervals.Axis.lay_out(earliest, latest)
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    start, end = arrays([pair for group in groups for pair in group])
    placed = intervals.union(start + axis.shift[owner], end + axis.shift[owner])
    length = [sum(marked(group)) for group in groups]
    time, edges = placed[1] - placed[0], axis.edges(placed[0])
    assert intervals.sum_between(time, edges).tolist() == length
    assert intervals.sum_by(time, axis.group_at(placed[0]), len(groups)).tolist() == length


@given(st.lists(st.tuples(st.integers(-(2**61), 2**61), st.integers(0, 3)), min_size=1, max_size=3))
def test_sum_by_is_exact_beyond_float(pairs: list[tuple[int, int]]) -> None:
    values = np.array([value for value, _ in pairs])
    group = np.array([number for _, number in pairs])
    sums = intervals.sum_by(values, group, 4)
    assert sums.tolist() == [
        sum(value for value, number in pairs if number == wanted) for wanted in range(4)
    ]


@given(st.lists(st.tuples(st.integers(-(2**61), 2**61), st.integers(0, 3)), max_size=3))
def test_a_grouping_sums_what_sum_by_does(pairs: list[tuple[int, int]]) -> None:
    values = np.array([value for value, _ in pairs], np.int64)
    key = np.array([number for _, number in pairs], np.int64)
    sums = intervals.Grouping(key, 4).sum(np.stack([values, 1 - values]))
    assert sums.tolist() == [
        intervals.sum_by(each, key, 4).tolist() for each in (values, 1 - values)
    ]


def test_a_grouping_counts_what_is_true() -> None:
    grouping = intervals.Grouping(np.array([2, 0, 2, 2]), 3)
    assert grouping.sum(np.array([True, False, True, False])).tolist() == [0, 0, 2]


def test_sums_between_edges_are_exact_where_the_sum_of_all_is_beyond_int64() -> None:
    values = np.array([2**63 - 1, 2**63 - 1, 8])
    assert intervals.sum_between(values, np.array([0, 1, 1, 3])).tolist()[:2] == [2**63 - 1, 0]
    assert intervals.sum_between(values, np.array([1, 2, 3])).tolist() == [2**63 - 1, 8]
    assert intervals.sum_between(values > 8, np.array([0, 2, 3])).tolist() == [2, 0]


def test_sum_by_is_exact_where_the_sum_of_all_is_beyond_int64() -> None:
    """That sum comes round to a small one; those of the groups are what they are."""
    values = np.array([2**63 - 1, 2**63 - 1, 8])
    assert intervals.sum_by(values, np.array([0, 1, 2]), 3).tolist() == values.tolist()


ROWS = st.lists(st.tuples(*[st.integers(-3, 10**6)] * 3), max_size=30)


@given(ROWS)
def test_equal_rows_have_equal_numbers_in_their_order(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array([row[k] for row in rows], np.int64) for k in range(3)]
    code, first = intervals.number_rows(columns)
    distinct = sorted(set(rows))
    assert [distinct[number] for number in code.tolist()] == rows
    assert first.tolist() == [rows.index(row) for row in distinct]


ROWS = st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=12)


def test_an_order_by_a_key_beyond_the_radix_sort() -> None:
    assert intervals.stable_order(np.array([1 << 16, 3, 1 << 16, 0])).tolist() == [3, 1, 0, 2]


@example([(0, 0, 1), (0, 0, 0)], 0)
@given(ROWS, st.sampled_from([0, -2, 1 << 20]))
def test_order_by_sorts_by_all_columns_and_is_stable(
    rows: list[tuple[int, int, int]], shift: int
) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    order = intervals.order_by(columns[0] + shift, columns[1], columns[2])
    assert order.tolist() == sorted(range(len(rows)), key=lambda row: rows[row])


_GROUPED = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 9)), max_size=30)


@pytest.mark.parametrize("block_rows", [1, 2, 3, 7])
def test_the_latest_end_so_far_goes_on_from_block_to_block(
    block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "BLOCK_ROWS", block_rows)

    @given(_GROUPED)
    def check(rows: list[tuple[int, int]]) -> None:
        rows = sorted(rows, key=lambda row: row[0])
        group, value = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
        position, reach = intervals.running_max(group, value)
        for at, (mine, _) in enumerate(rows):
            before = [(end, k) for k, (g, end) in enumerate(rows[: at + 1]) if g == mine]
            known = [each for each in before if each[0] >= 0]
            assert (reach[at], position[at]) == (max(known) if known else (-1, -1))

    check()


def test_what_is_disjoint_already_is_not_copied() -> None:
    start, end = np.array([0, 5, 9]), np.array([4, 8, 12])
    assert all(map(np.shares_memory, intervals.union(start, end), (start, end)))
