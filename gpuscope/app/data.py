"""What the page's script asks for: rows of the timeline, one operation, tables, CSV."""

from __future__ import annotations

import json
from typing import Any

from flask import Flask, Response, abort, request, send_from_directory

from gpuscope.app.state import Session
from gpuscope.figures.details import details
from gpuscope.figures.listing import COLUMNS, Condition, csv_rows, listing, shown_columns, values
from gpuscope.figures.names import PatternError, check
from gpuscope.figures.palette import style_sheet
from gpuscope.figures.search import Place, found
from gpuscope.figures.timeline import ASSETS, plain
from gpuscope.report.rows import saving_parts
from gpuscope.report.table import csv_text
from gpuscope.units import format_ns, format_ratio, visible

MAX_ROWS = 200
"""Rows of a table that are sent at once."""
MAX_COLUMNS = 4_096
"""Columns of pixels that a view is made for at most."""
MAX_CONDITIONS = 20
"""Conditions on a table's columns."""


def describe(session: Session) -> dict[str, Any]:
    """Return what the page's script needs once: rows, paints, ranges, and the short tables."""
    shown = shown_columns(session.timeline)
    several = len(session.traces) > 1
    traces = [f" · {plain(name, 30)}" if several else "" for name in session.timeline.names]
    return {
        **session.timeline.describe(),
        "devices": [(number, device) for number, device, _ in session.devices],
        "ranges": [
            {
                "name": plain(visible(each.name), 200),
                "label": f"{plain(visible(each.name), 80)}{traces[each.trace]}",
                "low": each.low_ns,
                "high": each.high_ns,
            }
            for each in session.ranges_shown
        ],
        "tables": {"findings": _findings(session), "ranges": _ranges(session)},
        "operations": {"columns": list(shown), "kinds": list(shown.values())},
    }


def _findings(session: Session) -> dict[str, Any]:
    rows = []
    for number, finding in session.findings:
        _, limit = saving_parts(finding)
        claim = plain(finding.claim, 300)
        cells = [
            finding.severity,
            finding.id,
            plain(session.place_of(number, finding)),
            format_ns(finding.saving_ns),
            f"{claim} (saves {limit})" if limit else claim,
        ]
        rows.append(
            {
                "cells": cells,
                "keys": [*cells[:3], finding.saving_ns or 0, cells[4]],
                "window": session.finding_window(number, finding),
                "op": next((each[:2] for each in session.evidence(number, finding)), None),
            }
        )
    return {
        "columns": ["severity", "finding", "range", "saves up to", "what was seen"],
        "kinds": ["text", "text", "text", "time", "text"],
        "rows": rows,
    }


def _ranges(session: Session) -> dict[str, Any]:
    rows = []
    for number, analysis in enumerate(session.analyses):
        known = {
            each.name: (at, each)
            for at, each in enumerate(session.ranges_shown)
            if each.trace == number
        }
        for entry in analysis.ranges:
            scope, (at, shown) = entry.scope, known.get(entry.name, (None, None))
            best = max((pair.overlap_ratio or 0.0 for pair in scope.pairs), default=None)
            keys: list[Any] = [
                plain(visible(entry.name)),
                session.timeline.device_label(number, session.device_of(number, entry)),
                entry.instances,
                scope.span_ns,
                scope.busy_ns,
                scope.busy_ns - scope.bound_ns,
                -1.0 if best is None else best,
            ]
            rows.append(
                {
                    "cells": [
                        *keys[:2],
                        f"{entry.instances:,}",
                        *(format_ns(time) for time in keys[3:6]),
                        format_ratio(best),
                    ],
                    "keys": keys,
                    "window": (shown.low_ns, shown.high_ns) if shown else None,
                    "range": at,
                }
            )
    columns = ["range", "device", "instances", "span", "busy", "could be hidden", "best overlap"]
    kinds = ["text", "text", "count", "time", "time", "time", "ratio"]
    return {"columns": columns, "kinds": kinds, "rows": rows}


def register(server: Flask, session: Session) -> None:
    """Answer the page's script; what it cannot mean is a bad request."""
    timeline = session.timeline

    def number(name: str, default: int | None = None) -> int:
        text = request.args.get(name)
        if text is None and default is not None:
            return default
        try:
            value = int(text or "")
        except ValueError:
            abort(400)
        if abs(value) > 1 << 62:
            abort(400)
        return value

    def stretch() -> tuple[int, int]:
        low, high = number("low"), number("high")
        if high <= low:
            abort(400)
        return low, high

    def pattern() -> str:
        text = request.args.get("find", "")
        check(text)
        return text

    def conditions() -> list[Condition]:
        try:
            asked = json.loads(request.args.get("where", "[]"))
            found = [Condition(str(column), str(sign), value) for column, sign, value in asked]
        except (ValueError, TypeError):
            abort(400)
        if len(found) > MAX_CONDITIONS or not all(each.is_one for each in found):
            abort(400)
        return found

    @server.errorhandler(PatternError)
    def _no_pattern(error: PatternError) -> Response:
        return Response(str(error), 400, mimetype="text/plain")

    @server.get("/describe")
    def _describe() -> Response:
        return _json(describe(session))

    @server.get("/view")
    def _view() -> Response:
        low, high = stretch()
        try:
            rows = [int(text) for text in request.args.get("rows", "").split(",") if text]
        except ValueError:
            abort(400)
        pixels = min(MAX_COLUMNS, max(1, number("pixels")))
        return _json(timeline.view(low, high, pixels, rows, pattern()))

    @server.get("/item")
    def _item() -> Response:
        try:
            return _json(details(timeline, number("row"), number("item")))
        except IndexError:
            abort(404)

    @server.get("/found")
    def _found() -> Response:
        """Answer how many things are called so, and which comes next where that is asked for."""
        at = None
        if "at" in request.args:
            at = Place(number("at"), number("row", -1), number("item", -1))
        step = number("step", 1)
        if step not in (1, -1):
            abort(400)
        return _json(found(timeline, pattern(), at, step))

    @server.get("/operations")
    def _operations() -> Response:
        low, high = stretch()
        sort = request.args.get("sort", "start")
        if sort not in COLUMNS:
            abort(400)
        return _json(
            listing(
                timeline,
                low,
                high,
                pattern=pattern(),
                conditions=conditions(),
                sort=sort,
                descending=bool(number("descending", 0)),
                most=MAX_ROWS,
            )
        )

    @server.get("/operation")
    def _one() -> Response:
        """Answer with the table's row of one operation, which may be beyond the rows sent."""
        row, item = number("row"), number("item")
        operation = timeline.operation_at(row, item)
        return _json(None if operation is None else values(timeline, *operation))

    @server.get("/operations.csv")
    def _csv() -> Response:
        low, high = stretch()
        headers = {"Content-Disposition": "attachment; filename=operations.csv"}
        for trace in range(len(timeline.placed)):
            timeline.named(trace, pattern())  # what cannot be searched for is said before a line is
        lines = map(csv_text, csv_rows(timeline, low, high, pattern(), conditions()))
        return Response(lines, mimetype="text/csv", headers=headers)

    @server.get("/shared/palette.css")
    def _palette() -> Response:
        return Response(style_sheet(), mimetype="text/css")

    @server.get("/shared/<name>")
    def _shared(name: str) -> Response:
        """Give out what the page has in common with the report."""
        return send_from_directory(ASSETS, name)


def _json(value: object) -> Response:
    return Response(json.dumps(value, separators=(",", ":")), mimetype="application/json")
