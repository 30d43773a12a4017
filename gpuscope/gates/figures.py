"""The figures that an expectation can name, and how each is read off a measured scope.

A link between two devices, ``0>1``, stands wherever it is measured in place of a class: see
:func:`with_links`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpuscope.model.result import ClassFigures, Link, LinkPair, PairFigures, Scope
from gpuscope.units import NS_PER_S, format_bytes, format_ns, format_rate, format_ratio

TIME, RATIO, COUNT, SIZE, RATE, VERDICT = "time", "ratio", "count", "size", "rate", "verdict"

UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        TIME: {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9},
        RATIO: {"": 1, "%": 0.01},
        COUNT: {"": 1},
        SIZE: {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
        | {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
        RATE: {"B/s": 1, "kB/s": 10**3, "MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12},
        VERDICT: {},
    }
)
"""Units of each kind, and their size in ns, bytes, bytes/s or as a ratio."""


class AbsentError(Exception):
    """The scope does not have the figure; the message says why."""


@dataclass(frozen=True, slots=True)
class Value:
    """A figure, and the ends of what the clock's steps leave open."""

    value: float | str
    low: float | str
    high: float | str


@dataclass(frozen=True, slots=True)
class Figure:
    """What an expectation can name."""

    name: str
    kind: str
    takes: str
    """``""``, ``"A"`` (a class), ``"A, B"``, ``"A, …"`` (any number), or ``"K"`` (a count)."""
    summary: str
    of: Callable[..., Value] | None
    """Takes a scope and the arguments; raises AbsentError. None: it is of the range, not of its
    scope, as the number of instances is."""

    @property
    def additive(self) -> bool:
        """Whether it grows with the number of instances, as times do and ratios do not."""
        return self.per_instance and (self.kind in {TIME, SIZE} or self.name == "count")

    @property
    def per_instance(self) -> bool:
        """Whether each instance of a range has it."""
        return self.of is not None and self.kind != VERDICT and self.name != "schedule_bound"


def _exact(value: float | str | None, missing: str) -> Value:
    if value is None:
        raise AbsentError(missing)
    return Value(value, value, value)


def _classes(scope: Scope, name: str) -> ClassFigures:
    if name not in scope.classes:
        present = ", ".join(scope.classes) or "no GPU work"
        msg = f"no {name} in it, only {present}"
        raise AbsentError(msg)
    return scope.classes[name]


def _of_class(field: str) -> Callable[[Scope, str], Value]:
    def read(scope: Scope, name: str) -> Value:
        missing = f"{field.removesuffix('_ns')} of {name} is not known"
        return _exact(getattr(_classes(scope, name), field), missing)

    return read


def _count(scope: Scope, name: str) -> Value:
    found = scope.classes.get(name)
    return _exact(found.count if found else 0, "")


def _rate(scope: Scope, name: str) -> Value:
    found = _classes(scope, name)
    if not found.bytes or not found.busy_ns:
        msg = f"no bytes of {name} are recorded"
        raise AbsentError(msg)
    return _exact(found.bytes * NS_PER_S / found.busy_ns, "")


def _mean(scope: Scope, name: str) -> Value:
    _classes(scope, name)
    found = scope.concurrency.classes.get(name)
    return _exact(found.mean if found else None, f"concurrency of {name} is not known")


def _class_peak(scope: Scope, name: str) -> Value:
    _classes(scope, name)
    found = scope.concurrency.classes.get(name)
    return _exact(found.peak if found else None, f"concurrency of {name} is not known")


def _of_scope(field: str) -> Callable[[Scope], Value]:
    def read(scope: Scope) -> Value:
        reason = f"{field.removesuffix('_ns').replace('_', ' ')} is not known here"
        if field == "overlap_efficiency":
            reason = scope.efficiency_note or "overlap could save too little to speak of"
        return _exact(getattr(scope, field), reason)

    return read


def _peak(scope: Scope) -> Value:
    return _exact(scope.concurrency.peak, "")


def _at_once(scope: Scope, streams: str) -> Value:
    return _exact(scope.concurrency.streams_ns.get(str(int(streams)), 0), "")


def _only(scope: Scope, *names: str) -> Value:
    for name in names:
        _classes(scope, name)
    wanted = set(names)
    return _exact(sum(part.ns for part in scope.partition if set(part.classes) == wanted), "")


def _pair(scope: Scope, a: str, b: str) -> PairFigures:
    pair = scope.pair(a, b)
    if pair is None:
        _classes(scope, a)
        _classes(scope, b)
        msg = f"{a} and {b} make no pair"
        raise AbsentError(msg)
    return pair


def _spread(pair: PairFigures, time_ns: int | None, whole_ns: float | None) -> Value:
    """Return ``time / whole`` with the overlap's uncertainty, between 0 and 1."""
    if time_ns is None or not whole_ns:
        raise AbsentError(pair.reason)
    open_ns = pair.uncertainty_ns or 0
    return Value(
        min(time_ns / whole_ns, 1.0),
        max(time_ns - open_ns, 0) / whole_ns,
        min((time_ns + open_ns) / whole_ns, 1.0),
    )


def _smaller(scope: Scope, pair: PairFigures) -> int | None:
    """Return the busy time of the smaller class; None for links measured by their overlap."""
    if pair.a not in scope.classes or pair.b not in scope.classes:
        return None
    return min(scope.classes[pair.a].busy_ns, scope.classes[pair.b].busy_ns)


def _overlap(scope: Scope, a: str, b: str) -> Value:
    pair = _pair(scope, a, b)
    smaller = _smaller(scope, pair)
    if smaller is None:
        return _exact(pair.overlap_ratio, pair.reason)
    return _spread(pair, pair.overlap_ns, smaller)


def _overlap_time(scope: Scope, a: str, b: str) -> Value:
    pair = _pair(scope, a, b)
    if pair.overlap_ns is None:
        raise AbsentError(pair.reason)
    open_ns = pair.uncertainty_ns or 0
    return Value(pair.overlap_ns, max(0, pair.overlap_ns - open_ns), pair.overlap_ns + open_ns)


def _uncertainty(scope: Scope, a: str, b: str) -> Value:
    pair = _pair(scope, a, b)
    return _exact(pair.uncertainty_ns, pair.reason)


def _hidden(scope: Scope, a: str, b: str) -> Value:
    pair = _pair(scope, a, b)
    return _spread(pair, pair.overlap_ns, _classes(scope, a).busy_ns)


def _hidden_any(scope: Scope, a: str, b: str) -> Value:
    pair = _pair(scope, a, b)
    under = pair.a_under_any_b_ns if pair.a == a else pair.b_under_any_a_ns
    return _spread(pair, under, _classes(scope, a).busy_ns)


def _rho(scope: Scope, a: str, b: str) -> Value:
    pair = _pair(scope, a, b)
    smaller = _smaller(scope, pair)
    if pair.ratio_limit is None or smaller is None:
        raise AbsentError(pair.reason)
    return _spread(pair, pair.overlap_ns, smaller * pair.ratio_limit)


def _verdict(scope: Scope, a: str, b: str) -> Value:
    return _exact(_pair(scope, a, b).verdict, "")


FIGURES = (
    Figure("hidden", RATIO, "A, B", "share of A's busy time that lies under B", _hidden),
    Figure(
        "hidden_any",
        RATIO,
        "A, B",
        "the same under any B of the device, whichever range launched it",
        _hidden_any,
    ),
    Figure("overlap", RATIO, "A, B", "overlap of A and B by the smaller one's busy time", _overlap),
    Figure("overlap_time", TIME, "A, B", "time in which both A and B run", _overlap_time),
    Figure("rho", RATIO, "A, B", "overlap by what the schedule allows", _rho),
    Figure("verdict", VERDICT, "A, B", "the verdict on the pair", _verdict),
    Figure("busy", TIME, "A", "time in which A runs", _of_class("busy_ns")),
    Figure("work", TIME, "A", "sum of A's durations", _of_class("work_ns")),
    Figure("exposed", TIME, "A", "time in which A runs under no kernel", _of_class("exposed_ns")),
    Figure("count", COUNT, "A", "operations of A; 0 where there are none", _count),
    Figure("bytes", SIZE, "A", "bytes that A moves", _of_class("bytes")),
    Figure("rate", RATE, "A", "bytes that A moves by its busy time", _rate),
    Figure("streams", COUNT, "A", "streams that A runs on", _of_class("streams")),
    Figure("concurrency", COUNT, "A", "how many of A run at once in the mean", _mean),
    Figure("peak", COUNT, "A", "how many of A run at once at most", _class_peak),
    Figure("transfer", TIME, "A", "time in which A's data moves", _of_class("transfer_ns")),
    Figure("wait", TIME, "A", "time in which A waits for its peers", _of_class("wait_ns")),
    Figure(
        "transfer_exposed",
        TIME,
        "A",
        "the part of the transfer under no kernel",
        _of_class("transfer_exposed_ns"),
    ),
    Figure(
        "wait_exposed",
        TIME,
        "A",
        "the part of the waiting under no kernel",
        _of_class("wait_exposed_ns"),
    ),
    Figure("only", TIME, "A, …", "time in which exactly these classes run", _only),
    Figure("span", TIME, "", "first start to last end", _of_scope("span_ns")),
    Figure("busy", TIME, "", "time in which anything runs", _of_scope("busy_ns")),
    Figure("idle", TIME, "", "time in which nothing runs", _of_scope("idle_ns")),
    Figure("serial", TIME, "", "sum of all durations", _of_scope("serial_ns")),
    Figure("bound", TIME, "", "busy time of the busiest engine", _of_scope("bound_ns")),
    Figure(
        "schedule_bound",
        TIME,
        "",
        "longest path through the program's waits",
        _of_scope("schedule_bound_ns"),
    ),
    Figure(
        "efficiency",
        RATIO,
        "",
        "of the possible gain, what was had",
        _of_scope("overlap_efficiency"),
    ),
    Figure("peak", COUNT, "", "streams that run at once at most", _peak),
    Figure("at_once", TIME, "K", "time in which exactly K streams run", _at_once),
    Figure(
        "uncertainty",
        TIME,
        "A, B",
        "what the clock's steps leave open of the overlap",
        _uncertainty,
    ),
    Figure(
        "unattributed",
        RATIO,
        "",
        "share of the work launched in the range's windows that is not its own",
        None,
    ),
    Figure("instances", COUNT, "", "instances of the range that launched GPU work", None),
)
"""All figures, in the order of the documentation."""


def find_figure(name: str, arguments: int) -> Figure | None:
    """Return the figure of that name that takes so many arguments."""
    fits = {0: {""}, 1: {"A", "A, …", "K"}, 2: {"A, B", "A, …"}}.get(arguments, {"A, …"})
    return next((f for f in FIGURES if f.name == name and f.takes in fits), None)


def with_links(scope: Scope, links: Sequence[Link], pairs: Sequence[LinkPair]) -> Scope:
    """Return `scope` with links as classes, named ``0>1``, and their overlaps as pairs."""
    if not links and not pairs:
        return scope
    classes = {
        f"{link.src}>{link.dst}": ClassFigures(
            count=link.count,
            work_ns=link.work_ns,
            busy_ns=link.busy_ns,
            exposed_ns=None,
            bytes=link.bytes,
            streams=0,
        )
        for link in links
    }
    return dataclasses.replace(
        scope,
        classes={**scope.classes, **classes},
        pairs=(*scope.pairs, *(_link_pair(pair) for pair in pairs)),
    )


def _link_pair(pair: LinkPair) -> PairFigures:
    return PairFigures(
        a=pair.a,
        b=pair.b,
        overlap_ns=pair.overlap_ns,
        overlap_ratio=pair.overlap_ratio,
        ratio_limit=None,
        rho=None,
        hidden_ratio_a=None,
        hidden_ratio_b=None,
        a_under_any_b_ns=None,
        b_under_any_a_ns=None,
        uncertainty_ns=None,
        verdict=pair.verdict,
        reason=pair.reason,
    )


def format_value(kind: str, value: float | str) -> str:
    """Format a value of a kind for people."""
    if isinstance(value, str):
        return value
    if kind == TIME:
        return format_ns(value)
    if kind == RATIO:
        return format_ratio(value)
    if kind == SIZE:
        return format_bytes(value)
    return format_rate(value) if kind == RATE else f"{value:g}"


def exact_text(kind: str, value: float | str) -> str:
    """Format a value with all its digits, where two that differ would read alike."""
    unit = {TIME: " ns", SIZE: " B", RATE: " B/s"}.get(kind, "")
    return f"{value}{unit}"
