"""A benchmark's speed-up along a sweep of one of its options, beside what was possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from gpuscope.figures.palette import Theme
from gpuscope.figures.scaling import RANKS, scaling
from gpuscope.units import NS_PER_MS

RATIO_TITLE = "kernel time / copy time"


def sweep_figure(option: str, rows: Sequence[tuple[str, Mapping[str, Any]]], theme: Theme) -> Any:
    """Draw the results of a sweep over `option`, pairs of its value and the result.

    Where the results differ in the ratio of kernel to copy time, that is the x axis, and else the
    value. The y axis is the speed-up, or, of a benchmark without one, the time of each pass in ms.
    Over ranks it is how many times the work of the first number of them is done.
    """
    figures = [result["figures"] for _, result in rows]
    ratios = [each.get("kernel_copy_ratio") for each in figures]
    scaled = scaling(rows) if option == RANKS else None
    by_ratio = scaled is None and None not in ratios and len(set(ratios)) > 1
    order = sorted(range(len(rows)), key=lambda at: ratios[at]) if by_ratio else range(len(rows))
    x = [ratios[at] if by_ratio else rows[at][0] for at in order]
    labels = [f"{option} {rows[at][0]}" for at in order]
    lines: dict[str, list[float | None]] = {}
    if scaled is not None:
        title = f"updates/s, against {RANKS} {rows[0][0]}"
        lines["measured"] = [factor for factor, _ in scaled]
        lines["possible"] = [factor / efficiency for factor, efficiency in scaled]
    elif all(each.get("speedup") is not None for each in figures):
        title = "speed-up"
        lines["measured"] = [figures[at]["speedup"] for at in order]
        if all(each.get("speedup_max") is not None for each in figures):
            lines["possible"] = [figures[at]["speedup_max"] for at in order]
    else:
        title = "time (ms)"
        for name in dict.fromkeys(name for _, result in rows for name in result["passes"]):
            found = [rows[at][1]["passes"].get(name) for at in order]
            lines[name] = [each and each["median_ns"] / NS_PER_MS for each in found]
    figure = go.Figure()
    for name, values in lines.items():
        style: dict[str, Any] = {}
        if name == "possible":
            style = {"line": {"dash": "dot", "color": theme.muted}}
        elif name == "measured":
            style = {"line": {"color": theme.color("kernel")}}
        figure.add_trace(
            go.Scatter(
                x=x,
                y=values,
                name=name,
                mode="lines+markers",
                text=labels,
                hovertemplate="%{text}<br>%{y:.3g}<extra>%{fullData.name}</extra>",
                **style,
            )
        )
    ticks: dict[str, Any] = {"type": "category"}
    if by_ratio:
        ticks = {"type": "log", "tickvals": x, "ticktext": [f"{ratio:.3g}" for ratio in x]}
    figure.update_layout(
        paper_bgcolor=theme.surface,
        plot_bgcolor=theme.surface,
        font={"color": theme.text},
        title=f"{rows[0][1]['benchmark']} on {rows[0][1]['machine'].get('gpu', 'an unknown GPU')}",
        xaxis={"title": RATIO_TITLE if by_ratio else option, "gridcolor": theme.line, **ticks},
        yaxis={"title": title, "rangemode": "tozero", "gridcolor": theme.line},
    )
    return figure
