"""Ranges that follow each other again and again: which are a loop, and what it is called."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.loops import MAX_PERIOD, MIN_TURNS, loop_name, turns


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([], []),
        ([3] * (MIN_TURNS - 1), []),
        ([3] * MIN_TURNS, [(0, MIN_TURNS - 1, 1)]),
        ([9, *[3] * 10, 9], [(1, 10, 1)]),
        # A turn that is cut off at the end belongs to the loop.
        ([1, 2, 3] * 10 + [1, 2], [(0, 31, 3)]),
        ([1, 2, 3] * 9 + [1, 2], []),
        ([*[5] * 10, *[1, 2] * 10, *[5] * 10], [(0, 9, 1), (10, 29, 2), (30, 39, 1)]),
        (list(range(MAX_PERIOD)) * 10, [(0, 10 * MAX_PERIOD - 1, MAX_PERIOD)]),
        (list(range(MAX_PERIOD + 1)) * 10, []),
        # Two in a row are no loop of their own within the longer turn.
        ([1, 1, 2] * 10, [(0, 29, 3)]),
    ],
)
def test_turns(labels: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert turns(np.array(labels, np.int64)) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["step"], "step"),
        (["epoch 1, step 1", "epoch 1, step 2"], "epoch *, step *"),
        (["conv2d"], "conv2d"),
        (["load 1", "train 1", "load 2", "train 2"], "load * … train *"),
    ],
)
def test_names(names: list[str], expected: str) -> None:
    assert loop_name(names) == expected
