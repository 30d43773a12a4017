"""How a grid is cut: shares, offsets, neighbours, and the regions of a step."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.benchmarks._harness.decomposition import Region, choose_split, cut, share
from gpuscope.errors import UsageError

SPLITS = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (2, 2), (3, 2), (2, 3)]


def test_parts_differ_by_one_and_follow_each_other() -> None:
    assert [share(10, 4, index) for index in range(4)] == [(0, 3), (3, 3), (6, 2), (8, 2)]
    assert [share(6, 3, index) for index in range(3)] == [(0, 2), (2, 2), (4, 2)]


def test_slabs_of_rows() -> None:
    first, second, third = (cut((10, 7), (3, 1), rank) for rank in range(3))
    assert [(each.first_row, each.rows) for each in (first, second, third)] == [
        (0, 4),
        (4, 3),
        (7, 3),
    ]
    assert first.shape == (6, 7)  # columns are not cut: no halo beside
    assert (first.neighbour("up"), first.neighbour("down")) == (2, 1)
    assert (third.neighbour("up"), third.neighbour("down")) == (1, 0)
    assert [side.name for side in first.sides] == ["up", "down"]
    up, down = second.sides
    assert up.sends == Region(1, 2, 0, 7)
    assert up.receives == Region(0, 1, 0, 7)
    assert down.sends == Region(3, 4, 0, 7)
    assert down.receives == Region(4, 5, 0, 7)
    assert second.written == Region(1, 4, 1, 6)
    assert second.inner == Region(2, 3, 1, 6)


def test_open_ends_have_no_neighbour_and_a_fixed_row() -> None:
    top, bottom = (cut((10, 7), (2, 1), rank, periodic=False) for rank in range(2))
    assert [side.name for side in top.sides] == ["down"]
    assert [side.name for side in bottom.sides] == ["up"]
    assert top.neighbour("up") is None
    assert top.written == Region(2, 6, 1, 6)
    assert top.inner == Region(2, 5, 1, 6)
    assert bottom.written == Region(1, 5, 1, 6)


def test_blocks_count_along_the_rows_and_the_sides_of_the_grid_are_no_neighbours() -> None:
    blocks = [cut((9, 11), (2, 2), rank) for rank in range(4)]
    assert [
        (each.first_row, each.rows, each.first_column, each.columns) for each in blocks
    ] == [(0, 5, 0, 6), (0, 5, 6, 5), (5, 4, 0, 6), (5, 4, 6, 5)]  # fmt: skip
    assert [each.neighbour("right") for each in blocks] == [1, None, 3, None]
    assert [each.neighbour("left") for each in blocks] == [None, 0, None, 2]
    assert [each.neighbour("up") for each in blocks] == [2, 3, 0, 1]
    assert [each.neighbour("down") for each in blocks] == [2, 3, 0, 1]
    last = blocks[3]
    assert last.shape == (6, 7)
    assert last.written == Region(1, 5, 1, 5)  # its last column is the grid's
    assert last.edges == {
        "up": Region(1, 2, 1, 5),
        "down": Region(4, 5, 1, 5),
        "left": Region(2, 4, 1, 2),
    }


def test_what_two_ranks_send_each_other_is_told_apart() -> None:
    # The same neighbour is above and below.
    up, down = cut((8, 8), (2, 1), 0).sides
    other_up, other_down = cut((8, 8), (2, 1), 1).sides
    assert up.neighbour == down.neighbour == 1
    assert up.send_tag == other_down.receive_tag != down.send_tag == other_up.receive_tag


@pytest.mark.parametrize("smallest", [False, True])
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("split", SPLITS)
def test_every_point_is_written_once_and_every_halo_is_what_the_neighbour_sends(
    split: tuple[int, int], periodic: bool, smallest: bool
) -> None:
    # Blocks of two rows or columns have no interior.
    grid = (2 * split[0], max(3, 2 * split[1])) if smallest else (13, 11)
    count = split[0] * split[1]
    blocks = [cut(grid, split, rank, periodic=periodic) for rank in range(count)]
    places = np.arange(grid[0] * grid[1]).reshape(grid)
    written = np.zeros(grid, int)
    arrays = []
    for block in blocks:
        array = np.full(block.shape, -1)
        array[block.own.slices] = places[block.place.slices]
        arrays.append(array)
        regions = [block.inner, *block.edges.values()]
        assert sum(region.points for region in regions) == block.written.points
        for region in regions:
            # Every point of a region is one of the own.
            np.add.at(written.reshape(-1), array[region.slices], 1)
    fixed = 0 if periodic else 1
    expected = np.zeros(grid, int)
    expected[fixed : grid[0] - fixed, 1:-1] = 1
    assert np.array_equal(written, expected)
    for block in blocks:
        for side in block.sides:
            other = blocks[side.neighbour]
            (sent,) = (each for each in other.sides if each.send_tag == side.receive_tag)
            assert sent.neighbour == block.rank
            found = arrays[side.neighbour][sent.sends.slices]
            step = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}[side.name]
            beside = np.roll(places, (-step[0], -step[1]), (0, 1))[block.place.slices]
            own = block.own
            at = side.sends
            strip = beside[
                at.row - own.row : at.end_row - own.row,
                at.column - own.column : at.end_column - own.column,
            ]
            assert np.array_equal(found, strip)
            assert side.receives.shape == side.sends.shape


def test_a_grid_too_small_for_its_ranks_is_refused() -> None:
    rows = "too few rows, 5: give 6 or more, 2 for each of 3 blocks"
    with pytest.raises(UsageError, match=rows):
        cut((5, 100), (3, 1), 0)
    cut((6, 100), (3, 1), 0)
    columns = "too few columns, 3: give 4 or more, 2 for each of 2 blocks"
    with pytest.raises(UsageError, match=columns):
        cut((100, 3), (1, 2), 0)


def test_a_grid_has_a_column_that_is_not_fixed() -> None:
    for columns in (1, 2):
        with pytest.raises(UsageError, match=f"too few columns, {columns}: give 3 or more\\.$"):
            cut((100, columns), (2, 1), 0)
    assert cut((100, 3), (2, 1), 0).written.shape == (50, 1)


def test_the_split_with_the_shortest_edges_is_chosen() -> None:
    assert choose_split(4, (100, 100)) == (2, 2)
    assert choose_split(2, (100, 100)) == (1, 2)
    assert choose_split(6, (300, 200)) == (3, 2)
    assert choose_split(3, (100, 10)) == (3, 1)
    assert choose_split(1, (10, 10)) == (1, 1)
