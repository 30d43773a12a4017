"""The timeline: a lane a stream, grouped by process and device, NVTX ranges above them."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from gpuscope.figures.levels import MAX_MARKS, PIXELS, Marks, Pyramid
from gpuscope.figures.palette import Theme
from gpuscope.intervals import depth as depth_of
from gpuscope.model.classes import CLASSES, CODE, base_name
from gpuscope.model.tables import MEMORY_KINDS, Operations
from gpuscope.model.trace import Trace
from gpuscope.scopes import project_ranges
from gpuscope.units import NS_PER_MS, NS_PER_S, format_bytes, format_ns, format_rate

Int64 = npt.NDArray[np.int64]

LABELS = "labels"
"""Name of the traces that hold the names written into bars."""
MAX_RANGE_DEPTH = 5
"""Nesting levels of NVTX ranges that get a lane; deeper ones share the last."""
MAX_RANGE_ROWS = 4
"""Rows that ranges of one depth spread over where they overlap; more share these."""
MAX_RANGE_LANES = 8
"""Lanes of NVTX ranges of one device."""
_LANE_PX = ((16, 26), (32, 21))
_DENSE_LANE_PX = 17
"""Height of a lane: the more lanes, the flatter."""
_TOP_PX = 54
_BOTTOM_PX = 10
_LEGEND_PX = 24
"""From the lanes up to the legend: the time axis lies between."""
_NAME_LENGTH = 90
_LABEL_LENGTH = 40
_LONGEST_PARSED = 2_000
"""Characters of a kernel's name in which its base is looked for."""
_KERNELS = (CODE["kernel"], CODE["comm"], CODE["fused"])
_SHORTEST_LABEL = 4
_CHARACTER_PX = 6.1
"""Width of a character of a label."""
_LABEL_SPACE_PX = 5
_RANGE_HEIGHT = 0.82
_BAR_HEIGHT = 0.78
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
    # Plotly knows no entity for quotes, and in text they do nothing.
    return html.escape(clean, quote=False)


def spread(start_ns: Int64, end_ns: Int64, most: int) -> tuple[Int64, int]:
    """Spread intervals over rows so that those that overlap lie beside each other.

    Within each stretch of overlapping intervals the rows go round in the order of their starts:
    intervals that end in that order never meet in a row unless more than `most` are open at once.

    Parameters
    ----------
    start_ns, end_ns
        Intervals of shape (n,), sorted by start.
    most
        Largest number of rows.

    Returns
    -------
    The row of each interval, shape (n,), and the number of rows; 0 rows without intervals.
    """
    if not len(start_ns):
        return start_ns, 0
    _, open_at_once = depth_of(start_ns, end_ns)
    count = max(1, min(most, int(open_at_once.max(initial=0))))
    opens = np.ones(len(start_ns), np.bool_)
    opens[1:] = start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]
    first = np.flatnonzero(opens)[np.cumsum(opens) - 1]
    return (np.arange(len(start_ns)) - first) % count, count


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
        order = np.argsort(ranges.start_ns, kind="stable")
        self._range_pyramid = Pyramid(
            ranges.start_ns[order],
            ranges.end_ns[order],
            self._range_lane[order],
            np.zeros(len(order), np.uint8),
            ranges.range_row[order],
        )
        self._short_names: dict[int, str] = {}
        self.low_ns = trace.origin_ns
        self.high_ns = trace.origin_ns + max(1, trace.duration_ns)

    def _place_lanes(self, operations: Operations) -> None:
        trace, ranges = self.trace, self._ranges
        self._lane_of_stream: dict[int, int] = {}
        self._range_lane = np.zeros(len(ranges.start_ns), np.int32)
        self._mpi_lane: dict[int, int] = {}
        used = set(np.unique(operations.stream).tolist())
        for device in sorted(
            set(np.unique(operations.device).tolist()),
            key=lambda index: (trace.devices[index].process, trace.devices[index].number),
        ):
            self._place_ranges(device)
            if trace.mpi is not None and len(trace.mpi):
                self._mpi_lane[device] = len(self.lanes)
                self.lanes.append(Lane("MPI", "mpi", device))
            streams = [i for i, s in enumerate(trace.streams) if s.device == device and i in used]
            for index in sorted(streams, key=lambda i: trace.streams[i].number):
                self._lane_of_stream[index] = len(self.lanes)
                self.lanes.append(Lane(trace.streams[index].label, "stream", device))

    def _place_ranges(self, device: int) -> None:
        """Give the ranges on a device their lanes: one a nesting depth, more where they overlap."""
        ranges = self._ranges
        mine = np.flatnonzero(ranges.device == device)
        depth = np.minimum(ranges.depth[mine], MAX_RANGE_DEPTH - 1)
        deepest = int(depth.max(initial=-1))
        first = len(self.lanes)
        for level in range(deepest + 1):
            rows = mine[depth == level]
            left = MAX_RANGE_LANES - (len(self.lanes) - first) - (deepest - level)
            row, count = spread(
                ranges.start_ns[rows], ranges.end_ns[rows], min(MAX_RANGE_ROWS, left)
            )
            self._range_lane[rows] = len(self.lanes) + row
            for _ in range(count):
                label = "NVTX" if len(self.lanes) == first else ""
                self.lanes.append(Lane(label, "range", device))

    @property
    def height_px(self) -> int:
        """Height that the lanes need."""
        count = len(self.lanes)
        lane = next((px for most, px in _LANE_PX if count <= most), _DENSE_LANE_PX)
        return _TOP_PX + _BOTTOM_PX + lane * max(1, count)

    def range_window(self, name: str) -> tuple[int, int] | None:
        """Return from the first to the last operation of a range's instances, None without any."""
        if self.trace.ranges is None:
            return None
        texts = [number for number, text in enumerate(self.trace.strings) if text == name]
        named = np.isin(self.trace.ranges.name[self._ranges.range_row], texts)
        if not named.any():
            return None
        return int(self._ranges.start_ns[named].min()), int(self._ranges.end_ns[named].max())

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices with lanes, in order: indices into Trace.devices."""
        return tuple(dict.fromkeys(lane.device for lane in self.lanes))

    def device_label(self, device: int) -> str:
        """Name a device, with its process where there are several."""
        facts = self.trace.devices[device]
        if len({self.trace.devices[each].process for each in self.devices}) == 1:
            return f"GPU {facts.number}"
        process = self.trace.processes[facts.process]
        who = f"rank {process.rank}" if process.rank is not None else f"pid {process.pid}"
        return f"GPU {facts.number} · {who}"

    def figure(self, view_ns: tuple[int, int], theme: Theme) -> go.Figure:
        """Draw the view [low, high) in ns on the trace's clock, and half a view on either side."""
        low, high = view_ns
        margin = (high - low) // 2
        marks = self._pyramid.view(low - margin, high + margin)
        pixel = max(1, (high - low) // PIXELS)
        figure = go.Figure()
        self._draw_ranges(figure, (low - margin, high + margin), view_ns, pixel, theme)
        self._draw_mpi(figure, (low - margin, high + margin), pixel, theme)
        for code in np.unique(marks.op_class).tolist():
            figure.add_trace(
                self._bars(marks.take(marks.op_class == code), CLASSES[code], pixel, theme)
            )
        figure.add_trace(self._names(marks, view_ns, theme))
        self._dress(figure, view_ns, theme)
        return figure

    def _x(self, time_ns: Int64) -> list[float]:
        """Return times as milliseconds from the first operation."""
        milliseconds: list[float] = ((time_ns - self.low_ns) / NS_PER_MS).tolist()
        return milliseconds

    def _when(self, time_ns: int) -> str:
        """Write a time to the nanosecond, in milliseconds from the first operation."""
        return f"{(time_ns - self.low_ns) / NS_PER_MS:,.6f} ms"

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

    def _names(self, marks: Marks, view_ns: tuple[int, int], theme: Theme) -> go.Scatter:
        """Write the names of the operations that are wide enough into their bars."""
        single = marks.take(marks.count == 1)
        names = self._operations.name[single.row].tolist()
        codes = single.op_class.tolist()
        return self._labels(
            single,
            view_ns,
            lambda number: self._short_name(names[number], codes[number]),
            [theme.ink_on(CLASSES[code]) for code in codes],
        )

    def _short_name(self, name: int, code: int) -> str:
        """Shorten a kernel's name to its base; others are short, and of several words."""
        text = self.trace.strings[name]
        if code not in _KERNELS:
            return text
        if name not in self._short_names:
            self._short_names[name] = base_name(text[:_LONGEST_PARSED])
        return self._short_names[name]

    def _labels(
        self,
        marks: Marks,
        view_ns: tuple[int, int],
        name_of: Callable[[int], str],
        colors: Sequence[str],
    ) -> go.Scatter:
        """Write names at the left of what is visible of each mark, as much as fits."""
        low, high = view_ns
        left = np.maximum(marks.start_ns, low)
        pixel = max(1, high - low) / PIXELS
        room = (np.minimum(marks.end_ns, high) - left) / pixel
        fits = ((room - _LABEL_SPACE_PX) / _CHARACTER_PX).astype(np.int64)
        some = np.flatnonzero(fits >= _SHORTEST_LABEL)
        return go.Scatter(
            mode="text",
            name=LABELS,
            x=self._x(left[some] + round(_LABEL_SPACE_PX / 2 * pixel)),
            y=marks.lane[some].tolist(),
            text=[
                safe_text(name_of(number), min(fit, _LABEL_LENGTH))
                for number, fit in zip(some.tolist(), fits[some].tolist(), strict=True)
            ],
            textposition="middle right",
            textfont={"size": 11, "color": [colors[number] for number in some.tolist()]},
            hoverinfo="skip",
            showlegend=False,
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
            lines.append(f"at {self._when(start)}")
            texts.append("<br>".join(lines))
        return texts

    def _draw_ranges(
        self,
        figure: go.Figure,
        drawn_ns: tuple[int, int],
        visible_ns: tuple[int, int],
        pixel: int,
        theme: Theme,
    ) -> None:
        ranges = self.trace.ranges
        marks = self._range_pyramid.view(*drawn_ns)
        if ranges is None or not len(marks):
            return
        texts = [
            self.trace.strings[name] if count == 1 else f"{count} ranges"
            for name, count in zip(
                ranges.name[marks.row].tolist(), marks.count.tolist(), strict=True
            )
        ]
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
                customdata=[
                    f"<b>{safe_text(text)}</b><br>NVTX range on the GPU<br>{format_ns(end - start)}"
                    f" from its first operation to its last<br>at {self._when(start)}"
                    for text, start, end in zip(
                        texts, marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True
                    )
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
        figure.add_trace(
            self._labels(marks, visible_ns, texts.__getitem__, [theme.text] * len(marks))
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
            uirevision="kept",  # classes hidden in the legend stay hidden
            barmode="overlay",
            bargap=0,
            dragmode="pan",
            hovermode="closest",
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            font={"family": "inherit", "size": 12, "color": theme.text},
            margin={"l": 118, "r": 16, "t": _TOP_PX, "b": _BOTTOM_PX},
            legend={
                "orientation": "h",
                "x": 0,
                "y": 1 + _LEGEND_PX / (self.height_px - _TOP_PX - _BOTTOM_PX),
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
                "uirevision": f"{low}:{high}",
                "side": "top",
                "ticksuffix": " ms",
                "exponentformat": "none",
                "separatethousands": True,
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
        several = len(self.devices) > 1
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
