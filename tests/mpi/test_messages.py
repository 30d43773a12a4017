"""The data of mpi-pingpong and norm on the ranks of a real MPI, with the host for a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

HERE = Path(__file__).parent


def lines(size: int, program: str, *arguments: str) -> list[str]:
    """Run a program of this folder on `size` ranks; return what rank 0 says of each."""
    done = subprocess.run(
        ["mpirun", "--oversubscribe", "-n", str(size), sys.executable, HERE / program, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path]),
            "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks that wait leave the processor to others
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("size", [2, 3])
def test_every_byte_of_every_path_comes_back(size: int) -> None:
    # 9 sizes of 50 rounds, 256K with 32, 1M with 8; staged and device, and two of them pipelined.
    short = 50 * sum(4**power for power in range(9))
    long = 32 * (1 << 18) + 8 * (1 << 20)
    right = f"right: {2 * short + 3 * long} of {9 * 3 + 2 * 4} passes"
    between = [f"right: 0 of {9 * 3 + 2 * 4} passes"] * (size - 2)
    assert lines(size, "pingpong.py", "--partner", str(size - 1)) == [right, *between, right]


def test_a_pipelined_message_that_is_sent_whole_comes_back_too() -> None:
    assert all(line.startswith("right") for line in lines(2, "pingpong.py", "--twin", "staged"))


def test_a_chunk_that_was_not_copied_is_noticed() -> None:
    # In each of the 8 rounds, on both ranks: what one sent wrong comes back wrong.
    for line in lines(2, "pingpong.py", "lost"):
        assert line.startswith("wrong data: ")


@pytest.mark.parametrize(("program", "rank"), [("pingpong.py", 0), ("norm.py", 0)])
def test_a_changed_element_is_noticed(program: str, rank: int) -> None:
    for line in lines(2, program, "--twin", "corrupt-element"):
        assert line.startswith("wrong data: 1 of ")
        assert line.endswith(f"(rank {rank})")


def test_a_partner_that_is_not_there_is_refused() -> None:
    (first, _) = lines(2, "pingpong.py", "--partner", "2")
    assert first == "there is no rank 2: --partner is 1 to 1."


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("twin", [[], ["--twin", "blocking-copy"]])
def test_every_sum_of_every_path_is_right(twin: list[str], size: int) -> None:
    # Three paths of 50 single elements and 6 vectors, then four passes of 6 steps.
    sums = 5000 + 3 * (50 + 6 * 5000) + 4 * 6 * 5000
    right = f"right: {sums} of 10 passes"
    assert lines(size, "norm.py", "--path", "mpi-device", *twin) == [right] * size


def test_without_nccl_the_sums_of_mpi_are_left() -> None:
    right = f"right: {5000 + 50 + 6 * 5000 + 2 * 6 * 5000} of 4 passes"
    assert lines(2, "norm.py", "--path", "mpi-host") == [right] * 2
