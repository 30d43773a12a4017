"""An analysis as flat rows: what tables on the terminal, CSV and markdown share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from gpuscope.model.result import (
    Analysis,
    Communication,
    Finding,
    Messages,
    PairFigures,
    Scope,
)
from gpuscope.units import NS_PER_S, format_ns, printable, visible


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """One scope of an analysis with the name that people know it by."""

    name: str
    """Range name or path; ``(whole trace)`` for a device."""
    process: int
    device: int
    instances: int
    scope: Scope

    @property
    def recoverable_ns(self) -> int:
        """Time that could still be hidden: busy time beyond the largest engine's."""
        return self.scope.busy_ns - self.scope.bound_ns


WHOLE_TRACE = "(whole trace)"
_LONGEST_TEXT = 1_000
"""Longer texts are cut in markdown: a C++ name can have a megabyte."""


def scope_rows(analysis: Analysis) -> tuple[ScopeRow, ...]:
    """Return the device scopes, then the ranges, in the order of the analysis."""
    devices = [
        ScopeRow(WHOLE_TRACE, entry.process, entry.device, 1, entry.scope)
        for entry in analysis.devices
    ]
    ranges = [
        ScopeRow(
            entry.path or entry.name, entry.process, entry.device, entry.instances, entry.scope
        )
        for entry in analysis.ranges
    ]
    return (*devices, *ranges)


def in_range(name: str | None, length: int | None = None) -> str:
    """Return `` in NAME``, fit for a terminal; nothing for the whole trace."""
    return "" if name is None else f" in {printable(visible(name), length)}"


_SHOWN_DIGITS = 8
"""How many digits of a communicator's hash tell it from others."""


def message_name(kind: Messages, entry: Communication) -> str:
    """Return what messages are called: the operation, and the communicator if there are several."""
    name = kind.operation or kind.kernel
    if len({each.communicator for each in entry.messages} - {None}) < 2:
        return name
    return f"{name} in {(kind.communicator or '–')[:_SHOWN_DIGITS]}"


def where_of(row: ScopeRow | Communication | Finding, rows: Sequence[ScopeRow]) -> str:
    """Return what tells where a scope is from where the others of `rows` are; nothing if one."""
    parts = []
    if len({each.process for each in rows}) > 1 and row.process is not None:
        parts.append(f" · process {row.process}")
    if len({(each.process, each.device) for each in rows}) > 1 and row.device is not None:
        parts.append(f" · GPU {row.device}")
    return "".join(parts)


def top_rows(rows: Sequence[ScopeRow], count: int | None) -> tuple[ScopeRow, ...]:
    """Return the `count` rows with the most time that could still be hidden, largest first."""
    if count is None:
        return tuple(rows)
    return tuple(sorted(rows, key=lambda row: -row.recoverable_ns)[:count])


MOST_SCOPES = 40
"""How many scopes are for people; more are nobody's reading."""


def scopes_for_people(
    rows: Sequence[ScopeRow], top: int | None
) -> tuple[tuple[ScopeRow, ...], list[str]]:
    """Return the scopes to show, and what to say of those left out.

    Left out are ranges in which nothing could overlap (one class only), where it could in others,
    and of very many those with little to gain; with `top` all but so many, of those with the most
    time that could still be hidden.
    """
    worth = rows
    if not top and any(row.scope.pairs for row in rows):
        worth = [row for row in rows if row.scope.pairs or row.name == WHOLE_TRACE]
    shown = top_rows(worth, top)
    if not top and len(worth) > MOST_SCOPES:
        best = {id(row) for row in top_rows(worth, MOST_SCOPES)}
        shown = tuple(row for row in worth if id(row) in best)
    left_out = (
        (len(worth) - len(shown), "with less to gain"),
        (len(rows) - len(worth), "of one class of work only"),
    )
    return shown, [
        f"{count:,} more {what}: --json and --csv list them" for count, what in left_out if count
    ]


def at_once(scope: Scope, name: str) -> str:
    """Say how many operations of a class ran at once."""
    crowd = scope.concurrency.classes[name]
    if crowd.peak == 1 or crowd.mean is None:
        return "one at a time"
    if name in ("kernel", "comm", "fused") and scope.concurrency.peak == 1:
        return "one by one in a stream, some begun before the one before had ended"
    return f"up to {crowd.peak} at once, {crowd.mean:.1f} in the mean"


PAIR_COLUMNS = (
    "trace",
    "range",
    "process",
    "device",
    "instances",
    "span_ns",
    "busy_ns",
    "bound_ns",
    "overlap_efficiency",
    "idle_ns",
    "gap_count",
    "schedule_bound_ns",
    "communication_ns",
    "exposed_communication_ns",
    "a",
    "b",
    "overlap_ns",
    "overlap_ratio",
    "rho",
    "hidden_ratio_a",
    "hidden_ratio_b",
    "verdict",
    "reason",
    "rate_a_bytes_per_s",
    "rate_b_bytes_per_s",
    "stretch_a",
    "stretch_b",
)
"""Columns of :func:`pair_rows`."""


def pair_rows(analysis: Analysis, rows: Sequence[ScopeRow]) -> Iterator[tuple[object, ...]]:
    """Yield one row a pair of classes, and one with empty pair columns for a scope without pairs.

    Values are unrounded; None is what does not apply.
    """
    for row in rows:
        scope = row.scope
        head = (
            analysis.trace.path,
            row.name,
            row.process,
            row.device,
            row.instances,
            scope.span_ns,
            scope.busy_ns,
            scope.bound_ns,
            scope.overlap_efficiency,
            scope.idle_ns,
            None if scope.gaps is None else scope.gaps.count,
            scope.schedule_bound_ns,
            *communication(scope),
        )
        if not scope.pairs:
            yield head + (None,) * (len(PAIR_COLUMNS) - len(head))
        for pair in scope.pairs:
            yield head + _pair_values(pair) + _class_values(scope, pair)


def _pair_values(pair: PairFigures) -> tuple[object, ...]:
    return (
        pair.a,
        pair.b,
        pair.overlap_ns,
        pair.overlap_ratio,
        pair.rho,
        pair.hidden_ratio_a,
        pair.hidden_ratio_b,
        pair.verdict,
        pair.reason,
    )


def _class_values(scope: Scope, pair: PairFigures) -> tuple[object, ...]:
    """Return what rate the copies of a pair reached, and how much longer than alone each took."""
    rates, both = class_rates(scope), (pair.a, pair.b)
    stretches = stretch_ratios(scope)
    return (*(rates.get(name) for name in both), *(stretches.get(name) for name in both))


def class_rates(scope: Scope) -> dict[str, float]:
    """Return bytes / busy_ns of each class of copies; between devices of all directions there."""
    return {
        name: figures.bytes * NS_PER_S / figures.busy_ns
        for name, figures in scope.classes.items()
        if name in {each.op_class for each in scope.rates or ()} and figures.busy_ns
    }


def communication(scope: Scope) -> tuple[int, int]:
    """Return the time with communication kernels or copies between GPUs, and its exposed part.

    Both at once count once; exposed is what lies under no kernel.
    """
    parts = [part for part in scope.partition if {"comm", "p2p"} & set(part.classes)]
    return (
        sum(part.ns for part in parts),
        sum(part.ns for part in parts if "kernel" not in part.classes),
    )


def stretch_ratios(scope: Scope) -> dict[str, float]:
    """Return how much longer each class took beside other work than alone, where that is known."""
    classes = scope.contention.classes if scope.contention else {}
    return {name: each.ratio for name, each in classes.items() if each.ratio is not None}


_NAMED = 3
_NUMBER = re.compile(r"\d+")
_MANY_ALIKE = 50
"""Chunks that are numbered are fewer than this; steps or batches are more."""
_MEASURES_GPUS = "overlap"
"""The analyzer that needs operations and nothing else."""
_OF_RANKS = frozenset(("mpi-blocking",))
"""Analyzers that look at what ranks tell each other."""


def saving_parts(finding: Finding) -> tuple[str, str]:
    """Return what a finding would save, and what limits that; empty where it cannot be told.

    Such as ``up to 8.94 ms`` and ``all that can be saved here``: no more can be saved there by any
    repair of its kind, however much longer work was held up. Or else how much it is together with
    the other findings of the range, where their savings do not add up.
    """
    if finding.saving_ns is None:
        return "", ""
    bound = "" if finding.removable == "yes" else "up to "
    amount = f"{bound}{format_ns(finding.saving_ns)}"
    if finding.evidence.get("limit_ns") == finding.saving_ns:
        return amount, "all that can be saved here"
    together = finding.evidence.get("together")
    if together is None:
        return amount, ""
    others = " and ".join(together["with"])
    return amount, f"together with {others} at most {format_ns(together['at_most_ns'])}"


def saving_text(finding: Finding) -> str:
    """Return both as it stands behind an advice: `` (saves up to 2.00 ms)``, or nothing."""
    said = ", ".join(filter(None, saving_parts(finding)))
    return f" (saves {said})" if said else ""


def numbered_names(analysis: Analysis) -> str:
    """Say that many ranges differ by a number alone, which should have one name; nothing if not."""
    names = {entry.name for entry in analysis.ranges}
    alike = Counter(_NUMBER.sub("#", name) for name in names)
    form, count = max(alike.items(), key=itemgetter(1), default=("", 0))
    if count < _MANY_ALIKE:
        return ""
    first = min(name for name in names if _NUMBER.sub("#", name) == form)
    return (
        f"{count:,} ranges differ by a number alone, such as {first!r}: give them one name, and "
        "there are figures of all of them together"
    )


def abstentions(analysis: Analysis) -> list[str]:
    """Say which analyzers could not look, one sentence a reason.

    Left out is what looks at messages, where nothing shows that the program has ranks; of a trace
    without operations, all but the reason why it has none.
    """
    if not analysis.trace.operations:
        reasons = [gone.reason for gone in analysis.abstained if gone.analyzer == _MEASURES_GPUS]
        return [f"nothing on a GPU could be measured: {reason}" for reason in reasons]
    has_ranks = any(device.rank is not None for device in analysis.devices)
    talks = has_ranks or any(entry.messages or entry.mpi for entry in analysis.communication)
    by_reason: dict[str, list[str]] = {}
    for gone in analysis.abstained:
        if talks or gone.analyzer not in _OF_RANKS:
            by_reason.setdefault(gone.reason, []).append(gone.analyzer)
    sentences = []
    for reason, names in by_reason.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        sentences.append(f"{', '.join(names[:_NAMED])}{more} could not look: {reason}")
    return sentences


def escaped(text: str) -> str:
    """Make a text safe in markdown: a name from a trace is no markup."""
    clean = printable(text, _LONGEST_TEXT)
    for char in "\\`*_|<>[]":
        clean = clean.replace(char, f"\\{char}")
    return clean
