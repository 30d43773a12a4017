"""The parts of the Jacobi benchmarks that need no GPU, on the ranks of a real MPI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gpuscope import api

pytestmark = pytest.mark.mpi

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("stencil.py")
VARIANTS = Path(__file__).with_name("variants.py")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    # More ranks than processors: who waits lets the others go on.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def mpirun(ranks: int, program: Path, *arguments: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, str(program)]
        + [str(argument) for argument in arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("down", "across"), [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (2, 2)]
)
def test_ranks_come_to_the_grid_and_the_norms_of_one(down: int, across: int) -> None:
    # 29 and 23 divide by none of these.
    done = mpirun(down * across, PROGRAM, 29, 23, down, across, 6)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"as one: {periodic=} {overlapped=}"
        for periodic in (True, False)
        for overlapped in (True, False)
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_variant_comes_to_the_grid_and_the_norms_of_one(ranks: int) -> None:
    done = mpirun(ranks, VARIANTS, 29, 23)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["as one"] * 6


def test_without_a_gpu_the_command_line_says_so(tmp_path: Path) -> None:
    command = ["run", "--untraced", "--ranks=3", "--launcher-args=--oversubscribe", "jacobi-2d"]
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", *command],
        env={
            **ENVIRONMENT,
            "CUDA_VISIBLE_DEVICES": "",
            "OMPI_MCA_odls_base_sigkill_timeout": "1",  # no report has to be written
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "CuPy cannot be imported" in done.stderr or "no CUDA driver or GPU" in done.stderr
    assert not list(tmp_path.rglob("*.json"))  # what could not begin leaves nothing


@pytest.mark.nsys
@pytest.mark.usefixtures("nsys")
def test_ranks_started_by_the_command_line_leave_their_messages_in_the_traces(
    tmp_path: Path,
) -> None:
    options = ["--ranks=4", "--launcher-args=--oversubscribe", "--trace=nvtx,mpi", "--out=r"]
    program = [sys.executable, str(PROGRAM), "29", "23", "2", "2", "6"]
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "run", "--nsys", *options, "--", *program],
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 5, done.stderr  # nothing ran on a GPU
    assert done.stderr.count("as one") == 4
    for rank in range(4):
        trace = api.open_trace(tmp_path / "r" / f"rank{rank}")
        assert trace.mpi is not None
        calls = Counter(trace.strings[name] for name in trace.mpi.name.tolist())
        # Six steps, with three neighbours, and with two at open ends; a Sendrecv for each way.
        wanted = {"Irecv": 30, "Isend": 30, "Waitall": 12, "Iallreduce": 24, "Sendrecv": 48}
        assert {name: calls[f"MPI_{name}"] for name in wanted} == wanted
