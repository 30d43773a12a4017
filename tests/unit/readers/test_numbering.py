"""Numbers for the keys that are met in an export."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.readers.numbering import LARGE_LOOKUP, factorize

FAR = 2 * LARGE_LOOKUP


@pytest.mark.parametrize(
    ("columns", "codes", "keys"),
    [
        ([[7, 7, 7]], [0, 0, 0], [(7,)]),
        ([[7, 7], [FAR, FAR]], [0, 0], [(7, FAR)]),
        ([[7, 7, 7], [3, 1, 3]], [1, 0, 1], [(7, 1), (7, 3)]),
        ([[3, 1, 3], [7, 7, 7]], [1, 0, 1], [(1, 7), (3, 7)]),
        ([[2, 1, 2, 2], [5, 9, 9, 5]], [1, 0, 2, 1], [(1, 9), (2, 5), (2, 9)]),
        ([[0, FAR, 0], [1, 2, 1]], [0, 1, 0], [(0, 1), (FAR, 2)]),
        ([[4, 4, 4], [FAR, 0, FAR]], [1, 0, 1], [(4, 0), (4, FAR)]),
    ],
)
def test_rows_are_numbered_in_the_order_of_their_keys(
    columns: list[list[int]], codes: list[int], keys: list[tuple[int, ...]]
) -> None:
    found, listed = factorize(*map(np.array, columns))
    assert found.tolist() == codes
    assert listed == keys


def test_no_rows_have_no_keys() -> None:
    found, listed = factorize(np.empty(0, np.int64))
    assert (found.tolist(), listed) == ([], [])
