"""Details: idle gaps, streams, engines, rates, contention and MPI calls of devices and ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.batches import Batch
from gpuscope.contention import ContentionFigures, Kinds
from gpuscope.gaps import GapFigures
from gpuscope.lanes import LaneFigures
from gpuscope.model.result import Addition, Result
from gpuscope.model.trace import Trace
from gpuscope.mpi import MpiSums
from gpuscope.scopes import Activities, Entry, Groups, RangeScopes, clip, device_groups


def run(trace: Trace, options: Options) -> Result:
    """Measure what the scopes of `overlap` and `ranges` hold, beyond their overlap."""
    activities = Activities.of(trace, options.moving_ns)
    kinds = Kinds.of(trace, activities)
    windowed = clip(activities, options.window_ns) if options.window_ns else activities
    entries, groups = device_groups(windowed)
    found = _measure(trace, kinds, windowed, entries, [groups])
    if trace.api is not None and trace.ranges is not None:
        scopes = RangeScopes.of(trace, activities, options)
        found += _measure(trace, kinds, activities, scopes.entries, scopes.batches())
    return Result(additions=tuple(found))


def _measure(
    trace: Trace,
    kinds: Kinds,
    activities: Activities,
    entries: Sequence[Entry],
    batches: Iterable[Groups],
) -> list[Addition]:
    devices = [trace.devices[entry.device] for entry in entries]
    single_engine = np.array([device.copy_engines == 1 for device in devices], np.bool_)
    gaps = GapFigures(trace, activities, len(entries))
    lanes = LaneFigures(trace, activities, single_engine)
    contention = ContentionFigures(kinds, trace, activities, len(entries))
    mpi = MpiSums(activities, entries)
    for groups in batches:
        mpi.add(groups)
        batch = Batch.of(activities, groups, len(entries))
        for figures in (gaps, lanes, contention):
            figures.add(batch)
    columns: dict[str, Sequence[object]] = {
        "gaps": gaps.results(),
        "streams": lanes.streams(),
        "engines": lanes.engines(),
        "rates": lanes.rates(),
        "contention": contention.results(),
        "mpi": mpi.results(),
    }
    return [
        Addition(
            process=trace.processes[device.process].pid,
            device=device.number,
            range=entry.path or entry.name,
            figures={name: column[number] for name, column in columns.items()},
        )
        for number, (entry, device) in enumerate(zip(entries, devices, strict=True))
    ]


ANALYZER = Analyzer(
    name="details",
    lane="figures",
    summary="idle gaps, streams, engines, copy rates, and what sharing cost the operations",
    needs=("operations",),
    uses=("api", "ranges", "mpi", "kernel_configs"),
    run=run,
    completes=("overlap", "ranges"),
)
