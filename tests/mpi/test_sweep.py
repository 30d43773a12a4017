"""Weak and strong scaling over ranks and sizes, on the ranks of a real MPI with simulated GPUs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuscope.cli import main
from gpuscope.recording import launch

pytestmark = pytest.mark.mpi

ROOT = Path(__file__).parents[2]


@pytest.fixture
def on_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have benchmarks run on simulated GPUs, in a fresh folder."""
    original = launch.benchmark_argv

    def argv(
        name: str, options: Sequence[str], result: Path, plan: Path | None = None
    ) -> list[str]:
        words = original(name, options, result, plan)[4:]
        return [sys.executable, "-m", "tests.mpi.on_host", *words]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "benchmark_argv", argv)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # More ranks than processors: who waits lets the others go on.
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")


def sweep(name: str, *words: str) -> list[dict[str, str]]:
    """Run a sweep, and return the lines of its CSV."""
    sizes = ("--columns=10", "--steps=3", "--reps=2", "--launcher-args=--oversubscribe")
    assert main(["run", "--out=r", name, *words, *sizes]) == 0
    with Path("r/sweep.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("on_host")
def test_strong_scaling_over_ranks_and_rows(capfd: pytest.CaptureFixture[str]) -> None:
    lines = sweep("jacobi-mpi-overlap", "--sweep=ranks=1,3", "--sweep=rows=13,29")

    assert [(line["rows"], line["ranks"]) for line in lines] == [
        ("13", "1"), ("13", "3"), ("29", "1"), ("29", "3"),
    ]  # fmt: skip
    for one, three in (lines[:2], lines[2:]):
        assert float(one["efficiency"]) == 1
        rates = [float(line["updates_per_s"]) for line in (one, three)]
        assert float(three["scaling"]) == pytest.approx(rates[1] / rates[0])
        assert float(three["efficiency"]) == pytest.approx(rates[1] / rates[0] / 3)
    for line in lines:
        reached = float(line["t_lb_ns"]) / float(line["t_step_ns"])
        assert float(line["bound_reached_ratio"]) == pytest.approx(reached)
    out = capfd.readouterr().out
    assert "untraced, strong scaling" in out
    assert "efficiency" in out
    page = Path("r/sweep.html").read_text(encoding="utf-8")
    assert "share of the bound" in page
    assert "rows 29" in page


@pytest.mark.usefixtures("on_host")
def test_weak_scaling_keeps_the_block_of_each_rank(capfd: pytest.CaptureFixture[str]) -> None:
    lines = sweep("jacobi-2d", "--weak", "--sweep=ranks=1,4", "--sweep=rows=7,9")

    assert len(lines) == 4
    assert "untraced, weak scaling" in capfd.readouterr().out
    content = json.loads(Path("r/sweep.json").read_text())
    for run in content["runs"]:
        options = run["result"]["options"]
        assert (options["rows"], options["weak"]) == (int(run["values"]["rows"]), True)
    # Four ranks do four blocks of points in their steps, less the columns at both ends.
    seconds = [float(line["t_step_ns"]) / 1e9 for line in lines[:2]]
    points = [
        float(line["updates_per_s"]) * time for line, time in zip(lines, seconds, strict=False)
    ]
    assert points == pytest.approx([7 * 8, 14 * 18])


@pytest.mark.usefixtures("on_host")
def test_a_changed_element_on_ranks_is_caught(capfd: pytest.CaptureFixture[str]) -> None:
    words = ("--rows=13", "--columns=10", "--steps=3", "--reps=2")
    twin = ("--twin=corrupt-element", "--launcher-args=--oversubscribe")
    assert main(["run", "--untraced", "--out=r", "--ranks=2", "jacobi-mpi", *words, *twin]) == 0
    assert "caught, as it must be (wrong data: 1 of " in capfd.readouterr().out


@pytest.mark.usefixtures("on_host")
def test_skewed_ranks_change_nothing_and_show_a_missing_wait(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ("--ranks=2", "--launcher-args=--oversubscribe", "jacobi-mpi-overlap", "--skew-us=100")
    sizes = ("--rows=13", "--columns=10", "--steps=3", "--reps=2")
    assert main(["run", "--untraced", "--out=right", *words, *sizes]) == 0
    capfd.readouterr()
    assert main(["run", "--untraced", "--out=r", *words, *sizes, "--twin=no-reset-event"]) == 0
    assert "caught, as it must be (wrong data: the norm of a step" in capfd.readouterr().out
