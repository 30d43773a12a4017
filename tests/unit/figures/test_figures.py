"""Timeline and overlap figures, from traces written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope import api
from gpuscope.analyzers import overlap
from gpuscope.figures import palette
from gpuscope.figures.overlap import matrix_figure, partition_figure
from gpuscope.figures.timeline import Timeline, safe_text
from gpuscope.model.classes import CLASSES
from tests.make_trace import make_trace

MS = 1_000_000


def bars(timeline: Timeline, low: int, high: int) -> dict[str, Any]:
    figure = timeline.figure((low, high), palette.LIGHT)
    return {trace.name: trace for trace in figure.data}


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


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "<b>bold", "a\nb\x1b[31m", "x" * 100_000]
)
def test_names_are_never_markup(name: str) -> None:
    trace = make_trace(kernels=[(0, MS, "s7", {"name": name})], ranges=[(name, 0, MS)])
    drawn = bars(Timeline(trace), 0, MS)
    text = drawn["kernel"].customdata[0] + str(drawn["NVTX range"].text)
    assert "<script" not in text
    assert "<b>bold" not in text
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) < 1_000


def test_safe_text_keeps_what_is_harmless() -> None:
    assert safe_text("gemm<float>") == "gemm&lt;float&gt;"


def test_every_class_has_a_colour_of_its_own() -> None:
    for theme in (palette.LIGHT, palette.DARK):
        colors = [theme.class_color(name) for name in CLASSES]
        assert len(set(colors)) == len(CLASSES)
    assert palette.theme("dark") is palette.DARK
    assert palette.theme(None) is palette.LIGHT


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
