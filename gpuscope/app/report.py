"""The report: the page as one file, that opens without a server, a network or Dash's scripts.

It is made of the page's own parts, written as HTML. The timeline is drawn by the same script, from
data that the file holds: of a large trace the shares of narrow columns and the longest operations.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import Any

from dash import html as tags

from gpuscope.app import layout
from gpuscope.app.data import describe
from gpuscope.app.state import Session
from gpuscope.figures.kept import add_costly, sums, told
from gpuscope.figures.overlap import Together
from gpuscope.figures.palette import style_sheet
from gpuscope.figures.timeline import ASSETS, SCRIPTS, plain
from gpuscope.model.result import Scope
from gpuscope.model.trace import shown_title
from gpuscope.story import TOLD, TOLD_COST
from gpuscope.units import visible

MAX_BYTES = 5_000_000
"""Size of a report at most: what mail and code reviews take."""
COLUMN_BYTES = 2_000_000
"""Shares of columns, in all rows together, of the first attempt."""
COLUMNS = (512, 65_536)
"""Columns at least and at most."""
MARKS = 40_000
"""Operations, calls and ranges that are drawn one by one, of the first attempt."""

MAX_RANGES = 60
"""Ranges of which the figures are there, the best ones first."""
LISTED = 1_000
"""Ranges that are named at all, the best ones first."""

_NAMES = {"className": "class", "htmlFor": "for"}
_VOID = {"br"}
_HIDDEN = {"children", "n_clicks", "style", "id"}


def to_html(part: Any) -> str:
    """Write a component of Dash, a text, or a list of either as HTML; all texts are escaped."""
    if part is None:
        return ""
    if isinstance(part, list | tuple):
        return "".join(to_html(each) for each in part)
    if isinstance(part, str | int | float):
        return html.escape(str(part))
    written = part.to_plotly_json()
    tag, properties = written["type"].lower(), written["props"]
    attributes = {"id": properties.get("id")} | {
        _NAMES.get(name, name): value
        for name, value in sorted(properties.items())  # Dash keeps them in the order of a set
        if name not in _HIDDEN and value not in (None, False)
    }
    style = "; ".join(f"{key}: {value}" for key, value in properties.get("style", {}).items())
    text = "".join(
        f' {name}="{html.escape(str(value))}"'
        for name, value in {**attributes, "style": style}.items()
        if value
    )
    if tag in _VOID:
        return f"<{tag}{text}>"
    return f"<{tag}{text}>{to_html(properties.get('children'))}</{tag}>"


def write(session: Session) -> str:
    """Return the report of a session, an HTML document of at most about MAX_BYTES."""
    budget = 1.0
    while True:
        text = _document(session, budget)
        if len(text.encode()) <= MAX_BYTES or budget < 0.01:
            return text
        budget /= 2


def _document(session: Session, budget: float) -> str:
    timeline = session.timeline
    meta = describe(session)
    del meta["tables"]  # these stand in the document
    del meta["ranges"][LISTED:]
    parts = sum(len(row["paints"]) for row in meta["rows"])
    columns = int(min(max(budget * COLUMN_BYTES / max(1, parts), COLUMNS[0]), COLUMNS[1]))
    fit = session.fit()
    view = timeline.view(
        fit.low_ns, fit.high_ns, columns, range(len(timeline.rows)), most=int(MARKS * budget)
    )
    add_costly(timeline, view, _evidence(session))
    kept = {
        "meta": meta,
        "view": view,
        "told": told(timeline, view),
        # What a chained kernel waited for is the one before it in its stream.
        "sentences": [["stream" if why == "chained" else why, told] for why, told in TOLD.items()],
        "cost": TOLD_COST,
        "sums": sums(timeline, view),
    }
    data = json.dumps(kept, separators=(",", ":")).replace("<", "\\u003c")
    scripts = [(ASSETS / name).read_text("utf-8") for name in (*SCRIPTS, "report.js")]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    title = html.escape(plain(shown_title(session.traces), 120))
    style = style_sheet() + (ASSETS / "style.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'unsafe-inline'; img-src data: blob:; worker-src blob:; script-src {hashes}\">"
        f"<title>{title} · gpuscope</title><style>{style}</style></head><body>"
        f"{to_html(_page(session))}{_range_figures(session)}"
        f'<script type="application/json" id="data">{data}</script>'
        f"{''.join(f'<script>{script}</script>' for script in scripts)}</body></html>\n"
    )


def _evidence(session: Session) -> set[tuple[int, int]]:
    """Return the operations that findings name, by trace and number."""
    return {
        (number, item)
        for number, finding in session.findings
        for _, item, _ in session.evidence(number, finding)
    }


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _page(session: Session) -> Any:
    if not session.devices:
        content = [layout.nothing_ran()]
    else:
        several = len(session.devices) > 1
        content = [
            *layout.notes(session),
            tags.H2("Verdicts", className="unseen"),
            tags.Div(layout.cards(session), className="cards"),
            layout.timeline_panel(layout.TAKEN),
            tags.Div(
                [
                    tags.Div(
                        [_together(session, at, several) for at in range(len(session.devices))]
                    ),
                    layout.findings_panel(session),
                ],
                className="columns",
            ),
            _ranges(session),
        ]
    return tags.Div(
        [layout.header(session), tags.Main(content), layout.help_dialog()], className="page"
    )


def _together(session: Session, at: int, several: bool) -> Any:
    """Return what ran at the same time on a device, over the whole trace at first."""
    number, device, entry = session.devices[at]
    where = session.timeline.device_label(number, device) if several else ""
    attributes: Any = {"data-band": str(session.timeline.row_of_device[number][device])}
    return tags.Section(
        [
            tags.Div(
                [
                    tags.H2("What ran at the same time"),
                    tags.Span(where, className="where"),
                    tags.Span("whole trace", className="where scope-title", role="status"),
                ],
                className="bar-top",
            ),
            tags.Div(_figures(entry.scope), className="figures"),
        ],
        className="panel",
        **attributes,
    )


def _figures(scope: Scope) -> list[Any]:
    together = Together.of_scope(scope)
    return [
        tags.P(layout.sums_text(scope), className="sums"),
        tags.Div(layout.partition(together), className="partition"),
        tags.Ul(layout.parts(together), className="parts"),
        *layout.matrix(together),
    ]


def _range_figures(session: Session) -> str:
    """Write the figures of the first ranges as templates, which the script shows when asked."""
    texts = []
    for at, shown in enumerate(session.ranges_shown[:MAX_RANGES]):
        for entry in session.analyses[shown.trace].ranges_named(shown.name):
            band = session.timeline.row_of_device[shown.trace][
                session.device_of(shown.trace, entry)
            ]
            times = f", {entry.instances:,} instances" if entry.instances > 1 else ""
            title = html.escape(f"range {plain(visible(shown.name), 80)}{times}")
            texts.append(
                f'<template data-scope="{band}.{at}" data-title="{title}">'
                f"{to_html(_figures(entry.scope))}</template>"
            )
    return "".join(texts)


def _ranges(session: Session) -> Any:
    table = describe(session)["tables"]["ranges"]
    rows = []
    kept = [row for row in table["rows"] if row["range"] is None or row["range"] < LISTED]
    for row in kept[:LISTED]:
        shows: Any = {}
        if row["window"]:
            low, high = row["window"]
            shows = {"data-low": str(low), "data-high": str(high), "data-range": str(row["range"])}
            shows["tabIndex"] = "0"
        rows.append(tags.Tr([tags.Td(text) for text in row["cells"]], **shows))
    left_out = len(table["rows"]) - len(rows)
    more = f"{left_out:,} more are left out" if left_out else ""
    head = tags.Tr([tags.Th(name, scope="col") for name in table["columns"]])
    named: Any = {"aria-label": "Ranges"}
    return tags.Section(
        [
            tags.Div([tags.H2("Ranges"), tags.Span(more, className="where")], className="bar-top"),
            tags.Div(
                tags.Table([tags.Thead(head), tags.Tbody(rows)], **named),
                className="table",
            ),
        ],
        className="panel",
    )
