"""Analyses for people at a terminal: tables that fit, verdicts in colour and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuscope.benchmarks import NOT_JUDGED
from gpuscope.communication import ALONE
from gpuscope.model.quality import lacking
from gpuscope.model.result import (
    Analysis,
    Communication,
    Finding,
    JudgedHidden,
    JudgedPeak,
    JudgedPingPong,
    Judgement,
    Messages,
    PairFigures,
    Scope,
)
from gpuscope.model.trace import NULL_STREAM, RECORDERS
from gpuscope.report.rows import (
    WHOLE_TRACE,
    ScopeRow,
    abstentions,
    at_once,
    class_rates,
    communication,
    in_range,
    message_name,
    numbered_names,
    saving_text,
    scope_rows,
    scopes_for_people,
    stretch_ratios,
    where_of,
)
from gpuscope.units import (
    counted,
    format_bytes,
    format_ns,
    format_rate,
    format_ratio,
    printable,
    visible,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

VERDICT_STYLE = {
    "overlapped": "bold green",
    "pipelined": "green",
    "partial": "yellow",
    "serialized": "bold red",
    "immaterial": "dim",
    "inconclusive": "magenta",
}
"""Colour of each verdict; the word always stands beside it."""

_IDLE_SHARE = 0.01
"""Share of the span from which on idle time gets a line."""
_KINDS = 5
"""How many kinds of messages are printed."""
_STRETCH = 0.01
"""From this much longer than alone on, what sharing cost gets a line."""
_CROWD = 0.05
"""From so many more than one at once on, in the mean, operations of a class get a line for it."""
_STREAMS = 4
"""How many streams the line of the streams names."""
_NAME_WIDTH = 40
_BAR_WIDTH = 20


def simple_table(title: str | None = None, *, narrow: bool = False) -> Table:
    """Return a table without lines between its columns; a `narrow` one fits 80 characters."""
    from rich import box
    from rich.table import Table

    edges: Any = {"padding": (0, 1, 0, 0), "show_edge": False} if narrow else {"pad_edge": False}
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", **edges)


def render_analysis(analysis: Analysis, console: Console, top: int | None = None) -> None:
    """Print what an analysis found: a table of scopes and pairs, then the findings.

    Scopes that few want are counted instead of listed, unless `top` asks for a number of them.
    """
    from rich.markup import escape

    trace = analysis.trace
    recorder = " ".join(filter(None, (RECORDERS[trace.format], trace.tool_version)))
    console.print(
        f"[bold]{escape(printable(trace.path))}[/bold]  "
        f"{counted(trace.operations, 'operation')} in {format_ns(trace.duration_ns)}, {recorder}",
        highlight=False,
    )
    for note in _notes(analysis):
        console.print(f"  [yellow]note[/yellow] {escape(printable(note))}", highlight=False)
    rows = scope_rows(analysis)
    shown, left_out = scopes_for_people(rows, top)
    for row in shown:
        _print_scope(row, where_of(row, rows), console)
    for line in left_out:
        console.print(f"[dim]{line}[/dim]", highlight=False)
    _print_links(analysis, console)
    for entry in analysis.communication:
        _print_communication(entry, where_of(entry, rows), console)
    _print_findings(analysis.findings, rows, console)


def _print_links(analysis: Analysis, console: Console) -> None:
    """Print how the two directions between GPUs overlap: in the trace, and in ranges."""
    from rich.markup import escape

    lines = [("", pair) for pair in analysis.link_pairs]
    listed = dict.fromkeys(
        (f" in {printable(visible(entry.path or entry.name), _NAME_WIDTH)}", pair)
        for entry in analysis.ranges
        for pair in entry.link_pairs
        if pair not in analysis.link_pairs
    )
    lines += list(listed)[:_KINDS]
    for where, pair in lines:
        style = VERDICT_STYLE[pair.verdict]
        apart = not pair.overlap_ns and pair.turns > 1
        turns = f"; the direction changes {pair.turns} times" if apart else ""
        console.print(
            f"links {pair.a} ∩ {pair.b}{escape(where)}: {format_ratio(pair.overlap_ratio)} "
            f"[{style}]{pair.verdict}[/{style}] ({escape(pair.reason)}{turns})",
            highlight=False,
        )
    more = len(listed) - _KINDS
    if more > 0:
        _print_aside(f"links in {counted(more, 'more range')}: --json lists them", console)


def _print_communication(entry: Communication, where: str, console: Console) -> None:
    """Print the messages of a device by kind: how much was exposed, what moved, what waited."""
    from rich.markup import escape

    ranks = f", {len(entry.ranks)} ranks matched" if entry.ranks else ""
    clock = ""
    if entry.clock is not None and entry.clock.worst_ns:  # the first rank's is the clock
        apart, left = format_ns(entry.clock.offset_ns), format_ns(entry.clock.residual_ns)
        moved = f"moved by {apart}" if entry.clock.offset_ns else "not moved"
        clock = f", clock {moved} (to within {left})"
    me = "" if entry.rank is None else f" of rank {entry.rank}"
    what, alone = ("messages", "") if entry.device is not None else ("MPI", ", no GPU work")
    console.print(f"[bold]{what}{me}[/bold]{where}{alone}{ranks}{clock}", highlight=False)
    if entry.reason not in (None, ALONE):
        _print_aside(entry.reason, console)
    for kind in entry.messages[:_KINDS]:
        size = "" if kind.size_bytes is None else f" of {format_bytes(kind.size_bytes)}"
        name = escape(printable(message_name(kind, entry), _NAME_WIDTH))
        console.print(
            f"    {name}{size} ×{kind.count}  {format_ns(kind.work_ns)}, "
            f"{format_ns(kind.exposed_ns)} exposed",
            highlight=False,
        )
        if kind.transfer_ns is not None and kind.wait_ns:
            about = "about " if entry.estimated else ""
            late = _late(kind)
            part = "" if kind.timed == kind.count else f" in {kind.timed} of them"
            _print_aside(
                f"{about}{format_ns(kind.transfer_ns)} transfer, {format_ns(kind.wait_ns)} waiting"
                f"{part}" + (f"; last to arrive: {escape(late)}" if late else ""),
                console,
            )
    more = len(entry.messages) - _KINDS
    if more > 0:
        _print_aside(f"{counted(more, 'more kind')}: --json lists them", console)
    for call in entry.mpi[:_KINDS]:
        size = "" if call.size_bytes is None else f" of {format_bytes(call.size_bytes)} in all"
        gpu = (
            ""
            if call.gpu_busy_ns is None
            else f": the GPU was busy for {format_ns(call.gpu_busy_ns)} of it, idle for "
            f"{format_ns(call.gpu_idle_ns)}"
        )
        console.print(
            f"    {escape(printable(call.name, _NAME_WIDTH))}{size} ×{call.count}  "
            f"{format_ns(call.work_ns)} on the host{gpu}",
            highlight=False,
        )
    more = len(entry.mpi) - _KINDS
    if more > 0:
        _print_aside(
            f"{counted(more, 'more kind of call', 'more kinds of call')}: --json lists them",
            console,
        )


def _late(kind: Messages) -> str:
    """Say how many of the messages each rank kept waiting, and of how many nobody can tell."""
    if kind.late is None:
        return ""
    named = [f"{rank} {count}×" for rank, count in kind.late.items() if count]
    undecided = kind.timed - sum(kind.late.values())
    return ", ".join([*named, *([f"too close to tell {undecided}×"] if undecided else [])])


def _notes(analysis: Analysis) -> list[str]:
    trace = analysis.trace
    return [
        *trace.notes,
        *lacking(trace.damaged, trace.lost_records),
        *filter(None, [numbered_names(analysis)]),
        *abstentions(analysis),
    ]


def _print_findings(
    findings: Sequence[Finding], rows: Sequence[ScopeRow], console: Console
) -> None:
    """Print findings: the claim, what to change, what it would save at most."""
    from rich.markup import escape

    for finding in findings:
        style = "bold yellow" if finding.severity == "warning" else "bold cyan"
        where = in_range(finding.range, _NAME_WIDTH) + where_of(finding, rows)
        console.print(
            f"[{style}]{finding.id}[/{style}]{escape(where)}: {escape(printable(finding.claim))}",
            highlight=False,
        )
        advice = printable(finding.advice) + saving_text(finding)
        console.print(f"    → {escape(advice)}", highlight=False)
        for call in finding.evidence.get("calls", ()):
            for place in call.get("at", ()):
                line = f"{call['name']} at {printable(place['place'], 120)}, {place['count']} ×"
                console.print(f"      {escape(line)}", highlight=False)


def _print_scope(row: ScopeRow, where: str, console: Console) -> None:
    """Print a scope's line, and under it a line for each pair that matters."""
    from rich.markup import escape

    scope = row.scope
    name = escape(printable(visible(row.name), _NAME_WIDTH))
    reached = (
        ""
        if scope.overlap_efficiency is None
        else f" · {format_ratio(scope.overlap_efficiency)} of the gain"
    )
    console.print(
        f"[bold]{name}[/bold]{where} ×{row.instances}  span {format_ns(scope.span_ns)} · "
        f"busy {format_ns(scope.busy_ns)}{reached}",
        highlight=False,
    )
    judged = [pair for pair in scope.pairs if pair.verdict != "immaterial"]
    width = max((len(_pair_name(pair)) for pair in judged), default=0)
    for pair in judged:
        style = VERDICT_STYLE[pair.verdict]
        console.print(
            f"    {_pair_name(pair):<{width}}  {format_ratio(pair.overlap_ratio):>7} "
            f"{_bar(pair.overlap_ratio)} {format_ns(pair.overlap_ns):>8}  "
            f"[{style}]{pair.verdict}[/{style}]",
            highlight=False,
        )
        if pair.verdict in {"partial", "pipelined", "inconclusive"}:
            _print_aside(escape(pair.reason), console)
    immaterial = [_pair_name(pair) for pair in scope.pairs if pair.verdict == "immaterial"]
    if immaterial:
        _print_aside(f"immaterial: {', '.join(immaterial)}", console)
    for line in detail_lines(scope, whole=row.name == WHOLE_TRACE):
        _print_aside(escape(printable(line)), console)


def detail_lines(scope: Scope, whole: bool) -> list[str]:
    """Say in a line each what was possible, was idle, copies reached, sharing cost, ran at once.

    Of the `whole` trace also which streams did the work.
    """
    lines = []
    if scope.overlap_efficiency is not None:
        line = f"at best {format_ns(scope.bound_ns)} if the chunks are independent"
        if scope.schedule_bound_ns is not None:
            # Neither path nor engine can be beaten.
            order = max(scope.schedule_bound_ns, scope.bound_ns)
            line += f", {format_ns(order)} in their order"
        lines.append(line)
    if scope.gaps and scope.gaps.count and scope.idle_ns >= _IDLE_SHARE * scope.span_ns:
        most, longest = scope.gaps.kinds[0], scope.gaps.largest[0]
        lines.append(
            f"idle {format_ns(scope.idle_ns)} in {counted(scope.gaps.count, 'gap')}, longest "
            f"{format_ns(longest.ns)}; {most.before} to {most.after} {format_ns(most.ns)}"
        )
    talk, bare = communication(scope)
    if talk:
        lines.append(f"communication {format_ns(talk)}, {format_ns(bare)} of it under no kernel")
    rates = [f"{name} {format_rate(value)}" for name, value in class_rates(scope).items()]
    if rates:
        lines.append(f"rates {' · '.join(rates)}")
    stretched = [
        f"{name} {ratio:.2f}×"
        for name, ratio in stretch_ratios(scope).items()
        if ratio >= 1 + _STRETCH
    ]
    if stretched:
        lines.append(f"beside other work {', '.join(stretched)} as long as alone")
    crowds = scope.concurrency.classes
    crowded = [
        f"{name} {at_once(scope, name)}"
        for name, crowd in crowds.items()
        if len(crowds) == 1 or (crowd.mean or 0) >= 1 + _CROWD
    ]
    if crowded:
        lines.append(" · ".join(crowded))
    if scope.mpi:
        lines.append(
            f"in MPI {format_ns(scope.mpi.busy_ns)}: the GPU was busy for "
            f"{format_ns(scope.mpi.gpu_busy_ns)} of it, idle for {format_ns(scope.mpi.gpu_idle_ns)}"
        )
    if whole and scope.streams and len(scope.streams) > 1:
        busiest = sorted(scope.streams, key=lambda stream: -stream.busy_ns)[:_STREAMS]
        named = [
            f"{'null ' if each.kind == NULL_STREAM else ''}{each.stream} {format_ns(each.busy_ns)}"
            for each in busiest
        ]
        more = len(scope.streams) - len(busiest)
        lines.append(f"streams {' · '.join(named)}{f' · {more} more' if more else ''}")
    return lines


def _print_aside(text: str, console: Console) -> None:
    console.print(f"      [dim]{text}[/dim]", highlight=False, no_wrap=True, overflow="ellipsis")


def _pair_name(pair: PairFigures) -> str:
    return f"{pair.a} ∩ {pair.b}"


def _bar(ratio: float | None) -> str:
    filled = round((ratio or 0.0) * _BAR_WIDTH)
    return "█" * filled + "░" * (_BAR_WIDTH - filled)


def render_run(
    result: Mapping[str, Any] | None,
    analysis: Analysis,
    judgement: Judgement | None,
    console: Console,
) -> None:
    """Print the outcome of ``gpuscope run``: the analysis, then speed-up and expectations.

    `result` is the benchmark's own, None for a program of the user's.
    """
    render_analysis(analysis, console)
    if result is not None:
        _render_speed(result, analysis, console)
        _render_quantities(result, console)
    if judgement is not None and judgement.rows:
        render_judgement(judgement, console)


def _render_speed(result: Mapping[str, Any], analysis: Analysis, console: Console) -> None:
    """Print each pass: its untraced time, speed-up against its baseline, what was reached."""
    passes = result.get("passes") or {}
    if not passes:
        return
    title = "untraced" if result["valid"] else "[bold red]untraced: VOID, not to be used[/bold red]"
    table = simple_table(title)
    table.add_column("pass", no_wrap=True)
    for name in ("median", "p10-p90", "speed-up", "measured on the trace", "reached"):
        table.add_column(name, justify="right")
    baselines = result.get("baselines") or {}
    for name, times in passes.items():
        entry = next(iter(analysis.ranges_named(name)), None)
        traced = "–" if entry is None else format_ns(entry.scope.span_ns / max(1, entry.instances))
        reached = None if entry is None else entry.scope.overlap_efficiency
        table.add_row(
            name,
            format_ns(times["median_ns"]),
            f"{format_ns(times['p10_ns'])} – {format_ns(times['p90_ns'])}",
            f"{passes[baselines[name]]['median_ns'] / times['median_ns']:.2f}×"
            if name in baselines
            else "–",
            traced,
            format_ratio(reached),
        )
    console.print(table)


def _render_quantities(result: Mapping[str, Any], console: Console) -> None:
    """Print what of the benchmark the machine limits, and the share of it that was reached."""
    from gpuscope.benchmarks import quantity_row

    if not result.get("quantities"):
        return
    table = simple_table("of the machine")
    table.add_column("quantity")
    for name in ("value", "limit", "reached"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit from")
    for quantity in result["quantities"]:
        table.add_row(*quantity_row(quantity))
    console.print(table)


def render_judgement(judgement: Judgement, console: Console) -> None:
    """Print what a benchmark must show, and whether the trace shows it."""
    from rich.text import Text

    table = simple_table("expected")
    for name in ("range", "what", "must be", "is", "limit", "reached", ""):
        table.add_column(name, no_wrap=name != "is")
    marks = {True: Text("met", "green"), False: Text("NOT MET", "bold red")}
    for row in judgement.rows:
        free = False  # whatever is there is as it may be
        if isinstance(row, JudgedPeak):
            wanted = str(row.most) if row.least == row.most else f"{row.least} to {row.most}"
            found = row.reason if row.found is None else str(row.found)
            cells = (f"{row.op_class} {row.counted}", wanted, found, "", "")
        elif isinstance(row, JudgedHidden):
            free = row.most >= 1 and not row.least
            bound = f"≤ {format_ratio(row.most)}" if row.most < 1 else NOT_JUDGED
            if row.least:
                bound = f"≥ {format_ratio(row.least)}"
            found = row.reason if row.found is None else format_ratio(row.found)
            cells = ("transfers hidden", bound, found, "", "")
        elif isinstance(row, JudgedPingPong):
            found = row.reason if row.found is None else row.found
            cells = (f"{row.copies} × {row.op_class}", row.expected, found, "", "")
        else:
            free = row.expected == NOT_JUDGED
            beyond = "" if row.least_rho is None else f", {format_ratio(row.least_rho)} reached"
            cells = (
                f"{row.a} ∩ {row.b}",
                f"{row.expected}{beyond}",
                row.found or row.reason,
                format_ratio(row.ratio_limit),
                format_ratio(row.rho),
            )
        mark = Text("cannot judge", "magenta") if row.met is None else marks[row.met]
        if free and row.met:
            mark = Text(NOT_JUDGED, "dim")
        table.add_row(row.range, *cells, mark)
    console.print(table)
