"""NCCL on two GPUs for real: modes show what they must, twins are told apart, data is checked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

import gpuscope
from tests.gpu.conftest import Run

pytestmark = [pytest.mark.multigpu, pytest.mark.mpi, pytest.mark.nsys]

NOT_FASTER = 1.05
"""A rate may exceed the link's by this factor: both are rounded by those who state them."""


@pytest.mark.parametrize(
    "words",
    [
        ("nccl",),
        ("nccl", "--twin", "same-stream"),
        ("nccl", "--communicators", "2", "--sizes", "16M"),
        ("nccl-group",),
        ("nccl-group", "--twin", "ungrouped"),
    ],
    ids=" ".join,
)
def test_the_traces_show_what_they_must(
    words: tuple[str, ...], run_ranks: Callable[..., Run]
) -> None:
    check(run_ranks("--nsys", *words, "--reps", "5"))


def test_few_channels_cost_nccl_more_than_they_spare_the_kernel(
    run_ranks: Callable[..., Run],
) -> None:
    run = run_ranks("--nsys", "nccl", "--with-compute", "--reps", "5")
    check(run)
    times = {name: each["median_ns"] for name, each in run.untraced["passes"].items()}
    assert times["comm-1"] > 4 * times["comm-16"]
    assert 1 < run.untraced["figures"]["compute_stretch_ratio_16"] < 1.5
    assert times["both-16"] < 0.8 * (times["comm-16"] + times["compute"])


def check(run: Run) -> None:
    """No rate exceeds the link's, and all communication kernels are matched, by communicator."""
    for quantity in run.untraced["quantities"]:
        if quantity["unit"] == "bytes/s":
            assert quantity["value"] < NOT_FASTER * quantity["limit"], quantity
    messages = gpuscope.load_ranks(run.folder).messages
    assert messages["transfer_ns"].notna().all()
    assert messages["communicator"].notna().all()
    assert messages["size_bytes"].notna().all()


@pytest.mark.parametrize(
    "words",
    [
        ("nccl", "--sizes", "8,1M"),
        ("nccl", "--with-compute", "--sizes", "1M", "--channels", "4", "--kernel-steps", "99"),
        ("nccl", "--communicators", "2", "--sizes", "1M"),
        ("nccl-group",),
    ],
    ids=" ".join,
)
def test_one_changed_element_is_caught(
    words: tuple[str, ...], run_ranks: Callable[..., Run]
) -> None:
    run = run_ranks("--untraced", *words, "--twin", "corrupt-element", "--reps", "2")
    assert "caught, as it must be (wrong data: 1 of" in run.done.stdout


ALONE = """
import sys, time
from cupy.cuda import nccl
from gpuscope.benchmarks._harness import leave, open_ranks
from gpuscope.errors import ProgramError

def work():
    with open_ranks("alone") as ranks:
        communicator, data = ranks.nccl(), ranks.session.cp.zeros(1 << 20, "float32")
        stream = ranks.session.cp.cuda.Stream(non_blocking=True)
        add = data.data.ptr, data.data.ptr, data.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
        communicator.allReduce(*add)
        stream.synchronize()
        ranks.barrier()
        if ranks.rank == 1:
            communicator.allReduce(*add)
            raise ProgramError("rank 1 fails")
        time.sleep(300)

try:
    work()
except ProgramError as error:
    print(error, file=sys.stderr)
    code = error.exit_code
leave(code)
"""


def test_a_rank_that_fails_waits_for_no_other_that_its_kernel_waits_for() -> None:
    command = ["mpirun", "-n", "2", sys.executable, "-c", ALONE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "rank 1 fails" in done.stderr
    assert done.returncode == 1
