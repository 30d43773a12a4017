"""Ranges: the exact figures and verdicts of every NVTX range, over all its instances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.measures import Context, LinkSums, Totals, peer_copies
from gpuscope.model.result import InstanceResult, LinkPair, RangeResult, Result
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities, Entry, Groups, RangeScopes


def run(trace: Trace, options: Options) -> Result:
    """Measure the ranges that `options` ask for, in the order of their first operation."""
    activities = Activities.of(trace, options.moving_ns)
    context = Context(trace, activities, options)
    scopes = RangeScopes.of(trace, activities, options)
    totals = Totals(context, scopes.entries)
    with ThreadPoolExecutor(1) as beside:
        for groups in scopes.batches():
            totals.add(activities, groups, beside)
        totals.finish()
    link_pairs = _link_pairs(context, activities, options)
    instances: dict[int, list[InstanceResult]] = {}
    if options.instances:
        instances = _instances(context, activities, scopes, totals)
    results = [
        RangeResult(
            name=entry.name or "",
            path=entry.path,
            instances=totals.instance_count(number),
            instances_total=entry.instances_total,
            unattributed_ratio=entry.unattributed_ratio,
            process=context.pid(entry),
            rank=context.rank(entry),
            device=trace.devices[entry.device].number,
            scope=totals.scope(number),
            link_pairs=link_pairs.get((_label(entry), trace.devices[entry.device].process), ()),
            spread=totals.spread(number),
            per_instance=tuple(instances.get(number, ())) if options.instances else None,
        )
        for number, entry in enumerate(scopes.entries)
    ]
    order = sorted(
        range(len(results)),
        key=lambda i: (totals.first_start[i], -results[i].scope.span_ns, results[i].name),
    )
    return Result(ranges=tuple(results[i] for i in order))


ANALYZER = Analyzer(
    name="ranges",
    summary="the same for every NVTX range, over its instances, and each instance",
    needs=("operations", "api", "ranges"),
    uses=("mpi",),
    lane="figures",
    run=run,
)


def _label(entry: Entry) -> str:
    return entry.path or entry.name or ""


def _link_pairs(
    context: Context, activities: Activities, options: Options
) -> dict[tuple[str, int], tuple[LinkPair, ...]]:
    """Return the overlaps of links in each range, by (name or path, process index)."""
    copies = peer_copies(context.trace, activities)
    if not len(copies.start_ns):
        return {}
    scopes = RangeScopes(context.trace, copies, options)
    sums = LinkSums(context, copies, scopes.entries)
    for groups in scopes.batches():
        sums.add(groups)
    return {
        (_label(entry), context.trace.devices[entry.device].process): sums.pairs(number)
        for number, entry in enumerate(scopes.entries)
    }


def _instances(
    context: Context, activities: Activities, scopes: RangeScopes, totals: Totals
) -> dict[int, list[InstanceResult]]:
    """Compute the scope of every single instance: each group is an entry of its own."""
    found: dict[int, list[InstanceResult]] = {}
    for groups in scopes.batches():
        entries = [scopes.entries[number] for number in groups.entry.tolist()]
        single = Totals(context, entries)
        alone = Groups(groups.rows, groups.first, np.arange(len(groups)), groups.instance)
        single.add(activities, alone)
        for number, (entry, instance) in enumerate(
            zip(groups.entry.tolist(), groups.instance.tolist(), strict=True)
        ):
            start = int(single.first_start[number])
            scope = single.scope(number)
            found.setdefault(entry, []).append(
                InstanceResult(
                    index=totals.instance_index(entry, instance),
                    start_ns=start,
                    end_ns=start + scope.span_ns,
                    scope=scope,
                )
            )
    for results in found.values():
        results.sort(key=lambda result: result.index)
    return found
