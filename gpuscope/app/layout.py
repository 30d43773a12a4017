"""What is on the page, and how it is arranged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dash import dcc, html

from gpuscope.app.state import WHOLE, Session
from gpuscope.figures.overlap import Together
from gpuscope.figures.timeline import plain
from gpuscope.model.quality import lacking
from gpuscope.model.result import Finding, LinkPair, PairFigures, Part, RangeResult, Scope
from gpuscope.model.trace import RECORDERS, shown_title
from gpuscope.report.ranks import WORST_FIRST
from gpuscope.report.rows import (
    abstentions,
    at_once,
    communication,
    numbered_names,
    saving_parts,
    saving_text,
)
from gpuscope.units import NS_PER_MS, NS_PER_US, counted, format_ns, format_ratio, visible

VERDICT_MARKS = {
    "overlapped": "✓",
    "pipelined": "⇉",
    "partial": "◐",
    "serialized": "✕",
    "immaterial": "·",
    "inconclusive": "?",
}
"""A sign for each verdict, so that colour never stands alone."""

MIN_SHOWN_NS = 10 * NS_PER_US
"""An example is shown with at least four times this much around it."""
MAX_PARTS = 8
"""Parts of a partition that are listed by themselves."""
_STRIPE_PX = 4
_LETTER_SHARE = 0.0125
"""Width of a letter as a share of the bar: a part too narrow for its label carries none."""

KEYS = (
    ("W S or + −", "zoom in and out, as ↑ ↓ on the timeline"),
    ("A D or ← →", "move"),
    ("F", "fit the whole trace, or the picked range"),
    ("N P", "the next, the previous operation of the row, or of what is searched for"),
    ("/", "find names: a regular expression"),
    ("B", "select the stretch of what is picked, or of what is seen"),
    ("Z", "zoom to the selection, or to what is picked"),
    ("Esc", "drop what is picked, then the selection"),
    ("T", "light or dark"),
    ("?", "this list"),
)
MOUSE = (
    "Wheel: zoom at the cursor; over the names of the rows it scrolls. Drag: move. Drag on the "
    "time axis, or with Shift: select a stretch, whose figures are shown at once. Click: what an "
    "operation is and what it waited for. Double click: fit. A click on a row's name folds it; "
    "drag it, or press Alt with ↑ ↓, to move it."
)
ADDRESS = (
    "The address keeps all of this, and the browser's Back leads to where you were before a leap: "
    "a card, a finding, a row of a table, a search."
)
"""What only the page has."""


def page(session: Session) -> Any:
    """Lay out the page of a session."""
    return html.Div(
        [
            dcc.Store(id="view"),
            header(session),
            html.Main(
                [
                    *notes(session),
                    html.H2("Verdicts", className="unseen"),
                    html.Div(id="cards", className="cards", children=cards(session)),
                    timeline_panel((*TAKEN, *SERVED)),
                    html.Div(
                        [_overlap_panel(session), findings_panel(session)], className="columns"
                    ),
                    _tables_panel(),
                ]
                if session.devices
                else [nothing_ran()]
            ),
            help_dialog(ADDRESS),
        ],
        className="page",
    )


def header(session: Session) -> Any:
    """Return the line at the top: what is shown."""
    used = [session.traces[number].devices[device] for number, device, _ in session.devices]
    gpus = len({device.hardware for device in used})
    names = sorted({device.name for device in used if device.name is not None})
    processes = sum(len(trace.processes) for trace in session.traces)
    recorders = sorted(
        {
            f"{RECORDERS[trace.format]} {trace.tool_version}"
            for trace in session.traces
            if trace.tool_version
        }
    )
    facts = [
        plain(" + ".join(names), 80) or ("GPU of unknown name" if used else ""),
        f"{gpus} GPUs" if gpus > 1 else "",
        f"{processes} processes" if processes > 1 else "",
        f"{sum(analysis.trace.operations for analysis in session.analyses):,} operations",
        format_ns(session.timeline.end_ns) if used else "",
        plain(", ".join(recorders), 80),
    ]
    paths = [trace.path for trace in session.traces]
    title = plain(shown_title(session.traces), 120)
    return html.Header(
        [
            html.Div(
                [
                    html.Span("gpuscope", className="brand"),
                    html.H1(title, title=plain(", ".join(paths), 300)),
                ],
                className="title",
            ),
            html.P(" · ".join(fact for fact in facts if fact), className="facts"),
            html.Div(
                [
                    _button("?", "help", "Keyboard and mouse (?)"),
                    _button("◐", "theme", "Light or dark (T)"),
                ],
                className="tools",
            ),
        ]
    )


def _button(sign: str, act: str, title: str) -> Any:
    """Return a button; the page's script does what its `act` names."""
    attributes: Any = {"data-act": act, "aria-label": title}
    return html.Button(sign, title=title, className="icon", type="button", **attributes)


def notes(session: Session) -> list[Any]:
    """Return what has to be known about the traces."""
    lines: list[str] = []
    lines += filter(None, map(numbered_names, session.analyses))
    for trace in (analysis.trace for analysis in session.analyses):
        lines += trace.notes
        missing = lacking(trace.damaged, trace.lost_records)
        lines += [f"{line[0].upper()}{line[1:]}." for line in missing]
    if not session.ranges_shown and session.devices:
        lines.append(
            "No NVTX range launched work here, so there are figures of the whole trace only: "
            "annotate the program with NVTX ranges and record with -t cuda,nvtx."
        )
    found: list[Any] = []
    if len(session.traces) > 1:
        found.append(html.P(plain(session.timeline.alignment.note, 400), className="where clock"))
    if lines:
        items = [html.Li(plain(line, 400)) for line in lines]
        found.append(html.Ul(items, className="notes"))
    return found


def nothing_ran() -> Any:
    """Say that there is nothing to show."""
    return html.Section(
        [
            html.H2("Nothing ran on a GPU in this trace"),
            html.P(
                "Record with CUDA tracing (-t cuda,nvtx), and make sure that the captured part of "
                "the program launches kernels or copies."
            ),
        ],
        className="panel empty",
    )


def cards(session: Session) -> list[Any]:
    """Return a card for each of the best ranges, or for the devices when there is none.

    The ranks of a run, and many GPUs of a trace, have one card a range together: a pair is what it
    is on the worst of them.
    """
    every = [(number, entry) for number, carded in enumerate(session.carded) for entry in carded]
    if session.joint:
        same: dict[tuple[int, str], list[tuple[int, RangeResult]]] = {}
        for number, entry in every:
            run = 0 if session.of_ranks else number
            same.setdefault((run, entry.name), []).append((number, entry))
        made = [_joint_card(session, entries) for entries in same.values()]
    else:
        made = [_range_card(session, number, entry) for number, entry in every]
    if made:
        return made
    fit = session.fit()
    return [
        _card(
            session.timeline.device_label(number, device),
            "whole trace",
            [entry.scope],
            _shows(fit.low_ns, fit.high_ns, WHOLE, at),
        )
        for at, (number, device, entry) in enumerate(session.devices)
    ]


def _jointly(
    session: Session, entries: Sequence[tuple[int, RangeResult]]
) -> tuple[int, RangeResult]:
    """Return the worst of a range's results, its pairs and links each those of the worst one.

    Parameters
    ----------
    entries
        The trace of each result, and the result.
    """
    worst: dict[tuple[str, str], tuple[Any, int, RangeResult]] = {}
    figures: dict[str, dict[tuple[str, str], Any]] = {"pairs": {}, "links": {}}
    small: dict[tuple[str, str], str] = {}
    for number, entry in entries:
        for kind, pairs in (("pairs", entry.scope.pairs), ("links", entry.link_pairs)):
            for pair in pairs:
                if pair.verdict == "immaterial":
                    name = _who(session, number, entry)
                    small[pair.a, pair.b] = f"{small.get((pair.a, pair.b), '')}; {name}: immaterial"
                order = WORST_FIRST.index(pair.verdict), pair.overlap_ratio or 0.0
                known = worst.get((pair.a, pair.b))
                if known is None or order < known[0]:
                    worst[pair.a, pair.b] = order, number, entry
                    where = f"{_who(session, number, entry)}: {pair.reason}"
                    figures[kind][pair.a, pair.b] = dataclasses.replace(pair, reason=where)
    for known_pairs in figures.values():
        for key in small.keys() & known_pairs.keys():
            pair = known_pairs[key]
            if pair.verdict != "immaterial":  # whom the worst one speaks for
                known_pairs[key] = dataclasses.replace(pair, reason=pair.reason + small[key])
    unknown = _without_work(session)
    for known_pairs in figures.values() if unknown else ():
        for key, pair in known_pairs.items():
            if WORST_FIRST.index(pair.verdict) > WORST_FIRST.index("inconclusive"):
                reason = f"{unknown}; {pair.reason}"
                known_pairs[key] = dataclasses.replace(pair, verdict="inconclusive", reason=reason)
    carded = [each for pair, each in worst.items() if "mpi" not in pair]
    _, number, entry = min(carded, key=lambda each: each[0], default=(None, *entries[0]))
    scope = dataclasses.replace(entry.scope, pairs=tuple(figures["pairs"].values()))
    links = tuple(figures["links"].values())
    return number, dataclasses.replace(entry, scope=scope, link_pairs=links)


def _who(session: Session, number: int, entry: RangeResult) -> str:
    """Name the rank, or the GPU, that a result of a joint card is of."""
    if session.of_ranks:
        return session.timeline.names[number]
    return session.timeline.device_label(number, session.device_of(number, entry))


def _without_work(session: Session) -> str:
    """Say which ranks recorded no GPU work, and so leave open what was hidden; nothing if none."""
    if not session.of_ranks:
        return ""
    names = zip(session.timeline.names, session.analyses, strict=True)
    idle = [f"{name} recorded no GPU work" for name, each in names if not each.trace.operations]
    missing = [rank for each in session.analyses for rank in each.trace.missing_ranks]
    return ", ".join([*idle, *(f"rank {rank} is without a trace" for rank in missing)])


def _joint_card(session: Session, entries: Sequence[tuple[int, RangeResult]]) -> Any:
    """Return the card of a range on several ranks or GPUs: least and largest sums, worst pairs.

    A click shows the worst of them.
    """
    if len(entries) == 1 and not session.of_ranks:
        return _range_card(session, *entries[0])
    ran, every = len({number for number, _ in entries}), len(session.traces)
    if not session.of_ranks:
        ran, every = len(entries), sum(each[0] == entries[0][0] for each in session.devices)
    count = f"{ran}" if ran == every else f"{ran} of {every}"
    number, worst = _jointly(session, entries)
    where = f"{count} {'ranks' if session.of_ranks else 'GPUs'} jointly"
    verdicts = {pair.verdict for pair in _on_gpu(worst.scope)}
    verdicts |= {pair.verdict for pair in worst.link_pairs}
    if verdicts - {"immaterial"}:
        where += f" · worst: {_who(session, number, worst)}"
    if unknown := _without_work(session):
        where += f" · {unknown}"
    scopes = [worst.scope, *(entry.scope for _, entry in entries)]
    card = _card_of(session, number, worst, where, scopes)
    card.className += " joint"
    return card


def _range_card(session: Session, number: int, entry: RangeResult) -> Any:
    times = f"{entry.instances:,} instances" if entry.instances > 1 else "1 instance"
    label = session.timeline.device_label(number, session.device_of(number, entry))
    where = f"{label} · {times}" if len(session.devices) > 1 else times
    return _card_of(session, number, entry, where, [entry.scope])


def _card_of(
    session: Session, number: int, entry: RangeResult, where: str, scopes: Sequence[Scope]
) -> Any:
    device = session.device_of(number, entry)
    links = [_row(pair) for pair in entry.link_pairs]
    at = session.range_number(number, entry.name)
    shown = session.ranges_shown[at]
    place = [known[:2] for known in session.devices].index((number, device))
    name = visible(entry.name)
    return _card(name, where, scopes, _shows(shown.low_ns, shown.high_ns, at, place), links)


def _shows(
    low_ns: int, high_ns: int, range_number: int | None = None, device: int | None = None
) -> dict[str, str]:
    """Return the attributes that make a click on an element show a stretch of time."""
    facts = {"low": low_ns, "high": high_ns, "range": range_number, "device": device}
    return {f"data-{name}": str(value) for name, value in facts.items() if value is not None}


def _on_gpu(scope: Scope) -> list[PairFigures]:
    """Return the pairs that a card has: that the host was in MPI as the GPU worked proves nothing.

    The matrix has those, too.
    """
    return [pair for pair in scope.pairs if "mpi" not in (pair.a, pair.b)]


def _card(
    name: str,
    where: str,
    scopes: Sequence[Scope],
    shows: Mapping[str, str],
    links: Sequence[Any] = (),
) -> Any:
    """Return the card of a scope; the sums are those of all `scopes`, the pairs of the first."""
    scope = scopes[0]
    gains = [each.overlap_efficiency for each in scopes if each.overlap_efficiency is not None]
    on_gpu = _on_gpu(scope)
    material = [pair for pair in on_gpu if pair.verdict != "immaterial"]
    pairs = [pair for pair in material if pair.verdict != "inconclusive"] or material
    beside = [pair for pair in on_gpu if pair not in pairs]
    gain = (
        []
        if not gains
        else [
            html.Span(
                f"{_least_to_largest(gains, format_ratio)} of the possible gain",
                title="(sum of engine times - busy) / (sum of engine times - longest engine), "
                "if the chunks are independent",
            )
        ]
    )
    span = _least_to_largest([each.span_ns for each in scopes], format_ns)
    attributes: Any = shows
    return html.Button(
        [
            html.Div([html.H3(plain(name, 40)), html.Span(where, className="where", title=where)]),
            html.P([html.Span(f"span {span}"), *gain], className="sums"),
            *map(_row, pairs),
            *links,
            *([] if links and not beside else _beside(scopes, on_gpu, beside)),
            *_hidden(scopes),
        ],
        className="card",
        type="button",
        title="Show this range",
        **attributes,
    )


def _least_to_largest(values: Sequence[Any], write: Callable[[Any], str]) -> str:
    return " to ".join(dict.fromkeys(write(each) for each in (min(values), max(values))))


def _beside(
    scopes: Sequence[Scope], on_gpu: Sequence[PairFigures], beside: Sequence[PairFigures]
) -> list[Any]:
    """Say what has no line of its own: pairs too small to matter or to judge, or no pair at all."""
    if beside:
        open_ = sum(pair.verdict == "inconclusive" for pair in beside)
        small = len(beside) - open_
        words = [
            f"{counted(small, 'pair is', 'pairs are')} too small to matter" if small else "",
            f"{counted(open_, 'pair')} cannot be judged" if open_ else "",
        ]
        reasons = " · ".join(f"{p.a} ∩ {p.b}: {p.reason}" for p in beside)
        return [html.P("; ".join(filter(None, words)), className="where", title=reasons)]
    if on_gpu:
        return []
    ran = [f"{name} ran, {at_once(scopes[0], name)}" for name in scopes[0].concurrency.classes]
    alone = f"only {', '.join(ran)}" if ran else "nothing ran"
    lines = [html.P(f"{alone}: there is no pair to overlap", className="where")]
    talk, bare = zip(*map(communication, scopes), strict=True)
    if any(talk):
        told = (
            f"communication {_least_to_largest(talk, format_ns)}, "
            f"{_least_to_largest(bare, format_ns)} of it under no kernel"
        )
        lines.append(html.P(told, className="where"))
    return lines


def _hidden(scopes: Sequence[Scope]) -> list[Any]:
    """Say what share of the transfers lies under kernels, and beside it of the host's time in MPI.

    The latter is no pair of a card, as it moves nothing: see `gpuscope.report.phases`.
    """
    phases = [each.phases for each in scopes if each.phases and each.phases.compute_ns]
    hidden = [each.hidden_ratio for each in phases if each.hidden_ratio is not None]
    in_mpi = [each.mpi_hidden_ns / each.mpi_ns for each in phases if each.mpi_ns]
    if not hidden or not in_mpi:
        return []
    text = (
        f"transfers {_least_to_largest(hidden, format_ratio)} hidden · "
        f"time in MPI {_least_to_largest(in_mpi, format_ratio)} beside kernels"
    )
    return [html.P(text, className="where", title="Only transfers prove overlap")]


def _row(pair: PairFigures | LinkPair) -> Any:
    """Return the line of a pair of classes or links."""
    verdict, reason = pair.verdict, plain(pair.reason, 200)
    width = 100 * (pair.overlap_ratio or 0.0)
    return html.Div(
        [
            html.Span(f"{pair.a} ∩ {pair.b}", className="pair"),
            html.Span(
                html.Span(style={"width": f"{width:.1f}%"}, className=f"fill {verdict}"),
                className="bar",
            ),
            html.Span(format_ratio(pair.overlap_ratio), className="ratio"),
            html.Span(f"{VERDICT_MARKS[verdict]} {verdict}", className=f"verdict {verdict}"),
            html.Span(reason, className="reason"),
        ],
        className=f"row is-{verdict}",
        title=reason,
    )


def timeline_panel(items: Sequence[tuple[str, str]]) -> Any:
    """Return the timeline with its tools; `items` go into its menu."""
    # The script adds the ranges: Dash would take seconds for thousands of them.
    whole = html.Option("whole trace", value=str(WHOLE))
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Timeline"),
                    html.Label("Range", htmlFor="range"),
                    html.Select([whole], id="range"),
                    _box("find", "Find names  /", "Find names: a regular expression"),
                    html.Span(id="find-count", className="where", role="status"),
                    _box("rows", "Filter rows", "Rows to show: a regular expression"),
                    html.Span(id="window", className="where", role="status"),
                    html.Div(
                        [
                            _button("+", "zoom-in", "Zoom in (W)"),
                            _button("−", "zoom-out", "Zoom out (S)"),
                            _button("←", "move-left", "Move left (A)"),
                            _button("→", "move-right", "Move right (D)"),
                            _button("Fit", "fit", "Fit the trace or the range (F)"),
                            _menu(items),
                        ],
                        className="tools",
                    ),
                ],
                className="bar-top",
            ),
            html.Div(
                [
                    html.Div(id="timeline", role="group", **_aria("Timeline")),
                    html.Aside(id="details", **_aria("The picked operation")),
                ],
                className="timeline",
            ),
        ],
        className="panel",
    )


def _box(name: str, hint: str, label: str) -> Any:
    """Return the place of a text field; the page's script makes it, since Dash has none like it."""
    attributes: Any = {"data-box": name, "data-hint": hint, "data-label": label}
    return html.Span(**attributes)


TAKEN = (
    ("copy", "Copy as image"),
    ("png", "Picture, PNG"),
    ("svg", "Picture, SVG"),
)
"""What can be taken away of a timeline."""
SERVED = (
    ("csv", "Operations in view, CSV"),
    ("link", "Copy the link"),
)
"""What only the page can give."""


def _menu(items: Sequence[tuple[str, str]]) -> Any:
    """Return the menu of what can be taken away."""
    buttons = []
    for act, text in items:
        attributes: Any = {"data-act": act}
        buttons.append(html.Button(text, type="button", **attributes))
    return html.Details(
        [
            html.Summary("⤓", title="Take away", className="icon", **_aria("Take away")),
            html.Div([*buttons, html.Span(id="said", role="status", className="where")]),
        ],
        className="menu",
    )


def _overlap_panel(session: Session) -> Any:
    several = len(session.devices) > 1
    return html.Section(
        [
            html.Div(
                [
                    html.H2("What ran at the same time"),
                    html.Span(id="scope-title", className="where"),
                    html.Select(
                        [
                            html.Option(
                                session.timeline.device_label(number, device), value=str(at)
                            )
                            for at, (number, device, _) in enumerate(session.devices)
                        ],
                        id="device",
                        style={} if several else {"display": "none"},
                        **_aria("Device"),
                    ),
                ],
                className="bar-top",
            ),
            html.P(id="scope-sums", className="sums", role="status"),
            html.Div(
                id="partition",
                className="partition",
                role="img",
                **_aria("Bar of which classes were active together; the list below says the same"),
            ),
            html.Ul(id="parts", className="parts"),
            html.Div(id="matrix"),
        ],
        className="panel",
    )


def _tables_panel() -> Any:
    """Return the place of the tables; the page's script fills it."""
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Tables"),
                    html.Div(id="tabs", role="tablist", className="tabs", **_aria("Tables")),
                    html.Span(id="table-count", className="where", role="status"),
                ],
                className="bar-top",
            ),
            html.Div(id="table", className="table"),
        ],
        className="panel",
    )


def findings_panel(session: Session) -> Any:
    """Return the causes that were found."""
    body: list[Any] = [_finding(session, number, finding) for number, finding in session.findings]
    if not body:
        body = [html.P("No cause was found that would explain lost overlap.", className="where")]
    for text in dict.fromkeys(text for each in session.analyses for text in abstentions(each)):
        body.append(html.P(text, className="where"))
    return html.Section(
        [html.Div(html.H2("Why not more"), className="bar-top"), *body], className="panel findings"
    )


def _finding(session: Session, number: int, finding: Finding) -> Any:
    window = session.finding_window(number, finding)
    amount, limit = saving_parts(finding)
    saving = [html.Span(amount, className="saving")] if amount else []
    told = saving_text(finding) if limit else ""
    place = session.place_of(number, finding)
    where = f" in {plain(place, 80)}" if place else ""
    word = "warning" if finding.severity == "warning" else "note"
    examples = _examples(session, number, finding)
    device = session.finding_device(number, finding)
    attributes: Any = _shows(*window, device=device) if window else {}
    if examples:
        attributes["data-op"] = getattr(examples[0], "data-op")
    head = html.Button(
        [
            html.Div(
                [
                    html.Span(word, className="severity"),
                    html.H3(finding.id),
                    html.Span(where, className="where"),
                    *saving,
                ]
            ),
            html.P(plain(finding.claim, 600)),
            html.P(f"→ {plain(finding.advice, 600)}{told}", className="advice"),
        ],
        type="button",
        disabled=window is None,
        title="Show the evidence" if window else "",
        **attributes,
    )
    listed = [html.P(["Worst: ", *examples], className="examples")] if examples else []
    return html.Div([head, *listed], className=f"finding {finding.severity}")


def _examples(session: Session, number: int, finding: Finding) -> list[Any]:
    """Return a button for each operation in a finding's evidence: a click shows it."""
    placed = session.timeline.placed[number]
    buttons = []
    for row, item, example in session.evidence(number, finding):
        start = int(placed.operations.start_ns[item]) + placed.shift_ns
        end = int(placed.operations.end_ns[item]) + placed.shift_ns
        lost = example.get("held_ns", example.get("cost_ns", 0))
        around = 4 * max(end - start, lost, MIN_SHOWN_NS)
        attributes: Any = {**_shows(start - around, end + around), "data-op": f"{row}.{item}"}
        text = f"at {start / NS_PER_MS:,.3f} ms" + (f", {format_ns(lost)}" if lost else "")
        buttons.append(html.Button(text, type="button", className="example", **attributes))
    return buttons


def help_dialog(more: str = "") -> Any:
    """Return the list of keys, and what else there is to know."""
    rows = [html.Div([html.Kbd(keys), html.Span(what)]) for keys, what in KEYS]
    return html.Dialog(
        [
            html.H2("Keyboard"),
            *rows,
            html.P(MOUSE),
            *([html.P(more)] if more else []),
            html.Form(html.Button("Close", className="icon wide"), method="dialog"),
        ],
        id="help",
        **_aria("Keyboard"),
    )


def _aria(label: str) -> Any:
    """Return the attribute by which screen readers name a control."""
    return {"aria-label": label}


def sums_text(scope: Scope | Together) -> str:
    """Say the sums of a scope in a line."""
    busy = scope.span_ns - scope.idle_ns
    parts = [
        f"span {format_ns(scope.span_ns)}",
        f"busy {format_ns(busy)}",
        f"idle {format_ns(scope.idle_ns)}",
    ]
    if isinstance(scope, Scope):
        peak = scope.concurrency.peak
        parts.append("one stream at a time" if peak == 1 else f"up to {peak} streams at once")
        if scope.overlap_efficiency is not None:
            parts.append(f"{format_ratio(scope.overlap_efficiency)} of the possible gain reached")
    return " · ".join(parts)


def partition(scope: Together) -> list[Any]:
    """Draw the share of the span in which exactly each set of classes was active, as one bar."""
    span = max(1, scope.span_ns)
    pieces = []
    for part in scope.partition:
        share = part.ns / span
        name = " + ".join(part.classes) or "idle"
        text = f"{name} {100 * share:.0f} %"
        label = html.Span(text, style={"color": _ink(part.classes)}, className="label")
        pieces.append(
            html.Div(
                [label] if share > _LETTER_SHARE * len(text) else [],
                style={"width": f"{100 * share:.4f}%", "background": _paint(part.classes)},
                className="striped" if len(part.classes) > 1 else "",
                title=f"{name}: {format_ns(part.ns)}, {100 * share:.1f} % of the span",
                **_set(part),
            )
        )
    return pieces


def _set(part: Part) -> Any:
    """Return the attribute by which a report's script knows a part of a partition."""
    return {"data-set": " ".join(part.classes) or "idle"}


def _ink(classes: Sequence[str]) -> str:
    """Return the colour of a label: on stripes it has a ground of its own."""
    return f"var(--ink-{classes[0]})" if len(classes) == 1 else "var(--text)"


def parts(scope: Together) -> list[Any]:
    """List the longest parts of a partition, each with its paint: the legend of its bar."""
    span = max(1, scope.span_ns)
    longest = sorted(scope.partition, key=lambda part: -part.ns)
    shown, rest = longest[:MAX_PARTS], longest[MAX_PARTS:]
    items = [
        html.Li(
            [
                html.Span(style={"background": _paint(part.classes)}, className="swatch"),
                html.Span(" + ".join(part.classes) or "idle"),
                html.Span(f"{format_ratio(part.ns / span)} · {format_ns(part.ns)}"),
            ],
            **_set(part),
        )
        for part in shown
    ]
    if rest:
        share = sum(part.ns for part in rest) / span
        items.append(html.Li(f"and {counted(len(rest), 'smaller part')}, {format_ratio(share)}"))
    return items


def matrix(scope: Together) -> list[Any]:
    """Return the overlap of each pair of classes as a table; nothing where there is no pair."""
    names = [name for name, busy in scope.busy_ns.items() if busy]
    if len(names) < 2:
        return []
    rows = []
    for a in names:
        cells = []
        for b in names:
            ratio = None if a == b else scope.ratio(a, b)
            share = "0%" if ratio is None else f"{60 * ratio:.0f}%"
            time = scope.overlap_ns.get((min(a, b), max(a, b)), 0)
            big = format_ns(scope.busy_ns[a]) if a == b else format_ratio(ratio)
            small = "busy" if a == b else format_ns(time) if ratio is not None else ""
            cells.append(
                html.Td(
                    [html.B(big), html.Br(), html.Span(small)],
                    title=f"{a} ∩ {b}",
                    style={"background": f"color-mix(in srgb, var(--accent) {share}, transparent)"},
                )
            )
        rows.append(html.Tr([html.Th(a, scope="row"), *cells]))
    head = html.Tr(
        [
            html.Th(html.Span("class", className="unseen")),
            *(html.Th(name, scope="col") for name in names),
        ]
    )
    caption = html.Caption("Overlap of each pair of classes, of the shorter one's busy time")
    return [html.Table([caption, html.Thead(head), html.Tbody(rows)], className="matrix")]


def _paint(classes: Sequence[str]) -> str:
    """Return a CSS background: plain for one class, stripes for several."""
    colors = [f"var(--fill-{name})" for name in classes or ("range",)]
    if len(colors) == 1:
        return colors[0]
    stops = ", ".join(
        f"{color} {_STRIPE_PX * at}px {_STRIPE_PX * (at + 1)}px" for at, color in enumerate(colors)
    )
    return f"repeating-linear-gradient(135deg, {stops})"
