"""The stencil on two GPUs for real: traces show what they must, races are caught, ranks scale."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import copy_without
from tests.gpu.conftest import run_gpuscope as run

pytestmark = [pytest.mark.multigpu, pytest.mark.mpi, pytest.mark.nsys]

SMALL = ("--rows", "1021", "--columns", "4099", "--steps", "10", "--reps", "2")
SKEW = ("--skew-us", "200")
VOID = (0, 5)
"""The clock of a GPU may drift, at its power cap, or if it spins and waits in turn: the times are
void then, not wrong, and what the trace shows stands."""


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "rank0" / "untraced.json").read_text())["figures"]
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("jacobi-mpi",),
        ("jacobi-mpi-overlap",),
        ("jacobi-mpi-overlap", "--twin", "blocking"),
        ("jacobi-2d",),
        ("jacobi-2d", "--twin", "pack-on-compute-stream"),
    ],
    ids=" ".join,
)
def test_the_traces_show_what_is_hidden(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path / "run", "--nsys", *words, "--reps", "3")
    assert done.returncode in VOID, done.stderr
    assert " met " in done.stdout
    assert "on average a step" in done.stdout
    found = figures(tmp_path / "run")
    if words in (("jacobi-mpi-overlap",), ("jacobi-2d",)):
        assert found["omb_overlap_ratio"] > 0.8
        assert found["t_step_ns"] < 1.1 * found["t_lb_ns"]
    else:
        assert found["omb_overlap_ratio"] < 0.2


@pytest.mark.parametrize("name", ["jacobi-mpi", "jacobi-mpi-overlap", "jacobi-2d"])
def test_messages_from_gpu_to_gpu_are_hidden_or_not(name: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", "--nsys", name, "--path", "device", "--reps", "3")
    if done.returncode == 3 and "cannot send device buffers" in done.stderr:
        pytest.skip("this MPI takes no device buffers")
    assert done.returncode in VOID, done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["options"]["path"] == "device"
    (row,) = record["expected"]
    bounds = (0.0, 0.1) if name == "jacobi-mpi" else (0.8, 1.0)
    assert (row["least"], row["most"], row["met"]) == (*bounds, True)


@pytest.mark.parametrize("ranks", ["3", "4"])
def test_blocks_with_neighbours_on_all_sides_share_gpus(ranks: str, tmp_path: Path) -> None:
    square = ("--rows", "1021", "--columns", "1033", "--steps", "10", "--reps", "2")
    words = ("--untraced", "--ranks", ranks, "jacobi-2d", "--oversubscribe", *square)
    done = run(tmp_path / "run", *words)
    assert done.returncode in VOID, done.stderr
    split = {"3": "1 × 3", "4": "2 × 2"}[ranks]
    assert f"{split} blocks" in done.stdout
    assert "ranks share a GPU: nothing is judged" in done.stdout


@pytest.mark.parametrize("ends", ["periodic", "open"])
def test_skewed_ranks_change_nothing_and_catch_a_missing_wait(ends: str, tmp_path: Path) -> None:
    words = (*SMALL, *SKEW, "--ends", ends)
    for name in ("jacobi-mpi", "jacobi-mpi-overlap", "jacobi-2d"):
        done = run(tmp_path / name, "--untraced", name, *words)
        assert done.returncode in VOID, done.stderr
    twin = ("jacobi-mpi-overlap", "--twin", "no-reset-event")
    caught = run(tmp_path / "caught", "--untraced", *twin, *words)
    assert caught.returncode == 0, caught.stderr
    assert "caught, as it must be (wrong data: the norm of a step" in caught.stdout


@pytest.mark.parametrize(
    ("words", "wait"),
    [
        (("jacobi-mpi",), "self.stream.synchronize()"),
        (("jacobi-mpi-overlap",), "edge.copied_out.synchronize()"),
        (("jacobi-2d",), "self.copied_out.synchronize()"),
        (("jacobi-2d",), "self.edge.wait_event(event)"),
        (
            ("jacobi-2d", "--twin", "pack-on-compute-stream"),
            "self.travel.wait_event(self.edges_done)",
        ),
    ],
    ids=["mpi", "overlap", "2d", "2d-edges", "2d-pack"],
)
def test_a_wait_left_out_of_a_copy_of_the_code_is_caught(
    words: tuple[str, ...], wait: str, tmp_path: Path
) -> None:
    tree = copy_without(wait, f"{words[0].replace('-', '_')}.py", tmp_path)
    done = run(tmp_path / "run", "--untraced", *words, *SMALL, *SKEW, tree=tree)
    assert done.returncode == 1, done.stderr
    assert "wrong data: " in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["jacobi-mpi", "jacobi-mpi-overlap", "jacobi-2d"])
def test_one_changed_element_is_caught(name: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", "--untraced", name, *SMALL, "--twin", "corrupt-element")
    assert done.returncode == 0, done.stderr
    assert "caught, as it must be (wrong data: 1 of " in done.stdout


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("jacobi-mpi", "2"), ("jacobi-mpi-overlap", "2"), ("jacobi-2d", "2"), ("jacobi-2d", "1")],
)
def test_ranks_stop_where_one_gpu_stops(name: str, ranks: str, tmp_path: Path) -> None:
    words = ("--untraced", "--ranks", ranks, name, *SMALL, "--tolerance", "500")
    assert run(tmp_path / "run", *words).returncode in VOID
    assert figures(tmp_path / "run")["solve_steps"] == 8


@pytest.mark.parametrize(
    ("rows", "how"), [("1024,2048,4096", []), ("512,2048", ["--weak"])], ids=["strong", "weak"]
)
def test_two_ranks_do_twice_the_work_on_a_grid_that_is_large_enough(
    rows: str, how: list[str], tmp_path: Path
) -> None:
    words = ("--sweep", "ranks=1,2", "--sweep", f"rows={rows}", "--columns", "262144", *how)
    done = run(tmp_path / "run", "jacobi-mpi-overlap", *words, "--reps", "5")
    assert done.returncode in VOID, done.stderr
    with (tmp_path / "run" / "sweep.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["rows"], line["ranks"]) for line in lines] == [
        (size, ranks) for size in rows.split(",") for ranks in ("1", "2")
    ]
    *_, two = lines
    assert 0.9 < float(two["efficiency"]) < 1.1
    assert float(two["bound_reached_ratio"]) > 0.9
    assert (tmp_path / "run" / "sweep.html").is_file()
