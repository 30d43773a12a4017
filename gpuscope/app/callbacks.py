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
from gpuscope.figures.overlap import empty_figure, matrix_figure, partition_figure
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
        Id of what was used: a button, the range picker, a card, a finding, or ``dragged``.
    picked
        Value of the range picker.
    drawn
        The ends of the time axis in ms, ``low`` and ``high``, after a zoom or pan by mouse.
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
    if trigger == "dragged":
        return _dragged(session, view, drawn or {})
    moves = {
        "zoom-in": lambda: view.zoomed(ZOOM_FACTOR),
        "zoom-out": lambda: view.zoomed(1 / ZOOM_FACTOR),
        "move-left": lambda: view.moved(-PAN_SHARE),
        "move-right": lambda: view.moved(PAN_SHARE),
    }
    return session.clamp(moves[trigger]())


def _dragged(session: Session, view: View, drawn: Mapping[str, Any]) -> View:
    """Read the ends of the axis that the page reports; anything else leaves the view."""
    origin = session.timeline.low_ns
    try:
        low, high = (origin + round(float(drawn[end]) * NS_PER_MS) for end in ("low", "high"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return view
    return session.clamp(View(low, high, view.range_number))


def draw_timeline(session: Session, view: View, theme_name: str | None) -> tuple[go.Figure, str]:
    """Draw the timeline of a view, and say which stretch of time it is."""
    timeline = session.timeline.figure((view.low_ns, view.high_ns), theme_of(theme_name))
    return timeline, layout.window_text(session, view.low_ns, view.high_ns)


def draw_scope(
    session: Session, view: View, theme_name: str | None, device: int
) -> tuple[str, str, go.Figure, Any, go.Figure]:
    """Draw the figures of what a view shows of a device, an index into Trace.devices.

    Returns the title and the sums of the scope, its partition with its legend, and its matrix.
    """
    theme = theme_of(theme_name)
    title, scopes = session.scopes(view)
    scope = scopes.get(device)
    title = layout.plain(title, 80)
    if scope is None:
        empty = empty_figure()
        return title, "nothing ran here in this window", empty, [], empty
    return (
        title,
        layout.sums_text(scope),
        partition_figure(scope, theme),
        layout.parts(scope, theme),
        matrix_figure(scope, theme),
    )


def register(app: Dash, session: Session) -> None:
    """Connect the page of `session` with what it does."""
    app.clientside_callback(  # type: ignore[no-untyped-call]  # dash leaves it untyped
        ClientsideFunction("gpuscope", "theme"),
        Output("theme", "data"),
        Input("theme-button", "n_clicks"),
    )
    if not session.timeline.lanes:
        return

    @app.callback(
        Output("view", "data"),
        Output("address", "search"),
        Output("range", "value"),
        [Input(name, "n_clicks") for name in BUTTONS],
        Input("range", "value"),
        Input("dragged", "data"),
        Input({"type": "card", "range": ALL, "device": ALL}, "n_clicks"),
        Input({"type": "finding", "number": ALL}, "n_clicks"),
        Input("theme", "data"),
        State("view", "data"),
        State("address", "search"),
    )
    def _move(*values: Any) -> tuple[Any, Any, Any]:
        *_, picked, drawn, _cards, _findings, theme_name, data, query = values
        view = before = view_from_query(query, session) if data is None else View.from_json(data)
        if data is not None and ctx.triggered_id == "theme":
            return no_update, view_to_query(view, session, theme_name), no_update
        if ctx.triggered_id not in (None, "theme"):  # it may be a dict
            view = next_view(session, before, ctx.triggered_id, int(picked), drawn)
        if data is not None and view == before:
            return no_update, no_update, no_update
        value = no_update if view.range_number == picked else view.range_number
        return view.to_json(), view_to_query(view, session, theme_name), value

    # Two callbacks, so that the timeline does not wait for the figures of a large window.
    @app.callback(
        Output("timeline", "figure"),
        Output("window", "children"),
        Input("view", "data"),
        Input("theme", "data"),
    )
    def _draw(data: Mapping[str, Any] | None, theme_name: str | None) -> Any:
        return draw_timeline(session, _view(session, data), theme_name)

    @app.callback(
        Output("scope-title", "children"),
        Output("scope-sums", "children"),
        Output("partition", "figure"),
        Output("parts", "children"),
        Output("matrix", "figure"),
        Input("view", "data"),
        Input("theme", "data"),
        Input("device", "value"),
    )
    def _measure(data: Mapping[str, Any] | None, theme_name: str | None, device: int) -> Any:
        return draw_scope(session, _view(session, data), theme_name, int(device))


def _view(session: Session, data: Mapping[str, Any] | None) -> View:
    return session.fit() if data is None else View.from_json(data)
