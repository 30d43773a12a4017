"""What a run shows, instance by instance, as arrays: what two runs are compared by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpuscope.analysis import Options
from gpuscope.intervals import run_starts
from gpuscope.measures import Context, Totals
from gpuscope.model.classes import CLASSES, CODE
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities, Entry, Groups, RangeScopes, device_groups

Int64 = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]

ScopeKey = tuple[str | None, int, int]
"""Path (None: the whole trace), number of the process, and of the device among the process'."""

_NAMED = [CODE[name] for name in ("kernel", "comm", "fused", "graph")]
"""Classes whose operations are told apart by name; copies are by class."""
_OPAQUE = frozenset({"graph", "fused"})
"""Classes whose overlap says nothing."""
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class OperationSamples:
    """The operations of one name in one scope.

    Attributes
    ----------
    counts
        Shape (k,): how many each of the k instances has that have any.
    durations, starts
        Shape (m,): of each operation, by instance and start; the start from the scope's first
        operation.
    occurrence
        Shape (m,): its number in its instance, from 0.
    """

    counts: Int64
    durations: Int64
    starts: Int64
    occurrence: Int64

    def mean_starts(self, first: int) -> Float:
        """Return the mean start of the `first` operations of each instance: shape (k,)."""
        kept = np.where(self.occurrence < first, self.starts, 0)
        edges = np.cumsum(self.counts) - self.counts
        return np.add.reduceat(kept, edges) / np.minimum(self.counts, first)


@dataclass(frozen=True, slots=True)
class ScopeSamples:
    """One scope of one or several runs: arrays of a value an instance, NaN where it has none."""

    rank: int | None
    begin_ns: int
    """The first start of an operation, counted from its trace's first."""
    runs: Int64
    """Number of the run of each instance."""
    figures: Mapping[str, Float]
    """By name, as an expectation writes it."""
    operations: Mapping[tuple[str, str], OperationSamples]
    """By class and name."""

    def figure(self, name: str) -> Float:
        """Return a figure of every instance."""
        return self.figures.get(name, np.full(len(self.runs), np.nan))


@dataclass(slots=True)
class _Parts:
    """A scope's samples as they come: batch by batch, run by run."""

    rank: int | None
    begin_ns: int
    sizes: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    figures: list[dict[str, Float]] = field(default_factory=list)
    operations: dict[tuple[str, str], list[OperationSamples]] = field(default_factory=dict)

    def joined(self) -> ScopeSamples:
        names = dict.fromkeys(name for part in self.figures for name in part)
        return ScopeSamples(
            rank=self.rank,
            begin_ns=self.begin_ns,
            runs=np.repeat(self.runs, self.sizes),
            figures={
                name: np.concatenate(
                    [
                        part[name] if name in part else np.full(size, np.nan)
                        for part, size in zip(self.figures, self.sizes, strict=True)
                    ]
                )
                for name in names
            },
            operations={
                key: OperationSamples(
                    *(
                        np.concatenate([getattr(part, name) for part in parts])
                        for name in OperationSamples.__slots__
                    )
                )
                for key, parts in self.operations.items()
            },
        )


def device_places(trace: Trace) -> list[int]:
    """Return of each device its number, from 0, among those that its process used.

    Device numbers themselves differ from run to run where a scheduler hands the GPUs out.
    """
    used = np.zeros(len(trace.devices), np.bool_)
    if trace.operations is not None:
        used[np.unique(trace.operations.device)] = True
    places = []
    for index, device in enumerate(trace.devices):
        before = [
            other
            for number, other in enumerate(trace.devices)
            if number != index and used[number] and other.process == device.process
        ]
        places.append(sum(other.number < device.number for other in before))
    return places


def collect(traces: Sequence[Trace], options: Sequence[Options]) -> dict[ScopeKey, ScopeSamples]:
    """Return the samples of every scope of some repetitions of a run.

    The scopes are the ranges that `options` choose, by path, in the order of their beginning, and
    before them, if `options` choose none in particular, the whole traces.
    """
    found: dict[ScopeKey, _Parts] = {}
    for number, (trace, each) in enumerate(zip(traces, options, strict=True)):
        activities = Activities.of(trace)
        if not len(activities.start_ns):
            continue
        context = Context(trace, activities, each)
        for entries, groups in _batches(trace, activities, each):
            _add(found, number, context, activities, entries, groups)
    # The whole traces, then the ranges as they begin, the outer ones first.
    order = sorted(found, key=lambda key: (key[0] is not None, found[key].begin_ns, key[0] or ""))
    return {key: found[key].joined() for key in order}


def _batches(
    trace: Trace, activities: Activities, options: Options
) -> Iterator[tuple[Sequence[Entry], Groups]]:
    if not options.ranges:
        yield device_groups(activities)
    if trace.ranges is not None and trace.api is not None and len(trace.ranges):
        scopes = RangeScopes(trace, activities, options)
        for groups in scopes.batches():
            yield scopes.entries, groups


def _add(
    found: dict[ScopeKey, _Parts],
    run: int,
    context: Context,
    activities: Activities,
    entries: Sequence[Entry],
    groups: Groups,
) -> None:
    """Add the groups of a batch, each of which is an instance of its entry."""
    figures = _figures(context, activities, entries, groups)
    first = _first_starts(activities, groups)
    places = device_places(context.trace)
    keys: dict[int, ScopeKey] = {}
    for number in np.unique(groups.entry).tolist():
        entry = entries[number]
        device = context.trace.devices[entry.device]
        keys[number] = (entry.path, device.process, places[entry.device])
        mine = groups.entry == number
        begin = int(first[mine].min()) - context.trace.origin_ns
        parts = found.setdefault(keys[number], _Parts(context.rank(entry), begin))
        parts.begin_ns = min(parts.begin_ns, begin)
        parts.sizes.append(int(mine.sum()))
        parts.runs.append(run)
        parts.figures.append({name: values[mine] for name, values in figures.items()})
    for number, key, samples in _operations(context.trace, activities, groups):
        found[keys[number]].operations.setdefault(key, []).append(samples)


def _figures(
    context: Context, activities: Activities, entries: Sequence[Entry], groups: Groups
) -> dict[str, Float]:
    """Return every figure that is compared, a value a group."""
    single = Totals(context, [entries[number] for number in groups.entry.tolist()])
    alone = Groups(groups.rows, groups.first, np.arange(len(groups)), groups.instance)
    single.add(activities, alone)
    found: dict[str, Float] = {
        "span": single.span.astype(np.float64),
        "busy": single.busy.astype(np.float64),
        "idle": (single.span - single.busy).astype(np.float64),
        "delay": _delays(activities, groups),
    }
    names = context.names
    present, busy = single.count > 0, single.class_busy
    kernel = names.index("kernel") if "kernel" in names else None
    for i, name in enumerate(names):
        if name in {"kernel", "gate"}:
            continue
        exposed = busy[:, i]
        if kernel is not None and name != "fused":
            exposed = exposed - single.overlap[:, min(i, kernel), max(i, kernel)]
        found[f"exposed({name})"] = np.where(present[:, i], exposed, np.nan)
    for i, j in context.pairs:
        if {names[i], names[j]} & {*_OPAQUE, "gate"}:
            continue
        smaller = np.minimum(busy[:, i], busy[:, j])
        ratio = single.overlap[:, i, j] / np.maximum(smaller, 1)
        both = present[:, i] & present[:, j] & (smaller > 0)
        a, b = sorted((names[i], names[j]))
        found[f"overlap({a}, {b})"] = np.where(both, ratio, np.nan)
    return found


def _delays(activities: Activities, groups: Groups) -> Float:
    """Return the time from each group's first launch to its first operation; NaN if unknown."""
    on_gpu = activities.operation[groups.rows] >= 0
    launch = activities.launch_ns[groups.rows]
    launched = np.minimum.reduceat(np.where(on_gpu & (launch >= 0), launch, _FAR), groups.first)
    return np.where(launched < _FAR, _first_starts(activities, groups) - launched, np.nan)


def _first_starts(activities: Activities, groups: Groups) -> Int64:
    on_gpu = activities.operation[groups.rows] >= 0
    start = np.where(on_gpu, activities.start_ns[groups.rows], _FAR)
    return np.minimum.reduceat(start, groups.first)


def _operations(
    trace: Trace, activities: Activities, groups: Groups
) -> Iterator[tuple[int, tuple[str, str], OperationSamples]]:
    """Yield the operations of a batch by entry, class and name."""
    assert trace.operations is not None
    on_gpu = activities.operation[groups.rows] >= 0
    rows, group = groups.rows[on_gpu], groups.group_of_rows()[on_gpu]
    first = _first_starts(activities, groups)
    op_class = activities.op_class[rows].astype(np.int64)
    name = trace.operations.name[activities.operation[rows]].astype(np.int64)
    name = np.where(np.isin(op_class, _NAMED), name, -1)
    entry = groups.entry[group]
    order = np.lexsort((activities.start_ns[rows], group, name, op_class, entry))
    rows, group = rows[order], group[order]
    label = np.stack([entry, op_class, name])[:, order]
    start, end = activities.start_ns[rows], activities.end_ns[rows]
    edges = np.flatnonzero((np.diff(label, axis=1, prepend=-2) != 0).any(axis=0))
    for low, high in zip(edges.tolist(), [*edges[1:].tolist(), len(order)], strict=True):
        number, code, text = label[:, low].tolist()
        mine = group[low:high]
        begin = run_starts(mine)
        counts = np.diff(np.append(begin, len(mine)))
        samples = OperationSamples(
            counts=counts,
            durations=end[low:high] - start[low:high],
            starts=start[low:high] - first[mine],
            occurrence=np.arange(len(mine)) - np.repeat(begin, counts),
        )
        yield number, (CLASSES[code], trace.strings[text] if text >= 0 else CLASSES[code]), samples
