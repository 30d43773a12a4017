"""`gpuscope run --ranks` with a real mpirun and a real nsys, without a GPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope import api
from gpuscope.recording import nsys as nsight
from gpuscope.recording import ranks
from tests.nsys.test_mpi import RANKS, check

pytestmark = [pytest.mark.nsys, pytest.mark.mpi]

ROOT = Path(__file__).parents[2]
FAILING = """\
import os, signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
print("hello from", world.Get_rank(), flush=True)
if world.Get_rank() == 1:
    print("about to", sys.argv[1], flush=True)
    if sys.argv[1] == "exit":
        os._exit(3)
    if sys.argv[1] == "be killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "abort":
        world.Abort(5)
    time.sleep(1000)
world.Barrier()
print("never comes here", flush=True)
"""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks that wait leave the processor to nsys
    }


def gpuscope(
    folder: Path, *arguments: str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-m", "gpuscope", "run", "--nsys", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
    )


START = ("--trace=nvtx,mpi", "--launcher-args=--oversubscribe", "--out=r")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.usefixtures("nsys")
def test_ranks_are_started_recorded_and_gathered(size: int, tmp_path: Path) -> None:
    hosts = ["--hosts=localhost:2"] if size == 2 else []
    done = gpuscope(tmp_path, f"--ranks={size}", *hosts, *START, "--", sys.executable, str(RANKS))

    assert done.returncode == 5, done.stderr  # nothing ran on a GPU
    assert "no rank did anything on a GPU" in done.stderr
    traces = [api.open_trace(tmp_path / "r" / f"rank{rank}") for rank in range(size)]
    for rank, trace in enumerate(traces):
        check(trace, rank, has_sizes=nsight.find().version >= (2023,), size=size)
    # On one clock, the ranks are in the same barrier at the same time.
    inside = []
    for trace in traces:
        assert trace.mpi is not None
        assert trace.start_utc_ns is not None
        names = [trace.strings[name] for name in trace.mpi.name.tolist()]
        row = names.index("MPI_Barrier")
        zero = trace.start_utc_ns
        inside.append((zero + int(trace.mpi.start_ns[row]), zero + int(trace.mpi.end_ns[row])))
    assert max(begun for begun, _ in inside) < min(ended for _, ended in inside) + 1_000_000
    # Their clocks are set right by the collectives, and how far off they may be is stated.
    analyses = json.loads((tmp_path / "r" / "analysis.json").read_text())
    entries = [entry for analysis in analyses for entry in analysis["communication"]]
    assert [(entry["rank"], entry["device"]) for entry in entries] == [
        (rank, None) for rank in range(size)
    ]
    for entry in entries[1:]:
        assert entry["clock"]["matched"] == 2
        assert entry["clock"]["residual_ns"] > 0
    assert done.stdout.count("(to within ") == size - 1
    assert done.stdout.count("MPI_Finalize ×1") == size


@pytest.mark.usefixtures("nsys")
def test_clocks_are_set_the_closer_the_more_often_ranks_meet(tmp_path: Path) -> None:
    """Of each meeting a rank may be late by a turn of the scheduler; of fifty the best counts."""
    program = tmp_path / "meeting.py"
    program.write_text(
        "from mpi4py import MPI\nfor _ in range(50):\n    MPI.COMM_WORLD.Barrier()\n"
    )
    gpuscope(tmp_path, "--ranks=2", *START, "--", sys.executable, str(program))

    _, second = json.loads((tmp_path / "r" / "analysis.json").read_text())
    (entry,) = second["communication"]
    assert entry["clock"]["matched"] == 50
    assert 0 < entry["clock"]["residual_ns"] < 1_000_000


@pytest.mark.parametrize(
    ("how", "says"),
    [("exit", "exit code 3"), ("be killed", "exit code 137"), ("abort", "code 5")],
)
@pytest.mark.usefixtures("nsys")
def test_a_rank_that_fails_takes_the_others_down(how: str, says: str, tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text(FAILING)
    started = time.monotonic()
    done = gpuscope(tmp_path, "--ranks=3", *START, "--", sys.executable, str(program), how)

    assert time.monotonic() - started < 90
    assert done.returncode == 1, done.stderr
    assert says in done.stderr
    assert f"[1] about to {how}" in done.stderr
    assert "never comes here" not in done.stderr
    assert not still_running(program)


@pytest.mark.usefixtures("nsys")
def test_a_rank_that_hangs_is_ended_after_the_time_given(tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text(FAILING)
    command = ("--", sys.executable, str(program), "hang")
    done = gpuscope(tmp_path, "--ranks=2", "--timeout=5", *START, *command)

    assert done.returncode == 1, done.stderr
    assert "was stopped after 5 s; still running: rank 0, 1" in done.stderr
    assert not still_running(program)
    words = json.loads((tmp_path / "r" / "run.json").read_text())["ranks"]
    assert [word["timed_out"] for word in words] == [True, True]
    assert all((tmp_path / "r" / f"rank{rank}" / "trace.sqlite").is_file() for rank in (0, 1))


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start two ranks that wait for ever; go on once both run, and end them after the block."""
    program = folder / "failing.py"
    program.write_text(FAILING)
    command = ["--", sys.executable, str(program), "hang"]
    with subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "run", "--nsys", "--ranks=2", *START,
         *arguments, *command],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        said = ""
        late = threading.Timer(100, process.kill)
        late.start()
        try:
            # mpirun may put what two ranks say at once into one line.
            while said.count("hello from") < 2:
                line = process.stderr.readline()
                assert line, said
                said += line
            late.cancel()
            yield process
        finally:
            late.cancel()
            process.kill()


@pytest.mark.parametrize("more", [[], ["--why"]])
@pytest.mark.usefixtures("nsys")
def test_ctrl_c_keeps_what_all_ranks_recorded(more: list[str], tmp_path: Path) -> None:
    with started(tmp_path, *more) as process:
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 130, err
    # mpirun would wait for ranks that are gone, twice, as long as it lets them write reports.
    assert time.monotonic() - begun < 2 * ranks.MPIRUN_GRACE_S
    assert "the ranks write what they have recorded" in err
    assert not still_running(tmp_path / "failing.py")
    words = json.loads((tmp_path / "r" / "run.json").read_text())["ranks"]
    assert [word["stopped"] for word in words] == [True, True]
    for rank in (0, 1):
        trace = api.open_trace(tmp_path / "r" / f"rank{rank}")
        assert trace.mpi is not None
        assert "MPI_Init_thread" in {trace.strings[name] for name in trace.mpi.name.tolist()}
        assert any("--python-backtrace" in word for word in words[rank]["argv"]) == bool(more)


@pytest.mark.parametrize("part", ["profile", "--start-agent"])
@pytest.mark.usefixtures("nsys")
def test_an_nsys_that_is_killed_ends_the_ranks_and_leaves_the_others_reports(
    part: str, tmp_path: Path
) -> None:
    with started(tmp_path) as process:
        victim = next(
            pid
            for pid, words in descendants(process.pid)
            if words[0].endswith("nsys")
            and words[1] == part
            # The agent names its session by the process that records the rank.
            and rank_of(pid) == 1
        )
        os.kill(victim, signal.SIGKILL)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 1, err
    assert "rank 1 of python" in err
    assert part == "--start-agent" or "nsys was ended by signal 9" in err
    assert not still_running(tmp_path / "failing.py")
    assert (tmp_path / "r" / "rank0" / "trace.sqlite").is_file()
    assert not (tmp_path / "r" / "rank1" / "trace.sqlite").exists()


def descendants(parent: int) -> list[tuple[int, list[str]]]:
    """Return id and command line of all that a process has started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(above, []).append(int(folder.name))
    found, todo = [], [parent]
    while todo:
        for pid in children.get(todo.pop(), []):
            todo.append(pid)
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
                found.append((pid, words))
    return found


def rank_of(pid: int) -> int:
    """Return the rank that a process belongs to, by its environment."""
    words = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return int(dict(word.partition("=")[::2] for word in words)["OMPI_COMM_WORLD_RANK"])


@pytest.mark.usefixtures("nsys")
def test_the_ranks_of_an_mpi_run_of_the_users(tmp_path: Path) -> None:
    mpirun = ("mpirun", "--oversubscribe", "-n", "2")
    done = gpuscope(tmp_path, "--trace=nvtx,mpi", "--", sys.executable, str(RANKS), before=mpirun)

    assert done.returncode == 5, done.stderr
    assert done.stderr.count("no rank did anything on a GPU") == 1
    (folder,) = (tmp_path / "runs").iterdir()
    for rank in (0, 1):
        nsight.export(folder / f"rank{rank}" / "trace.nsys-rep", tmp_path / f"{rank}.sqlite")
        check(
            api.open_trace(tmp_path / f"{rank}.sqlite"),
            rank,
            has_sizes=(nsight.find().version >= (2023,)),
        )


@pytest.mark.usefixtures("nsys")
def test_a_rank_that_fails_in_an_mpi_run_of_the_users(tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text(FAILING)
    mpirun = ("mpirun", "--oversubscribe", "-n", "2")
    command = ("--", sys.executable, str(program), "exit")
    done = gpuscope(tmp_path, "--trace=nvtx,mpi", "--out=r", *command, before=mpirun)

    assert done.returncode == 1, done.stderr
    assert "rank 1 of python" in done.stderr
    assert "exit code 3, and the other ranks were ended" in done.stderr
    assert not still_running(program)
    assert all((tmp_path / "r" / f"rank{rank}" / "trace.sqlite").is_file() for rank in (0, 1))


def still_running(program: Path) -> list[str]:
    time.sleep(1)  # who was killed needs a moment to go
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(program) in words and state not in "ZX":
            found.append(words)
    return found
