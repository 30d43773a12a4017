"""Overlap as pictures: the matrix of the classes, and which sets of them were active how long."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from gpuscope.figures.palette import Theme
from gpuscope.model.result import Scope
from gpuscope.units import format_ns, format_ratio

_CELL_PX = 62
_LETTER_SHARE = 0.0125
"""Width of a letter as a share of the bar: a part too narrow for its label carries none."""


def matrix_figure(scope: Scope, theme: Theme) -> go.Figure:
    """Draw the overlap matrix: the colour is overlap / min(busy, busy), the text also the time.

    The diagonal holds each class's busy time. Fewer than two classes have no matrix.
    """
    names = [name for name in scope.classes if scope.classes[name].busy_ns]
    if len(names) < 2:
        return empty_figure()
    ratios: list[list[float | None]] = []
    texts: list[list[str]] = []
    for a in names:
        ratio_row: list[float | None] = []
        text_row = []
        for b in names:
            pair = scope.pair(a, b)
            if a == b:
                ratio_row.append(None)
                text_row.append(f"<b>{format_ns(scope.classes[a].busy_ns)}</b><br>busy")
            elif pair is None or pair.overlap_ratio is None:
                ratio_row.append(None)
                text_row.append("–")
            else:
                ratio_row.append(pair.overlap_ratio)
                text_row.append(
                    f"<b>{format_ratio(pair.overlap_ratio)}</b><br>{format_ns(pair.overlap_ns)}"
                )
        ratios.append(ratio_row)
        texts.append(text_row)
    figure = go.Figure(
        go.Heatmap(
            x=names,
            y=names,
            z=ratios,
            zmin=0,
            zmax=1,
            text=[
                [text if ratio is not None else "" for text, ratio in zip(*row, strict=True)]
                for row in zip(texts, ratios, strict=True)
            ],
            texttemplate="%{text}",
            hovertemplate="%{y} ∩ %{x}<br>%{text}<extra></extra>",
            hoverongaps=False,
            colorscale=[list(stop) for stop in theme.ratio_scale],
            showscale=False,
            xgap=3,
            ygap=3,
        )
    )
    # What has no ratio has no cell to carry its text: write it there.
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            if ratios[i][j] is None:
                figure.add_annotation(x=b, y=a, text=texts[i][j], showarrow=False)
    axis: dict[str, Any] = {
        "showgrid": False,
        "zeroline": False,
        "tickfont": {"color": theme.text},
        "fixedrange": True,
    }
    figure.update_layout(
        **_plain(theme),
        height=70 + _CELL_PX * max(1, len(names)),
        margin={"l": 62, "r": 8, "t": 30, "b": 8},
        xaxis={**axis, "side": "top"},
        yaxis={**axis, "autorange": "reversed"},
    )
    return figure


def partition_figure(scope: Scope, theme: Theme) -> go.Figure:
    """Draw one bar: the share of the span in which exactly each set of classes was active."""
    figure = go.Figure()
    span = max(1, scope.span_ns)
    for part in scope.partition:
        label = " + ".join(part.classes) or "idle"
        share = part.ns / span
        text = f"{label} {100 * share:.0f} %"
        figure.add_trace(
            go.Bar(
                orientation="h",
                x=[share],
                y=[""],
                name=label,
                marker=_paint(part.classes, theme),
                text=[text if share > _LETTER_SHARE * len(text) else ""],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="both",
                hovertemplate=(
                    f"<b>{label}</b><br>{format_ns(part.ns)}, {100 * share:.1f} % of the span"
                    "<extra></extra>"
                ),
            )
        )
    axis = {"visible": False, "fixedrange": True}
    figure.update_layout(
        **_plain(theme),
        barmode="stack",
        bargap=0,
        height=64,
        margin={"l": 0, "r": 0, "t": 4, "b": 4},
        showlegend=False,
        xaxis={**axis, "range": [0, 1]},
        yaxis=axis,
    )
    return figure


def empty_figure() -> go.Figure:
    """Return a figure of nothing, transparent and flat."""
    axis = {"visible": False, "fixedrange": True}
    return go.Figure(
        layout={
            "height": 60,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
        }
    )


def _paint(classes: tuple[str, ...], theme: Theme) -> dict[str, Any]:
    """Return a marker: plain for one class, striped in the colours of two, pale for none."""
    if not classes:
        return {"color": theme.range_fill}
    colors = [theme.class_color(name) for name in classes]
    if len(colors) == 1:
        return {"color": colors[0]}
    shape = "/" if len(colors) == 2 else "x"
    return {
        "color": colors[0],
        "pattern": {"shape": shape, "fgcolor": colors[1], "size": 9, "solidity": 0.45},
    }


def _plain(theme: Theme) -> dict[str, Any]:
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "inherit", "size": 12, "color": theme.text},
        "hoverlabel": {
            "bgcolor": theme.surface,
            "bordercolor": theme.line,
            "font": {"color": theme.text},
        },
    }
