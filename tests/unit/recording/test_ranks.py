"""Launchers, and the ranks that they start, without an MPI."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.errors import MissingError, ProgramError, UsageError
from gpuscope.recording import folder as folders
from gpuscope.recording import ranks
from gpuscope.report import phases
from gpuscope.report.ranks import JointRow, joint_rows, render
from tests.make_trace import make_trace


def test_command_lines_of_the_launchers() -> None:
    openmpi = ranks.Launcher("/bin/mpirun", "mpirun", "openmpi")
    mpich = ranks.Launcher("/bin/mpirun", "mpirun", "mpich")
    srun = ranks.Launcher("/bin/srun", "srun", None)

    assert openmpi.argv(2, None, ["-x", "A"]) == ["/bin/mpirun", "-n", "2", "-x", "A"]
    assert openmpi.argv(2, "a:1,b:1", []) == ["/bin/mpirun", "-n", "2", "--host", "a:1,b:1"]
    assert mpich.argv(2, "a,b", []) == ["/bin/mpirun", "-n", "2", "-hosts", "a,b"]
    assert srun.argv(4, "a:2,b:2", ["-G4"]) == ["/bin/srun", "--ntasks=4", "--nodelist=a,b", "-G4"]


def program(folder: Path, name: str, says: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def test_srun_is_taken_inside_an_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "mpirun", "mpirun (Open MPI) 4.1.4")
    program(tmp_path, "srun", "slurm 22.05")
    program(tmp_path, "mpiexec.hydra", "HYDRA build details: Version: 4.2")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    found = ranks.find_launcher(None)
    assert (found.name, found.mpi) == ("mpirun", "openmpi")
    hydra = ranks.find_launcher("mpiexec.hydra")
    assert (hydra.name, hydra.mpi) == ("mpiexec.hydra", "mpich")
    assert ranks.find_launcher("srun").name == "srun"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert ranks.find_launcher(None).name == "srun"
    with pytest.raises(MissingError, match="no aprun to start"):
        ranks.find_launcher("aprun")
    with pytest.raises(MissingError, match="no /x/srun to start the ranks with: it is part of Sl"):
        ranks.find_launcher("/x/srun")


def test_mpirun_without_patience_is_told_of() -> None:
    assert ranks.mpirun_is_impatient({"OMPI_COMM_WORLD_RANK": "0"})
    assert not ranks.mpirun_is_impatient({"OMPI_COMM_WORLD_RANK": "0", ranks.PATIENCE: "9"})
    assert not ranks.mpirun_is_impatient({"SLURM_PROCID": "0"})


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, None),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "a@/7"},
            ranks.Membership(1, 2, "a-7"),
        ),
        # The batch script of an allocation of four tasks is no rank.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, None),
        (
            {
                "SLURM_PROCID": "3",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "0",
            },
            ranks.Membership(3, 4, "7-0"),
        ),
    ],
)
def test_what_a_rank_knows_of_itself(
    environment: dict[str, str], found: ranks.Membership | None
) -> None:
    assert ranks.membership(environment) == found


def an_earlier_run(folder: Path) -> set[str]:
    """Leave a run of three ranks, and a file of the user's; return the names of all files."""
    ranks.prepare(folder, 3)
    for rank in range(3):
        (folder / f"rank{rank}" / "rank.json").write_text("{}")
    (folder / "rank2" / "mine.txt").write_text("kept")
    (folder / "run.json").write_text("{}")
    (folder / "stop").touch()
    return files(folder)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("of_all_ranks", [True, False])
def test_an_earlier_run_leaves_nothing(tmp_path: Path, *, of_all_ranks: bool) -> None:
    an_earlier_run(tmp_path)

    run = folders.prepare(tmp_path, "x", force=True, of_all_ranks=of_all_ranks)
    run.write_json(run.run, "{}")

    assert files(tmp_path) == {"run.json", "rank2/mine.txt"}
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "rank2"}


def test_an_earlier_run_comes_back_where_nothing_replaces_it(tmp_path: Path) -> None:
    before = an_earlier_run(tmp_path)

    run = folders.prepare(tmp_path, "x", force=True, of_all_ranks=True)
    ranks.prepare(tmp_path, 4)
    assert run.remove_if_empty()

    assert files(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "stop"} | {
        f"rank{rank}" for rank in range(3)
    }


def test_a_rank_that_never_meets_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks, "START_S", 0.1)
    monkeypatch.setattr(ranks, "SOON_S", 0.0)
    (tmp_path / "ranks.json").write_text(json.dumps({"run": "an older one", "number": 0}))

    with pytest.raises(ProgramError, match=r"rank 1 waited 0\.1 s for rank 0"):
        ranks.follow(ranks.Membership(1, 2, "this"), tmp_path, ())
    # What it waits for is said long before it gives up.
    assert f"[1] gpuscope: waiting for rank 0 to begin in {tmp_path}" in capsys.readouterr().err


def test_more_ranks_than_slots_have_a_remedy() -> None:
    said = (
        "-" * 70,
        "There are not enough slots available in the system to satisfy the 64",
        "slots that were requested by the application:",
    )
    assert "add --launcher-args=--oversubscribe" in ranks._said(said)
    killed = ["slurmstepd-n1: error:  mpi/pmix_v4: _errhandler: n1 [0]: Error handler invoked"]
    assert "with --launcher mpirun" in ranks._said(killed)


def test_a_pair_is_hidden_only_where_it_was_hidden_on_every_rank() -> None:
    both = api.analyze([samples.path("jacobi_nccl_r0"), samples.path("jacobi_nccl_r1")])
    rows = {(row.range, row.a, row.b): row for row in joint_rows(both)}

    row = rows["nccl_overlap", "comm", "kernel"]
    assert row.verdicts == ("overlapped", "immaterial")
    assert row.joint == "overlapped"
    own = [entry.scope.pair("comm", "kernel") for each in both
           for entry in each.ranges_named("nccl_overlap")]  # fmt: skip
    assert row.overlap_ratios == tuple(pair.overlap_ratio for pair in own if pair)


@pytest.mark.parametrize(
    ("verdicts", "joint"),
    [
        (("overlapped", "overlapped"), "overlapped"),
        (("overlapped", "serialized", "partial"), "serialized"),
        ((None, "pipelined", "overlapped"), "pipelined"),
        (("inconclusive", "partial"), "partial"),
        (("immaterial", "overlapped"), "overlapped"),
        (("immaterial", None), "immaterial"),
    ],
)
def test_joint_verdicts(verdicts: tuple[str | None, ...], joint: str) -> None:
    assert JointRow("r", "a", "b", verdicts, tuple(None for _ in verdicts)).joint == joint


def test_a_rank_without_gpu_work_leaves_open_what_was_hidden() -> None:
    hidden = make_trace(
        kernels=[(0, 10_000_001, "s7")],
        h2d=[(3, 10_000_008, "s8", {"bytes": 1_000_000})],
        ranges=[("step", 0, 30_000_000)],
    )
    analyses = api.analyze_together([hidden, make_trace()], [Options()] * 2)
    for row in joint_rows(analyses):
        assert row.verdicts == ("overlapped", "inconclusive")
        assert row.joint == "inconclusive"
    wanted = {"range": "step", "a": "h2d", "b": "kernel", "verdict": "overlapped"}
    result = {"expected": [{**wanted, "ratio_limit": 1.0}]}
    (judged,) = api.judge(result, analyses).rows
    assert (judged.met, judged.reason) == (None, "1 of 2 ranks recorded no GPU work")
    # A rank may have nothing to do, where the benchmark says so.
    (judged,) = api.judge(result, analyses, 1).rows
    assert judged.met


def test_a_run_folder_of_ranks_stands_for_their_folders(tmp_path: Path) -> None:
    ranks.prepare(tmp_path, 11)
    single = tmp_path / "rank3"

    assert [path.name for path in api.of_ranks([tmp_path])] == [f"rank{n}" for n in range(11)]
    assert api.of_ranks([single, tmp_path / "x.sqlite"]) == [single, tmp_path / "x.sqlite"]


def test_a_trace_that_is_named_twice_is_no_second_rank(tmp_path: Path) -> None:
    folder = tmp_path / "rank0"
    folder.mkdir()
    (folder / "trace.sqlite").touch()
    (tmp_path / "link.sqlite").symlink_to(folder / "trace.sqlite")

    for again in (folder, folder / "trace.sqlite", tmp_path, tmp_path / "link.sqlite"):
        with pytest.raises(UsageError, match="named twice: name each trace once"):
            api.of_ranks([folder, again])


class Told:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def watch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **task: float
) -> tuple[ranks._Watch, Told, list[float]]:
    """Watch three ranks, on a clock that stands in the list returned."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    ranks.prepare(folder, 3)
    told: Any = Told()
    made = ranks.Task("", 0, ("a.out",), 3, traced=True, **task)  # type: ignore[arg-type]
    return ranks._Watch(folder, made, told), told, clock


def ended(folder: Path, rank: int) -> None:
    word = ranks.Word(rank, 0, "here", ("a.out",), 0, False, False, None, 0, (), (), (), 0)
    (folder / f"rank{rank}" / "rank.json").write_text(json.dumps(dataclasses.asdict(word)))


def test_ranks_that_go_on_alone_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, told, clock = watch(tmp_path, monkeypatch)
    ended(tmp_path, 1)
    for clock[0] in (1, 61, 62, 200):
        assert not watching.look()  # nothing is ended: they may be at work

    (line,) = told.lines
    assert line.startswith("rank 0, 2 still runs, 60 s after another rank ended")
    assert "--timeout" in line


def test_ranks_that_all_hang_are_told_of_when_they_have_long_been_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, told, clock = watch(tmp_path, monkeypatch)
    clock[0] = 200
    watching.heard()
    for clock[0] in (400, 499):
        watching.look()
    assert told.lines == []
    for clock[0] in (501, 900):
        watching.look()
    assert [line.partition(":")[0] for line in told.lines] == [
        "no rank has printed anything for 300 s"
    ]


def test_with_a_timeout_there_is_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, told, clock = watch(tmp_path, monkeypatch, timeout_s=1000.0)
    ended(tmp_path, 1)
    for clock[0] in (1, 100, 900):
        watching.look()
    assert told.lines == []


def test_a_launcher_that_lingers_is_over_a_moment_after_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, told, clock = watch(tmp_path, monkeypatch)
    for rank in range(3):
        assert not watching.look()
        clock[0] += 0.5
        ended(tmp_path, rank)
    assert not watching.look()
    clock[0] += 0.9
    assert not watching.look()
    clock[0] += 0.2
    assert watching.look()
    assert told.lines == []


def test_pairs_that_are_immaterial_on_every_rank_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:

    both = api.analyze([samples.path("jacobi_nccl_r0"), samples.path("jacobi_nccl_r1")])
    render(both, None, Console(width=120))
    out = capsys.readouterr().out
    shown = [line for line in out.splitlines() if "∩" in line]
    everywhere = [row for row in joint_rows(both) if row.joint == "immaterial"]
    assert len(shown) == len(joint_rows(both)) - len(everywhere)
    assert f"{len(everywhere)} more pairs are immaterial on every rank" in out


def test_the_tables_of_two_ranks_fit_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [samples.path(f"jacobi_mpi_overlap_r{rank}") for rank in (0, 1)]
    traces = api.analyze(paths, api.Request(Options(ranges=("overlapped",))))
    render(traces, None, Console(width=80))
    row = "overlapped     kernel ∩ mpi  overlapped 100.0 %  overlapped 100.0 %  overlapped \n"
    assert row in capsys.readouterr().out
    phases.render(traces, None, Console(width=80))
    assert "\noverlapped     0   6.41 ms" in capsys.readouterr().out
