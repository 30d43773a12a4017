"""Checks of whether a recording can be trusted: what each looked at, and what it saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuscope import intervals
from gpuscope.model.classes import CODE
from gpuscope.model.tables import STAGED, Int64, Operations, Ranges
from gpuscope.units import NS_PER_S, counted, format_ns, format_ratio

OK = "ok"
WARNING = "warning"
UNKNOWN = "unknown"

OVERHEAD_SHARE = 0.1
"""Share of the time with operations from which on the profiler's own work is worth a word."""
COARSE_CLOCK_NS = 1_000
"""Common step of all times from which on the clock is coarse."""
HOST_LINK_BYTES_PER_S = 500_000_000_000
"""More than any link between GPU and host carries one way: NVLink-C2C 450 GB/s, PCIe 6 x16 121."""
MIN_TIMES = 16
"""Fewer operations than these may share a step by chance."""
PROFILER_OVERHEAD = "profiler overhead"
"""Name of the check on the profiler's own work."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a recording."""

    name: str
    state: str
    """``ok``, ``warning``, or ``unknown``: the recording does not say."""
    text: str
    """What was seen, and what follows from it."""


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What the profiler said of its own recording."""

    errors: int
    """Messages of the severity "error"."""
    incomplete: bool
    """It may have lost events."""
    unsupported: bool
    """The driver is newer than it knows."""
    unfinished: bool
    """It started, and never stopped."""


def lost_records(lost: int | None) -> Check:
    """Check that GPU records are there for the calls that launched kernels."""
    name = "lost records"
    if lost is None:
        return Check(name, UNKNOWN, "no GPU work or no CUDA API calls to hold against each other")
    if lost:
        return Check(
            name,
            WARNING,
            f"about {counted(lost, 'kernel launch', 'kernel launches')} left no GPU record: busy "
            "times and overlap are too low",
        )
    return Check(name, OK, "every kernel launch left its GPU record")


def lost_text(lost: int) -> str:
    """Say how many, in the middle of a text: ``about 2 GPU records were lost while recording``."""
    return f"about {counted(lost, 'GPU record was', 'GPU records were')} lost while recording"


def lacking(damaged: int, lost: int | None) -> list[str]:
    """Say what of a recording is missing: damaged rows, and records that were lost; if any."""
    said = [f"{counted(damaged, 'damaged row')} left out"] if damaged else []
    return [*said, lost_text(lost)] if lost else said


def whole_graphs(operations: Operations | None) -> Check:
    """Check that CUDA graphs were traced node by node."""
    name = "CUDA graphs"
    if operations is None:
        return Check(name, UNKNOWN, "no GPU work was recorded")
    count = int((operations.op_class == CODE["graph"]).sum())
    if count:
        return Check(
            name,
            WARNING,
            f"{counted(count, 'launch was', 'launches were')} traced whole, "
            f"{'its' if count == 1 else 'their'} inside is unknown: record with "
            "--cuda-graph-trace=node",
        )
    return Check(name, OK, "none traced whole")


def peer_copies(operations: Operations | None) -> Check:
    """Check that copies between GPUs which the driver staged through the host were recorded whole.

    Seen on an H200: of a large one a trace has the first piece alone, with the bytes of all.
    """
    name = "peer copies"
    if operations is None:
        return Check(name, UNKNOWN, "no GPU work was recorded")
    # The leg that arrives has the bytes of the copy, the one that leaves has none.
    arrived = (operations.flags & STAGED != 0) & (operations.size_bytes > 0)
    count = int(arrived.sum())
    if not count:
        return Check(name, OK, "none went through the host")
    spent_ns = (operations.end_ns - operations.start_ns)[arrived]
    least_ns = operations.size_bytes[arrived] * (NS_PER_S / HOST_LINK_BYTES_PER_S)
    short = int((spent_ns < least_ns).sum())
    how = "that went through the host, without peer access (cudaDeviceEnablePeerAccess)"
    if short:
        return Check(
            name,
            WARNING,
            f"{short} of {count} copies {how}, were recorded in their first piece alone: busy "
            "times and overlap are too low",
        )
    return Check(name, OK, f"{count} copies {how}")


def nvtx(ranges: Ranges | None) -> Check:
    """Check that there are NVTX ranges."""
    if not ranges:
        return Check(
            "NVTX ranges", WARNING, "none: record with -t nvtx, and annotate the program's phases"
        )
    return Check("NVTX ranges", OK, f"{len(ranges)} recorded")


def open_ranges(ranges: Ranges | None) -> Check:
    """Check that ranges ended."""
    name = "open ranges"
    if ranges is None:
        return Check(name, UNKNOWN, "no NVTX ranges were recorded")
    count = int((ranges.end_ns < 0).sum())
    if count:
        return Check(
            name, WARNING, f"{count} NVTX ranges never ended: left out of the figures of ranges"
        )
    return Check(name, OK, "every NVTX range ended")


def profiler_overhead(operations: Operations | None, start_ns: Int64, end_ns: Int64) -> Check:
    """Check that the profiler did little of its own while the GPU had work.

    Parameters
    ----------
    operations
        The GPU work; its window is from the first start to the last end.
    start_ns, end_ns
        The profiler's own work, shape (n,), in any order.
    """
    name = PROFILER_OVERHEAD
    if not operations:
        return Check(name, UNKNOWN, "no GPU work was recorded")
    first, last = int(operations.start_ns[0]), int(operations.end_ns.max())
    start, end = np.clip(start_ns, first, last), np.clip(end_ns, first, last)
    spent = intervals.length(intervals.union(start, end))
    if spent > OVERHEAD_SHARE * (last - first):
        return Check(
            name,
            WARNING,
            f"for {format_ns(spent)} of the {format_ns(last - first)} from the first operation to "
            f"the last ({format_ratio(spent / (last - first))}) the profiler was at work in the "
            "program's threads: gaps may be its own; record a longer or a later part",
        )
    return Check(name, OK, f"{format_ns(spent)} of the {format_ns(last - first)} with operations")


def clock_step_ns(operations: Operations | None) -> int | None:
    """Return the common step of all times; None where they are too few to tell one."""
    if operations is None or len(operations) < MIN_TIMES:
        return None
    return intervals.common_step(operations.start_ns, operations.end_ns)


def clock(operations: Operations | None) -> Check:
    """Check that times are fine enough."""
    name = "clock"
    step = clock_step_ns(operations)
    if step is None:
        return Check(name, UNKNOWN, "too few operations to tell the clock's step")
    state = WARNING if step >= COARSE_CLOCK_NS else OK
    return Check(name, state, f"all times are multiples of {format_ns(step)}")


def recording(diagnostics: Diagnostics | None, lost: int | None) -> Check:
    """Check what the profiler said of its own recording.

    That events may be missing is nothing to say where every launch left its record.
    """
    name = "recording"
    if diagnostics is None:
        return Check(name, UNKNOWN, "the profiler wrote no messages down")
    said = []
    if diagnostics.unfinished:
        said.append("the recording broke off before it was stopped")
    if diagnostics.incomplete and lost != 0:
        said.append("the profiler may not have collected every event")
    if diagnostics.unsupported:
        said.append("the driver is newer than this profiler supports: use a newer Nsight Systems")
    if diagnostics.errors:
        errors = counted(diagnostics.errors, "error: see it", "errors: see them")
        said.append(f"the profiler reported {errors} in its own page")
    return Check(name, WARNING if said else OK, "; ".join(said) or "started and stopped as asked")


def damage(damaged: Mapping[str, int]) -> Check:
    """Check that no row had to be left out."""
    if damaged:
        listed = ", ".join(f"{key} {count} ×" for key, count in damaged.items())
        return Check("damaged rows", WARNING, f"left out: {listed}")
    return Check("damaged rows", OK, "none")


NOTED = ("open ranges", "peer copies", "recording")
"""Checks whose warnings go with every analysis; of the others, figures and findings speak."""
