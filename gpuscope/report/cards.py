"""Which ranges of a trace a person comes for: those get a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpuscope.analysis import RatioLimits
from gpuscope.cases import FRAME_PREFIX
from gpuscope.model.result import Analysis, RangeResult
from gpuscope.model.tables import Ranges
from gpuscope.model.trace import Trace
from gpuscope.scopes import nesting

MAX_CARDS = 8
"""Ranges that get a card of their own; all are in the range picker."""
FEW_INNER = 4
"""A single outermost range is joined on the cards by the ranges in it when these are so few."""
_LIBRARY_DOMAINS = {"NCCL", "MPI"}
_OWN = 0
"""The kind of ranges that are the program's own."""

Rank = tuple[bool, int, int]
"""Whether no benchmark judges a range, what kind it is, how deep it nests: the least is best."""


def order_ranges(
    trace: Trace, analysis: Analysis, limits: RatioLimits, *, joint: bool = False
) -> tuple[tuple[RangeResult, ...], tuple[RangeResult, ...]]:
    """Return the ranges that have pairs, the best ones first, and those that get a card.

    Where none of the program's own has any, all that launched work are returned: how many ran at
    once is the question. A card have the best ones and their peers. What these hold stays out,
    unless there is but one and it holds few. Where ranks or GPUs share cards, `joint`, all results
    of a range go together.
    """
    ranks = _ranks(trace, limits)
    paired = [entry for entry in analysis.ranges if entry.scope.pairs or entry.link_pairs]
    own = any(ranks[entry.name][1] == _OWN for entry in paired)
    names = list(dict.fromkeys(entry.name for entry in analysis.ranges))
    place = {name: at for at, name in enumerate(names)}
    ranked = sorted(
        paired if own else analysis.ranges,
        key=lambda entry: (ranks[entry.name], place[entry.name], entry.process, entry.device),
    )
    carded = _carded(ranked, ranks)
    if not joint:
        return tuple(ranked), tuple(carded[:MAX_CARDS])
    best = list(dict.fromkeys(entry.name for entry in carded))[:MAX_CARDS]
    return tuple(ranked), tuple(entry for entry in carded if entry.name in best)


def _carded(ranked: Sequence[RangeResult], ranks: Mapping[str, Rank]) -> list[RangeResult]:
    if not ranked:
        return []
    best = ranks[ranked[0].name]
    peers = [entry for entry in ranked if ranks[entry.name] <= best]
    inner = [
        entry for entry in ranked if best < ranks[entry.name] and ranks[entry.name][:2] == best[:2]
    ]
    unjudged, _, _ = best
    single = len({entry.name for entry in peers}) == 1
    if unjudged and single and len({entry.name for entry in inner}) <= FEW_INNER:
        peers += inner
    return peers


def _ranks(trace: Trace, limits: RatioLimits) -> dict[str, Rank]:
    """Rank the names of ranges: what a person comes for first."""
    if trace.ranges is None:
        return {}
    judged = {name for name, _, _ in limits}
    ranks = {}
    for number, depth, library in _names_of(trace.ranges, trace.strings):
        name = trace.strings[number]
        # A benchmark's own frame and the calls of libraries are seldom the question.
        kind = 2 if library else 1 if name.startswith(FRAME_PREFIX) else _OWN
        ranks[name] = (name not in judged, kind, depth)
    return ranks


def _names_of(ranges: Ranges, strings: Sequence[str]) -> Iterator[tuple[int, int, bool]]:
    """Yield of each range name its index, its middle depth, and whether a library made it."""
    depth, _ = nesting(ranges)
    library = [number for number, text in enumerate(strings) if text in _LIBRARY_DOMAINS]
    order = np.lexsort((depth, ranges.name))
    name, first, count = np.unique(ranges.name[order], return_index=True, return_counts=True)
    middle = depth[order][first + count // 2]
    if not len(name):
        return
    made = np.logical_or.reduceat(np.isin(ranges.domain, library)[order], first)
    yield from zip(name.tolist(), middle.tolist(), made.tolist(), strict=True)
