"""What changed between two runs, as text for a terminal and as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpuscope.model.classes import base_name
from gpuscope.model.comparison import (
    BETTER,
    CHANGED,
    NOISE,
    REAL,
    UNCLEAR,
    WORSE,
    Change,
    Comparison,
    OperationChange,
    ScopeChange,
)
from gpuscope.report.rows import WHOLE_TRACE, escaped, in_range
from gpuscope.units import counted, format_ns, format_ratio, printable, visible

if TYPE_CHECKING:
    from rich.console import Console

OUTCOMES = {
    "identical": "identical",
    NOISE: "nothing changed beyond noise",
    UNCLEAR: "they differ, and there are too few instances to tell it from noise",
    CHANGED: "changed",
}
_STYLES = {WORSE: "bold red", BETTER: "bold green", CHANGED: "yellow", UNCLEAR: "magenta"}
_SHOWN_OPERATIONS = 12
_SHOWN_SCOPES = 40
_NAMED = 20
"""Ranges that are only named, of which nothing else is said."""
_NAME_WIDTH = 40


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print what differs, a scope at a time; what is noise is only named."""
    from rich.text import Text

    for side, paths in (("before", comparison.before), ("after ", comparison.after)):
        console.print(Text.assemble((f"{side} ", "bold"), printable(", ".join(paths))))
    for note in comparison.notes:
        console.print(Text.assemble(("note ", "yellow"), printable(note)))
    quiet, open_, shown = [], [], 0
    for state in ("gone", "new"):
        names = _names(scope for scope in comparison.scopes if scope.state == state)
        if names:
            console.print(Text(f"{state} ranges: {printable(names)}", _STYLES[CHANGED]))
    for scope in (scope for scope in comparison.scopes if scope.state == "both"):
        lines = list(_lines(scope))
        if not lines:
            quiet.append(scope)
            continue
        if comparison.outcome == CHANGED and {outcome for outcome, _ in lines} == {UNCLEAR}:
            open_.append(scope)
            continue
        shown += 1
        if shown > _SHOWN_SCOPES:
            continue
        console.print(Text(_title(scope), "bold"))
        for outcome, text in lines:
            console.print(Text(f"  {text}", _STYLES.get(outcome, "dim")))
    if shown > _SHOWN_SCOPES:
        more = counted(shown - _SHOWN_SCOPES, "more range differs", "more ranges differ")
        more += ": --json has them, --path picks some"
        console.print(Text(more, "dim"))
    for scopes, text in (
        (open_, "too few instances to tell noise (--json has the figures): "),
        (quiet, "nothing beyond noise: "),
    ):
        names = _names(scopes)
        if names:
            console.print(Text(text + printable(names), "dim"))
    for cause in comparison.causes:
        sign, style = ("+", "bold red") if cause.state == "appeared" else ("−", "bold green")
        where = in_range(cause.range, _NAME_WIDTH)
        console.print(
            Text.assemble(
                (f"{sign} {cause.id}{where} {cause.state}: ", style), printable(cause.claim)
            )
        )
    console.print(Text(OUTCOMES[comparison.outcome], "bold"))


def _names(scopes: Iterable[ScopeChange]) -> str:
    """List the names of scopes, of very many the first; nothing where there are none."""
    names = list(dict.fromkeys(map(_name, scopes)))
    more = f", {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _name(scope: ScopeChange) -> str:
    return WHOLE_TRACE if scope.path is None else visible(scope.path)


def _title(scope: ScopeChange) -> str:
    rank = f" · rank {scope.rank}" if scope.rank is not None else ""
    return (
        f"{printable(_name(scope), 2 * _NAME_WIDTH)}{rank} · GPU {scope.device}  "
        f"×{scope.instances_before} → ×{scope.instances_after}"
    )


def _lines(scope: ScopeChange) -> Iterator[tuple[str, str]]:
    """Yield the outcome and the text of everything that is more than noise."""
    if scope.state != "both":
        yield CHANGED, scope.state
    for change in scope.figures:
        if change.outcome in REAL or change.outcome == UNCLEAR:
            yield change.outcome, f"{change.figure:<22} {describe(change)}"
    operations = [each for each in scope.operations if _differs(each)]
    for operation in operations[:_SHOWN_OPERATIONS]:
        yield _of_operation(operation)
    if len(operations) > _SHOWN_OPERATIONS:
        more = counted(len(operations) - _SHOWN_OPERATIONS, "more operation")
        yield CHANGED, f"and {more} (--json)"


def _changes(operation: OperationChange) -> list[Change]:
    every = (operation.count, operation.duration, operation.start)
    wanted = {*REAL, UNCLEAR}
    return [change for change in every if change is not None and change.outcome in wanted]


def _differs(operation: OperationChange) -> bool:
    return operation.state != "both" or bool(_changes(operation))


def _of_operation(operation: OperationChange) -> tuple[str, str]:
    name = printable(base_name(operation.name), _NAME_WIDTH)
    if operation.state != "both":
        count = operation.count.before or operation.count.after
        return CHANGED, f"{name:<22} {operation.state}, {count:g} an instance"
    changes = _changes(operation)
    outcome = next((c.outcome for c in changes if c.outcome in REAL), UNCLEAR)
    return outcome, f"{name:<22} " + "; ".join(f"{_verb(c)} {describe(c)}" for c in changes)


def _verb(change: Change) -> str:
    if change.figure == "duration" and change.outcome in REAL:
        return "slower:" if change.outcome == WORSE else "faster:"
    if change.figure == "start":
        return "moved:" if change.outcome in REAL else "start:"
    return f"{change.figure}:"


def describe(change: Change) -> str:
    """Write a change: the medians, the difference, its interval and how sure it is."""
    before, after, difference = change.before, change.after, change.difference
    text = f"{_value(change.kind, before)} → {_value(change.kind, after)}"
    if difference is None:
        return text
    text += f"  {_signed(change.kind, difference)}"
    if change.kind == "time" and before:
        text += f" ({_sign(difference)}{abs(100 * difference / before):.0f} %)"
    if change.outcome == UNCLEAR:
        few = min(change.samples_before, change.samples_after)
        return f"{text}  unclear: {counted(few, 'sample')}"
    if change.low is not None and change.high is not None:
        low, high = (
            _signed(change.kind, end).removesuffix(" points") for end in (change.low, change.high)
        )
        effect = "" if change.effect is None else f", {change.effect:.0f} × the spread"
        text += f"  [{low} … {high}{effect}]"
    return f"{text}  {change.outcome}"


def _value(kind: str, value: float | None) -> str:
    if value is None:
        return "–"
    if kind == "time":
        return format_ns(value)
    return format_ratio(value) if kind == "ratio" else f"{value:g}"


def _signed(kind: str, value: float) -> str:
    if kind == "ratio":
        return f"{_sign(value)}{abs(100 * value):.1f} points"
    return _sign(value) + _value(kind, abs(value))


def _sign(value: float) -> str:
    return "+" if value >= 0 else "−"


def to_markdown(comparison: Comparison) -> str:
    """Return markdown tables of everything that is more than noise, for a pull request."""
    parts = [f"**{OUTCOMES[comparison.outcome]}**", ""]
    parts += [f"before: {escaped(', '.join(comparison.before))}  "]
    parts += [f"after: {escaped(', '.join(comparison.after))}", ""]
    rows = [
        f"| {escaped(_title(scope))} | {escaped(' '.join(text.split()))} |"
        for scope in comparison.scopes
        for _, text in _lines(scope)
    ]
    if rows:
        parts += ["| where | change |", "|---|---|", *rows, ""]
    parts += [
        f"- **{cause.id}**{escaped(in_range(cause.range))} {cause.state}: {escaped(cause.claim)}"
        for cause in comparison.causes
    ]
    parts += [f"\n{escaped(note)}" for note in comparison.notes]
    return "\n".join([*parts, ""])
