"""The probe for MPIs that take device buffers, with a real mpirun and a stand-in for CuPy."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.benchmarks._harness import device_mpi
from gpuscope.errors import MissingError
from gpuscope.recording.process import Ended

CUPY = """\
import os, time
from types import SimpleNamespace
import numpy as np

HOW = {how!r}

def full(count, value):
    if HOW == "crashes" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        os.abort()
    if HOW == "hangs" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        time.sleep(1000)
    return np.full(count, value)

class Rubbish(np.ndarray):
    def __eq__(self, other):
        return np.asarray(self) == other + (len(self) > 600)

def zeros(count):
    return np.zeros(count).view(Rubbish if HOW == "delivers rubbish" else np.ndarray)

runtime = SimpleNamespace(
    getDeviceCount=lambda: 2, CUDARuntimeError=RuntimeError, deviceSynchronize=lambda: None
)
cuda = SimpleNamespace(runtime=runtime, Device=lambda number: SimpleNamespace(use=lambda: None))
"""


def environment(folder: Path, how: str) -> dict[str, str]:
    """Make a CuPy in `folder` whose arrays the host holds; return an environment that has it."""
    (folder / "cupy.py").write_text(CUPY.format(how=how))
    root = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), root])}


@pytest.mark.mpi
@pytest.mark.parametrize("operation", [device_mpi.SENDRECV, device_mpi.ALLREDUCE])
def test_an_mpi_that_delivers_is_trusted(operation: str, tmp_path: Path) -> None:
    answer = device_mpi.probe(operation, environment=environment(tmp_path, "works"))
    assert answer.works, answer.reason


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("crashes", "the probe crashed with exit code 134"),
        ("delivers rubbish", "Sendrecv of 524288 doubles left wrong data"),
    ],
)
def test_an_mpi_that_crashes_or_delivers_rubbish_is_not(
    how: str, says: str, tmp_path: Path
) -> None:
    answer = device_mpi.probe(device_mpi.SENDRECV, environment=environment(tmp_path, how))
    assert not answer.works
    assert says in answer.reason


@pytest.mark.mpi
def test_a_probe_that_hangs_is_ended_with_all_of_its_processes(tmp_path: Path) -> None:
    started = time.monotonic()
    answer = device_mpi.probe(
        device_mpi.SENDRECV, environment=environment(tmp_path, "hangs"), timeout_s=3
    )
    assert answer == device_mpi.Answer(False, "the probe gave no answer within 3 s")
    assert time.monotonic() - started < 30
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            assert str(tmp_path) not in (folder / "environ").read_text(errors="replace")
        except (OSError, ValueError):
            continue


@pytest.mark.mpi
def test_a_rank_can_probe_too(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = tmp_path / "rank.py"
    program.write_text(
        "from mpi4py import MPI\n"
        "from gpuscope.benchmarks._harness import device_mpi\n"
        "world = MPI.COMM_WORLD\n"
        "answer = device_mpi.probe('Sendrecv') if world.Get_rank() == 0 else None\n"
        "answer = world.bcast(answer, 0)\n"
        "print(answer.works if world.Get_rank() else '', end='', flush=True)\n"
    )
    done = subprocess.run(
        ["mpirun", "--oversubscribe", "-n", "2", sys.executable, str(program)],
        env=environment(tmp_path, "works"),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.stdout.split() == ["True"], done.stderr


@pytest.mark.mpi
def test_an_mpirun_of_another_mpi_is_told(tmp_path: Path) -> None:
    """It starts two processes, each of which is alone in its own world."""
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text('#!/bin/sh\nshift 2\n"$@"\n"$@"\n')
    mpirun.chmod(0o755)
    path = os.pathsep.join([str(mpirun.parent), os.environ["PATH"]])
    answer = device_mpi.probe(
        device_mpi.SENDRECV, environment={**environment(tmp_path, "works"), "PATH": path}
    )
    assert not answer.works
    assert "the mpirun on the PATH is another MPI's" in answer.reason


def test_without_an_mpirun_the_answer_is_no(tmp_path: Path) -> None:
    answer = device_mpi.probe(device_mpi.SENDRECV, environment={"PATH": str(tmp_path)})
    assert answer == device_mpi.Answer(False, "there is no mpirun on the PATH to try it with")


@pytest.mark.parametrize(
    ("code", "timed_out", "arrived", "says"),
    [
        (0, False, 1, "failed with exit code 0; it said: nothing"),
        (139, False, 2, "crashed with exit code 139"),  # data arrived, and then it died
        (1, False, 0, "failed with exit code 1"),
        (130, True, 0, "gave no answer within 9 s"),
    ],
)
def test_only_both_words_and_a_good_end_are_a_yes(
    code: int, timed_out: bool, arrived: int, says: str
) -> None:
    ended = Ended(code=code, interrupted=False, timed_out=timed_out, outlived=())
    answer = device_mpi.judge(ended, arrived, (), 9)
    assert not answer.works
    assert says in answer.reason
    assert device_mpi.judge(Ended(0, False, False, ()), 2, (), 9).works


def test_what_a_launcher_tells_its_ranks_is_not_passed_on_and_settings_are() -> None:
    kept = {
        "PATH": "/bin",
        "OMPI_MCA_pml": "ucx",
        "OMPI_MCA_btl": "smcuda,self",
        "I_MPI_OFFLOAD": "1",
        "UCX_TLS": "cuda_ipc",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
    }
    dropped = dict.fromkeys(
        [
            "OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess_base_vpid", "OMPI_MCA_orte_hnp_uri",
            "OMPI_MCA_pmix", "PMIX_RANK", "PMI_RANK", "PMI_FD", "SLURM_PROCID",
            "MPI_LOCALRANKID",
        ],
        "1",
    )  # fmt: skip
    assert device_mpi.environment_outside({**kept, **dropped}) == kept


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_refuse_with_a_path_that_works_and_the_ways_to_get_an_mpi(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def probe(operation: str) -> device_mpi.Answer:
        asked.append(operation)
        return device_mpi.Answer(False, "the probe crashed")

    def agree(answer: device_mpi.Answer | None) -> device_mpi.Answer:
        return answer or device_mpi.Answer(False, "the probe crashed")

    monkeypatch.setattr(device_mpi, "probe", probe)
    ranks: Any = SimpleNamespace(rank=rank, agree=agree)
    with pytest.raises(MissingError) as caught:
        device_mpi.require(ranks, device_mpi.SENDRECV, "staged")
    assert asked == [device_mpi.SENDRECV][rank:]  # one rank asks for all
    text = str(caught.value)
    assert text.startswith("this MPI cannot send device buffers (the probe crashed): use")
    for part in ("`--path staged`", "--with-cuda", "I_MPI_OFFLOAD=1", "libucx-cu13", "install.md"):
        assert part in text
