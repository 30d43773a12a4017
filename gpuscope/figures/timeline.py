"""The timeline: a lane a stream, grouped by process and device, NVTX ranges above them."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from gpuscope.figures.levels import MAX_MARKS, PIXELS, Marks, Pyramid
from gpuscope.figures.palette import Theme
from gpuscope.model.classes import CLASSES, CODE
from gpuscope.model.tables import MEMORY_KINDS, Operations
from gpuscope.model.trace import Trace
from gpuscope.scopes import project_ranges
from gpuscope.units import NS_PER_MS, NS_PER_S, format_bytes, format_ns, format_rate

Int64 = npt.NDArray[np.int64]

MAX_RANGE_DEPTH = 5
"""Nesting levels of NVTX ranges that get a lane; deeper ones share the last."""
LANE_PX = 26
_FRAME_PX = 96
_MIN_PX = 260
_NAME_LENGTH = 90
_RANGE_HEIGHT = 0.82
_BAR_HEIGHT = 0.72
_FAINTEST = 0.35


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the timeline."""

    label: str
    kind: str
    """``range``, ``stream`` or ``mpi``."""
    device: int
    """Index into Trace.devices."""


def safe_text(text: str, length: int = _NAME_LENGTH) -> str:
    """Make a name from a trace safe to show: one line, no markup, at most `length` long."""
    clean = "".join(char if char.isprintable() else "�" for char in text[: 4 * length])
    if len(text) > length:
        clean = clean[: length - 1] + "…"
    return html.escape(clean)


class Timeline:
    """A trace laid out in lanes, ready to be drawn at any view.

    Lanes are grouped by process and device: first the NVTX ranges by nesting depth, then MPI calls,
    then the streams by number. A device without operations has no lane.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        operations = trace.operations if trace.operations is not None else Operations.empty()
        self._operations = operations
        self._ranges = project_ranges(trace)
        self.lanes: list[Lane] = []
        shown = np.flatnonzero(operations.op_class != CODE["gate"])
        self._place_lanes(operations.take(shown))
        stream = operations.stream[shown]
        lane_of_stream = np.zeros(len(trace.streams) + 1, np.int32)
        for number, place in self._lane_of_stream.items():
            lane_of_stream[number] = place
        self._pyramid = Pyramid(
            operations.start_ns[shown],
            operations.end_ns[shown],
            lane_of_stream[stream],
            operations.op_class[shown],
            shown,
        )
        ranges = self._ranges
        lane = np.array(
            [
                self._range_lane[int(device), min(int(depth), MAX_RANGE_DEPTH - 1)]
                for device, depth in zip(ranges.device, ranges.depth, strict=True)
            ],
            np.int32,
        )
        order = np.argsort(ranges.start_ns, kind="stable")
        self._range_pyramid = Pyramid(
            ranges.start_ns[order],
            ranges.end_ns[order],
            lane[order],
            np.zeros(len(order), np.uint8),
            ranges.range_row[order],
        )
        self.low_ns = trace.origin_ns
        self.high_ns = trace.origin_ns + max(1, trace.duration_ns)

    def _place_lanes(self, operations: Operations) -> None:
        trace, ranges = self.trace, self._ranges
        self._lane_of_stream: dict[int, int] = {}
        self._range_lane: dict[tuple[int, int], int] = {}
        self._mpi_lane: dict[int, int] = {}
        used = set(np.unique(operations.stream).tolist())
        for device in sorted(
            set(np.unique(operations.device).tolist()),
            key=lambda index: (trace.devices[index].process, trace.devices[index].number),
        ):
            depths = np.minimum(ranges.depth[ranges.device == device], MAX_RANGE_DEPTH - 1)
            for depth in range(int(depths.max(initial=-1)) + 1):
                self._range_lane[device, depth] = len(self.lanes)
                self.lanes.append(Lane("NVTX" if depth == 0 else "", "range", device))
            if trace.mpi is not None and len(trace.mpi):
                self._mpi_lane[device] = len(self.lanes)
                self.lanes.append(Lane("MPI", "mpi", device))
            streams = [i for i, s in enumerate(trace.streams) if s.device == device and i in used]
            for index in sorted(streams, key=lambda i: trace.streams[i].number):
                self._lane_of_stream[index] = len(self.lanes)
                self.lanes.append(Lane(trace.streams[index].label, "stream", device))

    @property
    def height_px(self) -> int:
        """Height that the lanes need."""
        return max(_MIN_PX, _FRAME_PX + LANE_PX * len(self.lanes))

    def range_window(self, name: str) -> tuple[int, int] | None:
        """Return from the first to the last operation of a range's instances, None without any."""
        if self.trace.ranges is None:
            return None
        rows = self._ranges.range_row
        named = np.array(
            [self.trace.strings[i] == name for i in self.trace.ranges.name[rows].tolist()], np.bool_
        )
        if not named.any():
            return None
        return int(self._ranges.start_ns[named].min()), int(self._ranges.end_ns[named].max())

    def device_label(self, device: int) -> str:
        """Name a device, with its process where there are several."""
        facts = self.trace.devices[device]
        process = self.trace.processes[facts.process]
        who = f"rank {process.rank}" if process.rank is not None else f"pid {process.pid}"
        several = len({lane.device for lane in self.lanes}) > 1
        return f"GPU {facts.number} · {who}" if several else f"GPU {facts.number}"

    def figure(self, view_ns: tuple[int, int], theme: Theme) -> go.Figure:
        """Draw the view [low, high) in ns on the trace's clock, and half a view on either side."""
        low, high = view_ns
        margin = (high - low) // 2
        marks = self._pyramid.view(low - margin, high + margin)
        pixel = max(1, (high - low) // PIXELS)
        figure = go.Figure()
        self._draw_ranges(figure, (low - margin, high + margin), pixel, theme)
        self._draw_mpi(figure, (low - margin, high + margin), pixel, theme)
        for code in np.unique(marks.op_class).tolist():
            figure.add_trace(
                self._bars(marks.take(marks.op_class == code), CLASSES[code], pixel, theme)
            )
        self._dress(figure, view_ns, theme)
        return figure

    def _x(self, time_ns: Int64) -> list[float]:
        """Return times as milliseconds from the first operation."""
        milliseconds: list[float] = ((time_ns - self.low_ns) / NS_PER_MS).tolist()
        return milliseconds

    def _bars(self, marks: Marks, op_class: str, pixel: int, theme: Theme) -> go.Bar:
        density = marks.busy_ns / np.maximum(1, marks.end_ns - marks.start_ns)
        # Two bars drawn apart must not hide a gap: at least a pixel wide, and no wider.
        length = np.maximum(marks.end_ns - marks.start_ns, pixel)
        return go.Bar(
            orientation="h",
            base=self._x(marks.start_ns),
            x=(length / NS_PER_MS).tolist(),
            y=marks.lane.tolist(),
            width=_BAR_HEIGHT,
            name=op_class,
            legendgroup=op_class,
            marker={
                "color": theme.class_color(op_class),
                "opacity": np.maximum(_FAINTEST, density).round(3).tolist(),
                "line": {"width": 0},
            },
            customdata=self._hover(marks, op_class),
            hovertemplate="%{customdata}<extra></extra>",
        )

    def _hover(self, marks: Marks, op_class: str) -> list[str]:
        operations, trace = self._operations, self.trace
        texts = []
        for mark in zip(
            marks.row.tolist(),
            marks.start_ns.tolist(),
            marks.end_ns.tolist(),
            marks.count.tolist(),
            marks.busy_ns.tolist(),
            strict=True,
        ):
            row, start, end, count, busy = mark
            lines = [f"<b>{safe_text(trace.strings[operations.name[row]])}</b>"]
            if count > 1:
                share = 100 * busy / max(1, end - start)
                lines = [
                    f"<b>{count} operations</b> ({op_class}), zoom in to see each",
                    f"{format_ns(end - start)}, {share:.0f} % of it busy",
                ]
            else:
                lines.append(f"{op_class} · {format_ns(end - start)} ({end - start} ns)")
                size = int(operations.size_bytes[row])
                if size:
                    rate = size * NS_PER_S / (end - start) if end > start else None
                    lines.append(f"{format_bytes(size)} · {format_rate(rate)}")
                kinds = int(operations.src_kind[row]), int(operations.dst_kind[row])
                if all(0 <= kind < len(MEMORY_KINDS) for kind in kinds):
                    lines.append(" → ".join(MEMORY_KINDS[kind] for kind in kinds))
            stream = trace.streams[operations.stream[row]]
            priority = f", priority {stream.priority}" if stream.priority else ""
            kind = f", {stream.kind}" if stream.kind else ""
            lines.append(f"{stream.label}{priority}{kind}")
            lines.append(f"at {format_ns(start - self.low_ns)}")
            texts.append("<br>".join(lines))
        return texts

    def _draw_ranges(
        self, figure: go.Figure, view_ns: tuple[int, int], pixel: int, theme: Theme
    ) -> None:
        ranges = self.trace.ranges
        marks = self._range_pyramid.view(*view_ns)
        if ranges is None or not len(marks):
            return
        names = [safe_text(self.trace.strings[ranges.name[row]], 40) for row in marks.row.tolist()]
        labels = [
            name if n == 1 else f"{n} ranges"
            for name, n in zip(names, marks.count.tolist(), strict=True)
        ]
        wide = (marks.end_ns - marks.start_ns) > 40 * pixel
        figure.add_trace(
            go.Bar(
                orientation="h",
                base=self._x(marks.start_ns),
                x=(np.maximum(marks.end_ns - marks.start_ns, pixel) / NS_PER_MS).tolist(),
                y=marks.lane.tolist(),
                width=_RANGE_HEIGHT,
                name="NVTX range",
                showlegend=False,
                marker={"color": theme.range_fill, "line": {"width": 1, "color": theme.surface}},
                text=[label if w else "" for label, w in zip(labels, wide.tolist(), strict=True)],
                textposition="inside",
                insidetextanchor="start",
                constraintext="none",
                cliponaxis=True,
                textfont={"color": theme.text, "size": 11},
                textangle=0,
                customdata=[
                    f"<b>{label}</b><br>NVTX range on the GPU<br>{format_ns(end - start)} from its "
                    f"first operation to its last<br>at {format_ns(start - self.low_ns)}"
                    for label, start, end in zip(
                        labels, marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True
                    )
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )

    def _draw_mpi(
        self, figure: go.Figure, view_ns: tuple[int, int], pixel: int, theme: Theme
    ) -> None:
        mpi = self.trace.mpi
        if mpi is None:
            return
        for device, lane in self._mpi_lane.items():
            mine = np.flatnonzero(
                (mpi.process == self.trace.devices[device].process)
                & (mpi.end_ns > view_ns[0])
                & (mpi.start_ns < view_ns[1])
            )
            longest = mine[np.argsort(mpi.start_ns[mine] - mpi.end_ns[mine], kind="stable")]
            rows = np.sort(longest[:MAX_MARKS])
            duration = mpi.end_ns[rows] - mpi.start_ns[rows]
            figure.add_trace(
                go.Bar(
                    orientation="h",
                    base=self._x(mpi.start_ns[rows]),
                    x=(np.maximum(duration, pixel) / NS_PER_MS).tolist(),
                    y=[lane] * len(rows),
                    width=_BAR_HEIGHT,
                    name="mpi",
                    legendgroup="mpi",
                    marker={"color": theme.class_color("mpi"), "line": {"width": 0}},
                    customdata=[
                        f"<b>{safe_text(self.trace.strings[name])}</b><br>MPI call · "
                        f"{format_ns(ns)}"
                        for name, ns in zip(mpi.name[rows].tolist(), duration.tolist(), strict=True)
                    ],
                    hovertemplate="%{customdata}<extra></extra>",
                )
            )

    def _dress(self, figure: go.Figure, view_ns: tuple[int, int], theme: Theme) -> None:
        low, high = self._x(np.array(view_ns))
        axis: dict[str, Any] = {
            "gridcolor": theme.line,
            "zeroline": False,
            "tickfont": {"color": theme.muted},
        }
        figure.update_layout(
            height=self.height_px,
            barmode="overlay",
            bargap=0,
            dragmode="pan",
            hovermode="closest",
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            font={"family": "inherit", "size": 12, "color": theme.text},
            margin={"l": 118, "r": 16, "t": 34, "b": 44},
            legend={
                "orientation": "h",
                "x": 0,
                "y": 1,
                "yanchor": "bottom",
                "itemclick": "toggle",
                "font": {"color": theme.text},
            },
            hoverlabel={
                "bgcolor": theme.surface,
                "bordercolor": theme.line,
                "font": {"color": theme.text, "family": "inherit"},
                "align": "left",
            },
            xaxis={
                **axis,
                "range": [low, high],
                "title": {
                    "text": "milliseconds from the first operation",
                    "font": {"color": theme.muted, "size": 11},
                },
                "showspikes": True,
                "spikemode": "across",
                "spikethickness": 1,
                "spikedash": "dot",
                "spikecolor": theme.muted,
                "spikesnap": "cursor",
            },
            yaxis={
                **axis,
                "range": [len(self.lanes) - 0.5, -0.5],
                "fixedrange": True,
                "tickmode": "array",
                "tickvals": list(range(len(self.lanes))),
                "ticktext": self._lane_labels(),
                "showgrid": False,
            },
            shapes=self._separators(theme),
        )

    def _lane_labels(self) -> list[str]:
        several = len({lane.device for lane in self.lanes}) > 1
        labels = []
        for number, lane in enumerate(self.lanes):
            first = number == 0 or self.lanes[number - 1].device != lane.device
            label = html.escape(lane.label)
            if several and first:
                label = f"<b>{self.device_label(lane.device)}</b>  {label}"
            labels.append(label)
        return labels

    def _separators(self, theme: Theme) -> list[dict[str, Any]]:
        edges = [
            number
            for number in range(1, len(self.lanes))
            if self.lanes[number].device != self.lanes[number - 1].device
        ]
        return [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": edge - 0.5,
                "y1": edge - 0.5,
                "line": {"color": theme.muted, "width": 1},
            }
            for edge in edges
        ]
