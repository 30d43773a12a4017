"""Links: the copies between two devices, by direction, and how these overlap."""

from __future__ import annotations

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.intervals import length, union_sorted
from gpuscope.measures import Context, LinkSums, peer_copies
from gpuscope.model.result import Link, Result
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities, clip, device_groups


def run(trace: Trace, options: Options) -> Result:
    """Measure every link that carried something, and every pair, over all devices of a process."""
    activities = Activities.of(trace, options.moving_ns)
    context = Context(trace, activities, options)
    activities = clip(activities, options.window_ns)
    copies = peer_copies(trace, activities)
    if not len(copies.start_ns):
        return Result()
    entries, groups = device_groups(copies)
    links = []
    for entry in entries:
        mine = copies.device == entry.device
        for link in np.unique(copies.link[mine]).tolist():
            rows = mine & (copies.link == link)
            start, end = copies.start_ns[rows], copies.end_ns[rows]
            some = end > start
            links.append(
                Link(
                    process=context.pid(entry),
                    src=link // 65536,
                    dst=link % 65536,
                    count=int(rows.sum()),
                    bytes=int(copies.size_bytes[rows].sum()),
                    work_ns=int((end - start).sum()),
                    busy_ns=length(union_sorted(start[some], end[some])),
                )
            )
    sums = LinkSums(context, copies, entries)
    sums.add(groups)
    pairs = tuple(pair for number in range(len(entries)) for pair in sums.pairs(number))
    return Result(links=tuple(links), link_pairs=pairs)


ANALYZER = Analyzer(
    name="links",
    summary="copies between devices by direction, and whether both directions overlap",
    needs=("operations",),
    lane="figures",
    run=run,
)
