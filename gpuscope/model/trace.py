"""The trace: everything read from one report, frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuscope.model.classes import CODE, COPY_CLASSES
from gpuscope.model.quality import Check
from gpuscope.model.tables import (
    ApiCalls,
    EventRecords,
    KernelConfigs,
    MpiCalls,
    Operations,
    Ranges,
    StackFrames,
    SyncRecords,
    in_classes,
)

RUN_TRACES = ("trace.sqlite", "trace.nsys-rep")
"""What a run folder's trace is called, best first."""
NULL_STREAM = "null"
BLOCKING = "blocking"
NON_BLOCKING = "non-blocking"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the report."""

    pid: int
    name: str | None
    rank: int | None
    """MPI rank, from the data; None when the trace does not say."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of a process."""

    process: int
    """Index into Trace.processes."""
    tid: int
    name: str | None


@dataclass(frozen=True, slots=True)
class SmLimits:
    """What a streaming multiprocessor holds at once; by default the most that any does.

    A grid that fills the largest of them is sure to fill the real ones.
    """

    threads: int = 2048
    blocks: int = 32
    registers: int = 65_536
    shared_bytes: int = 233_472


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as one process sees it."""

    process: int
    """Index into Trace.processes."""
    number: int
    """CUDA device number as recorded."""
    name: str | None
    copy_engines: int | None
    """Number of asynchronous copy engines; None when unknown."""
    sm_count: int | None
    hardware: str
    """Identity of the GPU within the report: equal for two processes on one GPU."""
    sm_limits: SmLimits = SmLimits()


@dataclass(frozen=True, slots=True)
class Stream:
    """A CUDA stream; (process, device, context, number) is its identity."""

    process: int
    """Index into Trace.processes."""
    device: int
    """Index into Trace.devices."""
    context: int
    number: int
    """Stream id as recorded."""
    priority: int | None
    kind: str | None
    """``null``, ``blocking`` or ``non-blocking``; None when the trace does not say."""
    part: int | None = None
    """Number of the green context that it is of; None: it has the whole GPU."""
    part_sm_count: int | None = None
    """Multiprocessors of that green context; None when unknown."""

    @property
    def label(self) -> str:
        """Short name, such as ``stream 14`` or ``null stream 7``."""
        return f"null stream {self.number}" if self.kind == NULL_STREAM else f"stream {self.number}"


@dataclass(frozen=True, slots=True)
class Category:
    """The name of an NVTX category, which is a number of its domain."""

    process: int
    """Index into Trace.processes."""
    domain: int
    """Index into Trace.strings; -1 the default domain."""
    number: int
    name: str


RECORDERS = {"nsys-sqlite": "Nsight Systems", "cupti-sqlite": "gpuscope through CUPTI"}
"""What recorded a trace, by its format."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One report, read. Arrays must not be written to."""

    path: str
    format: str
    """What was read, and so who recorded it: a key of :data:`RECORDERS`."""
    tool_version: str | None
    """Version of the tool that captured it, where known; else of the one that exported it."""
    schema_version: str | None
    strings: tuple[str, ...]
    """Names, referred to by index."""
    processes: tuple[Process, ...]
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    streams: tuple[Stream, ...]
    operations: Operations | None
    """None when the report has no GPU table at all."""
    api: ApiCalls | None = None
    ranges: Ranges | None = None
    mpi: MpiCalls | None = None
    syncs: SyncRecords | None = None
    event_records: EventRecords | None = None
    kernel_configs: KernelConfigs | None = None
    stacks: StackFrames | None = None
    damaged: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Rows dropped, counted by table and reason."""
    lost_records: int | None = None
    """Estimate of GPU records that were lost while recording; None when it cannot be told."""
    start_utc_ns: int | None = None
    """UTC time of the clock's zero, in ns since 1970; None when not recorded."""
    system: str | None = None
    """Operating system as recorded, such as ``Ubuntu 24.04.3 LTS``."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Captured environment variables that the causes need."""
    categories: tuple[Category, ...] = ()
    """The NVTX categories that the program gave names."""
    notes: tuple[str, ...] = ()
    """What the reader noticed: sentences for the user."""
    missing_ranks: tuple[int, ...] = ()
    """Ranks of the same run without a trace; told with the first rank that has one."""
    checks: tuple[Check, ...] = ()
    """Whether the recording can be trusted, of the tables that were read."""

    def rows_of(self, *names: str) -> Operations:
        """Return the operations of the classes `names`, in order."""
        operations = self.operations or Operations.empty()
        codes = np.array([CODE[name] for name in names], np.uint8)
        return operations.take(in_classes(operations.op_class, codes))

    @property
    def kernels(self) -> Operations:
        """Compute and communication kernels."""
        return self.rows_of("kernel", "comm", "fused")

    @property
    def copies(self) -> Operations:
        """Copies of every direction."""
        return self.rows_of(*COPY_CLASSES)

    @property
    def memsets(self) -> Operations:
        """Device memory sets."""
        return self.rows_of("memset")

    @property
    def range_names(self) -> set[str]:
        """Names of the NVTX ranges."""
        names = np.unique(self.ranges.name).tolist() if self.ranges else ()
        return {self.strings[name] for name in names}

    @property
    def duration_ns(self) -> int:
        """Time from the first operation's start to the last one's end; 0 without operations."""
        if not self.operations:
            return 0
        return int(self.operations.end_ns.max() - self.operations.start_ns[0])

    @property
    def origin_ns(self) -> int:
        """Start of the first operation on the trace's clock; 0 without operations."""
        if not self.operations:
            return 0
        return int(self.operations.start_ns[0])

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From when to when the GPU worked or the host was in MPI; None where neither is known."""
        found = [table for table in (self.operations, self.mpi) if table is not None and len(table)]
        if not found:
            return None
        return (
            min(int(table.start_ns.min()) for table in found),
            max(int(table.end_ns.max()) for table in found),
        )


def shown_name(path: Path) -> str:
    """Return what people call a trace: the run folder that it lies in, else its file's name."""
    in_run = path.name in RUN_TRACES and path.parent.name
    return path.parent.name if in_run else path.name


def told_apart(ranks: Sequence[Set[int | None]]) -> list[int]:
    """Return the rank of each of several traces, none where these do not tell them apart.

    Parameters
    ----------
    ranks
        Of each trace the MPI ranks of its processes.
    """
    known = [rank for each in ranks if len(each) == 1 for rank in each if rank is not None]
    return known if len(ranks) > 1 and len(set(known)) == len(ranks) else []


def ranks_of(traces: Sequence[Trace]) -> list[int]:
    """Return the MPI rank of each of several traces, none where these do not tell them apart."""
    return told_apart([{process.rank for process in trace.processes} for trace in traces])


def shown_names(traces: Sequence[Trace]) -> list[str]:
    """Return what tells traces from each other: their MPI ranks, else their names."""
    ranks = ranks_of(traces)
    if ranks:
        return [f"rank {rank}" for rank in ranks]
    return [shown_name(Path(trace.path)) for trace in traces]


def run_of_ranks(traces: Sequence[Trace]) -> Path | None:
    """Return the folder of the run whose ranks several traces are, None where there is none."""
    paths = [Path(trace.path) for trace in traces]
    folders = {path.parent.parent for path in paths if path.name in RUN_TRACES}
    of_ranks = len(traces) > 1 and all(path.parent.name.startswith("rank") for path in paths)
    return min(folders) if of_ranks and len(folders) == 1 else None


def shown_title(traces: Sequence[Trace]) -> str:
    """Return what people call the traces of one page: the run whose ranks they are, or each."""
    folder = run_of_ranks(traces)
    if folder is not None:
        return f"{folder.name}: {len(traces)} ranks"
    return " + ".join(shown_name(Path(trace.path)) for trace in traces)
