"""Two runs against each other: what changed, and what is only noise.

Ranges are matched by path, processes by rank or else by their order, operations by name and
occurrence. Figures are compared by the medians over instances (or over runs, where there are
enough): a difference counts if its bootstrap interval leaves out zero, if it exceeds the spread of
the samples, and if it is large enough to matter. Fewer samples than that takes leave it unclear;
they never make it noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.errors import CannotJudgeError
from gpuscope.gates.figures import COUNT, RATIO, TIME
from gpuscope.gates.grammar import causes_of
from gpuscope.gates.samples import (
    Float,
    Int64,
    OperationSamples,
    ScopeKey,
    ScopeSamples,
    collect,
    device_places,
)
from gpuscope.measures import MAD_SCALE
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
from gpuscope.model.quality import lacking
from gpuscope.model.result import Finding
from gpuscope.model.trace import Trace

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

_CauseKey = tuple[str, str | None, int | None, int | None]
"""Cause, range, number of the process, and of the device among the process'."""


@dataclass(slots=True)
class _Causes:
    """What was found in the runs of one side."""

    findings: dict[_CauseKey, list[Finding]] = field(default_factory=dict)
    """The finding of each run that has it."""
    blind: set[str] = field(default_factory=set)
    """Analyzers that could not look."""


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
    options = [dataclasses.replace(each, ranges=tuple(paths), by_path=True) for each in options]
    split = len(before)
    old, new = collect(before, options[:split]), collect(after, options[split:])
    keys = list(dict.fromkeys([*old, *new]))
    if not any(key in old and key in new for key in keys):
        msg = "the two have no range and no device in common: there is nothing to compare."
        raise CannotJudgeError(msg)
    scopes = tuple(_scope_change(key, old.get(key), new.get(key)) for key in keys)
    sides = _causes(before, options[:split]), _causes(after, options[split:])
    ranks = {key[1]: _rank(old.get(key), new.get(key)) for key in keys}
    causes = tuple(_cause_changes(*sides, (len(before), len(after)), ranks))
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
    before: Sequence[Trace], after: Sequence[Trace], sides: tuple[_Causes, _Causes]
) -> Iterator[str]:
    for trace in (*before, *after):
        for note in lacking(sum(trace.damaged.values()), trace.lost_records):
            yield f"{trace.path}: {note}"
    for name in sorted(sides[0].blind ^ sides[1].blind):
        yield f"{name} could look at one side only: its causes are not compared"
    gpus = [
        {device.name for trace in traces for device in trace.devices} for traces in (before, after)
    ]
    if gpus[0] != gpus[1]:
        yield "the two ran on different GPUs: times say little"


# ── comparing ────────────────────────────────────────────────────────────────────────────────────


def _scope_change(key: ScopeKey, old: ScopeSamples | None, new: ScopeSamples | None) -> ScopeChange:
    path, process, device = key
    both = old is not None and new is not None
    return ScopeChange(
        path=path,
        rank=_rank(old, new),
        process=process,
        device=device,
        state="both" if both else "gone" if old else "new",
        instances_before=len(old.runs) if old else 0,
        instances_after=len(new.runs) if new else 0,
        figures=tuple(_figure_changes(old, new)) if old and new else (),
        operations=tuple(_operation_changes(old, new)) if old and new else (),
    )


def _rank(old: ScopeSamples | None, new: ScopeSamples | None) -> int | None:
    """Return the rank that a scope is of, None where it is of another on each side."""
    ranks = {side.rank for side in (old, new) if side is not None}
    return ranks.pop() if len(ranks) == 1 else None


def _figure_changes(old: ScopeSamples, new: ScopeSamples) -> Iterator[Change]:
    """Yield span, busy and idle time, delay, what is exposed, and the overlap of every pair."""
    floor = SMALL_SHARE * float(np.median(old.figures["span"]))
    for name in dict.fromkeys([*old.figures, *new.figures]):
        values = old.figure(name), new.figure(name)
        if np.isnan(values[0]).all() and np.isnan(values[1]).all():
            continue
        if name.startswith("overlap("):
            yield _judge(name, RATIO, old, new, *values, floor=SMALL_RATIO, better=1)
        elif name == "delay":
            late = max(SMALL_DELAY_NS, min(floor, SMALL_MOVE_NS))
            yield _judge(name, TIME, old, new, *values, floor=late, better=0)
        else:
            yield _judge(name, TIME, old, new, *values, floor=floor, better=-1)


def _operation_changes(old: ScopeSamples, new: ScopeSamples) -> Iterator[OperationChange]:
    span = float(np.median(old.figures["span"]))
    for op_class, name in dict.fromkeys([*old.operations, *new.operations]):
        one, other = (side.operations.get((op_class, name)) for side in (old, new))
        counts = [_counts(found, len(side.runs)) for found, side in ((one, old), (other, new))]
        count = _compared("count", COUNT, *counts, floor=0, better=0)
        duration = start = None
        if one is not None and other is not None:
            floor = max(SMALL_DURATION_NS, SMALL_SHARE * float(np.median(one.durations)))
            duration = _compared(
                "duration", TIME, one.durations, other.durations, floor=floor, better=-1
            )
            shared = int(min(one.counts.min(), other.counts.min()))
            starts = one.mean_starts(shared), other.mean_starts(shared)
            floor = min(SMALL_SHARE * span, SMALL_MOVE_NS)
            start = _compared("start", TIME, *starts, floor=floor, better=0)
        state = "both" if one and other else "gone" if one else "new"
        yield OperationChange(name, op_class, state, count, duration, start)


def _counts(found: OperationSamples | None, instances: int) -> Int64:
    """Return how many operations each instance has, those without any included."""
    counts = np.empty(0, np.int64) if found is None else found.counts
    return np.append(counts, np.zeros(instances - len(counts), np.int64))


def _judge(
    figure: str,
    kind: str,
    old: ScopeSamples,
    new: ScopeSamples,
    before: Float,
    after: Float,
    *,
    floor: float,
    better: int,
) -> Change:
    """Compare a figure that every instance may have, by instances or by runs."""
    samples = _by_run(old.runs, before), _by_run(new.runs, after)
    if min(map(len, samples)) < MIN_SAMPLES:
        samples = before[~np.isnan(before)], after[~np.isnan(after)]
    return _compared(figure, kind, *samples, floor=floor, better=better)


def _by_run(runs: Int64, values: Float) -> Float:
    """Return the median of each run: runs differ more than the instances of one."""
    known = ~np.isnan(values)
    runs, values = runs[known], values[known]
    return np.array([np.median(values[runs == run]) for run in np.unique(runs).tolist()])


def _compared(
    figure: str,
    kind: str,
    before: Int64 | Float,
    after: Int64 | Float,
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


def _median(values: Float) -> float | None:
    return float(np.median(values)) if len(values) else None


def _scaled_mad(values: Float) -> float:
    return MAD_SCALE * float(np.median(np.abs(values - np.median(values))))


def _interval(a: Float, b: Float) -> tuple[float, float]:
    """Return where 95 % of the bootstrapped differences of medians lie; the same every time.

    The k-th smallest of n values drawn from n sorted ones is the one at the k-th smallest of n
    uniform numbers, which is distributed as Beta(k, n - k + 1): no sample is drawn in full.
    """
    random = np.random.default_rng(_SEED)
    medians = [_drawn_medians(values, random) for values in (a, b)]
    low, high = np.quantile(medians[1] - medians[0], INTERVAL)
    return float(low), float(high)


def _drawn_medians(values: Float, random: np.random.Generator) -> Float:
    n = len(values)
    k = (n + 1) // 2
    at = np.ceil(random.beta(k, n - k + 1, RESAMPLES) * n).astype(np.int64) - 1
    return values[np.clip(at, 0, n - 1)]


# ── causes ───────────────────────────────────────────────────────────────────────────────────────


def _causes(traces: Sequence[Trace], options: Sequence[Options]) -> _Causes:
    """Look for the causes in every run of a side."""
    side = _Causes()
    analyzers = [analyzer for analyzer in ANALYZERS if causes_of(analyzer.name)]
    for trace, each in zip(traces, options, strict=True):
        found = run_all(trace, analyzers, dataclasses.replace(each, by_path=False, ranges=()))
        side.blind |= {gone.analyzer for gone in found.abstained}
        processes = {process.pid: number for number, process in enumerate(trace.processes)}
        places = {
            (trace.processes[device.process].pid, device.number): place
            for device, place in zip(trace.devices, device_places(trace), strict=True)
        }
        of_run: dict[_CauseKey, Finding] = {}
        for finding in found.findings:
            process = None if finding.process is None else processes[finding.process]
            place = None
            if finding.process is not None and finding.device is not None:
                place = places[finding.process, finding.device]
            of_run.setdefault((finding.id, finding.range, process, place), finding)
        for key, finding in of_run.items():
            side.findings.setdefault(key, []).append(finding)
    return side


def _cause_changes(
    old: _Causes, new: _Causes, runs: tuple[int, int], ranks: Mapping[int, int | None]
) -> Iterator[CauseChange]:
    """Yield the causes that most runs of one side have and at most half of the other's."""
    blind = {cause for name in old.blind | new.blind for cause in causes_of(name)}
    for key in dict.fromkeys([*old.findings, *new.findings]):
        id, range_, process, device = key
        before, after = (side.findings.get(key, []) for side in (old, new))
        had, has = len(before) > runs[0] / 2, len(after) > runs[1] / 2
        if had == has or id in blind:
            continue
        yield CauseChange(
            id=id,
            range=range_,
            rank=None if process is None else ranks.get(process),
            process=process,
            device=device,
            state="appeared" if has else "vanished",
            runs_before=len(before),
            runs_after=len(after),
            claim=(after or before)[0].claim,
        )
