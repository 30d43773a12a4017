"""Time how long it takes to tell what every operation waited for, in one process, without reading.

Usage: python -m tests.perf.bench_waits [--operations 1e6] [--runs 5] [TRACE ...]

Shipped traces are repeated, one copy behind the other, until they have so many operations: their
streams, events and waits are those of real programs.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuscope import samples
from gpuscope.model.tables import Table
from gpuscope.model.trace import Trace
from gpuscope.readers import open_trace
from gpuscope.waits import Waits

_TRACES = ("event_dependency", "null_stream_work", "connections_limit", "training", "hyperq")
_TABLES = ("operations", "api", "syncs", "event_records", "kernel_configs")
_SHIFTED = ("start_ns", "end_ns")


def repeated(trace: Trace, operations: int) -> Trace:
    """Return a trace with at least so many operations: `trace` again and again."""
    assert trace.operations is not None
    assert trace.api is not None
    times = -(-operations // len(trace.operations))
    tables = {name: getattr(trace, name) for name in _TABLES}
    present = {name: table for name, table in tables.items() if table is not None}
    last = max(int(t.end_ns.max()) for t in present.values() if hasattr(t, "end_ns") and len(t))
    first = int(min(trace.operations.start_ns[0], trace.api.start_ns[0]))
    steps = {
        **dict.fromkeys(_SHIFTED, last - first + 1),
        "launch": len(trace.api),
        "operation": len(trace.operations),
        "correlation": _beyond(present, "correlation"),
        "event_sync": _beyond(present, "event_sync"),
    }
    longer: dict[str, Any] = {n: _tiled(table, times, steps) for n, table in present.items()}
    return dataclasses.replace(trace, **longer)


def _beyond(tables: Mapping[str, Table], name: str) -> int:
    """Return a number that is above all in the columns of one name."""
    columns = [table.columns()[name] for table in tables.values() if name in table.columns()]
    return max((int(column.max(initial=0)) for column in columns), default=0) + 1


def _tiled(table: Table, times: int, steps: dict[str, int]) -> Table:
    columns = {}
    for name, column in table.columns().items():
        tiled = np.tile(column, times)
        if name in steps:
            shift = np.repeat(np.arange(times) * steps[name], len(column)).astype(column.dtype)
            tiled = np.where(tiled >= 0, tiled + shift, tiled)
        columns[name] = tiled
    return type(table)(**columns)


def main() -> None:
    """Print a line for each trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", nargs="*", default=_TRACES, help="shipped traces, by name")
    parser.add_argument("--operations", type=float, default=1e6)
    parser.add_argument("--runs", type=int, default=5, help="the best of so many counts")
    args = parser.parse_args()
    print(f"{'':<20}{'operations':>12}{'calls':>12}{'waits':>10}{'wall s':>8}{'cpu s':>8}")
    for name in args.traces:
        trace = repeated(open_trace(samples.path(name)), int(args.operations))
        assert trace.operations is not None
        assert trace.api is not None
        taken = []
        for _ in range(args.runs):
            begun, used = time.perf_counter(), time.process_time()
            waits = Waits.of(trace)
            taken.append((time.perf_counter() - begun, time.process_time() - used))
        wall, cpu = (min(column) for column in zip(*taken, strict=True))
        print(
            f"{name:<20}{len(trace.operations):>12,}{len(trace.api):>12,}{waits.waits_total:>10,}"
            f"{wall:>8.2f}{cpu:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
