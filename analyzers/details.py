"""Details: idle gaps, streams, engines, rates, contention and MPI calls of devices and ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.batches import Batch, device_batches
from gpuscope.contention import ContentionFigures, Kinds
from gpuscope.gaps import GapFigures
from gpuscope.lanes import LaneFigures
from gpuscope.model.result import Addition, Result
from gpuscope.model.trace import Trace
from gpuscope.mpi import MpiSums
from gpuscope.scopes import Activities, Entry, RangeScopes, addition, clip, device_groups


def run(trace: Trace, options: Options) -> Result:
    """Measure what the scopes of `overlap` and `ranges` hold, beyond their overlap."""
    activities = Activities.of(trace, options.moving_ns)
    kinds = Kinds.of(trace, activities)
    windowed = clip(activities, options.window_ns)
    entries, groups = device_groups(windowed)
    devices = _Figures(trace, kinds, windowed, entries, clipped=options.window_ns is not None)
    devices.mpi.add(groups)
    for number, batch in device_batches(windowed, groups, len(entries)):
        devices.gaps.add_piece(number, batch)
        devices.lanes.add(batch)
        devices.contention.add(batch)
    devices.lanes.add_span(devices.gaps.between_ns)
    found = devices.additions()
    if trace.api is not None and trace.ranges is not None:
        scopes = RangeScopes.of(trace, activities, options)
        ranges = _Figures(trace, kinds, activities, scopes.entries)
        for part in scopes.batches():
            batch = Batch.of(activities, part, len(scopes.entries))
            ranges.mpi.add(part)
            ranges.gaps.add(batch)
            ranges.lanes.add(batch)
            ranges.contention.add(batch)
        found += ranges.additions()
    return Result(additions=tuple(found))


class _Figures:
    """All that is measured here, of some entries."""

    def __init__(
        self,
        trace: Trace,
        kinds: Kinds,
        activities: Activities,
        entries: Sequence[Entry],
        *,
        clipped: bool = False,
    ) -> None:
        self._trace, self._entries = trace, entries
        engines = [trace.devices[entry.device].copy_engines for entry in entries]
        single = np.array([count == 1 for count in engines], np.bool_)
        self.gaps = GapFigures(trace, activities, len(entries))
        self.lanes = LaneFigures(trace, activities, single, clipped=clipped)
        self.contention = ContentionFigures(kinds, trace, activities, len(entries))
        self.mpi = MpiSums(activities, entries)

    def additions(self) -> list[Addition]:
        """Return the figures of every entry."""
        columns: dict[str, Sequence[object]] = {
            "gaps": self.gaps.results(),
            "streams": self.lanes.streams(),
            "engines": self.lanes.engines(),
            "rates": self.lanes.rates(),
            "contention": self.contention.results(),
            "mpi": self.mpi.results(),
        }
        return [
            addition(self._trace, entry, {name: column[number] for name, column in columns.items()})
            for number, entry in enumerate(self._entries)
        ]


ANALYZER = Analyzer(
    name="details",
    lane="devices",
    summary="idle gaps, streams, engines, copy rates, and what sharing cost the operations",
    needs=("operations",),
    uses=("api", "ranges", "mpi", "kernel_configs"),
    run=run,
    completes=("overlap", "ranges"),
)
