"""What Dash draws anew when a person moves about: the figures of what is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, no_update

from gpuscope.app import layout
from gpuscope.app.state import Session, View
from gpuscope.figures.overlap import Together
from gpuscope.figures.timeline import plain
from gpuscope.model.result import Scope


def draw_scope(session: Session, view: View) -> tuple[str, str, Any, Any, Any]:
    """Draw the figures of what a view shows.

    Returns the title and the sums of the scope, its partition as a bar and as a list, its matrix.
    """
    title, scope = session.scope_of(view)
    title = plain(title, 80)
    if scope is None:
        return title, "nothing ran here in this window", [], [], []
    together = Together.of_scope(scope) if isinstance(scope, Scope) else scope
    return (
        title,
        layout.sums_text(scope),
        layout.partition(together),
        layout.parts(together),
        layout.matrix(together),
    )


def register(app: Dash, session: Session) -> None:
    """Connect the page of `session` with what it does."""
    if not session.devices:
        return

    @app.callback(
        Output("scope-title", "children"),
        Output("scope-sums", "children"),
        Output("partition", "children"),
        Output("parts", "children"),
        Output("matrix", "children"),
        Input("view", "data"),
    )
    def _measure(data: Mapping[str, Any] | None) -> Any:
        if data is None:  # the page has not said yet what it looks at
            return (no_update,) * 5
        try:
            view = View.from_json(data)
        except ValueError:
            return (no_update,) * 5
        return draw_scope(session, view)
