"""What the stencil must give, and what its checks see."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.benchmarks._harness.stencil import check_norm, compare_rows, reference_step
from gpuscope.errors import ProgramError


def test_a_step_is_the_mean_of_four_neighbours_and_top_and_bottom_are_neighbours() -> None:
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    found, norm = reference_step(grid)
    # Row 0 lies between rows 2 and 1: (8+1 + 4+1 + 0 + 2) / 4 at column 1.
    assert found[0, 1] == (9 + 5 + 0 + 2) / 4
    assert found[1, 2] == (2 + 10 + 5 + 7) / 4
    assert found[2, 1] == (5 + 1 + 8 + 10) / 4
    assert found[:, 0].tolist() == grid[:, 0].tolist()
    assert found[:, 3].tolist() == grid[:, 3].tolist()
    # Inner points change by +3, 0 and -3, in two columns.
    assert norm == 4 * 9


def test_at_open_ends_the_first_and_the_last_row_are_fixed() -> None:
    grid = np.arange(16, dtype=np.float32).reshape(4, 4) ** 2
    found, _ = reference_step(grid, periodic=False)
    closed, _ = reference_step(grid)
    assert np.array_equal(found[[0, 3]], grid[[0, 3]])
    assert np.array_equal(found[1:3], closed[1:3])
    assert not np.array_equal(found[0], closed[0])


def test_a_wrong_point_and_a_wrong_norm_are_seen() -> None:
    grid = np.zeros((4, 5), np.float32)
    wrong = grid.copy()
    wrong[2, 3] = 1e-30
    wrong[2, 4] = 1
    compare_rows(grid, grid.copy(), 7)
    with pytest.raises(ProgramError, match=r"^wrong data: after 7 steps 1 of 4 rows differ"):
        compare_rows(wrong, grid, 7)
    with pytest.raises(ProgramError, match="after 7 steps 4 of 4 rows"):
        compare_rows(-grid, grid, 7)
    check_norm(1.0, 1.0 + 1e-12)
    with pytest.raises(ProgramError, match=r"^wrong data: the norm .* is 1.0, and must be 1.001"):
        check_norm(1.0, 1.001)
