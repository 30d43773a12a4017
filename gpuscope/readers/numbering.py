"""Numbers for what is met in an export: names, and the keys of processes, threads and the like."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

LARGE_LOOKUP = 1 << 26
"""Largest table, in entries, that a direct lookup may take."""


class Strings:
    """The names of a trace: texts and ids of StringIds to one index."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the index of a text, which is a new one where the text is new."""
        index = self._index.get(text)
        if index is None:
            index = self._index[text] = len(self.texts)
            self.texts.append(text)
        return index


class Identities:
    """Keys met in the data, numbered in order of first use."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, ...]] = []
        self._index: dict[tuple[int, ...], int] = {}

    def number(self, key: tuple[int, ...]) -> int:
        """Return the number of a key, which is a new one where the key is new."""
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self.keys)
            self.keys.append(key)
        return index

    def number_all(self, *columns: Int64) -> Int32:
        """Return the number of each row's tuple; new tuples are numbered in sorted order."""
        codes, keys = factorize(*columns)
        return np.array([self.number(key) for key in keys], np.int32)[codes]


def factorize(*columns: Int64) -> tuple[Int64, list[tuple[int, ...]]]:
    """Return the code of each row's tuple and the sorted distinct tuples.

    Columns of shape (n,); the codes have shape (n,) and index the tuples.
    """
    if not len(columns[0]):
        return np.empty(0, np.int64), []
    combined: Int64 | None = None
    size = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        extent = high - low + 1
        if extent == 1:
            continue
        if size * extent > LARGE_LOOKUP:
            values, part = np.unique(column, return_inverse=True)
            extent = len(values)
        else:
            part = column - low
        if combined is None:
            combined, size = part, extent
            continue
        if size * extent > LARGE_LOOKUP:
            combined = np.unique(combined, return_inverse=True)[1].astype(np.int64)
            size = int(combined.max()) + 1
        combined = combined * extent + part
        size *= extent
    if combined is None:
        return np.zeros(len(columns[0]), np.int64), [tuple(int(column[0]) for column in columns)]
    if size <= LARGE_LOOKUP:
        present = np.zeros(size, np.bool_)
        present[combined] = True
        codes = (np.cumsum(present) - 1)[combined]
        count = int(present.sum())
    else:
        distinct, codes = np.unique(combined, return_inverse=True)
        count = len(distinct)
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    keys = [tuple(int(column[row]) for column in columns) for row in first]
    return codes, keys
