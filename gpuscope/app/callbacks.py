"""What happens when a person does something on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from gpuscope.app import layout
from gpuscope.app.state import (
    PAN_SHARE,
    ZOOM_FACTOR,
    Session,
    View,
    view_from_query,
    view_to_query,
)
from gpuscope.figures.overlap import matrix_figure, partition_figure
from gpuscope.figures.palette import theme as theme_of
from gpuscope.units import NS_PER_MS

BUTTONS = ("zoom-in", "zoom-out", "move-left", "move-right", "fit")


def next_view(
    session: Session,
    view: View,
    trigger: str | Mapping[str, Any],
    picked: int,
    drawn: Mapping[str, Any] | None,
) -> View:
    """Return the view after an action.

    Parameters
    ----------
    trigger
        Id of what was used: a button, the range picker, a card, a finding, or the timeline.
    picked
        Value of the range picker.
    drawn
        What the timeline reports of a zoom or pan by mouse.
    """
    if isinstance(trigger, Mapping):
        if trigger["type"] == "card":
            return session.fit(int(trigger["range"]))
        finding = session.analysis.findings[int(trigger["number"])]
        return session.finding_window(finding) or view
    if trigger == "range":
        return session.fit(picked)
    if trigger == "fit":
        return session.fit(view.range_number)
    if trigger == "timeline":
        return _dragged(session, view, drawn or {})
    moves = {
        "zoom-in": lambda: view.zoomed(ZOOM_FACTOR),
        "zoom-out": lambda: view.zoomed(1 / ZOOM_FACTOR),
        "move-left": lambda: view.moved(-PAN_SHARE),
        "move-right": lambda: view.moved(PAN_SHARE),
    }
    return session.clamp(moves[trigger]())


def _dragged(session: Session, view: View, drawn: Mapping[str, Any]) -> View:
    """Read the axis that Plotly reports; anything else leaves the view."""
    if drawn.get("xaxis.autorange"):
        return session.fit(view.range_number)
    try:
        low, high = float(drawn["xaxis.range[0]"]), float(drawn["xaxis.range[1]"])
    except (KeyError, TypeError, ValueError):
        return view
    origin = session.timeline.low_ns
    return session.clamp(
        View(origin + round(low * NS_PER_MS), origin + round(high * NS_PER_MS), view.range_number)
    )


def draw(
    session: Session, view: View, theme_name: str | None, device: int
) -> tuple[go.Figure, str, str, str, go.Figure, go.Figure]:
    """Draw everything that depends on the view.

    Returns the timeline, the text of the window, the title and the sums of the scope, its partition
    and its matrix.
    """
    theme = theme_of(theme_name)
    timeline = session.timeline.figure((view.low_ns, view.high_ns), theme)
    title, scopes = session.scopes(view)
    scope = scopes.get(device)
    empty = go.Figure(
        layout={"height": 60, "xaxis": {"visible": False}, "yaxis": {"visible": False}}
    )
    return (
        timeline,
        layout.window_text(session, view.low_ns, view.high_ns),
        layout.plain(title, 80),
        layout.sums_text(scope),
        empty if scope is None else partition_figure(scope, theme),
        empty if scope is None else matrix_figure(scope, theme),
    )


def register(app: Dash, session: Session) -> None:
    """Connect the page of `session` with what it does."""
    if not session.timeline.lanes:
        return

    @app.callback(
        Output("view", "data"),
        Output("address", "search"),
        Output("range", "value"),
        [Input(name, "n_clicks") for name in BUTTONS],
        Input("range", "value"),
        Input("timeline", "relayoutData"),
        Input({"type": "card", "range": ALL, "where": ALL}, "n_clicks"),
        Input({"type": "finding", "number": ALL}, "n_clicks"),
        State("view", "data"),
        State("address", "search"),
    )
    def _move(*values: Any) -> tuple[Any, Any, Any]:
        picked, drawn, data, query = int(values[-6]), values[-5], values[-2], values[-1]
        view = before = view_from_query(query, session) if data is None else View.from_json(data)
        if ctx.triggered_id is not None:
            view = next_view(session, before, ctx.triggered_id, picked, drawn)
        if data is not None and view == before:
            return no_update, no_update, no_update
        value = no_update if view.range_number == picked else view.range_number
        return view.to_json(), view_to_query(view, session), value

    @app.callback(
        Output("timeline", "figure"),
        Output("window", "children"),
        Output("scope-title", "children"),
        Output("scope-sums", "children"),
        Output("partition", "figure"),
        Output("matrix", "figure"),
        Input("view", "data"),
        Input("theme", "data"),
        Input("device", "value"),
    )
    def _draw(data: Mapping[str, Any] | None, theme_name: str | None, device: int) -> Any:
        view = session.fit() if data is None else View.from_json(data)
        return draw(session, view, theme_name, int(device))

    app.clientside_callback(  # type: ignore[no-untyped-call]  # dash leaves it untyped
        ClientsideFunction("gpuscope", "theme"),
        Output("theme", "data"),
        Input("theme-button", "n_clicks"),
        State("theme", "data"),
    )
