"""Schedule: the longest path through what the program itself put in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuscope.analysis import Analyzer, Options
from gpuscope.batches import Batch
from gpuscope.cases import USES, Case
from gpuscope.model.result import Addition, Result
from gpuscope.model.trace import Trace
from gpuscope.schedule import Orders, ScheduleBounds
from gpuscope.scopes import Activities, Entry, Groups, RangeScopes, addition, clip, device_groups


def run(trace: Trace, options: Options) -> Result:
    """Find the schedule bound of every scope of `overlap` and `ranges`."""
    orders = Orders(Case.of(trace, options))
    activities = Activities.of(trace, options.moving_ns)
    windowed = clip(activities, options.window_ns)
    entries, groups = device_groups(windowed)
    found = _bounds(trace, orders, windowed, entries, [groups])
    if trace.ranges is not None:
        scopes = RangeScopes.of(trace, activities, options)
        found += _bounds(trace, orders, activities, scopes.entries, scopes.batches())
    return Result(additions=tuple(found))


def _bounds(
    trace: Trace,
    orders: Orders,
    activities: Activities,
    entries: Sequence[Entry],
    batches: Iterable[Groups],
) -> list[Addition]:
    bounds = ScheduleBounds(trace, orders, activities, len(entries))
    for groups in batches:
        bounds.add(Batch.of(activities, groups, len(entries)))
    return [
        addition(trace, entry, {"schedule_bound_ns": bound})
        for entry, bound in zip(entries, bounds.results(), strict=True)
    ]


ANALYZER = Analyzer(
    name="schedule",
    lane="schedule",
    summary="how short each scope could be in the order that the program gave its work",
    needs=("operations", "api"),
    uses=USES,
    run=run,
    completes=("overlap", "ranges"),
)
