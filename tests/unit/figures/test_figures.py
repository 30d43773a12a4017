"""Timeline and overlap figures, from traces written by hand."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpuscope import api
from gpuscope.analyzers import overlap
from gpuscope.figures import palette
from gpuscope.figures.overlap import matrix_figure, partition_figure
from gpuscope.figures.timeline import LABELS, Timeline, safe_text, spread
from gpuscope.model.classes import CLASSES
from gpuscope.model.trace import Process, Trace
from tests.make_trace import make_trace

MS = 1_000_000


def two_processes() -> Trace:
    """Return a trace in which two processes use their device 0 at once."""
    trace = make_trace(devices=2, kernels=[(0, MS, "s7"), (0, MS, "s7", {"device": 1})])
    first, second = trace.devices
    return dataclasses.replace(
        trace,
        processes=(Process(100, "made", 0), Process(101, "made", None)),
        devices=(first, dataclasses.replace(second, process=1, number=0, hardware=first.hardware)),
    )


def bars(timeline: Timeline, low: int, high: int) -> dict[str, Any]:
    figure = timeline.figure((low, high), palette.LIGHT)
    return {trace.name: trace for trace in figure.data if trace.name != LABELS}


def labels(timeline: Timeline, low: int, high: int) -> list[tuple[str, float, int]]:
    """Return the names written into bars: text, where in ms, in which lane."""
    figure = timeline.figure((low, high), palette.LIGHT)
    written = [trace for trace in figure.data if trace.name == LABELS]
    return [row for trace in written for row in zip(trace.text, trace.x, trace.y, strict=True)]


def test_a_lane_for_each_stream_under_the_ranges() -> None:
    trace = make_trace(
        kernels=[(0, 2 * MS, "s9", {"name": "mine"})],
        h2d=[(1 * MS, 3 * MS, "s7", {"bytes": 4_000_000, "src_kind": 1, "dst_kind": 2})],
        ranges=[("step", 0, 2 * MS)],
    )
    timeline = Timeline(trace)
    assert [lane.label for lane in timeline.lanes] == ["NVTX", "stream 7", "stream 9"]
    drawn = bars(timeline, 0, 3 * MS)
    assert set(drawn) == {"NVTX range", "kernel", "h2d"}
    assert (drawn["kernel"].base, drawn["kernel"].x, drawn["kernel"].y) == ((0.0,), (2.0,), (2,))
    assert (drawn["h2d"].base, drawn["h2d"].x, drawn["h2d"].y) == ((1.0,), (2.0,), (1,))
    (hover,) = drawn["h2d"].customdata
    for part in ("2.00 ms", "4.00 MB", "2.00 GB/s", "stream 7", "pinned → device"):
        assert part in hover
    assert "mine" in drawn["kernel"].customdata[0]
    assert timeline.range_window("step") == (0, 3 * MS)
    assert timeline.range_window("nothing") is None


def test_devices_are_kept_apart() -> None:
    trace = make_trace(
        devices=2,
        kernels=[(0, MS, "s7"), (0, MS, "s7", {"device": 1})],
    )
    timeline = Timeline(trace)
    assert [lane.device for lane in timeline.lanes] == [0, 1]
    labels = timeline.figure((0, MS), palette.LIGHT).layout.yaxis.ticktext
    assert "GPU 0" in labels[0]
    assert "GPU 1" in labels[1]


def test_gates_are_not_drawn_and_mpi_has_a_lane() -> None:
    trace = make_trace(kernels=[(0, MS, "s7")], gate=[(0, MS, "s8")], mpi=[("MPI_Waitall", 0, MS)])
    timeline = Timeline(trace)
    drawn = bars(timeline, 0, MS)
    assert set(drawn) == {"kernel", "mpi"}
    assert "MPI_Waitall" in drawn["mpi"].customdata[0]


def test_names_stand_in_bars_at_the_left_of_what_is_visible() -> None:
    trace = make_trace(
        kernels=[(0, 10 * MS, "s7", {"name": "void ns::gemm<int>(int)"})],
        h2d=[(0, 10 * MS, "s8", {"name": "H2D copy"}), (10 * MS, 10 * MS + 100, "s8")],
        ranges=[("step", 0, 9 * MS)],
    )
    written = labels(Timeline(trace), 0, 11 * MS)
    assert [(text, lane) for text, _, lane in written] == [
        ("step", 0),
        ("gemm", 1),
        ("H2D copy", 2),
    ]
    zoomed = labels(Timeline(trace), 5 * MS, 6 * MS)
    assert [text for text, _, _ in zoomed] == ["step", "gemm", "H2D copy"]
    assert all(5.0 <= at < 5.01 for _, at, _ in zoomed)


def test_ranges_that_overlap_lie_beside_each_other() -> None:
    start = np.array([0, 10, 12, 30, 35, 50])
    end = np.array([10, 20, 22, 40, 45, 60])
    rows, count = spread(start, end, 4)
    assert rows.tolist() == [0, 0, 1, 0, 1, 0]
    assert count == 2
    rows, count = spread(start, end, 1)
    assert (rows.tolist(), count) == ([0] * 6, 1)
    assert spread(start[:0], end[:0], 4)[1] == 0


def test_overlapping_instances_take_lanes_of_their_own() -> None:
    trace = make_trace(
        kernels=[(10, 30, "s7", {"launch": 0}), (20, 40, "s8", {"launch": 2})],
        ranges=[("a", 0, 1), ("b", 2, 3)],
    )
    timeline = Timeline(trace)
    assert [lane.kind for lane in timeline.lanes] == ["range", "range", "stream", "stream"]
    assert bars(timeline, 0, 50)["NVTX range"].y == (0, 1)


def test_two_processes_on_one_device_number_are_told_apart() -> None:
    timeline = Timeline(two_processes())
    assert [timeline.device_label(device) for device in timeline.devices] == [
        "GPU 0 · rank 0",
        "GPU 0 · pid 101",
    ]


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "<b>bold", "a\nb\x1b[31m", "x" * 100_000]
)
def test_names_are_never_markup(name: str) -> None:
    trace = make_trace(kernels=[(0, MS, "s7", {"name": name})], ranges=[(name, 0, MS)])
    drawn = bars(Timeline(trace), 0, MS)
    written = labels(Timeline(trace), 0, MS)
    assert len(written) == 2
    hovers = drawn["kernel"].customdata[0] + drawn["NVTX range"].customdata[0]
    text = hovers + "".join(label for label, _, _ in written)
    assert "<script" not in text
    assert "<b>bold" not in text
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) < 1_000


def test_safe_text_keeps_what_is_harmless() -> None:
    assert safe_text("gemm<float>") == "gemm&lt;float&gt;"


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=lambda theme: theme.name)
def test_bars_and_texts_stand_out(theme: palette.Theme) -> None:
    for name in CLASSES:
        color = theme.class_color(name)
        assert palette.contrast(color, theme.surface) >= 3, name
        assert palette.contrast(theme.ink_on(name), color) >= 4.5, name
    assert palette.contrast(theme.text, theme.surface) >= 7
    assert palette.contrast(theme.muted, theme.surface) >= 4.5
    assert palette.contrast(theme.text, theme.range_fill) >= 7


def test_contrast_is_that_of_wcag() -> None:
    assert palette.contrast("#ffffff", "#000000") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


# Machado, Oliveira, Fernandes 2009: what people with each kind of colour blindness see of linear
# red, green and blue.
SIGHT = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def seen(color: str, sight: str) -> npt.NDArray[np.float64]:
    """Return a colour in CIE Lab as it is seen."""
    srgb = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) @ np.clip(np.array(SIGHT[sight]) @ linear, 0, 1)
    scaled = xyz / [0.9505, 1, 1.089]
    f = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize("sight", list(SIGHT))
def test_classes_side_by_side_stay_apart(theme: palette.Theme, sight: str) -> None:
    common = ("kernel", "comm", "h2d", "d2h", "d2d", "p2p", "memset")
    colors = {name: seen(theme.class_color(name), sight) for name in common}
    for a, b in itertools.combinations(common, 2):
        assert np.linalg.norm(colors[a] - colors[b]) > 15, (a, b)


def test_every_class_has_a_colour_of_its_own() -> None:
    for theme in (palette.LIGHT, palette.DARK):
        colors = [theme.class_color(name) for name in CLASSES]
        assert len(set(colors)) == len(CLASSES)
    assert palette.theme("dark") is palette.DARK
    assert palette.theme(None) is palette.LIGHT


def test_one_class_has_no_matrix() -> None:
    trace = make_trace(kernels=[(0, 10 * MS, "s7")])
    (device,) = api.analyze_trace(trace, analyzers=(overlap.ANALYZER,)).devices
    assert not matrix_figure(device.scope, palette.LIGHT).data


def test_matrix_and_partition_say_the_scope_s_figures() -> None:
    trace = make_trace(kernels=[(0, 10 * MS, "s7")], h2d=[(5 * MS, 15 * MS, "s8")])
    (device,) = api.analyze_trace(trace, analyzers=(overlap.ANALYZER,)).devices
    matrix = matrix_figure(device.scope, palette.LIGHT)
    (heat,) = matrix.data
    assert list(heat.x) == ["kernel", "h2d"]
    assert [list(row) for row in heat.z] == [[None, 0.5], [0.5, None]]
    assert "50.0 %" in heat.text[0][1]
    assert "5.00 ms" in heat.text[0][1]
    partition = partition_figure(device.scope, palette.DARK)
    shares = {trace.name: trace.x[0] for trace in partition.data}
    assert shares == pytest.approx({"kernel": 1 / 3, "h2d": 1 / 3, "h2d + kernel": 1 / 3})
