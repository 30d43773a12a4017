"""Holding expectations against traces.

An expectation is met, not met, or cannot be judged. Nothing passes silently: a range, class or
table that is not there, lost or damaged records, a GPU that others used meanwhile, launches of
other threads that the range misses, and a clock too coarse to decide all end in "cannot judge".
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscope.analysis import Analyzer, Options, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.analyzers.not_seen import MAX_MISSED_SHARE
from gpuscope.cases import LIBRARY_DOMAINS, SMALL_REGION_SHARE
from gpuscope.communication import apart
from gpuscope.gates.figures import (
    AbsentError,
    Figure,
    Value,
    exact_text,
    format_value,
    with_links,
)
from gpuscope.gates.grammar import Bound, Expectation, NoCause, ScopeName, causes_of
from gpuscope.measures import LOST_SHARE, Context
from gpuscope.model.gates import GateRow, Measurement, Verification
from gpuscope.model.quality import lacking
from gpuscope.model.result import Analysis, Finding, InstanceResult, Scope
from gpuscope.model.tables import Ranges
from gpuscope.model.trace import Trace
from gpuscope.scopes import Activities, Paths, did_you_mean, matches, nesting
from gpuscope.units import counted, format_ratio, visible

Bool = npt.NDArray[np.bool_]

CAUSES = tuple(cause for analyzer in ANALYZERS for cause in causes_of(analyzer.name))
"""Every cause that can be expected to be absent."""

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_COUNTS = frozenset({"count", "bytes", "instances", "unattributed"})
"""Figures that stay true where durations do not."""
_TENTHS = {"p10": 1, "p90": 9}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A scope that an expectation speaks of."""

    range: str | None
    process: int
    rank: int | None
    device: int
    scope: Scope
    instances: int | None = None
    missed_ratio: float | None = None
    per_instance: tuple[InstanceResult, ...] = ()


class _Judged:
    """One trace with its analyses, made when first asked for."""

    def __init__(self, trace: Trace, options: Options) -> None:
        self.trace = trace
        self.options = options
        self.devices = functools.cache(self._devices)
        self.ranges = functools.cache(self._ranges)
        self.findings = functools.cache(self._findings)

    @functools.cached_property
    def trouble(self) -> str | None:
        """Say why nothing in the trace can be judged, if so."""
        trace = self.trace
        if trace.operations is None:
            return "no GPU activity was recorded (record with -t cuda)"
        if not len(trace.operations):
            return "the trace holds no GPU work"
        damaged = sum(trace.damaged.values())
        if damaged > LOST_SHARE * (damaged + len(trace.operations)):
            return f"{counted(damaged, 'row of the trace is', 'rows of the trace are')} damaged"
        return self.context.trouble

    @functools.cached_property
    def context(self) -> Context:
        return Context(self.trace, Activities.of(self.trace), self.options)

    @functools.cached_property
    def shared(self) -> frozenset[tuple[int, int]]:
        """Return the (pid, device) whose GPU another process used meanwhile."""
        devices = [self.trace.devices[index] for index in self.context.shared_hardware]
        return frozenset((self.trace.processes[d.process].pid, d.number) for d in devices)

    def _run(self, options: Options, names: Iterable[str], trace: Trace | None = None) -> Analysis:
        wanted = set(names)
        analyzers = [analyzer for analyzer in ANALYZERS if analyzer.name in wanted]
        return run_all(trace or self.trace, analyzers, options)

    def _devices(self, schedule: bool = False) -> Analysis:
        return self._run(self.options, ("overlap", "links", *["schedule"] * schedule))

    def _ranges(
        self, pattern: str, by_path: bool, instances: bool, schedule: bool = False
    ) -> Analysis:
        options = dataclasses.replace(
            self.options, ranges=(pattern,), by_path=by_path, instances=instances
        )
        return self._run(options, ("ranges", *["schedule"] * schedule))

    def everywhere(self, pattern: str, by_path: bool) -> bool:
        """Return whether the range launched anything in any domain, asked for or not."""
        options = dataclasses.replace(self.options, ranges=(pattern,), by_path=by_path, domains=())
        return bool(self._run(options, ("ranges",)).ranges)

    def _findings(self, analyzer: str, pattern: str | None, by_path: bool) -> Analysis:
        """Run the analyzer with the ranges of a name, and what nests in them, as only ranges.

        A finding names the outermost range in which it matters: then it can be none outside.
        """
        trace, options = self.trace, self.options
        if pattern is not None and trace.ranges is not None:
            inside = inside_of(trace, pattern, by_path)
            trace = dataclasses.replace(trace, ranges=trace.ranges.take(inside))
            # Asked for by name, the frames of benchmarks are ranges like others.
            options = dataclasses.replace(options, ranges=("*",))
        return self._run(options, (analyzer,), trace)


def verify(
    traces: Sequence[Trace],
    expectations: Sequence[Expectation],
    options: Sequence[Options],
    *,
    attribute: str | None = None,
) -> Verification:
    """Hold expectations against the traces of one run.

    Parameters
    ----------
    traces
        The traces; each must meet every expectation.
    expectations
        What must hold.
    options
        Of each trace, the ratio limits and transfer times.
    attribute
        ``thread`` or ``process``: whose launches in a range's window belong to it. None: its
        thread's, but nothing is judged where these are too few.
    """
    judged = [
        _Judged(trace, dataclasses.replace(each, attribute=attribute or "thread"))
        for trace, each in zip(traces, options, strict=True)
    ]
    return Verification(
        traces=tuple(trace.path for trace in traces),
        rows=tuple(_row(each, judged, attribute) for each in expectations),
        notes=tuple(_notes(traces)),
    )


def _notes(traces: Sequence[Trace]) -> Iterable[str]:
    if reason := apart(traces):
        yield reason
    for trace in traces:
        for note in lacking(sum(trace.damaged.values()), trace.lost_records):
            yield f"{trace.path}: {note}"


def _row(expectation: Expectation, judged: Sequence[_Judged], attribute: str | None) -> GateRow:
    scopes: list[Measurement] = []
    for trace in judged:
        if trace.trouble is not None:
            scopes.append(_not_judged(trace, expectation.scope, trace.trouble))
        elif isinstance(expectation, NoCause):
            scopes.extend(_no_cause(expectation, trace, attribute))
        else:
            scopes.extend(_bound(expectation, trace, attribute))
    # A process or GPU that was selected need not be in every trace of the run.
    found = [scope for scope in scopes if scope.met is not None or scope.process is not None]
    if expectation.scope.selects and found:
        scopes = found
    deciding = min(scopes, key=lambda scope: {False: 0, None: 1, True: 2}[scope.met])
    several = len(scopes) > 1 and deciding.process is not None
    where = f" ({_where(deciding)}, one of {len(scopes)})" if several else ""
    return GateRow(
        expectation=expectation.text,
        source=expectation.source,
        met=deciding.met,
        text=deciding.text + where,
        scopes=tuple(scopes),
    )


def _where(scope: Measurement) -> str:
    name = [] if scope.range is None else [visible(scope.range)]
    who = f"rank {scope.rank}" if scope.rank is not None else f"process {scope.process}"
    return ", ".join([*name, who, *([] if scope.device is None else [f"GPU {scope.device}"])])


def _not_judged(trace: _Judged, name: ScopeName, reason: str) -> Measurement:
    """Return what stands for a scope that is not there."""
    return Measurement(trace.trace.path, name.pattern, text=reason)


# ── figures ──────────────────────────────────────────────────────────────────────────────────────


def _bound(bound: Bound, trace: _Judged, attribute: str | None) -> Iterable[Measurement]:
    schedule = bound.figure.name == "schedule_bound"
    entries, reason = _entries(bound.scope, trace, _is_statistic(bound), schedule)
    if not entries:
        return [_not_judged(trace, bound.scope, reason)]
    return [_measure(bound, trace, entry, attribute) for entry in entries]


def _entries(
    name: ScopeName, trace: _Judged, instances: bool = False, schedule: bool = False
) -> tuple[list[_Entry], str]:
    """Return the scopes that an expectation speaks of, or why there are none."""
    if name.pattern is None:
        analysis = trace.devices(schedule)
        entries = [
            _Entry(
                None,
                each.process,
                each.rank,
                each.device,
                with_links(
                    each.scope,
                    [link for link in analysis.links if link.process == each.process],
                    [pair for pair in analysis.link_pairs if pair.process == each.process],
                ),
            )
            for each in analysis.devices
        ]
        reason = (
            "nothing ran on a GPU"
            if trace.options.window_ns is None
            else "no GPU work lies in the window (--window)"
        )
    else:
        analysis = trace.ranges(name.pattern, name.by_path, instances, schedule)
        entries = [
            _Entry(
                each.path or each.name,
                each.process,
                each.rank,
                each.device,
                with_links(each.scope, (), each.link_pairs),
                each.instances,
                each.unattributed_ratio,
                each.per_instance or (),
            )
            for each in analysis.ranges
        ]
        reason = _no_range(trace, name)
    if analysis.abstained and not entries:
        reason = analysis.abstained[0].reason
    chosen = [entry for entry in entries if _selected(name, entry)]
    if entries and not chosen:
        there = ", ".join(sorted({_named(entry) for entry in entries}))
        reason = f"it is there, but only on {there}"
    return chosen, reason


def _is_statistic(bound: Bound) -> bool:
    """Whether the value is a statistic over the instances, not of all of them together."""
    if bound.statistic is not None:
        return bound.statistic != "total"
    return bound.figure.additive and bound.scope.pattern is not None


def _selected(name: ScopeName, entry: _Entry) -> bool:
    wanted = (name.process, name.rank, name.device)
    has = (entry.process, entry.rank, entry.device)
    return all(want is None or want == is_ for want, is_ in zip(wanted, has, strict=True))


def _named(entry: _Entry) -> str:
    rank = "" if entry.rank is None else f" (rank {entry.rank})"
    return f"process {entry.process}{rank} on GPU {entry.device}"


def _no_range(judged: _Judged, name: ScopeName) -> str:
    """Say that no range of the name launched anything, or that there is none at all."""
    trace, domains = judged.trace, judged.options.domains
    kind = "path" if name.by_path else "range"
    if trace.ranges is None:
        return "no NVTX ranges were recorded (record with -t nvtx)"
    assert name.pattern is not None
    if domains and judged.everywhere(name.pattern, name.by_path):
        listed = ", ".join(repr(domain) for domain in domains)
        return f"the {kind} {name.pattern!r} is there, but not in the domain {listed} (--domain)"
    if not name.by_path and named_rows(trace.ranges, trace.strings, name.pattern).any():
        return (
            f"the range {name.pattern!r} launched no GPU work on its own thread; "
            "--attribute process counts other threads' too"
        )
    hint = "" if name.by_path else did_you_mean(trace, name.pattern)
    return f"there is no {kind} {name.pattern!r} in the trace{hint}"


def _measure(bound: Bound, trace: _Judged, entry: _Entry, attribute: str | None) -> Measurement:
    """Judge an expectation in one scope."""
    where = (entry.range, entry.process, entry.rank, entry.device)
    blank = Measurement(trace.trace.path, *where)
    reason = _doubt(bound, trace, entry, attribute)
    if reason is not None:
        return dataclasses.replace(blank, text=reason)
    try:
        return _judge(bound, entry, blank)
    except AbsentError as error:
        return dataclasses.replace(blank, text=str(error))


def _doubt(bound: Bound, trace: _Judged, entry: _Entry, attribute: str | None) -> str | None:
    """Say why a figure of the scope, though it has one, cannot be trusted."""
    missed = None if bound.figure.of is None else _missed(entry, attribute)
    if missed is not None or bound.figure.name in _COUNTS:
        return missed
    if (entry.process, entry.device) in trace.shared:
        return "another process used this GPU meanwhile, perhaps in turns (no MPS is known)"
    return None if "graph" in bound.arguments else _opaque(entry)


def _missed(entry: _Entry, attribute: str | None) -> str | None:
    """Say that a range misses too much of what was launched in it, if so."""
    missed = entry.missed_ratio or 0.0
    if attribute is not None or missed <= MAX_MISSED_SHARE:
        return None
    return (
        f"other threads launched {format_ratio(missed)} of the work in its window: "
        "--attribute process counts it, --attribute thread leaves it out"
    )


def _opaque(entry: _Entry) -> str | None:
    """Say that there are graphs of which nothing is known, if so."""
    if "graph" not in entry.scope.classes:
        return None
    return "CUDA graphs were traced whole, so what ran inside is unknown"


def _judge(bound: Bound, entry: _Entry, blank: Measurement) -> Measurement:
    figure = bound.figure
    if isinstance(bound.limit, tuple):
        return _judge_verdict(bound, entry, blank)
    if not _is_statistic(bound):
        value = _value(figure, bound.arguments, entry)
        low, middle, high = float(value.low), _number(value.value), float(value.high)
        where, instance, count = "", None, None
    else:
        readings, missing = _readings(bound, entry)
        name = bound.statistic or "median"
        values = [_number(reading.value) for _, reading in readings]
        middle, position = _statistic(name, values, bound.comparison, bound.limit)
        low, high = (
            _statistic(name, [_number(end) for end in ends], bound.comparison, bound.limit)[0]
            for ends in zip(*((r.low, r.high) for _, r in readings), strict=True)
        )
        count = len(readings)
        instance = None if position is None else readings[position][0]
        where = _place(name, instance, count, missing)
    holds, limit = _HOLDS[bound.comparison], bound.limit
    met: bool | None = holds(middle, limit)
    text = _shown(figure, middle, limit, met) + where
    if holds(low, limit) != met or holds(high, limit) != met:
        met = None
        text += "; the clock's steps leave open whether it holds"
    return dataclasses.replace(
        blank, value=middle, instances=count, instance=instance, met=met, text=text
    )


def _judge_verdict(bound: Bound, entry: _Entry, blank: Measurement) -> Measurement:
    assert isinstance(bound.limit, tuple)
    verdict = str(_value(bound.figure, bound.arguments, entry).value)
    reason = next(
        pair.reason for pair in entry.scope.pairs if {pair.a, pair.b} == set(bound.arguments)
    )
    met: bool | None = (verdict in bound.limit) == (bound.comparison == "==")
    if verdict == "inconclusive" and "inconclusive" not in bound.limit:
        met = None
    return dataclasses.replace(blank, value=verdict, met=met, text=f"{verdict}: {reason}")


def _number(value: float | str) -> float:
    assert not isinstance(value, str)  # verdicts are judged apart
    return value


def _value(figure: Figure, arguments: Sequence[str], entry: _Entry) -> Value:
    if figure.of is None:
        known = {"instances": entry.instances, "unattributed": entry.missed_ratio}[figure.name]
        if known is None:
            msg = f"{figure.name} is not known here"
            raise AbsentError(msg)
        return Value(known, known, known)
    return figure.of(entry.scope, *arguments)


def _readings(bound: Bound, entry: _Entry) -> tuple[list[tuple[int, Value]], int]:
    """Return the figure of every instance that has it, and how many do not."""
    assert bound.figure.of is not None
    readings = []
    absent = None
    for instance in entry.per_instance:
        scope = instance.scope
        try:
            readings.append((instance.index, bound.figure.of(scope, *bound.arguments)))
        except AbsentError as error:
            absent = error
    if not readings:
        raise absent or AbsentError("none of its instances ran on the device")
    return readings, len(entry.per_instance) - len(readings)


def _statistic(
    name: str, values: Sequence[float], comparison: str, limit: float
) -> tuple[float, int | None]:
    """Return a statistic of the values, and which of them it is, None if it is none of them.

    ``worst`` is the value that is hardest to accept: the smallest for > and >=, the largest for <
    and <=, the farthest from the limit for ==, the nearest for !=; ``best`` is its opposite.
    Quantiles are by nearest rank, so that they are values that occurred; the median of an even
    number is the mean of the middle two.
    """
    if name == "median":
        return statistics.median(values), None
    order = sorted(range(len(values)), key=lambda i: values[i])
    if name in _TENTHS:
        position = order[math.ceil(_TENTHS[name] * len(values) / 10) - 1]
        return values[position], position
    margin: Callable[[int], float] = {
        ">": lambda i: values[i],
        "<": lambda i: -values[i],
        "=": lambda i: -abs(values[i] - limit),
        "!": lambda i: abs(values[i] - limit),
    }[comparison[0]]
    position = (min if name == "worst" else max)(order, key=margin)
    return values[position], position


def _place(name: str, instance: int | None, count: int, missing: int) -> str:
    """Say which instances a value speaks of."""
    without = f", {missing} more have none" if missing else ""
    if instance is None:
        return f", the {name} of {count} instances{without}" if count > 1 else without
    return f" in instance {instance}, the {name} of {count}{without}"


def _shown(figure: Figure, value: float, limit: float, met: bool | None) -> str:
    """Format a value; with all digits where it fails but would read like the limit."""
    text = format_value(figure.kind, value)
    if not met and text == format_value(figure.kind, limit) and value != limit:
        return exact_text(figure.kind, value)
    return text


# ── causes ───────────────────────────────────────────────────────────────────────────────────────


def _no_cause(expectation: NoCause, trace: _Judged, attribute: str | None) -> Iterable[Measurement]:
    name = expectation.scope
    entries, reason = _entries(name, trace)
    if not entries:
        return [_not_judged(trace, name, reason)]
    found: list[Measurement] = []
    blind: list[str] = []
    for analyzer in _analyzers(expectation.causes):
        analysis = trace.findings(analyzer.name, name.pattern, name.by_path)
        blind.extend(f"{a.analyzer} could not look: {a.reason}" for a in analysis.abstained)
        found.extend(
            Measurement(
                trace=trace.trace.path,
                range=finding.range,
                process=finding.process,
                rank=_rank(trace.trace, finding.process),
                device=finding.device,
                value=finding.id,
                met=False,
                text=f"{finding.id}: {finding.claim}",
            )
            for finding in analysis.findings
            if finding.id in expectation.causes and _is_in(finding, name)
        )
    found = [scope for scope in found if _meant(name, scope)]
    if found:
        return found
    blind.extend(_not_searched(name, trace, entries, attribute))
    if blind:
        return [_not_judged(trace, name, "; ".join(dict.fromkeys(blind)))]
    return [dataclasses.replace(_not_judged(trace, name, "not found"), met=True)]


def _is_in(finding: Finding, name: ScopeName) -> bool:
    """Whether a finding concerns the range; what concerns the whole trace concerns each range."""
    return name.pattern is None or finding.range is not None or finding.process is None


def _analyzers(causes: Sequence[str]) -> list[Analyzer]:
    return [a for a in ANALYZERS if set(causes_of(a.name)) & set(causes)]


def _rank(trace: Trace, pid: int | None) -> int | None:
    return next((process.rank for process in trace.processes if process.pid == pid), None)


def _meant(name: ScopeName, scope: Measurement) -> bool:
    """Whether a finding concerns the selected process and device; one about all does."""
    wanted = (name.process, name.rank, name.device)
    has = (scope.process, scope.rank, scope.device)
    return all(want is None or is_ in {None, want} for want, is_ in zip(wanted, has, strict=True))


def _not_searched(
    name: ScopeName, trace: _Judged, entries: Sequence[_Entry], attribute: str | None
) -> Iterable[str]:
    """Yield why causes may be in a scope though none was found."""
    for entry in entries:
        yield from filter(None, (_missed(entry, attribute), _opaque(entry)))
    if name.pattern is None:
        return
    if not _searchable(trace, name):
        yield "causes are not looked for in the ranges of libraries"
    whole = {(each.process, each.device): each.scope for each in trace.devices().devices}
    for entry in entries:
        scope, total = entry.scope, whole[entry.process, entry.device]
        if scope.span_ns < SMALL_REGION_SHARE * total.span_ns and (
            scope.serial_ns < SMALL_REGION_SHARE * total.serial_ns
        ):
            yield (
                f"it is under {format_ratio(SMALL_REGION_SHARE)} of what GPU {entry.device} did, "
                "too little to look for causes in"
            )


def _searchable(trace: _Judged, name: ScopeName) -> bool:
    """Whether some range of the name is one of the program, or of a domain that was asked for."""
    ranges = trace.trace.ranges
    assert ranges is not None
    assert name.pattern is not None
    rows = _matching(trace.trace, name.pattern, name.by_path)
    if not trace.options.domains:
        library = [i for i, text in enumerate(trace.trace.strings) if text in LIBRARY_DOMAINS]
        rows &= ~np.isin(ranges.domain, library)
    return bool(rows.any())


def named_rows(ranges: Ranges, strings: Sequence[str], pattern: str) -> Bool:
    """Return which ranges have a name, or match it as a glob."""
    fits = [row for row in np.unique(ranges.name).tolist() if matches(strings[row], [pattern])]
    return np.isin(ranges.name, fits)


def _matching(trace: Trace, pattern: str, by_path: bool) -> Bool:
    """Return which rows of the trace's ranges have a name, or a path."""
    ranges = trace.ranges
    assert ranges is not None
    if not by_path:
        return named_rows(ranges, trace.strings, pattern)
    paths = Paths(ranges, trace.strings)
    return np.isin(
        paths.number, [i for i, text in enumerate(paths.texts) if matches(text, [pattern])]
    )


def inside_of(trace: Trace, pattern: str, by_path: bool) -> Bool:
    """Return which ranges have a name or path, or nest in one that has."""
    assert trace.ranges is not None
    inside = _matching(trace, pattern, by_path)
    level, parent = nesting(trace.ranges)
    for place in range(1, int(level.max(initial=0)) + 1):
        rows = np.flatnonzero(level == place)
        inside[rows] |= inside[parent[rows]]
    return inside
