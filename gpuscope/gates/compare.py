"""Two runs against each other: what changed, and what is only noise.

Ranges are matched by path, processes by rank or else by their order, operations by name and
occurrence. Figures are compared by the medians over instances (or over runs, where there are
enough): a difference counts if its bootstrap interval leaves out zero, if it exceeds the spread of
the samples, and if it is large enough to matter. Fewer samples than that takes leave it unclear;
they never make it noise.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.errors import CannotJudgeError
from gpuscope.gates.figures import COUNT, RATIO, TIME
from gpuscope.gates.grammar import causes_of
from gpuscope.measures import MAD_SCALE
from gpuscope.model.classes import CLASSES
from gpuscope.model.comparison import (
    BETTER,
    CHANGED,
    NOISE,
    REAL,
    SAME,
    SMALL,
    UNCLEAR,
    WORSE,
    CauseChange,
    Change,
    Comparison,
    OperationChange,
    ScopeChange,
)
from gpuscope.model.result import Analysis, Finding, Scope
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities, Entry, Groups, RangeScopes, device_groups

Int64 = npt.NDArray[np.int64]

MIN_SAMPLES = 5
"""Fewer samples on a side give no interval: the median of four can be any of them by chance."""
FEW_RANGES = 3.0
"""Two to four samples a side show a difference if it is this many times the range of either."""
MIN_EFFECT = 1.0
"""A difference counts from the spread (scaled MAD) of the samples on."""
SMALL_SHARE = 0.02
"""A time that changes by less of its scope's span does not matter; nor does an operation's that
changes by less of itself: from process to process they differ by up to that much."""
SMALL_RATIO = 0.02
"""A ratio that changes by less does not matter."""
SMALL_DURATION_NS = 200
"""An operation's duration that changes by less is a step or two of the GPU's clock."""
SMALL_MOVE_NS = 10_000_000
"""Operations that start later by more than this have moved, however long the scope is."""
SMALL_DELAY_NS = 20_000
"""So much later after its launch an operation may start from process to process."""
RESAMPLES = 2_000
INTERVAL = (0.025, 0.975)
_SEED = 20_240_229
_KERNELS = frozenset({"kernel", "comm", "fused", "graph"})

_Key = tuple[str | None, int, int]
"""Path (None: the whole trace), number of the process, device."""


@dataclass(slots=True)
class _Operation:
    """The operations of one name in one scope: a list entry an instance that has any."""

    counts: list[int] = field(default_factory=list)
    durations: list[Int64] = field(default_factory=list)
    starts: list[Int64] = field(default_factory=list)


@dataclass(slots=True)
class _Samples:
    """What one side shows of one scope, an entry an instance."""

    rank: int | None
    scopes: list[Scope] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    """Number of the run of each instance."""
    delays: list[int] = field(default_factory=list)
    """From the first launch to the first operation, of the instances whose launches are known."""
    operations: dict[tuple[str, str], _Operation] = field(default_factory=dict)


@dataclass(slots=True)
class _Side:
    """One side of the comparison."""

    samples: dict[_Key, _Samples] = field(default_factory=dict)
    findings: dict[tuple[str, str | None, int | None, int | None], list[Finding]] = field(
        default_factory=dict
    )
    runs: int = 0
    blind: set[str] = field(default_factory=set)


def compare(
    before: Sequence[Trace],
    after: Sequence[Trace],
    options: Sequence[Options],
    *,
    paths: Sequence[str] = (),
) -> Comparison:
    """Compare two runs, or two sets of repetitions.

    Parameters
    ----------
    before, after
        One trace or several repetitions.
    options
        Of each trace, those of `before` first.
    paths
        Paths or globs of the ranges to compare; empty: all, and the whole trace.

    Raises
    ------
    CannotJudgeError
        The two have no scope in common.
    """
    sides = (_Side(), _Side())
    each = iter(options)
    for side, traces in zip(sides, (before, after), strict=True):
        for trace in traces:
            _add(side, trace, dataclasses.replace(next(each), ranges=tuple(paths), by_path=True))
    old, new = sides
    keys = list(dict.fromkeys([*old.samples, *new.samples]))
    if not any(key in old.samples and key in new.samples for key in keys):
        msg = "the two have no range and no device in common: there is nothing to compare."
        raise CannotJudgeError(msg)
    scopes = tuple(_scope_change(key, old.samples.get(key), new.samples.get(key)) for key in keys)
    causes = tuple(_cause_changes(old, new))
    return Comparison(
        before=tuple(trace.path for trace in before),
        after=tuple(trace.path for trace in after),
        outcome=_outcome(scopes, causes),
        scopes=scopes,
        causes=causes,
        notes=tuple(_notes(before, after, sides)),
    )


def _outcome(scopes: Sequence[ScopeChange], causes: Sequence[CauseChange]) -> str:
    found = {change.outcome for scope in scopes for change in scope.changes}
    appeared = any(scope.state != "both" for scope in scopes) or any(
        operation.state != "both" for scope in scopes for operation in scope.operations
    )
    if found & REAL or causes or appeared:
        return CHANGED
    if UNCLEAR in found:
        return UNCLEAR
    return NOISE if found - {SAME} else "identical"


def _notes(
    before: Sequence[Trace], after: Sequence[Trace], sides: tuple[_Side, _Side]
) -> Iterator[str]:
    for trace in (*before, *after):
        damaged = sum(trace.damaged.values())
        if damaged:
            yield f"{trace.path}: {damaged} damaged rows were left out"
        if trace.lost_records:
            yield f"{trace.path}: about {trace.lost_records} GPU records were lost"
    for name in sorted(sides[0].blind ^ sides[1].blind):
        yield f"{name} could look at one side only: its causes are not compared"
    gpus = [
        {device.name for trace in traces for device in trace.devices} for traces in (before, after)
    ]
    if gpus[0] != gpus[1]:
        yield "the two ran on different GPUs: times say little"


# ── collecting ───────────────────────────────────────────────────────────────────────────────────


def _add(side: _Side, trace: Trace, options: Options) -> None:
    """Add a run to a side."""
    by_path = [analyzer for analyzer in ANALYZERS if analyzer.name in {"overlap", "ranges"}]
    measured = run_all(trace, by_path, dataclasses.replace(options, instances=True))
    processes = {process.pid: number for number, process in enumerate(trace.processes)}
    if not options.ranges:
        for device in measured.devices:
            key: _Key = (None, processes[device.process], device.device)
            samples = side.samples.setdefault(key, _Samples(device.rank))
            samples.scopes.append(device.scope)
            samples.runs.append(side.runs)
    for entry in measured.ranges:
        key = (entry.path, processes[entry.process], entry.device)
        samples = side.samples.setdefault(key, _Samples(entry.rank))
        for instance in entry.per_instance or ():
            samples.scopes.append(instance.scope)
            samples.runs.append(side.runs)
    _add_operations(side, trace, options)
    causes = [analyzer for analyzer in ANALYZERS if causes_of(analyzer.name)]
    found = run_all(trace, causes, dataclasses.replace(options, by_path=False, ranges=()))
    side.blind |= {gone.analyzer for gone in found.abstained}
    _add_findings(side, found, processes)
    side.runs += 1


def _add_findings(side: _Side, found: Analysis, processes: Mapping[int, int]) -> None:
    seen = set()
    for finding in found.findings:
        process = None if finding.process is None else processes[finding.process]
        key = (finding.id, finding.range, process, finding.device)
        if key not in seen:
            side.findings.setdefault(key, []).append(finding)
        seen.add(key)


def _add_operations(side: _Side, trace: Trace, options: Options) -> None:
    activities = Activities.of(trace)
    if not len(activities.start_ns):
        return
    if not options.ranges:
        entries, groups = device_groups(activities)
        _add_groups(side, trace, activities, entries, groups)
    if trace.ranges is not None and trace.api is not None and len(trace.ranges):
        scopes = RangeScopes(trace, activities, options)
        for batch in scopes.batches():
            _add_groups(side, trace, activities, scopes.entries, batch)


def _add_groups(
    side: _Side, trace: Trace, activities: Activities, entries: Sequence[Entry], groups: Groups
) -> None:
    """Split the operations of every group, an instance of a scope, by name."""
    assert trace.operations is not None
    group = groups.group_of_rows()
    on_gpu = activities.operation[groups.rows] >= 0
    rows, group = groups.rows[on_gpu], group[on_gpu]
    start, end = activities.start_ns[rows], activities.end_ns[rows]
    first = np.full(len(groups), np.iinfo(np.int64).max)
    np.minimum.at(first, group, start)
    launch = activities.launch_ns[rows]
    launched = np.full(len(groups), np.iinfo(np.int64).max)
    np.minimum.at(launched, group[launch >= 0], launch[launch >= 0])
    op_class = activities.op_class[rows].astype(np.int64)
    name = trace.operations.name[activities.operation[rows]].astype(np.int64)
    kernel = np.isin(op_class, [i for i, text in enumerate(CLASSES) if text in _KERNELS])
    name = np.where(kernel, name, -1)
    for number in np.flatnonzero(launched < np.iinfo(np.int64).max).tolist():
        samples = side.samples[_key(trace, entries[int(groups.entry[number])])]
        samples.delays.append(int(first[number] - launched[number]))
    order = np.lexsort((start, name, op_class, group))
    columns = np.stack([group, op_class, name])[:, order]
    start, end = start[order], end[order]
    edges = np.flatnonzero((np.diff(columns, axis=1, prepend=-2) != 0).any(axis=0)).tolist()
    for low, high in zip(edges, [*edges[1:], len(order)], strict=True):
        number, code, text = columns[:, low].tolist()
        key = _key(trace, entries[int(groups.entry[number])])
        label = trace.strings[text] if text >= 0 else CLASSES[code]
        operation = side.samples[key].operations.setdefault((CLASSES[code], label), _Operation())
        operation.counts.append(high - low)
        operation.durations.append(end[low:high] - start[low:high])
        operation.starts.append(start[low:high] - first[number])


def _key(trace: Trace, entry: Entry) -> _Key:
    device = trace.devices[entry.device]
    return entry.path, device.process, device.number


# ── comparing ────────────────────────────────────────────────────────────────────────────────────


def _scope_change(key: _Key, old: _Samples | None, new: _Samples | None) -> ScopeChange:
    path, process, device = key
    one = old or new
    assert one is not None
    both = old is not None and new is not None
    return ScopeChange(
        path=path,
        rank=one.rank,
        process=process,
        device=device,
        state="both" if both else "gone" if old else "new",
        instances_before=len(old.scopes) if old else 0,
        instances_after=len(new.scopes) if new else 0,
        figures=tuple(_figure_changes(old, new)) if old and new else (),
        operations=tuple(_operation_changes(old, new)) if old and new else (),
    )


def _figure_changes(old: _Samples, new: _Samples) -> Iterator[Change]:
    """Yield span, busy and idle time, delay, what is exposed, and the overlap of every pair."""
    floor = SMALL_SHARE * statistics.median(scope.span_ns for scope in old.scopes)
    for name in ("span", "busy", "idle"):
        values = [[getattr(scope, f"{name}_ns") for scope in side.scopes] for side in (old, new)]
        yield _judge(name, TIME, old, new, *values, floor=floor, better=-1)
    delays = [np.array(side.delays) for side in (old, new)]
    late = max(SMALL_DELAY_NS, min(floor, SMALL_MOVE_NS))
    yield _compared("delay", TIME, *delays, floor=late, better=0)
    for op_class in _present(old, new):
        values = [[_exposed(scope, op_class) for scope in side.scopes] for side in (old, new)]
        if any(value is not None for side in values for value in side):
            yield _judge(f"exposed({op_class})", TIME, old, new, *values, floor=floor, better=-1)
    pairs = [(p.a, p.b) for side in (old, new) for scope in side.scopes for p in scope.pairs]
    for a, b in dict.fromkeys(sorted(pairs)):
        values = [[_overlap(scope, a, b) for scope in side.scopes] for side in (old, new)]
        if any(value is not None for side in values for value in side):
            yield _judge(
                f"overlap({a}, {b})", RATIO, old, new, *values, floor=SMALL_RATIO, better=1
            )


def _present(old: _Samples, new: _Samples) -> Iterable[str]:
    return dict.fromkeys(name for side in (old, new) for s in side.scopes for name in s.classes)


def _exposed(scope: Scope, op_class: str) -> int | None:
    found = scope.classes.get(op_class)
    return found.exposed_ns if found else None


def _overlap(scope: Scope, a: str, b: str) -> float | None:
    pair = scope.pair(a, b)
    return pair.overlap_ratio if pair else None


def _operation_changes(old: _Samples, new: _Samples) -> Iterator[OperationChange]:
    span = statistics.median(scope.span_ns for scope in old.scopes)
    for op_class, name in dict.fromkeys([*old.operations, *new.operations]):
        one, other = (side.operations.get((op_class, name)) for side in (old, new))
        counts = [
            [*(found.counts if found else ()), *[0] * (len(side.scopes) - _count(found))]
            for found, side in ((one, old), (other, new))
        ]
        count = _judge("count", COUNT, old, new, *counts, floor=0, better=0)
        duration = start = None
        if one is not None and other is not None:
            durations = [np.concatenate(found.durations) for found in (one, other)]
            floor = max(SMALL_DURATION_NS, SMALL_SHARE * float(np.median(durations[0])))
            duration = _compared("duration", TIME, *durations, floor=floor, better=-1)
            shared = min(*one.counts, *other.counts)
            starts = [
                np.array([float(each[:shared].mean()) for each in found.starts])
                for found in (one, other)
            ]
            floor = min(SMALL_SHARE * span, SMALL_MOVE_NS)
            start = _compared("start", TIME, *starts, floor=floor, better=0)
        state = "both" if one and other else "gone" if one else "new"
        yield OperationChange(name, op_class, state, count, duration, start)


def _count(found: _Operation | None) -> int:
    return len(found.counts) if found else 0


def _judge(
    figure: str,
    kind: str,
    old: _Samples,
    new: _Samples,
    before: Sequence[float | None],
    after: Sequence[float | None],
    *,
    floor: float,
    better: int,
) -> Change:
    """Compare a figure that every instance may have, by instances or by runs."""
    samples = [_by_run(old, before), _by_run(new, after)]
    if min(map(len, samples)) < MIN_SAMPLES:
        samples = [[v for v in values if v is not None] for values in (before, after)]
    return _compared(figure, kind, *map(np.array, samples), floor=floor, better=better)


def _by_run(side: _Samples, values: Sequence[float | None]) -> list[float]:
    """Return the median of each run: runs differ more than the instances of one."""
    by_run: dict[int, list[float]] = {}
    for run, value in zip(side.runs, values, strict=True):
        if value is not None:
            by_run.setdefault(run, []).append(value)
    return [statistics.median(run) for run in by_run.values()]


def _compared(
    figure: str,
    kind: str,
    before: npt.NDArray[np.generic],
    after: npt.NDArray[np.generic],
    *,
    floor: float,
    better: int,
) -> Change:
    """Compare two samples.

    Parameters
    ----------
    floor
        Differences up to this do not matter.
    better
        1: more is better, -1: less is, 0: neither.
    """
    a, b = (np.sort(values.astype(np.float64)) for values in (before, after))
    blank = Change(figure, kind, _median(a), _median(b), len(a), len(b), None, None, None, SAME)
    difference = blank.difference
    if difference is None:
        return blank if not len(a) and not len(b) else dataclasses.replace(blank, outcome=CHANGED)
    if len(a) == len(b) and (a == b).all():
        return blank
    fewer = min(len(a), len(b))
    enough = fewer >= MIN_SAMPLES
    low, high = _interval(a, b)
    spread = max(_scaled_mad(a), _scaled_mad(b))
    effect = abs(difference) / spread if spread else None
    most_apart = FEW_RANGES * max(float(np.ptp(a)), float(np.ptp(b)))
    if abs(difference) <= floor:
        outcome = SMALL if difference else NOISE
    elif enough and (low <= 0 <= high or (effect is not None and effect < MIN_EFFECT)):
        outcome = NOISE
    elif not enough and kind != COUNT and (fewer < 2 or abs(difference) <= most_apart):
        outcome = UNCLEAR
    else:
        outcome = {0: CHANGED, 1: BETTER, -1: WORSE}[better * (1 if difference > 0 else -1)]
    known = (low, high) if enough else (None, None)
    return dataclasses.replace(blank, low=known[0], high=known[1], effect=effect, outcome=outcome)


def _median(values: npt.NDArray[np.float64]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _scaled_mad(values: npt.NDArray[np.float64]) -> float:
    return MAD_SCALE * float(np.median(np.abs(values - np.median(values))))


def _interval(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return where 95 % of the bootstrapped differences of medians lie; the same every time.

    The k-th smallest of n values drawn from n sorted ones is the one at the k-th smallest of n
    uniform numbers, which is distributed as Beta(k, n - k + 1): no sample is drawn in full.
    """
    random = np.random.default_rng(_SEED)
    medians = [_drawn_medians(values, random) for values in (a, b)]
    low, high = np.quantile(medians[1] - medians[0], INTERVAL)
    return float(low), float(high)


def _drawn_medians(
    values: npt.NDArray[np.float64], random: np.random.Generator
) -> npt.NDArray[np.float64]:
    n = len(values)
    k = (n + 1) // 2
    at = np.ceil(random.beta(k, n - k + 1, RESAMPLES) * n).astype(np.int64) - 1
    return values[np.clip(at, 0, n - 1)]


# ── causes ───────────────────────────────────────────────────────────────────────────────────────


def _cause_changes(old: _Side, new: _Side) -> Iterator[CauseChange]:
    """Yield the causes that most runs of one side have and at most half of the other's."""
    blind = {cause for name in old.blind | new.blind for cause in causes_of(name)}
    for key in dict.fromkeys([*old.findings, *new.findings]):
        id, range_, process, device = key
        before, after = (side.findings.get(key, []) for side in (old, new))
        had, has = len(before) > old.runs / 2, len(after) > new.runs / 2
        if had == has or id in blind:
            continue
        ranks = {
            samples.rank
            for k, samples in (*old.samples.items(), *new.samples.items())
            if k[1] == process
        }
        yield CauseChange(
            id=id,
            range=range_,
            rank=ranks.pop() if len(ranks) == 1 else None,
            process=process,
            device=device,
            state="appeared" if has else "vanished",
            runs_before=len(before),
            runs_after=len(after),
            claim=(after or before)[0].claim,
        )
