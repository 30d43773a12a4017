"""Ranks that measure together: the rules anywhere, the rest with a real MPI on the CPU."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.benchmarks import find_benchmark
from gpuscope.benchmarks._harness import add_common_arguments, gpu
from gpuscope.benchmarks._harness import ranks as module
from gpuscope.benchmarks._harness.gpu import Pass, Session, Team
from gpuscope.benchmarks._harness.ranks import check_places, open_ranks, refuse_shared_gpus
from gpuscope.errors import ProgramError, UsageError

ROOT = Path(__file__).parents[3]

PROGRAM = """\
import sys
from types import SimpleNamespace
from gpuscope.benchmarks._harness import ranks as module
from gpuscope.benchmarks._harness.ranks import Ranks, import_mpi, leave, thread_level

mpi = import_mpi()
ranks = Ranks(mpi, mpi.COMM_WORLD)
rank, size = ranks.rank, ranks.size
assert (ranks.local_rank, ranks.local_size) == (rank, size)
assert ranks.gather(10 * rank) == [10 * each for each in range(size)]
assert ranks.agree(f"of {rank}") == "of 0"
assert ranks.every(True) and not ranks.every(rank != 1)
assert ranks.largest([rank, -rank, 5]) == [size - 1, 0, 5]
assert thread_level(mpi) in ("funneled", "serialized", "multiple")
ranks.barrier()

class Refused(Exception):
    pass

def register(address, size_bytes, flags):
    if "fails" in sys.argv and rank == 1:
        raise Refused

runtime = SimpleNamespace(hostRegister=register, CUDARuntimeError=Refused)
module.StartGate = lambda cp, flag, opens: (flag, opens)
gate = ranks.gate(SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)), "own")
if "fails" in sys.argv:
    assert gate == "own"  # for all, if one of them cannot see the flag
else:
    flag, opens = gate
    assert flag[0] == 0 and opens == (rank == 0)
    ranks.barrier()
    if opens:
        flag[0] = 7
    ranks.barrier()
    assert flag[0] == 7
print("right", flush=True)
if "fails" in sys.argv and rank == 1:
    leave(7)
ranks.barrier()
"""


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ({"size": 1, "here": 1, "gpus": 2}, "needs 2 ranks at least, and there is 1"),
        ({"size": 3, "here": 3, "gpus": 2}, "3 ranks, 2 GPUs: start 2"),
        ({"size": 2, "here": 2, "gpus": 1}, "2 ranks, 1 GPU: start 1"),
    ],
)
def test_places_that_do_not_do(places: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_places("nccl", **places, least=2)


def test_sharing_is_offered_where_it_can_be() -> None:
    for may_share, says in ((True, "--oversubscribe"), (False, "nccl wants a GPU for each")):
        with pytest.raises(UsageError) as raised:
            check_places("nccl", 3, 3, 2, least=2, may_share=may_share)
        assert says in str(raised.value)
        assert ("--oversubscribe" in str(raised.value)) is may_share
    for name, offered in (("norm", True), ("nccl", False), ("jacobi-nvshmem", False)):
        parser = argparse.ArgumentParser()
        add_common_arguments(parser, find_benchmark(name))
        assert ("--oversubscribe" in parser.format_help()) is offered
        assert parser.parse_args([]).oversubscribe is (False if offered else None)


def test_as_many_ranks_as_gpus_do() -> None:
    check_places("nccl", size=4, here=2, gpus=2, least=2)


def test_a_library_that_wants_a_gpu_for_each_rank_says_so() -> None:
    refuse_shared_gpus("NCCL", [("one", "0:1"), ("two", "0:1"), ("one", "0:2")])
    with pytest.raises(UsageError, match="NCCL wants a GPU for each rank"):
        refuse_shared_gpus("NCCL", [("one", "0:1"), ("one", "0:1")])


class Two(Team):
    """Seen from rank 1 of two; the other says what `others` has, in turn."""

    rank, size = 1, 2

    def __init__(self, others: list[Any]) -> None:
        self.others = others
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1

    def gather(self, value: Any) -> list[Any]:
        return [self.others.pop(0), value]


def session(cupy: Any, monkeypatch: pytest.MonkeyPatch, others: list[Any]) -> Session:
    monkeypatch.setattr(gpu, "is_warm", lambda times, elapsed: len(times) >= 2)
    return Session("streams", cupy, 1, Two(others))


def test_ranks_warm_up_and_count_together(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank is warm one iteration later, and slower in the second repetition."""
    fine = None
    times, issued = [1_000_000, 9_000_000], [0, 0]
    made = session(cupy, monkeypatch, [False, False, False, True, fine, fine, times, issued])
    assert "device 1" in cupy.log
    one = Pass("one", [cupy.cuda.Stream(non_blocking=True)], lambda: None)

    found = made.measure([one], 2, check=lambda: None)

    assert found.warmup == 3
    assert found.passes["one"].times_ns == (2_000_000, 9_000_000)
    team = made.team
    assert isinstance(team, Two)
    assert (team.barriers, team.others) == (3 + 2, [])


def test_wrong_data_of_another_rank_is_an_error_here(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(cupy, monkeypatch, [True, True, True, "wrong data: 1 of 8"])
    one = Pass("one", [cupy.cuda.Stream(non_blocking=True)], lambda: None)
    with pytest.raises(ProgramError, match=r"wrong data: 1 of 8 \(rank 0\)"):
        made.measure([one], 2, check=lambda: None)


@pytest.mark.mpi
@pytest.mark.parametrize("size", [2, 3])
def test_real_ranks(size: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = _mpirun(size, [str(program)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == size  # lines of several ranks may run together


@pytest.mark.mpi
def test_a_rank_that_fails_does_not_wait_for_the_others(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = _mpirun(2, [str(program), "fails"])
    assert done.returncode == 7


@pytest.mark.mpi
def test_an_mpi_started_for_processes_of_one_thread_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks are sampled by a second thread."""
    program = tmp_path / "program.py"
    program.write_text(
        "from gpuscope.benchmarks._harness.ranks import leave, open_ranks\n"
        "from gpuscope.errors import GpuscopeError\n"
        "try:\n"
        "    with open_ranks('norm'):\n"
        "        pass\n"
        "except GpuscopeError as error:\n"
        "    print(error, flush=True)\n"
        "    leave(error.exit_code)\n"
    )
    monkeypatch.setenv("MPI4PY_RC_THREAD_LEVEL", "single")
    done = _mpirun(2, [str(program)])
    assert "this MPI was started for processes of one thread: unset" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("fails", [True, False])
def test_what_a_rank_that_fails_has_of_nccl_is_not_destroyed(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would wait for the other ranks."""
    destroyed = []

    class Communicator:
        def __init__(self, size: int, identity: object, rank: int) -> None: ...

        def __del__(self) -> None:
            destroyed.append(self)

    nccl = SimpleNamespace(
        available=True,
        NcclError=OSError,
        NcclCommunicator=Communicator,
        get_unique_id=lambda: "id",
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nccl=nccl))
    here = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1)
    comm = SimpleNamespace(
        Get_rank=lambda: 0,
        Get_size=lambda: 1,
        Split_type=lambda kind: here,
        allgather=lambda value: [value],
        bcast=lambda value: value,
    )
    mpi = SimpleNamespace(
        COMM_WORLD=comm,
        COMM_TYPE_SHARED=0,
        THREAD_FUNNELED=1,
        Query_thread=lambda: 1,
        Get_processor_name=lambda: "here",
    )
    runtime = SimpleNamespace(getDeviceCount=lambda: 1)
    session = SimpleNamespace(pci_bus_id="0:1")
    monkeypatch.setattr(module, "import_mpi", lambda: mpi)
    monkeypatch.setattr(
        module, "import_cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    )
    monkeypatch.setattr(module, "open_session", lambda *arguments: nullcontext(session))
    monkeypatch.setattr(module, "_FAILED", [])

    def work() -> None:
        with open_ranks("nccl", least=1) as ranks:
            communicator = ranks.nccl()
            assert isinstance(communicator, Communicator)
            if fails:
                raise ProgramError("wrong data")

    try:
        work()
    except ProgramError as error:
        assert str(error) == "wrong data"  # noqa: PT017 - pytest.raises would keep the frames
    assert len(destroyed) == (not fails)


def _mpirun(size: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["mpirun", "--oversubscribe", "-n", str(size), sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
