"""The parts of the Jacobi benchmarks that need no GPU, on the ranks of a real MPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("stencil.py")


@pytest.mark.parametrize(
    ("down", "across"), [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (2, 2)]
)
def test_ranks_come_to_the_grid_and_the_norms_of_one(down: int, across: int) -> None:
    # 29 and 23 divide by none of these.
    arguments = [str(number) for number in (29, 23, down, across, 6)]
    mpirun = ["mpirun", "--oversubscribe", "-n", str(down * across)]
    done = subprocess.run(
        [*mpirun, sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"as one: {periodic=} {overlapped=}"
        for periodic in (True, False)
        for overlapped in (True, False)
    ]
