"""A grid cut into blocks, one a rank: which points are whose, and who is next to whom. Pure.

Blocks are slabs of rows (``split=(4, 1)``), or rows and columns are both cut. Ranks count along
the rows of blocks. Around its own points a block has a halo, where those of its neighbours lie: a
row above and below, and where columns are cut a column on either side. ::

    split (2, 2)                                    rank 3 of it
                                                    . . . . . .     a row of rank 1
      left ←  rank 0 │ rank 1                       . 3 3 3 3 .
              ───────┼───────  up ↑                 . 3 3 3 3 .
              rank 2 │ rank 3                       . . . . . .     a row of rank 1: top and bottom
                                                    ↑               of the grid are neighbours
                                                    a column of rank 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpuscope.errors import UsageError

SIDES = ("up", "down", "left", "right")
OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
LEAST_SIDE = 2
"""Rows and columns of a block: with one alone, a point would lie on two edges."""
_LEAST_COLUMNS = 3
"""Of a grid, whose first and last column are fixed."""


class Region(NamedTuple):
    """A rectangle of a block's array, halo included; ends are exclusive."""

    row: int
    end_row: int
    column: int
    end_column: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns; either may be 0."""
        return max(0, self.end_row - self.row), max(0, self.end_column - self.column)

    @property
    def points(self) -> int:
        """Number of points."""
        rows, columns = self.shape
        return rows * columns

    @property
    def slices(self) -> tuple[slice, slice]:
        """What indexes an array with it."""
        return slice(self.row, self.end_row), slice(self.column, self.end_column)


class Side(NamedTuple):
    """One side of a block that has a neighbour.

    What is sent lies at ``sends``, what comes goes to ``receives``. With two ranks the same
    neighbour may be above and below: the tags tell the messages apart.
    """

    name: str
    neighbour: int
    sends: Region
    receives: Region
    send_tag: int
    receive_tag: int


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a grid that one rank has.

    Attributes
    ----------
    grid
        Rows and columns of the whole grid.
    split
        Blocks along the rows, and along the columns.
    rank
        Whose it is.
    periodic
        Top and bottom of the grid are neighbours; if not, its first and last row are fixed. Its
        first and last column always are.
    first_row, rows, first_column, columns
        The rank's own points.
    """

    grid: tuple[int, int]
    split: tuple[int, int]
    rank: int
    periodic: bool
    first_row: int
    rows: int
    first_column: int
    columns: int

    @property
    def margin(self) -> int:
        """Columns of halo on either side: 0 where columns are not cut."""
        return int(self.split[1] > 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the array that holds the block and its halo."""
        return self.rows + 2, self.columns + 2 * self.margin

    @property
    def own(self) -> Region:
        """The rank's own points, without the halo."""
        return Region(1, 1 + self.rows, self.margin, self.margin + self.columns)

    @property
    def place(self) -> Region:
        """Where the own points lie in the whole grid."""
        return Region(
            self.first_row,
            self.first_row + self.rows,
            self.first_column,
            self.first_column + self.columns,
        )

    @property
    def written(self) -> Region:
        """What a step writes: the own points without the fixed ones."""
        own = self.own
        top = not self.periodic and self.first_row == 0
        bottom = not self.periodic and self.first_row + self.rows == self.grid[0]
        left = self.first_column == 0
        right = self.first_column + self.columns == self.grid[1]
        return Region(
            own.row + top, own.end_row - bottom, own.column + left, own.end_column - right
        )

    def neighbour(self, side: str) -> int | None:
        """Return the rank on that side, itself if there is no other; None at an open end."""
        down, across = self.split
        row, column = divmod(self.rank, across)
        row += (side == "down") - (side == "up")
        column += (side == "right") - (side == "left")
        if not 0 <= column < across or (not self.periodic and not 0 <= row < down):
            return None
        return row % down * across + column

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides across which points are exchanged."""
        own = self.own
        strips = {
            "up": own._replace(end_row=own.row + 1),
            "down": own._replace(row=own.end_row - 1),
            "left": own._replace(end_column=own.column + 1),
            "right": own._replace(column=own.end_column - 1),
        }
        halos = {
            "up": own._replace(row=0, end_row=1),
            "down": own._replace(row=own.end_row, end_row=own.end_row + 1),
            "left": own._replace(column=0, end_column=1),
            "right": own._replace(column=own.end_column, end_column=own.end_column + 1),
        }
        found = []
        for name in SIDES if self.margin else SIDES[:2]:
            neighbour = self.neighbour(name)
            if neighbour is not None:
                tags = SIDES.index(name), SIDES.index(OPPOSITE[name])
                found.append(Side(name, neighbour, strips[name], halos[name], *tags))
        return tuple(found)

    @property
    def inner(self) -> Region:
        """What a step writes and no neighbour needs, nor depends on the halo."""
        rest, cut = self.written, {side.name for side in self.sides}
        return Region(
            rest.row + ("up" in cut),
            rest.end_row - ("down" in cut),
            rest.column + ("left" in cut),
            rest.end_column - ("right" in cut),
        )

    @property
    def edges(self) -> dict[str, Region]:
        """The rest of what a step writes, by side; a corner belongs to the row."""
        written, inner = self.written, self.inner
        beside = written._replace(row=inner.row, end_row=inner.end_row)
        strips = {
            "up": written._replace(end_row=inner.row),
            "down": written._replace(row=inner.end_row),
            "left": beside._replace(end_column=inner.column),
            "right": beside._replace(column=inner.end_column),
        }
        return {side.name: strips[side.name] for side in self.sides}


def share(count: int, parts: int, index: int) -> tuple[int, int]:
    """Return where part `index` of `count` things begins, and how many it has.

    Parts differ by one at most; the first ones are the larger.
    """
    least, extra = divmod(count, parts)
    return index * least + min(index, extra), least + (index < extra)


def cut(
    grid: tuple[int, int], split: tuple[int, int], rank: int, *, periodic: bool = True
) -> Block:
    """Return the block of a rank.

    Raises
    ------
    UsageError
        The grid has too few rows or columns for so many blocks.
    """
    for name, count, parts, least in (
        ("rows", grid[0], split[0], LEAST_SIDE),
        ("columns", grid[1], split[1], _LEAST_COLUMNS),
    ):
        needed = max(least, LEAST_SIDE * parts)
        if count < needed:
            cuts = f", {LEAST_SIDE} for each of {parts} blocks" if parts > 1 else ""
            raise UsageError(f"the grid has too few {name}, {count}: give {needed} or more{cuts}.")
    down, across = divmod(rank, split[1])
    first_row, rows = share(grid[0], split[0], down)
    first_column, columns = share(grid[1], split[1], across)
    return Block(grid, split, rank, periodic, first_row, rows, first_column, columns)


def choose_split(ranks: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Return blocks along the rows and along the columns, with the shortest edges.

    Of equals the one that cuts columns more: only there something has to be packed.
    """
    splits = [(down, ranks // down) for down in range(1, ranks + 1) if ranks % down == 0]
    return min(splits, key=lambda split: split[0] * grid[1] + split[1] * grid[0])
