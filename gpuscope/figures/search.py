"""Names that are searched for: how many things are called so, and which comes next.

Each thing counts once, where its work is: operations in their streams, ranges where their
operations ran on a GPU or, without any, on their thread; CUDA and MPI calls on their threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpuscope.figures.levels import Part
from gpuscope.figures.timeline import Timeline

_KINDS = ("stream", "range", "nvtx", "thread", "mpi")
"""Rows that are searched; those of engines show the operations of the streams again."""
_FAR_NS = 1 << 62
"""Before the first and, positive, behind the last of all times."""


class Place(NamedTuple):
    """A place in the order of all that can be found: by start, then by row."""

    start_ns: int
    row: int
    item: int


class _Hit(NamedTuple):
    place: Place
    end_ns: int
    paint: int


def found(
    timeline: Timeline, pattern: str, at: Place | None = None, step: int = 1
) -> dict[str, Any]:
    """Return how many things have a name in which `pattern` is found, and the next one, as JSON.

    Parameters
    ----------
    at
        Where to go on from: to what comes next, at the end to the first again. Without it only
        the number is told.
    step
        1 to go on, -1 to go back.

    Returns
    -------
    ``total``, ``number`` of the next one in their order, from 1, and its ``mark``; without one 0
    and None.

    Raises
    ------
    PatternError
        The pattern is no regular expression, or takes too long.
    """
    lists = list(_lists(timeline, pattern))
    total = sum(len(part) for _, _, part in lists)
    around = Place(-step * _FAR_NS, 0, 0)
    hit = None if at is None else _next(lists, at, step) or _next(lists, around, step)
    if hit is None:
        return {"total": total, "number": 0, "mark": None}
    before = sum(int(np.searchsorted(part.start_ns, hit.place.start_ns)) for _, _, part in lists)
    same = sum(each.place <= hit.place for each in _begun_at(lists, hit.place.start_ns))
    mark = {
        "row": hit.place.row,
        "item": hit.place.item,
        "start": hit.place.start_ns,
        "end": hit.end_ns,
        "name": timeline.name_of(hit.place.row, hit.place.item, hit.paint),
    }
    return {"total": total, "number": before + same, "mark": mark}


_Lists = list[tuple[int, int, Part]]


def _lists(timeline: Timeline, pattern: str) -> Iterator[tuple[int, int, Part]]:
    """Yield row, paint and intervals of what has such a name; each thing is in one of them."""
    for row, parts in timeline.matching(pattern).items():
        known = timeline.rows[row]
        if known.kind not in _KINDS:
            continue
        on_gpu = timeline.placed[known.trace].ranges.range_row
        for paint, part in parts.items():
            if known.kind == "nvtx":
                alone = ~np.isin(part.item, on_gpu)
                part = Part(part.start_ns[alone], part.end_ns[alone], part.item[alone])
            if len(part):
                yield row, paint, part


def _next(lists: _Lists, at: Place, step: int) -> _Hit | None:
    """Return what comes after, or before, a place; None at the end."""
    times = {at.start_ns}
    for _, _, part in lists:
        before, begun = np.searchsorted(part.start_ns, [at.start_ns, at.start_ns + 1]).tolist()
        beside = begun if step > 0 else before - 1
        if 0 <= beside < len(part):
            times.add(int(part.start_ns[beside]))
    for time in sorted(times, reverse=step < 0):
        begun = _begun_at(lists, time)
        hits = [hit for hit in begun if (hit.place > at if step > 0 else hit.place < at)]
        if hits:
            return min(hits) if step > 0 else max(hits)
    return None


def _begun_at(lists: _Lists, time_ns: int) -> Iterator[_Hit]:
    """Yield what starts at a time."""
    for row, paint, part in lists:
        first, stop = np.searchsorted(part.start_ns, [time_ns, time_ns + 1]).tolist()
        for at in range(first, stop):
            place = Place(time_ns, row, int(part.item[at]))
            yield _Hit(place, int(part.end_ns[at]), paint)
