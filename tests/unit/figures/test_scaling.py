"""Strong and weak scaling, by the updates per second."""

from typing import Any

from gpuscope.figures.palette import LIGHT
from gpuscope.figures.scaling import scaling
from gpuscope.figures.sweep import sweep_figure


def result(updates_per_s: float | None) -> dict[str, Any]:
    figures = {"updates_per_s": updates_per_s, "speedup": 1.5, "kernel_copy_ratio": updates_per_s}
    return {"figures": figures, "benchmark": "jacobi-mpi", "machine": {}}


def test_efficiency_is_what_a_rank_does_against_the_first_number_of_ranks() -> None:
    rows = [("1", result(100e9)), ("2", result(180e9)), ("4", result(400e9))]
    assert scaling(rows) == [(1, 1), (1.8, 0.9), (4, 1)]
    rows = [("2", result(180e9)), ("3", result(270e9))]
    assert scaling(rows) == [(1, 1), (1.5, 1)]


def test_what_counts_no_updates_does_not_scale() -> None:
    assert scaling([("1", result(None)), ("2", result(None))]) is None
    assert scaling([("1", {"figures": {}}), ("2", {"figures": {}})]) is None


def test_the_plot_is_of_work_over_ranks_beside_the_ideal() -> None:
    rows = [("1", result(100e9)), ("2", result(180e9))]
    measured, possible = sweep_figure("ranks", rows, LIGHT).data
    assert (list(measured.x), list(measured.y)) == (["1", "2"], [1, 1.8])
    assert list(possible.y) == [1, 2]
    # Any other option is drawn by the ratio of kernel to copy.
    measured = sweep_figure("steps", rows, LIGHT).data[0]
    assert list(measured.x) == [100e9, 180e9]
