"""What ran together: how long each set of classes, and the matrix of the classes as a picture."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import plotly.graph_objects as go

from gpuscope.figures.palette import Theme
from gpuscope.model.classes import CLASSES
from gpuscope.model.result import Part, Scope
from gpuscope.units import format_ns, format_ratio

_CELL_PX = 62


@dataclass(frozen=True, slots=True)
class Together:
    """What of a scope the pictures show: how long each set of classes was active, and what follows.

    The part of a scope that a window has, too, at once and exactly.
    """

    span_ns: int
    busy_ns: Mapping[str, int]
    """Busy time of each class."""
    overlap_ns: Mapping[tuple[str, str], int | None]
    """Time in which two classes, a < b, were active at once; None: not measured."""
    partition: tuple[Part, ...]
    """Time of each set of engine classes, idle time too."""

    @classmethod
    def of_scope(cls, scope: Scope) -> Together:
        """Take the figures from a scope."""
        return cls(
            scope.span_ns,
            {name: figures.busy_ns for name, figures in scope.classes.items()},
            {(pair.a, pair.b): pair.overlap_ns for pair in scope.pairs},
            scope.partition,
        )

    @classmethod
    def of_sets(
        cls, span_ns: int, sets: Mapping[tuple[str, ...], int], host: Collection[str]
    ) -> Together:
        """Add up the time of each set of classes, sorted; those in `host` are on no engine."""
        busy: dict[str, int] = {}
        overlap: dict[tuple[str, str], int | None] = {}
        partition: dict[tuple[str, ...], int] = {}
        for names, time in sets.items():
            for name in names if time else ():
                busy[name] = busy.get(name, 0) + time
            for pair in combinations(names, 2):
                overlap[pair] = (overlap.get(pair) or 0) + time
            engines = tuple(name for name in names if name not in host)
            if engines and time:
                partition[engines] = partition.get(engines, 0) + time
        idle = span_ns - sum(partition.values())
        parts = [Part(names, time) for names, time in sorted(partition.items())]
        return cls(
            span_ns,
            {name: busy[name] for name in CLASSES if name in busy},
            {pair: time for pair, time in overlap.items() if pair[0] in busy and pair[1] in busy},
            (*([Part((), idle)] if idle else []), *parts),
        )

    @property
    def idle_ns(self) -> int:
        """Time of the span in which no engine was active."""
        return sum(part.ns for part in self.partition if not part.classes)

    def ratio(self, a: str, b: str) -> float | None:
        """Return overlap / min(busy, busy) of two classes."""
        time = self.overlap_ns.get((min(a, b), max(a, b)), 0)
        least = min(self.busy_ns[a], self.busy_ns[b])
        return None if time is None or not least else time / least


def matrix_figure(scope: Together, theme: Theme) -> go.Figure:
    """Draw the overlap matrix: the colour is overlap / min(busy, busy), the text also the time.

    The diagonal holds each class's busy time. Fewer than two classes have no matrix.
    """
    names = [name for name, busy in scope.busy_ns.items() if busy]
    if len(names) < 2:
        return empty_figure()
    ratios: list[list[float | None]] = []
    texts: list[list[str]] = []
    for a in names:
        ratio_row: list[float | None] = []
        text_row = []
        for b in names:
            ratio = None if a == b else scope.ratio(a, b)
            ratio_row.append(ratio)
            if a == b:
                text_row.append(f"<b>{format_ns(scope.busy_ns[a])}</b><br>busy")
            elif ratio is None:
                text_row.append("–")
            else:
                time = scope.overlap_ns.get((min(a, b), max(a, b)), 0)
                text_row.append(f"<b>{format_ratio(ratio)}</b><br>{format_ns(time)}")
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
