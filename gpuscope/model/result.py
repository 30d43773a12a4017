"""What an analysis says: frozen dataclasses that mirror the JSON contract key by key.

Times are integer nanoseconds, ratios run from 0 to 1, and what does not apply is None. The fields
and their order are the keys of ``gpuscope analyze --json``; `gpuscope.model.codec` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuscope.model.exchange import Clock
from gpuscope.model.tables import Int64

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """Figures of one class in a scope."""

    count: int
    work_ns: int
    """Sum of the durations."""
    busy_ns: int
    """Length of the union."""
    exposed_ns: int | None
    """Busy time that lies under no kernel; None for kernels themselves."""
    bytes: int
    streams: int
    """Number of distinct (context, stream)."""
    transfer_ns: int | None = None
    """Communication kernels: the part of work_ns in which data moved; None when it cannot be
    told."""
    wait_ns: int | None = None
    """Communication kernels: the rest of work_ns, in which they waited for their peers."""
    transfer_exposed_ns: int | None = None
    """The part of the transfer that lies under no kernel."""
    wait_exposed_ns: int | None = None
    """The part of the waiting that lies under no kernel."""
    transfer_estimated: bool | None = None
    """Whether the transfer is the shortest of equal operation and bytes on this rank alone."""


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Overlap of two classes in a scope, ``a < b``."""

    a: str
    b: str
    overlap_ns: int | None
    overlap_ratio: float | None
    """overlap / min(busy a, busy b)."""
    ratio_limit: float | None
    """Largest ratio that the schedule allows; None: not judged."""
    rho: float | None
    """min(1, overlap_ratio / ratio_limit)."""
    hidden_ratio_a: float | None
    hidden_ratio_b: float | None
    a_under_any_b_ns: int | None
    b_under_any_a_ns: int | None
    uncertainty_ns: int | None
    verdict: str
    """overlapped, pipelined, partial, serialized, immaterial or inconclusive."""
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """The time during which exactly `classes` were active; none of them is idle time."""

    classes: tuple[str, ...]
    ns: int


@dataclass(frozen=True, slots=True)
class ClassConcurrency:
    """How many operations of one class ran at once."""

    mean: float | None
    """work / busy."""
    peak: int


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many streams were active at once."""

    streams_ns: Mapping[str, int]
    """Time with exactly k streams active, by ``str(k)``, k from 1."""
    peak: int
    classes: Mapping[str, ClassConcurrency]


@dataclass(frozen=True, slots=True)
class MpiFigures:
    """MPI calls of the host against the work of a device."""

    count: int
    busy_ns: int
    """Time with any thread in a call."""
    gpu_busy_ns: int
    """The part of it during which anything ran on the device, whichever range launched it."""
    gpu_idle_ns: int


@dataclass(frozen=True, slots=True)
class Phases:
    """What a range that communicates spent its time on: busy times, which may overlap."""

    compute_ns: int
    """Time with any kernel that does not pack."""
    pack_ns: int
    """Time with any kernel that packs or unpacks, by its name."""
    transfer_ns: int
    """Time with any copy between host and device or two devices, or communication kernel whose
    data moved."""
    transfer_hidden_ns: int
    """The part of it under kernels that do not pack."""
    transfer_exposed_ns: int
    """The rest of it."""
    mpi_ns: int
    """Time of the host in MPI."""
    mpi_hidden_ns: int
    """The part of it under kernels that do not pack: waiting there moves nothing."""

    @property
    def hidden_ratio(self) -> float | None:
        """The share of the transfer that is hidden; None without any."""
        return self.transfer_hidden_ns / self.transfer_ns if self.transfer_ns else None


@dataclass(frozen=True, slots=True)
class GapKind:
    """The idle gaps between work of two classes, taken together."""

    before: str
    """Class of the operation that ended last before."""
    after: str
    """Class of the operation that started next."""
    count: int
    ns: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An operation beside an idle gap."""

    op_class: str
    name: str
    stream: int | None
    """Stream id as recorded; None for work of no stream."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One stretch in which nothing ran on the device."""

    start_ns: int
    """On the trace's clock."""
    ns: int
    before: Neighbour
    """What ended last."""
    after: Neighbour
    """What started next."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The idle time of a scope, gap by gap."""

    count: int
    total_ns: int
    """The scope's idle_ns."""
    kinds: tuple[GapKind, ...]
    """All gaps by what surrounds them, the most time first; their times sum to total_ns."""
    largest: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One stream in a scope."""

    context: int
    stream: int
    """Stream id as recorded."""
    kind: str | None
    """``null``, ``blocking``, ``non-blocking``; None when the trace does not say."""
    priority: int | None
    count: int
    work_ns: int
    busy_ns: int
    idle_ns: int
    """span_ns of the scope less busy_ns."""
    classes: Mapping[str, int]
    """Number of operations by class."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine in a scope: a class, a direction between GPUs, or both where they share one."""

    engine: str
    """A class, ``p2p 0>1``, or ``d2h+h2d`` where the device has one copy engine."""
    count: int
    work_ns: int
    busy_ns: int
    idle_ns: int
    """span_ns of the scope less busy_ns."""


@dataclass(frozen=True, slots=True)
class SizeRate:
    """Copies of one class and direction whose sizes lie between two powers of two."""

    from_bytes: int
    to_bytes: int
    """Exclusive."""
    count: int
    bytes: int
    work_ns: int
    busy_ns: int
    rate_bytes_per_s: float | None
    """bytes / busy_ns."""


@dataclass(frozen=True, slots=True)
class CopyRate:
    """What rate the copies of one class and direction reached."""

    op_class: str
    link: str | None
    """``0>1`` for copies between devices."""
    count: int
    bytes: int
    work_ns: int
    busy_ns: int
    rate_bytes_per_s: float | None
    """bytes / busy_ns: what went through while any such copy ran."""
    sizes: tuple[SizeRate, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """How much longer one kind of operation took beside other work than alone."""

    op_class: str
    name: str | None
    """Of kernels."""
    grid_blocks: int | None
    block_threads: int | None
    link: str | None
    """Of copies between devices."""
    from_bytes: int | None
    to_bytes: int | None
    """Of copies: the powers of two that their sizes lie between, the upper one exclusive."""
    alone_count: int
    """In the whole trace, on the device."""
    alone_ns: int
    """Sum of their durations."""
    alone_bytes: int
    overlapped_count: int
    """In the scope."""
    overlapped_ns: int
    overlapped_bytes: int
    expected_ns: int | None
    """What the overlapped ones would have taken alone: kernels by count, copies by bytes."""
    ratio: float | None
    """overlapped_ns / expected_ns; None where none ran alone in the trace."""


@dataclass(frozen=True, slots=True)
class ClassStretch:
    """The same over all kinds of a class."""

    overlapped_count: int
    overlapped_ns: int
    compared_ns: int
    """The part of overlapped_ns whose kind also ran alone in the trace."""
    expected_ns: int | None
    """What that part would have taken alone."""
    ratio: float | None
    """compared_ns / expected_ns."""
    reason: str | None
    """Why there is no ratio."""


@dataclass(frozen=True, slots=True)
class Contention:
    """What running beside other work cost the operations themselves."""

    classes: Mapping[str, ClassStretch]
    largest: tuple[Stretch, ...]
    """The kinds that lost the most time, most first."""


@dataclass(frozen=True, slots=True)
class Scope:
    """All figures of one (process, device) over one stretch of work."""

    span_ns: int
    busy_ns: int
    idle_ns: int
    serial_ns: int
    bound_ns: int
    """The largest engine busy: a floor if the chunks are independent."""
    schedule_bound_ns: int | None
    overlap_efficiency: float | None
    efficiency_note: str | None
    classes: Mapping[str, ClassFigures]
    pairs: tuple[PairFigures, ...]
    partition: tuple[Part, ...]
    concurrency: Concurrency
    gaps: Gaps | None = None
    streams: tuple[StreamFigures, ...] | None = None
    engines: tuple[EngineFigures, ...] | None = None
    rates: tuple[CopyRate, ...] | None = None
    contention: Contention | None = None
    mpi: MpiFigures | None = None
    phases: Phases | None = None
    """These are None where they were not asked for; phases also where nothing communicates."""

    def pair(self, a: str, b: str) -> PairFigures | None:
        """Return the pair of two classes in either order, or None when one is absent."""
        wanted = tuple(sorted((a, b)))
        return next((pair for pair in self.pairs if (pair.a, pair.b) == wanted), None)


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """The whole trace, or a window of it, on one device of one process."""

    process: int
    """Operating-system pid."""
    rank: int | None
    device: int
    name: str | None
    copy_engines: int | None
    scope: Scope


@dataclass(frozen=True, slots=True)
class InstanceSpread:
    """How the instances of a range differ in span."""

    median_ns: int
    mad_ns: int
    """Median absolute deviation from the median."""
    min_ns: int
    max_ns: int
    outliers: tuple[int, ...]
    """Numbers (from 0, in order of time) of the instances over 3 scaled MADs from the median."""


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """One instance of a range on one device."""

    index: int
    """Number of the instance among those that ran something on the device, by time, from 0."""
    start_ns: int
    """Start of the instance's first operation, on the trace's clock."""
    end_ns: int
    scope: Scope


@dataclass(frozen=True, slots=True)
class RangeResult:
    """All instances of an NVTX range on one device of one process, summed."""

    name: str
    path: str | None
    """``a/b`` with path scopes, else None."""
    instances: int
    """Instances with at least one operation on the device."""
    instances_total: int
    unattributed_ratio: float | None
    """Share of the operations launched in the windows of the instances, by any thread, that are
    not the instance's own."""
    process: int
    rank: int | None
    device: int
    scope: Scope
    link_pairs: tuple[LinkPair, ...]
    spread: InstanceSpread
    per_instance: tuple[InstanceResult, ...] | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """Copies from one device to another."""

    process: int
    src: int
    dst: int
    count: int
    bytes: int
    work_ns: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class LinkPair:
    """Overlap of two links of a process, over all its devices; a link is written ``0>1``."""

    process: int
    a: str
    b: str
    overlap_ns: int
    overlap_ratio: float | None
    turns: int
    """How often, in order of their starts, a copy goes another way than the one before it."""
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one kind: equal communicator, kernel, operation, bytes and peer.

    They are communication kernels, or copies between two GPUs.
    """

    communicator: str | None
    """Hexadecimal hash, the same on all ranks, from NCCL's payload; None where that is missing."""
    kernel: str
    operation: str | None
    """What NCCL was asked for, such as ``ncclAllReduce``, or ``copy GPU 0 > GPU 1``.

    The halves of a copy that the driver stages end in ``, to the host`` and ``, from the host``.
    None where NCCL's ranges are missing.
    """
    size_bytes: int | None
    """From NCCL's payload, None where the export lacks it; of a copy as recorded."""
    peer: int | None
    """The only peer or root."""
    count: int
    work_ns: int
    exposed_ns: int
    """The part of work_ns under no kernel of the device."""
    timed: int
    """Of how many of them transfer and waiting are known: the following is theirs."""
    transfer_ns: int | None
    wait_ns: int | None
    transfer_exposed_ns: int | None
    wait_exposed_ns: int | None
    late: Mapping[str, int] | None
    """How many of them each rank made the others wait for; None where ranks were not matched."""


@dataclass(frozen=True, slots=True)
class Message:
    """One communication kernel, or copy between two GPUs."""

    index: int
    """Its number on the rank, in the order of launches."""
    communicator: str | None
    kernel: str
    operation: str | None
    size_bytes: int | None
    start_ns: int
    work_ns: int
    exposed_ns: int
    transfer_ns: int | None
    wait_ns: int | None
    late: str | None
    """The rank that arrived last."""
    late_ns: int | None
    """How much later than the first one."""


@dataclass(frozen=True, slots=True)
class MpiCallFigures:
    """The MPI calls of one name of a process, against the work of a device if it used one."""

    name: str
    count: int
    size_bytes: int | None
    """Of all of them together; None where one does not tell."""
    work_ns: int
    """Sum of durations on the host."""
    gpu_busy_ns: int | None
    """The part of it during which anything ran on the device; None without one."""
    gpu_idle_ns: int | None


@dataclass(frozen=True, slots=True)
class Communication:
    """The messages of one device of one process, or the MPI calls of one that used none."""

    process: int
    rank: int | None
    device: int | None
    """None where nothing of the process ran on a GPU, or was recorded."""
    ranks: tuple[str, ...]
    """The ranks that were matched."""
    estimated: bool
    """Transfers are estimates from this rank alone."""
    reason: str | None
    """Why ranks, or some of the kernels, were not matched."""
    clock: Clock | None
    """How this report's clock stands to the first rank's."""
    messages: tuple[Messages, ...]
    """By kind, those that took the most time first."""
    worst: tuple[Message, ...]
    """Those that waited longest."""
    mpi: tuple[MpiCallFigures, ...]
    """The process's MPI calls by name, those that took the most time first."""
    per_message: tuple[Message, ...] | None = None
    """All one by one, in the order of launches; None unless asked for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause: what was observed, with evidence, and what to do about it."""

    id: str
    severity: str
    """``warning`` or ``info``."""
    process: int | None
    device: int | None
    range: str | None
    claim: str
    mechanism: str
    """What the operations waited for, as observed."""
    removable: str
    """``yes``, ``if-independent`` or ``unknown``."""
    evidence: Mapping[str, Any]
    """Windows, rows and numbers."""
    advice: str
    saving_ns: int | None
    """An upper bound unless removable is ``yes``; None when it cannot be estimated."""
    held: tuple[Int64, Int64] | None = field(default=None, compare=False, repr=False)
    """Starts and ends of the time that the saving is about, while an analysis is made: with it
    findings are held against each other. It is in no answer."""

    @classmethod
    def of_trace(
        cls,
        *,
        id: str,
        claim: str,
        mechanism: str,
        advice: str,
        evidence: Mapping[str, Any],
        severity: str = "info",
    ) -> Finding:
        """Return a finding about the whole trace, whose saving nobody can tell."""
        place = (None, None, None)
        return cls(id, severity, *place, claim, mechanism, "unknown", evidence, advice, None)


@dataclass(frozen=True, slots=True)
class Abstention:
    """An analyzer that could not look, and why."""

    analyzer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Addition:
    """Further figures of one scope, which another analyzer measures."""

    process: int
    device: int
    range: str | None
    """Path or name of the range; None for the device."""
    figures: Mapping[str, Any]
    """Values of fields of Scope."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one analyzer found; every analyzer fills the part it knows about."""

    devices: tuple[DeviceResult, ...] = ()
    ranges: tuple[RangeResult, ...] = ()
    links: tuple[Link, ...] = ()
    link_pairs: tuple[LinkPair, ...] = ()
    findings: tuple[Finding, ...] = ()
    abstained: tuple[Abstention, ...] = ()
    additions: tuple[Addition, ...] = ()
    communication: tuple[Communication, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What was analyzed."""

    path: str
    format: str
    tool_version: str | None
    duration_ns: int
    operations: int
    damaged: int
    lost_records: int | None
    notes: tuple[str, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    """Ranks of the same run without a trace; told with the first rank that has one."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The answer of all analyzers about one trace: the JSON contract."""

    trace: TraceSummary
    devices: tuple[DeviceResult, ...]
    ranges: tuple[RangeResult, ...]
    links: tuple[Link, ...]
    link_pairs: tuple[LinkPair, ...]
    findings: tuple[Finding, ...]
    abstained: tuple[Abstention, ...]
    communication: tuple[Communication, ...] = ()
    apart: str | None = None
    """Why the traces asked for together are not those of the ranks of one run, if so."""
    schema_version: int = SCHEMA_VERSION

    def ranges_named(self, name: str) -> tuple[RangeResult, ...]:
        """Return the entries of the range `name`, one a (process, device)."""
        return tuple(entry for entry in self.ranges if entry.name == name)


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """What a benchmark must show for one pair in one range, and what the trace shows."""

    range: str
    a: str
    b: str
    expected: str
    found: str | None
    """The verdict; None when the range or the pair is not in the trace."""
    ratio_limit: float | None
    rho: float | None
    reason: str
    met: bool | None
    """None: it cannot be judged."""
    least_rho: float | None = None
    """The rho that must be reached besides the verdict; None: the verdict is enough."""


@dataclass(frozen=True, slots=True)
class JudgedPeak:
    """How many operations of a class a benchmark must run in a range, and how many ran."""

    range: str
    op_class: str
    least: int
    most: int
    found: int | None
    """None when the range or the class is not in the trace."""
    reason: str
    met: bool | None
    """None: it cannot be judged."""
    counted: str = "at once"
    """What is counted: those ``at once`` at the peak, or all in ``an instance``."""


@dataclass(frozen=True, slots=True)
class JudgedPingPong:
    """Whether the copies of a class in a range must wait for each other, there and back."""

    range: str
    op_class: str
    copies: int
    """In each instance of the range."""
    expected: str
    """``a ping-pong`` or ``not a ping-pong``."""
    found: str | None
    """Likewise; None when the range or the class is not in the trace."""
    reason: str
    met: bool | None
    """None: it cannot be judged."""


@dataclass(frozen=True, slots=True)
class JudgedHidden:
    """What share of a range's transfers must lie under kernels that compute, and what does."""

    range: str
    least: float
    most: float
    found: float | None
    """Of the rank that is furthest off; None when the range is not in the trace."""
    reason: str
    met: bool | None
    """None: it cannot be judged."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a benchmark showed what it must show."""

    rows: tuple[JudgedPair | JudgedPeak | JudgedPingPong | JudgedHidden, ...]

    @property
    def met(self) -> bool:
        """Whether every expectation was met."""
        return all(row.met for row in self.rows)

    @property
    def cannot_judge(self) -> bool:
        """Whether an expectation could not be judged, and none failed."""
        return not self.met and all(row.met is not False for row in self.rows)
