"""Overlap: the exact figures and verdicts of every device, over the trace or a window of it."""

from __future__ import annotations

from gpuscope.analysis import Analyzer, Options
from gpuscope.measures import Context, Totals
from gpuscope.model.result import DeviceResult, Result
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities, clip, device_entries, device_pieces


def run(trace: Trace, options: Options) -> Result:
    """Measure every device on which something ran, whole or in ``options.window_ns``."""
    activities = Activities.of(trace, options.moving_ns)
    context = Context(trace, activities, options)
    activities = clip(activities, options.window_ns)
    entries = device_entries(activities)
    totals = Totals(context, entries)
    for number, entry in enumerate(entries):
        totals.add_pieces(number, device_pieces(activities, entry.device))
    results = []
    for number, entry in enumerate(entries):
        device = trace.devices[entry.device]
        results.append(
            DeviceResult(
                process=context.pid(entry),
                rank=context.rank(entry),
                device=device.number,
                name=device.name,
                copy_engines=device.copy_engines,
                scope=totals.scope(number),
            )
        )
    return Result(devices=tuple(results))


ANALYZER = Analyzer(
    name="overlap",
    summary="what ran at the same time on each device: figures and verdicts",
    needs=("operations",),
    uses=("mpi",),
    lane="devices",
    run=run,
)
