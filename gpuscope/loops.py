"""Loops that a program annotates step by step: ranges that follow each other, again and again.

A range a step says what a step takes, and nothing of what happens between two steps: a data loader,
a result that is read at the end, a copy for the next step that could run beside this one. So the
steps are taken together, from the first to the last.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

MIN_TURNS = 10
"""Fewer turns may be measurements that are repeated, each apart on purpose."""
MAX_PERIOD = 8
"""Ranges that one turn has at most, one after the other: loading, forward, backward, and so on."""
NUMBER = re.compile(r"\d+")


def turns(label: Int64) -> list[tuple[int, int, int]]:
    """Find where labels repeat: (first, last, period), last included, in order of the first.

    >>> turns(np.array([7, *[1, 2] * 10, 3, *[4] * 12]))
    [(1, 20, 2), (22, 33, 1)]
    """
    found: list[tuple[int, int, int]] = []
    free = np.ones(len(label), np.bool_)
    for period in range(1, MAX_PERIOD + 1):
        again = (label[period:] == label[:-period]) & free[period:] & free[:-period]
        edges = np.flatnonzero(np.diff(again, prepend=False, append=False))
        for begin, end in edges.reshape(-1, 2).tolist():
            if end - begin >= (MIN_TURNS - 1) * period:
                found.append((begin, end + period - 1, period))
                free[begin : end + period] = False
    return sorted(found)


def loop_name(names: list[str]) -> str:
    """Return what a loop is called, by the names of its ranges: of one turn, or of all.

    Numbered ones get a glob that --range takes.

    >>> loop_name(["step", "step"]), loop_name(["step 1", "step 2"]), loop_name(["load", "train"])
    ('step', 'step *', 'load … train')
    """
    numbered: dict[str, set[str]] = {}
    for name in names:
        numbered.setdefault(NUMBER.sub("*", name), set()).add(name)
    told = [glob if len(same) > 1 else min(same) for glob, same in numbered.items()]
    return told[0] if len(told) == 1 else f"{told[0]} … {told[-1]}"
