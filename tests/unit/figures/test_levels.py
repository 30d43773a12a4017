"""Level of detail: nothing that ran disappears, and gaps that dominate do not look solid."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.figures.levels import MAX_MARKS, PIXELS, Pyramid


def pyramid(count: int, step: int, duration: int, lanes: int = 4) -> Pyramid:
    start = np.arange(count) * step
    return Pyramid(
        start,
        start + duration,
        (np.arange(count) % lanes).astype(np.int32),
        (np.arange(count) % 2).astype(np.uint8),
        np.arange(count),
    )


def test_near_every_operation_is_a_mark() -> None:
    marks = pyramid(100_000, 1_000, 600).view(5_000_000, 5_100_000)
    assert len(marks) == 100
    assert set(marks.count.tolist()) == {1}
    assert marks.busy_ns.tolist() == [600] * 100


@pytest.mark.parametrize("count", [10, 1_000, 100_000])
@pytest.mark.parametrize("share", [1, 7, 900])
def test_a_view_is_bounded_and_loses_nothing(count: int, share: int) -> None:
    whole = count * 1_000
    low, high = whole // 3, whole // 3 + max(1_000, whole // share)
    marks = pyramid(count, 1_000, 400).view(low, high)
    assert len(marks) <= MAX_MARKS
    start = np.arange(count) * 1_000
    visible = np.flatnonzero((start + 400 > low) & (start < high))
    for lane in range(4):
        for op_class in range(2):
            mine = visible[(visible % 4 == lane) & (visible % 2 == op_class)]
            drawn = (marks.lane == lane) & (marks.op_class == op_class)
            inside = np.zeros(len(mine), np.bool_)
            for begin, end in zip(marks.start_ns[drawn], marks.end_ns[drawn], strict=True):
                inside |= (start[mine] >= begin) & (start[mine] + 400 <= end)
            assert inside.all()


def test_the_busy_share_of_a_block_tells_of_its_gaps() -> None:
    marks = pyramid(100_000, 1_000, 100, lanes=1).view(0, 100_000_000)
    share = marks.busy_ns.sum() / (marks.end_ns - marks.start_ns).sum()
    assert share == pytest.approx(0.05, abs=0.005)  # each of two classes: 100 ns of 2,000
    assert marks.count.sum() == 100_000


def test_a_lonely_operation_far_from_others_stays_alone() -> None:
    start = np.array([*range(0, 50_000_000, 1_000), 900_000_000])
    lonely = Pyramid(
        start,
        start + 500,
        np.zeros(len(start), np.int32),
        np.zeros(len(start), np.uint8),
        np.arange(len(start)),
    ).view(0, 1_000_000_000)
    assert lonely.start_ns[-1] == 900_000_000
    assert lonely.end_ns[-1] == 900_000_500
    # A gap wider than a pixel is never bridged.
    assert ((lonely.start_ns[1:] - lonely.end_ns[:-1]) >= 1_000_000_000 // PIXELS).all()


def test_an_empty_trace_has_no_marks() -> None:
    empty = np.empty(0, np.int64)
    marks = Pyramid(empty, empty, empty.astype(np.int32), empty.astype(np.uint8), empty)
    assert len(marks.view(0, 1_000)) == 0
