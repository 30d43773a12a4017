"""Strong and weak scaling, by the updates per second."""

import csv
from typing import Any

import pytest

from gpuscope.cli import _series, _sweep
from gpuscope.figures.palette import LIGHT
from gpuscope.figures.scaling import bound_reached, scaling, scaling_void
from gpuscope.figures.sweep import sweep_figure


def result(updates_per_s: float | None, t_step_ns: float = 1250.0, **more: Any) -> dict[str, Any]:
    figures = {
        "updates_per_s": updates_per_s,
        "t_step_ns": t_step_ns,
        "t_comp_ns": 900.0,
        "t_comm_ns": 300.0,
        "t_lb_ns": 1000.0,
        "speedup": 1.5,
        "kernel_copy_ratio": updates_per_s,
    }
    return {
        "figures": figures,
        "benchmark": "jacobi-mpi",
        "machine": {},
        "options": {"weak": False},
        "passes": {},
        "stages": {},
        "valid": True,
        **more,
    }


GRID = [
    (("64", "1"), result(100e9)),
    (("64", "2"), result(150e9, 2000.0, valid=False)),
    (("128", "1"), result(100e9)),
    (("128", "2"), result(190e9, 1000.0)),
]
"""Rows and ranks: on more rows two ranks do better."""


def test_efficiency_is_what_a_rank_does_against_the_first_number_of_ranks() -> None:
    rows = [(("1",), result(100e9)), (("2",), result(180e9)), (("4",), result(400e9))]
    assert scaling(["ranks"], rows) == [(1, 1), (1.8, 0.9), (4, 1)]
    rows = [(("2",), result(180e9)), (("3",), result(270e9))]
    assert scaling(["ranks"], rows) == [(1, 1), (1.5, 1)]


def test_of_a_grid_each_size_is_held_against_its_own_first_number_of_ranks() -> None:
    assert scaling(["rows", "ranks"], GRID) == [(1, 1), (1.5, 0.75), (1, 1), (1.9, 0.95)]


def test_what_counts_no_updates_does_not_scale_nor_does_another_option() -> None:
    assert scaling(["ranks"], [(("1",), result(None)), (("2",), result(None))]) is None
    assert scaling(["ranks"], [(("1",), {"figures": {}}), (("2",), {"figures": {}})]) is None
    assert scaling(["rows"], [(("1",), result(100e9)), (("2",), result(180e9))]) is None


VOID_FIRST = [
    (("64", "1"), result(100e9, valid=False)),
    (("64", "2"), result(150e9)),
    *GRID[2:],
]


def test_what_is_held_against_a_void_run_is_void() -> None:
    assert scaling_void(["rows", "ranks"], GRID) == [False, True, False, False]
    assert scaling_void(["rows", "ranks"], VOID_FIRST) == [True, True, False, False]


def test_what_was_reached_of_the_bound_is_the_bound_over_the_step() -> None:
    assert bound_reached(result(1.0)) == 0.8
    assert bound_reached({"figures": {"t_lb_ns": 1000.0}}) is None


def test_the_table_has_a_step_its_bound_and_how_the_work_scales(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.console import Console

    Console(width=120).print(_sweep.make_table(["rows", "ranks"], GRID))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "untraced, strong scaling"
    assert lines[2] == (
        "rows ranks a step kernels exchange T_lb reached Gupdates/s times efficiency"
    )
    assert "64 1 1.25 µs 900 ns 300 ns 1.00 µs 80.0 % 100.0 1.00 100.0 %" in lines
    assert "64 2 (void) 2.00 µs 900 ns 300 ns 1.00 µs 50.0 % 150.0 1.50 75.0 % (void)" in lines
    weak = [(values, {**each, "options": {"weak": True}}) for values, each in GRID]
    Console(width=120).print(_sweep.make_table(["rows", "ranks"], weak))
    assert "untraced, weak scaling" in capsys.readouterr().out
    # Without ranks nothing scales.
    Console(width=120).print(_sweep.make_table(["rows"], [(("64",), result(100e9))]))
    assert "efficiency" not in capsys.readouterr().out


def test_the_csv_has_them_too() -> None:
    lines = csv.DictReader(_series.to_csv(["rows", "ranks"], GRID).splitlines())
    named = ("rows", "ranks", "valid", "scaling", "efficiency", "bound_reached_ratio")
    first, second, *_ = ([line[name] for name in named] for line in lines)
    assert first == ["64", "1", "True", "1.0", "1.0", "0.8"]
    assert second == ["64", "2", "False", "1.5", "0.75", "0.5"]


def test_the_plot_is_of_work_over_ranks_beside_the_ideal() -> None:
    rows = [(("1",), result(100e9)), (("2",), result(180e9))]
    measured, possible = sweep_figure(["ranks"], rows, LIGHT).data
    assert (list(measured.x), list(measured.y)) == (["1", "2"], [1, 1.8])
    assert list(possible.y) == [1, 2]
    # Any other option is drawn by the ratio of kernel to copy.
    measured = sweep_figure(["steps"], rows, LIGHT).data[0]
    assert list(measured.x) == [100e9, 180e9]


def test_the_plots_of_a_grid_are_over_ranks_and_over_sizes() -> None:
    figure = sweep_figure(["rows", "ranks"], GRID, LIGHT)
    assert [(line.name, line.xaxis, list(line.x), list(line.y)) for line in figure.data] == [
        ("rows 64", "x", ["1", "2"], [1, 1.5]),
        ("rows 128", "x", ["1", "2"], [1, 1.9]),
        ("possible", "x", ["1", "2"], [1, 2]),
        ("ranks 1", "x2", ["64", "128"], [0.8, 0.8]),
        ("ranks 2", "x2", ["64", "128"], [0.5, 1]),
    ]
    assert figure.layout.xaxis.title.text == "ranks"
    assert figure.layout.xaxis2.title.text == "rows"
    title = "jacobi-mpi on an unknown GPU, strong scaling"
    assert figure.layout.title.text == f"{title} (open: void)"
    assert sweep_figure(["rows", "ranks"], GRID[2:], LIGHT).layout.title.text == title


def test_void_runs_are_drawn_open() -> None:
    lines = sweep_figure(["rows", "ranks"], VOID_FIRST, LIGHT).data
    full, hollow = "circle", "circle-open"
    assert [(line.name, line.marker.symbol) for line in lines] == [
        ("rows 64", (hollow, hollow)),
        ("rows 128", (full, full)),
        ("possible", full),
        ("ranks 1", (hollow, full)),
        ("ranks 2", (full, full)),
    ]
    # Over another option the marks are in the order of the ratios, as the points are.
    rows = [(("9",), result(180e9, valid=False)), (("7",), result(100e9))]
    (line,) = sweep_figure(["steps"], rows, LIGHT).data
    assert (list(line.x), line.marker.symbol) == ([100e9, 180e9], (full, hollow))
    # And over two others.
    grid = [((a, b), result(None, valid=a != b)) for a in "12" for b in "12"]
    lines = sweep_figure(["steps", "rows"], grid, LIGHT).data
    assert [line.marker.symbol for line in lines] == [(hollow, full), (full, hollow)]
