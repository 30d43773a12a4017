"""A benchmark's speed-up along a sweep of one or two options, beside what was possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from gpuscope.figures.palette import Theme
from gpuscope.figures.scaling import (
    RANKS,
    Rows,
    bound_reached,
    label,
    scaling,
    scaling_kind,
    scaling_void,
    series_of,
)
from gpuscope.units import NS_PER_MS

RATIO_TITLE = "kernel time / copy time"
_MEASURED, _POSSIBLE = "measured", "possible"
_COLORS = ("kernel", "h2d", "p2p", "d2h", "comm", "d2d", "mpi", "h2h")
"""Those of operation classes, which are told apart by everybody, for lines of other things."""


def sweep_figure(options: Sequence[str], rows: Rows, theme: Theme) -> Any:
    """Draw the results of a sweep over `options`, one or two.

    Where the results of a sweep over one differ in the ratio of kernel to copy time, that is the x
    axis, and else the value. The y axis is the speed-up, or, of a benchmark without one, the time
    of each pass in ms. Over ranks it is how many times the work of the first number of them is
    done. Of two options the last is the x axis, and each value of the other has lines of its own;
    with ranks among them, a second plot shows what was reached of the bound along the other. A mark
    is open where the times are void, and on the scaling also where those it is held against are.
    """
    scaled = scaling(options, rows)
    results = [result for _, result in rows]
    benchmark = f"{results[0]['benchmark']} on {results[0]['machine'].get('gpu', 'an unknown GPU')}"
    grid = len(options) > 1
    figure = make_subplots(cols=2) if scaled and grid else go.Figure()
    if scaled:
        benchmark += f", {scaling_kind(rows)}"
        _draw_scaling(figure, options, rows, scaled, theme)
        if grid:
            _draw_reached(figure, options, rows, theme)
    elif grid:
        for at, (name, places) in enumerate(series_of(options, rows, options[-1]).items()):
            x = [rows[place][0][-1] for place in places]
            title, lines = _lines([results[place] for place in places])
            void = [not results[place]["valid"] for place in places]
            for line, values in lines.items():
                named = name if line == _MEASURED else f"{name}: {line}"
                dotted = line == _POSSIBLE
                figure.add_trace(
                    _line(x, values, named, _color(theme, at), void=void, dotted=dotted)
                )
        figure.update_xaxes(title=options[-1], type="category")
        figure.update_yaxes(title=title)
    else:
        _draw_one(figure, options[0], rows, theme)
    if not all(result["valid"] for result in results):
        benchmark += " (open: void)"
    figure.update_layout(
        paper_bgcolor=theme.surface,
        plot_bgcolor=theme.surface,
        font={"color": theme.text},
        title=benchmark,
    )
    figure.update_xaxes(gridcolor=theme.line)
    figure.update_yaxes(rangemode="tozero", gridcolor=theme.line)
    return figure


def _draw_one(figure: Any, option: str, rows: Rows, theme: Theme) -> None:
    """Draw a sweep over one option that is not the number of ranks."""
    ratios = [result["figures"].get("kernel_copy_ratio") for _, result in rows]
    by_ratio = None not in ratios and len(set(ratios)) > 1
    order = sorted(range(len(rows)), key=lambda at: ratios[at]) if by_ratio else range(len(rows))
    x = [ratios[at] if by_ratio else rows[at][0][0] for at in order]
    texts = [label([option], rows[at][0]) for at in order]
    title, lines = _lines([rows[at][1] for at in order])
    void = [not rows[at][1]["valid"] for at in order]
    colors = {_MEASURED: theme.color("kernel"), _POSSIBLE: theme.muted}
    for name, values in lines.items():
        dotted = name == _POSSIBLE
        figure.add_trace(_line(x, values, name, colors.get(name), texts, void=void, dotted=dotted))
    ticks: dict[str, Any] = {"type": "category"}
    if by_ratio:
        ticks = {"type": "log", "tickvals": x, "ticktext": [f"{ratio:.3g}" for ratio in x]}
    figure.update_xaxes(title=RATIO_TITLE if by_ratio else option, **ticks)
    figure.update_yaxes(title=title)


def _lines(results: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, list[float | None]]]:
    """Return what the results are compared by, and its lines: the speed-up, or each pass's time."""
    figures = [result["figures"] for result in results]
    lines: dict[str, list[float | None]] = {}
    if all(each.get("speedup") is not None for each in figures):
        lines[_MEASURED] = [each["speedup"] for each in figures]
        if all(each.get("speedup_max") is not None for each in figures):
            lines[_POSSIBLE] = [each["speedup_max"] for each in figures]
        return "speed-up", lines
    for name in dict.fromkeys(name for result in results for name in result["passes"]):
        found = [result["passes"].get(name) for result in results]
        lines[name] = [each and each["median_ns"] / NS_PER_MS for each in found]
    return "time (ms)", lines


def _draw_scaling(
    figure: Any,
    options: Sequence[str],
    rows: Rows,
    scaled: Sequence[tuple[float, float]],
    theme: Theme,
) -> None:
    """Draw over the ranks how many times the work of the first number of them is done."""
    place = {"row": 1, "col": 1} if len(options) > 1 else {}
    along, void = options.index(RANKS), scaling_void(options, rows)
    for at, (name, places) in enumerate(series_of(options, rows, RANKS).items()):
        x = [rows[each][0][along] for each in places]
        factors = [scaled[each][0] for each in places]
        open_at = [void[each] for each in places]
        line = _line(x, factors, name or _MEASURED, _color(theme, at), void=open_at)
        figure.add_trace(line, **place)
        if at == 0:
            possible = [scaled[each][0] / scaled[each][1] for each in places]
    figure.add_trace(_line(x, possible, _POSSIBLE, theme.muted, dotted=True), **place)
    first = rows[0][0][along]
    figure.update_xaxes(title=RANKS, type="category", **place)
    figure.update_yaxes(title=f"updates/s, against {label([RANKS], [first])}", **place)


def _draw_reached(figure: Any, options: Sequence[str], rows: Rows, theme: Theme) -> None:
    """Draw over the option beside the ranks which share of its bound a step reached."""
    (option,) = (each for each in options if each != RANKS)
    along = options.index(option)
    place = {"row": 1, "col": 2}
    taken = len(series_of(options, rows, RANKS))  # colours
    for at, (name, places) in enumerate(series_of(options, rows, option).items()):
        x = [rows[each][0][along] for each in places]
        shares = [bound_reached(rows[each][1]) for each in places]
        void = [not rows[each][1]["valid"] for each in places]
        figure.add_trace(_line(x, shares, name, _color(theme, taken + at), void=void), **place)
    figure.update_xaxes(title=option, type="category", **place)
    figure.update_yaxes(title="T_lb / T: share of the bound", tickformat=".0%", **place)


def _line(
    x: Sequence[Any],
    y: Sequence[float | None],
    name: str,
    color: str | None,
    texts: Sequence[str] | None = None,
    *,
    void: Sequence[bool] = (),
    dotted: bool = False,
) -> Any:
    """Return a line with marks, open where they are void; without a colour Plotly chooses it."""
    style: dict[str, Any] = {} if color is None else {"color": color}
    return go.Scatter(
        x=x,
        y=y,
        name=name,
        mode="lines+markers",
        text=texts,
        marker={"symbol": ["circle-open" if each else "circle" for each in void] or "circle"},
        hovertemplate="%{x}<br>%{y:.3g}<extra>%{fullData.name}</extra>"
        if texts is None
        else "%{text}<br>%{y:.3g}<extra>%{fullData.name}</extra>",
        line={**style, "dash": "dot"} if dotted else style,
    )


def _color(theme: Theme, at: int) -> str:
    return theme.color(_COLORS[at % len(_COLORS)])
