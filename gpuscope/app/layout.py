"""What is on the page, and how it is arranged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dash import dcc, html

from gpuscope.app.state import WHOLE, Session
from gpuscope.figures.palette import Theme
from gpuscope.model.result import Finding, PairFigures, RangeResult, Scope
from gpuscope.report.rows import abstentions
from gpuscope.units import format_ns, format_ratio

VERDICT_MARKS = {
    "overlapped": "✓",
    "pipelined": "⇉",
    "partial": "◐",
    "serialized": "✕",
    "immaterial": "·",
    "inconclusive": "?",
}
"""A sign for each verdict, so that colour never stands alone."""

_GRAPH_CONFIG: Any = {
    "displaylogo": False,
    "scrollZoom": True,
    "doubleClick": False,  # the page fits the view itself
    "displayModeBar": False,
    "showTips": False,
}
_STILL_CONFIG: Any = {"displayModeBar": False, "showTips": False}

MAX_PARTS = 8
"""Parts of a partition that are listed by themselves."""
_STRIPE_PX = 4

_KEYS = (
    ("W or +", "zoom in"),
    ("S or −", "zoom out"),
    ("A or ←", "move left"),
    ("D or →", "move right"),
    ("F", "fit the whole trace, or the picked range"),
    ("T", "light or dark"),
    ("?", "this list"),
)


def plain(text: str, length: int = 120) -> str:
    """Make a name from a trace fit for a text node: one line of printable characters."""
    clean = "".join(char if char.isprintable() else "�" for char in text[: 4 * length])
    return clean if len(text) <= length else clean[: length - 1] + "…"


def page(session: Session) -> Any:
    """Lay out the page of a trace."""
    return html.Div(
        [
            dcc.Location(id="address", refresh=False),
            dcc.Store(id="view"),
            dcc.Store(id="dragged"),
            dcc.Store(id="theme"),
            _header(session),
            html.Main(
                [
                    *_notes(session),
                    html.Div(id="cards", className="cards", children=_cards(session)),
                    _timeline_panel(session),
                    html.Div(
                        [_overlap_panel(session), _findings_panel(session)], className="columns"
                    ),
                ]
                if session.timeline.lanes
                else [_nothing_ran()]
            ),
            _help(),
        ],
        className="page",
    )


def _header(session: Session) -> Any:
    trace = session.trace
    used = [trace.devices[index] for index in session.timeline.devices]
    gpus = len({device.hardware for device in used})
    names = sorted({device.name for device in used if device.name is not None})
    facts = [
        plain(" + ".join(names), 80) or "GPU of unknown name",
        f"{gpus} GPUs" if gpus > 1 else "",
        f"{len(trace.processes)} processes" if len(trace.processes) > 1 else "",
        f"{session.analysis.trace.operations:,} operations",
        format_ns(trace.duration_ns),
        f"Nsight Systems {trace.tool_version}" if trace.tool_version else "",
    ]
    return html.Header(
        [
            html.Div(
                [
                    html.Span("gpuscope", className="brand"),
                    html.H1(plain(Path(trace.path).name, 60), title=plain(trace.path, 300)),
                ],
                className="title",
            ),
            html.P(" · ".join(fact for fact in facts if fact), className="facts"),
            html.Div(
                [
                    html.Button(
                        "?",
                        id="help-button",
                        className="icon",
                        title="Keyboard (?)",
                        n_clicks=0,
                        **_aria("Keyboard and mouse help"),
                    ),
                    html.Button(
                        "◐",
                        id="theme-button",
                        className="icon",
                        title="Light or dark (T)",
                        n_clicks=0,
                        **_aria("Switch between light and dark"),
                    ),
                ],
                className="tools",
            ),
        ]
    )


def _notes(session: Session) -> list[Any]:
    trace = session.analysis.trace
    notes = list(trace.notes)
    if trace.damaged:
        notes.append(f"{trace.damaged} damaged rows were left out.")
    if trace.lost_records:
        notes.append(f"About {trace.lost_records} GPU records were lost while recording.")
    if not session.range_names and session.timeline.lanes:
        notes.append(
            "No NVTX range launched work here, so there are figures of the whole trace only: "
            "annotate the program with NVTX ranges and record with -t cuda,nvtx."
        )
    if not notes:
        return []
    return [html.Ul([html.Li(plain(note, 400)) for note in notes], className="notes")]


def _nothing_ran() -> Any:
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


def _cards(session: Session) -> list[Any]:
    """Return a card for each of the best ranges, or for the devices when there is none."""
    if session.ranges:
        return [_range_card(session, entry) for entry in session.carded()]
    return [
        _card(
            session.timeline.device_label(session.device_of(entry)),
            "whole trace",
            entry.scope,
            {"range": WHOLE, "device": session.device_of(entry)},
        )
        for entry in session.analysis.devices
    ]


def _range_card(session: Session, entry: RangeResult) -> Any:
    several = len(session.analysis.devices) > 1
    times = f"{entry.instances} instances" if entry.instances > 1 else "1 instance"
    device = session.device_of(entry)
    where = f"{session.timeline.device_label(device)} · {times}" if several else times
    links = [_row(f"{p.a} ∩ {p.b}", p.overlap_ratio, p.verdict, p.reason) for p in entry.link_pairs]
    picks = {"range": session.range_names.index(entry.name), "device": device}
    return _card(entry.name, where, entry.scope, picks, links)


def _card(
    name: str, where: str, scope: Scope, picks: Mapping[str, int], links: Sequence[Any] = ()
) -> Any:
    """Return the card of a scope; a click shows the range and the device of `picks`."""
    pairs = [pair for pair in scope.pairs if pair.verdict != "immaterial"]
    immaterial = [pair for pair in scope.pairs if pair.verdict == "immaterial"]
    gain = (
        []
        if scope.overlap_efficiency is None
        else [
            html.Span(
                f"{format_ratio(scope.overlap_efficiency)} of the possible gain",
                title="(sum of engine times - busy) / (sum of engine times - longest engine), "
                "if the chunks are independent",
            )
        ]
    )
    return html.Button(
        [
            html.Div([html.H3(plain(name, 40)), html.Span(where, className="where")]),
            html.P(
                [html.Span(f"span {format_ns(scope.span_ns)}"), *gain],
                className="sums",
            ),
            *[_row(f"{p.a} ∩ {p.b}", p.overlap_ratio, p.verdict, p.reason) for p in pairs],
            *links,
            *([] if links and not immaterial else _beside(scope, immaterial)),
        ],
        className="card",
        id={"type": "card", **picks},
        n_clicks=0,
        title="Show this range",
    )


def _beside(scope: Scope, immaterial: Sequence[PairFigures]) -> list[Any]:
    """Say what has no line of its own: pairs too small to matter, or no pair at all."""
    if immaterial:
        count = len(immaterial)
        words = "1 pair is" if count == 1 else f"{count} pairs are"
        reasons = " · ".join(f"{p.a} ∩ {p.b}: {p.reason}" for p in immaterial)
        return [html.P(f"· {words} too small to matter", className="where", title=reasons)]
    if scope.pairs:
        return []
    alone = ", ".join(scope.classes) or "nothing"
    peak = scope.concurrency.peak
    streams = f", on up to {peak} streams at once" if peak > 1 else ""
    return [html.P(f"only {alone} ran{streams}: there is no pair to overlap", className="where")]


def _row(name: str, ratio: float | None, verdict: str, reason: str) -> Any:
    """Return the line of a pair of classes or links."""
    width = 100 * (ratio or 0.0)
    return html.Div(
        [
            html.Span(name, className="pair"),
            html.Span(
                html.Span(style={"width": f"{width:.1f}%"}, className=f"fill {verdict}"),
                className="bar",
            ),
            html.Span(format_ratio(ratio), className="ratio"),
            html.Span(f"{VERDICT_MARKS[verdict]} {verdict}", className=f"verdict {verdict}"),
            html.Span(plain(reason, 200), className="reason"),
        ],
        className=f"row is-{verdict}",
        title=plain(reason, 200),
    )


def _timeline_panel(session: Session) -> Any:
    buttons = [
        ("zoom-in", "+", "Zoom in (W)"),
        ("zoom-out", "−", "Zoom out (S)"),
        ("move-left", "←", "Move left (A)"),
        ("move-right", "→", "Move right (D)"),
        ("fit", "Fit", "Fit the trace or the range (F)"),
    ]
    options: list[Any] = [{"label": "whole trace", "value": WHOLE}]
    options += [
        {"label": plain(name, 80), "value": number}
        for number, name in enumerate(session.range_names)
    ]
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Timeline"),
                    html.Label("Range", htmlFor="range"),
                    dcc.Dropdown(
                        id="range", options=options, value=WHOLE, clearable=False, searchable=True
                    ),
                    html.Span(id="window", className="where", role="status"),
                    html.Div(
                        [
                            html.Button(
                                sign,
                                id=name,
                                title=title,
                                n_clicks=0,
                                className="icon",
                                **_aria(title),
                            )
                            for name, sign, title in buttons
                        ],
                        className="tools",
                    ),
                ],
                className="bar-top",
            ),
            html.Div(
                dcc.Graph(
                    id="timeline",
                    config=_GRAPH_CONFIG,
                    style={"height": f"{session.timeline.height_px}px"},
                    responsive=True,
                ),
                className="timeline",
                role="group",
                **_aria("Timeline: a lane for each stream, NVTX ranges above them"),
            ),
        ],
        className="panel",
    )


def _overlap_panel(session: Session) -> Any:
    devices = [session.device_of(entry) for entry in session.analysis.devices]
    return html.Section(
        [
            html.Div(
                [
                    html.H2("What ran at the same time"),
                    html.Span(id="scope-title", className="where"),
                    dcc.Dropdown(
                        id="device",
                        options=[
                            {"label": session.timeline.device_label(index), "value": index}
                            for index in devices
                        ],
                        value=devices[0],
                        clearable=False,
                        style={} if len(devices) > 1 else {"display": "none"},
                    ),
                ],
                className="bar-top",
            ),
            html.P(id="scope-sums", className="sums", role="status"),
            html.Div(
                dcc.Graph(id="partition", config=_STILL_CONFIG, className="still"),
                role="img",
                **_aria("Bar of which classes were active together; the list below says the same"),
            ),
            html.Ul(id="parts", className="parts"),
            html.Div(
                dcc.Graph(id="matrix", config=_STILL_CONFIG, className="still"),
                role="group",
                **_aria("Overlap of each pair of classes"),
            ),
        ],
        className="panel",
    )


def _findings_panel(session: Session) -> Any:
    findings = session.analysis.findings
    body: list[Any] = [
        _finding(number, finding, session.finding_window(finding) is not None)
        for number, finding in enumerate(findings)
    ]
    if not findings:
        body = [html.P("No cause was found that would explain lost overlap.", className="where")]
    body += [html.P(text, className="where") for text in abstentions(session.analysis)]
    return html.Section(
        [html.Div(html.H2("Why not more"), className="bar-top"), *body], className="panel findings"
    )


def _finding(number: int, finding: Finding, clickable: bool) -> Any:
    saving = (
        []
        if finding.saving_ns is None
        else [html.Span(f"up to {format_ns(finding.saving_ns)}", className="saving")]
    )
    where = f" in {plain(finding.range, 40)}" if finding.range else ""
    word = "warning" if finding.severity == "warning" else "note"
    return html.Button(
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
            html.P(f"→ {plain(finding.advice, 600)}", className="advice"),
        ],
        className=f"finding {finding.severity}",
        id={"type": "finding", "number": number},
        n_clicks=0,
        disabled=not clickable,
        title="Show the evidence" if clickable else "",
    )


def _help() -> Any:
    rows = [html.Div([html.Kbd(keys), html.Span(what)]) for keys, what in _KEYS]
    return html.Dialog(
        [
            html.H2("Keyboard"),
            *rows,
            html.P(
                "Wheel: zoom at the cursor; over the names of the lanes it scrolls. Drag: move. "
                "Double click: fit. A click in the legend hides a class. The address keeps range, "
                "view and theme: copy it to come back here."
            ),
            html.Form(html.Button("Close", className="icon wide"), method="dialog"),
        ],
        id="help",
    )


def _aria(label: str) -> Any:
    """Return the attribute by which screen readers name a control."""
    return {"aria-label": label}


def window_text(session: Session, low_ns: int, high_ns: int) -> str:
    """Say which stretch of time is shown."""
    origin, end = session.timeline.low_ns, session.timeline.high_ns
    low, high = max(low_ns, origin), min(high_ns, end)
    return f"{format_ns(low - origin)} – {format_ns(high - origin)} ({format_ns(high - low)})"


def sums_text(scope: Scope | None) -> str:
    """Say the sums of a scope in a line."""
    if scope is None:
        return "nothing ran in this window"
    parts = [
        f"span {format_ns(scope.span_ns)}",
        f"busy {format_ns(scope.busy_ns)}",
        f"idle {format_ns(scope.idle_ns)}",
        "one stream at a time"
        if scope.concurrency.peak == 1
        else f"up to {scope.concurrency.peak} streams at once",
    ]
    if scope.overlap_efficiency is not None:
        parts.append(f"{format_ratio(scope.overlap_efficiency)} of the possible gain reached")
    return " · ".join(parts)


def parts(scope: Scope, theme: Theme) -> list[Any]:
    """List the longest parts of a partition, each with its paint: the legend of its bar."""
    span = max(1, scope.span_ns)
    longest = sorted(scope.partition, key=lambda part: -part.ns)
    shown, rest = longest[:MAX_PARTS], longest[MAX_PARTS:]
    items = [
        html.Li(
            [
                html.Span(style={"background": _paint(part.classes, theme)}, className="swatch"),
                html.Span(" + ".join(part.classes) or "idle"),
                html.Span(f"{format_ratio(part.ns / span)} · {format_ns(part.ns)}"),
            ]
        )
        for part in shown
    ]
    if rest:
        share = sum(part.ns for part in rest) / span
        items.append(html.Li(f"and {len(rest)} smaller parts, {format_ratio(share)}"))
    return items


def _paint(classes: Sequence[str], theme: Theme) -> str:
    """Return a CSS background: plain for one class, stripes for several."""
    colors = [theme.class_color(name) for name in classes] or [theme.range_fill]
    if len(colors) == 1:
        return colors[0]
    stops = ", ".join(
        f"{color} {_STRIPE_PX * at}px {_STRIPE_PX * (at + 1)}px" for at, color in enumerate(colors)
    )
    return f"repeating-linear-gradient(135deg, {stops})"
