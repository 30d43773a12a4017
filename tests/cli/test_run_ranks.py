"""`gpuscope run --ranks`, with a stand-in for nsys, and one for srun that starts real processes."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope import benchmarks
from gpuscope.cli import main
from gpuscope.cli._ranks import Job, _raise_failure
from gpuscope.errors import INTERRUPTED, ProgramError
from gpuscope.recording import launch, machine, nsys, process
from gpuscope.recording.ranks import Word
from tests.cli.test_run import BENCHMARK, result
from tests.make_export import Export
from tests.unit.recording import fake_nsys

SRUN = """\
#!{python}
import os, subprocess, sys
if sys.argv[1:] == ["--version"]:
    sys.exit("slurm 22.05")
count = int(sys.argv[1].removeprefix("--ntasks="))
names = {{"SLURM_STEP_NUM_TASKS": str(count), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}}
running = [
    subprocess.Popen(sys.argv[2:], env={{**os.environ, **names, "SLURM_PROCID": str(rank)}})
    for rank in range(count)
]
sys.exit(max(each.wait() for each in running))
"""

PROGRAM = """\
import os, sys, time
rank = os.environ["SLURM_PROCID"]
print("hello from", rank, flush=True)
if sys.argv[1] == "dies" and rank == "1":
    print("not enough memory", flush=True)
    os._exit(7)
if sys.argv[1] == "crashes" and rank == "1":
    print("[here:7] Signal: Segmentation fault (11)")
    print(*(f"[here:7] [{frame:2}] /lib/libc.so.6(+0x1)" for frame in range(20)), sep="\\n")
    sys.exit(139)
if sys.argv[1] == "hangs" or sys.argv[1] == "dies":
    time.sleep(100)
"""


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a fresh folder, with an nsys and an srun there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NSYS", str(fake_nsys.make(tmp_path / "bin")))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    srun = tmp_path / "bin" / "srun"
    srun.write_text(SRUN.format(python=sys.executable))
    srun.chmod(0o755)
    (tmp_path / "program.py").write_text(PROGRAM)
    nsys.examine.cache_clear()
    return tmp_path


def run(folder: Path, how: str, *options: str, count: int = 2) -> int:
    ranks = ["--ranks", str(count), "--launcher", str(folder / "bin" / "srun")]
    command = [sys.executable, str(folder / "program.py"), how]
    return main(["run", "--nsys", *ranks, "--out", "r", *options, "--", *command])


def test_ranks_are_recorded_into_one_folder_and_judged_together(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begun_ns = time.time_ns()
    assert run(in_folder, "works") == 0

    out, err = capfd.readouterr()
    assert "[0] hello from 0" in err
    assert "[1] hello from 1" in err
    assert "all ranks together" in out
    files = {str(path.relative_to(in_folder / "r")) for path in (in_folder / "r").rglob("*.*")}
    assert files == {
        "ranks.json",
        "run.json",
        "analysis.json",
        *(f"rank{n}/{name}" for n in (0, 1)
          for name in ("rank.json", "trace.nsys-rep", "trace.sqlite")),
    }  # fmt: skip
    record = json.loads((in_folder / "r" / "run.json").read_text())
    assert [(word["rank"], word["code"], word["stopped"]) for word in record["ranks"]] == [
        (0, 0, False),
        (1, 0, False),
    ]
    # The ranks end within the run, in whatever order.
    assert all(begun_ns < word["ended_utc_ns"] < time.time_ns() for word in record["ranks"])
    assert main(["analyze", "r", "--json"]) == 0
    analyses = json.loads(capfd.readouterr().out)
    assert [each["trace"]["path"] for each in analyses] == [
        "r/rank0/trace.sqlite",
        "r/rank1/trace.sqlite",
    ]
    assert [each["ranges"] for each in analyses] == [
        each["ranges"] for each in json.loads((in_folder / "r" / "analysis.json").read_text())
    ]


def test_a_rank_that_dies_takes_the_others_down_and_its_words_are_shown(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    assert run(in_folder, "dies", count=3) == 1
    assert time.monotonic() - started < 60

    err = capfd.readouterr().err
    assert "rank 1 of python" in err
    assert "failed with exit code 7" in err
    assert "its last words: hello from 1 | not enough memory" in err
    words = json.loads((in_folder / "r" / "run.json").read_text())["ranks"]
    assert [(word["code"], word["stopped"]) for word in words] == [(0, True), (7, False), (0, True)]
    assert all((in_folder / "r" / f"rank{rank}" / "trace.sqlite").is_file() for rank in range(3))


def test_the_last_words_of_a_crash_are_not_its_stack(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(in_folder, "crashes") == 1
    said = "its last words: hello from 1 | [here:7] Signal: Segmentation fault (11)\n"
    assert said in capfd.readouterr().err


def test_a_ctrl_c_while_the_ranks_end_is_one(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "run", interrupted_at_the_end(process.run))
    assert run(in_folder, "works") == INTERRUPTED
    record = json.loads((in_folder / "r" / "run.json").read_text())
    assert record["exit_code"] == INTERRUPTED
    assert not (in_folder / "r" / "stop").exists()


def interrupted_at_the_end(run: Callable[..., process.Ended]) -> Callable[..., process.Ended]:
    """Return what runs programs, and takes a Ctrl-C once the ranks have ended."""

    def run_and_stop(argv: Sequence[str], **options: Any) -> process.Ended:
        ended = run(argv, **options)
        if options.get("stop_argv") is None or "gpuscope.recording.ranks" not in argv:
            return ended
        Path("r/stop").touch()  # as what is told to stop them does
        return replace(ended, interrupted=True)

    return run_and_stop


def test_counts_that_srun_does_not_take_are_told(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    srun = in_folder / "bin" / "srun"
    srun.write_text(srun.read_text().replace("sys.argv[2:]", "sys.argv[3:]"))
    assert run(in_folder, "works", "--hosts", "a:2,b:2") == 0
    assert "the counts in --hosts are left out" in capfd.readouterr().err


def test_ranks_that_hang_are_stopped_after_the_time_given(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(in_folder, "hangs", "--timeout", "2") == 1

    assert "was stopped after 2 s; still running: rank 0, 1" in capfd.readouterr().err
    assert (in_folder / "r" / "rank1" / "trace.sqlite").is_file()


def test_a_rank_that_died_is_told_of_also_where_those_that_waited_for_it_ran_out_of_time(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(in_folder, "dies", "--timeout", "2") == 1

    err = capfd.readouterr().err
    assert "failed with exit code 7, and rank 0 was stopped after 2 s; its last words:" in err


@pytest.mark.parametrize(
    ("last_lines", "says"),
    [
        (((), ("[cuda] 3 GPUs", "")), "; rank 1 said last: [cuda] 3 GPUs."),
        (((), ()), "still running: rank 0, 1."),
        ((("step 7",), ("  9",)), "; rank 0 said last: step 7; rank 1 said last: 9."),
        (
            (("step 7",), ('  File "a.py", line 9, in <module>', "RuntimeError: boom")),
            "rank 0, 1; rank 1 said last: RuntimeError: boom. A Python error in one rank leaves "
            "all of them waiting for each other: start the program with `python -m mpi4py`, which "
            "makes MPI_Abort of it.",
        ),
        (  # how a program ends that is stopped is nothing that it says
            (
                ("step 7", "Traceback (most recent call last):", '  File "a.py", line 2, in f',
                 "KeyboardInterrupt"),
                ('  File "a.py", line 2, in f', "KeyboardInterrupt"),
            ),
            "rank 0, 1; rank 0 said last: step 7.",
        ),
    ],
)  # fmt: skip
def test_of_ranks_that_ran_out_of_time_the_last_lines_are_told(
    last_lines: tuple[tuple[str, ...], ...], says: str
) -> None:
    job = Job("python", None, (), ("python", "a.py"), None, (), must_catch=False)
    words = [
        Word(rank, 0, "here", job.command, 0, False, True, None, 0, (), lines, (), 0)
        for rank, lines in enumerate(last_lines)
    ]
    with pytest.raises(ProgramError) as raised:
        _raise_failure(job, 6.0, words)
    assert str(raised.value).startswith(
        "python a.py was stopped after 6 s; still running: rank 0, 1"
    )
    assert str(raised.value).endswith(says)


@pytest.mark.parametrize(
    ("codes", "ended", "rank"),
    [
        ((1, 139), (5, 9), 1),  # the others' library noticed, and reported first
        ((1, 1, 1), (7, 5, 6), 1),
        ((139, 1), (9, 5), 0),
        ((134, 139), (9, 5), 1),
    ],
)
def test_of_ranks_that_failed_the_one_that_brought_the_others_down_is_told_of(
    codes: tuple[int, ...], ended: tuple[int, ...], rank: int
) -> None:
    job = Job("python", None, (), ("python", "a.py"), None, (), must_catch=False)
    words = [
        Word(at, 0, "here", job.command, code, False, False, None, 0, (), (), (), time_ns)
        for at, (code, time_ns) in enumerate(zip(codes, ended, strict=True))
    ]
    with pytest.raises(ProgramError, match=f"^rank {rank} of python a.py on here failed"):
        _raise_failure(job, None, words)


@pytest.fixture
def benchmark(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a script that stands in for a benchmark of ranks, with `slowdown` under the profiler."""
    script = in_folder / "benchmark.py"
    of_ranks = replace(benchmarks.find_benchmark("streams"), ranks=True)
    real = launch.benchmark_argv
    monkeypatch.setattr(benchmarks, "find_benchmark", lambda name: of_ranks)
    monkeypatch.setattr(
        launch, "benchmark_argv", lambda *what: [sys.executable, str(script), *real(*what)[5:]]
    )

    def start(
        *options: str,
        error: str = "",
        code: int = 0,
        slowdown: float = 1.0,
        valid: bool = True,
        first: str = "",
    ) -> int:
        text = json.dumps(result() | {"valid": valid, "notes": ["rank 1: the SM clock drifted"]})
        rest = BENCHMARK.format(result=text, error=error, code=code, slowdown=slowdown)
        script.write_text(f"{first}\n{rest}")
        srun = str(in_folder / "bin" / "srun")
        return main(["run", "--launcher", srun, "--out", "r", "streams", *options])

    return start


def test_a_benchmark_on_every_rank(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert benchmark("--nsys", "--ranks=2") == 0

    out, err = capfd.readouterr()
    assert "met" in out
    assert "speed-up" in out
    assert "perturbed" not in err
    for rank in (0, 1):
        assert (in_folder / "r" / f"rank{rank}" / "untraced.json").is_file()
        assert (in_folder / "r" / f"rank{rank}" / "traced.json").is_file()
    record = json.loads((in_folder / "r" / "run.json").read_text())
    assert {row["met"] for row in record["expected"]} == {True}
    assert record["untraced"]["passes"]["streamed"]["median_ns"] == 10_000_000
    assert record["perturbed"] == {}
    assert record["remarks"] == []  # nothing in the stand-in's traces communicates
    # What the schedule allows is what each rank is held against.
    for analysis in json.loads((in_folder / "r" / "analysis.json").read_text()):
        (scope,) = (each["scope"] for each in analysis["ranges"] if each["name"] == "streamed")
        assert {pair["ratio_limit"] for pair in scope["pairs"]} == {0.75}
    # Ranks of a benchmark that hang are ended even if nobody said when.
    assert json.loads((in_folder / "r" / "ranks.json").read_text())["timeout_s"] == 600


@pytest.mark.parametrize(("of_two", "ranks"), [(False, 2), (True, 2), (True, 3)])
def test_a_rank_that_recorded_no_gpu_work_is_not_taken_for_one_that_hid_it(
    of_two: bool,
    ranks: int,
    in_folder: Path,
    benchmark: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fake_nsys.make(in_folder / "bin", fault="idle-rank")
    with Export(in_folder / "bin" / "idle.sqlite") as export:
        export.range("streamed", 0, 10)
    known = replace(benchmarks.find_benchmark("streams"), of_two=of_two)
    monkeypatch.setattr(benchmarks, "find_benchmark", lambda name: known)
    # One of three ranks of a benchmark of two only looks on.
    looks_on = of_two and ranks == 3
    assert benchmark("--nsys", f"--ranks={ranks}") == (0 if looks_on else 5)

    out, err = capfd.readouterr()
    record = json.loads((in_folder / "r" / "run.json").read_text())
    assert {row["met"] for row in record["expected"]} == {True if looks_on else None}
    joint = [line for line in out.splitlines() if "∩" in line and "inconclusive" in line]
    assert joint  # what rank 1 did is not known
    if not looks_on:
        assert "cannot judge" in out
        assert {row["reason"] for row in record["expected"]} == {
            "1 of 2 ranks recorded no GPU work"
        }
    if not of_two:
        assert "rank 1 of streams recorded no GPU work" in err


def test_a_benchmark_that_the_profiler_slows_on_its_ranks(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert benchmark("--nsys", "--ranks=2", slowdown=1.5) == 0
    assert "perturbed: streamed took 50% longer" in capfd.readouterr().err
    record = json.loads((in_folder / "r" / "run.json").read_text())
    assert record["perturbed"] == {"streamed": 0.5}


def test_a_benchmark_that_is_refused_leaves_nothing(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert benchmark("--untraced", "--ranks=2", error="install CuPy", code=3) == 3
    assert "install CuPy" in capfd.readouterr().err
    assert not (in_folder / "r").exists()


def test_void_times_of_ranks_end_the_run(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert benchmark("--nsys", "--ranks=2", valid=False) == 5
    said = "the times of streams are void and must not be used: rank 1: the SM clock drifted."
    assert said in capfd.readouterr().err
    assert json.loads((in_folder / "r" / "run.json").read_text())["exit_code"] == 5


def test_the_times_of_ranks_alone_are_those_of_the_first(
    in_folder: Path,
    benchmark: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    gpus = (None, None, None)
    monkeypatch.setattr(machine, "graphics", lambda: SimpleNamespace(gpus=gpus, driver=None))
    monkeypatch.setattr(machine, "describe", dict)
    assert benchmark("--untraced") == 0  # one rank a GPU
    assert capfd.readouterr().out == "the benchmark's table\n"
    assert [path.name for path in sorted((in_folder / "r").glob("rank?"))] == [
        "rank0",
        "rank1",
        "rank2",
    ]


def test_wrong_data_on_a_rank_is_an_error_unless_the_twin_is_to_show_it(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    said = f"{benchmarks.WRONG_DATA}: 1 of 8 elements differ"
    assert benchmark("--nsys", "--ranks=2", error=said, code=1) == 1
    err = capfd.readouterr().err  # both fail: the first to end is told of
    told = f" of streams on {socket.gethostname()}: {said}"
    assert f"rank 0{told}" in err or f"rank 1{told}" in err
    record = json.loads((in_folder / "r" / "run.json").read_text())
    assert (record["exit_code"], record["ranks"][1]["error"]) == (1, said)
    twin = ("--nsys", "--ranks=2", "--twin=corrupt-element", "--force")
    assert benchmark(*twin, error=said, code=1) == 0
    assert "corrupt-element: caught, as it must be (wrong data" in capfd.readouterr().out
    assert json.loads((in_folder / "r" / "run.json").read_text())["caught"] == said
    assert benchmark(*twin) == 4
    assert "let corrupt-element pass" in capfd.readouterr().err


def test_a_timing_run_that_the_user_stops_is_no_twin_that_passed(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    hang = "import os, time; open(f'{os.getppid()}.hangs', 'w').close(); time.sleep(100)"

    def stop() -> None:
        while len(list(in_folder.glob("*.hangs"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=stop)
    user.start()
    assert benchmark("--untraced", "--ranks=2", "--twin=corrupt-element", first=hang) == 130
    user.join()
    assert "let corrupt-element pass" not in capfd.readouterr().err


def test_a_sweep_over_the_number_of_ranks(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    # Only what was planned takes half the time: the later runs do what the first was calibrated to.
    assert benchmark("--sweep", "ranks=1,2,3", slowdown=0.5) == 0

    out, err = capfd.readouterr()
    assert "20.0 ms" in out
    assert "[2] says: warming up" in err
    for ranks in (1, 2, 3):
        places = sorted(path.name for path in (in_folder / "r" / str(ranks)).glob("rank?"))
        assert places == [f"rank{rank}" for rank in range(ranks)]
    with (in_folder / "r" / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["ranks"], row["streamed_median_ns"]) for row in rows] == [
        ("1", "10000000"),
        ("2", "5000000"),
        ("3", "5000000"),
    ]
    assert (in_folder / "r" / "sweep.html").is_file()


def test_a_sweep_over_ranks_and_an_option(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("--sweep", "ranks=1,2", "--sweep", "chunks=4,8")
    assert benchmark(*words, slowdown=0.5) == 0

    with (in_folder / "r" / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    # With more ranks the work is what the first number of them planned for the same chunks.
    assert [(row["chunks"], row["ranks"], row["streamed_median_ns"]) for row in rows] == [
        ("4", "1", "10000000"),
        ("4", "2", "5000000"),
        ("8", "1", "10000000"),
        ("8", "2", "5000000"),
    ]
    assert "[1] says: warming up --chunks=8" in capfd.readouterr().err
    assert (in_folder / "r" / "chunks-8_ranks-2" / "rank1").is_dir()


def test_a_sweep_over_an_option_with_ranks(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert benchmark("--sweep", "chunks=4,8", "--ranks=2", slowdown=0.5) == 0
    err = capfd.readouterr().err
    assert "[1] says: warming up --chunks=8" in err
    content = json.loads((in_folder / "r" / "sweep.json").read_text())
    medians = [run["result"]["passes"]["streamed"]["median_ns"] for run in content["runs"]]
    assert medians == [10_000_000, 10_000_000]  # each is calibrated by itself


def test_fresh_processes_of_ranks_do_the_same(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert benchmark("--repeat", "2", "--ranks=2") == 0
    assert "medians of fresh processes" in capfd.readouterr().out
    assert benchmark("--repeat", "2", "--ranks=2", "--force", slowdown=0.5) == 4


def test_a_rank_that_fails_ends_the_sweep(
    in_folder: Path, benchmark: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert benchmark("--sweep", "ranks=1,2", error="the GPU is on fire", code=1) == 1
    assert "the GPU is on fire" in capfd.readouterr().err
    assert not (in_folder / "r").exists()


def test_a_benchmark_of_one_process_takes_no_ranks(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--nsys", "--ranks", "2", "streams"]) == 2
    assert "streams runs in one process: leave --ranks out" in capfd.readouterr().err


def test_a_launcher_that_starts_nothing_is_quoted(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "bin" / "srun").write_text(
        "#!/bin/sh\necho 'srun: error: no nodes left'\nexit 1\n"
    )

    assert run(in_folder, "works") == 1
    err = capfd.readouterr().err
    assert "srun started no rank (exit code 1); it said: srun: error: no nodes left" in err
    assert not (in_folder / "r").exists()


def test_force_keeps_a_run_until_another_is_in_its_place(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    srun = in_folder / "bin" / "srun"
    starts = srun.read_text()
    assert run(in_folder, "works") == 0
    analyses = (in_folder / "r" / "analysis.json").read_text()
    srun.write_text("#!/bin/sh\nexit 1\n")
    assert run(in_folder, "works", "--force", count=3) == 1
    assert (in_folder / "r" / "analysis.json").read_text() == analyses
    assert main(["analyze", "r"]) == 0
    assert "all ranks together" in capfd.readouterr().out

    srun.write_text(starts)
    assert main(["run", "--nsys", "--force", "--out", "r", "--", "true"]) == 0
    assert main(["analyze", "r"]) == 0
    assert "all ranks together" not in capfd.readouterr().out
    assert {path.name for path in (in_folder / "r").iterdir()} == {
        "analysis.json",
        "run.json",
        "trace.nsys-rep",
        "trace.sqlite",
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--launcher", "srun"], "--launcher is for --ranks N"),
        (["--ranks", "2", "--sweep", "chunks=4,8", "streams"], "leave --ranks out"),
        (["--sweep", "ranks=1,2", "streams"], "streams has no option --ranks"),
        (["--ranks", "2", "--sweep", "ranks=1,2", "jacobi-mpi"], "leave --ranks out"),
        (["--sweep", "ranks=2,many", "jacobi-mpi"], "'many' is not a number of ranks"),
        (["--ranks", "2", "--all"], "leave --ranks out"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], says: str, in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["--", "true"] if options[0] == "--launcher" else []
    assert main(["run", *options, *command]) == 2
    assert says in capfd.readouterr().err


def test_each_rank_of_the_users_runs_its_own_program(in_folder: Path) -> None:
    for rank in (0, 1):
        text = f"import sys\nprint('I am program {rank}')\nsys.exit({3 * rank})\n"
        (in_folder / f"program{rank}.py").write_text(text)
    command = f"{sys.executable} -m gpuscope run --nsys -- {sys.executable} program$SLURM_PROCID.py"
    srun = str(in_folder / "bin" / "srun")
    done = subprocess.run(
        [srun, "--ntasks=2", "sh", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert "[0] I am program 0" in done.stderr
    assert "[1] I am program 1" in done.stderr
    assert "failed with exit code 3" in done.stderr
    (folder,) = (in_folder / "runs").iterdir()
    words = json.loads((folder / "run.json").read_text())["ranks"]
    programs = ["program0.py", "program1.py"]
    assert [word["command"] for word in words] == [[sys.executable, each] for each in programs]


def test_programs_of_other_names_meet_in_one_folder(in_folder: Path) -> None:
    for rank in (0, 1):
        program = in_folder / f"{rank}.sh"
        program.write_text(f"#!/bin/sh\nexit {3 * rank}\n")
        program.chmod(0o755)
    command = f"{sys.executable} -m gpuscope run --nsys -- ./$SLURM_PROCID.sh"
    srun = str(in_folder / "bin" / "srun")
    done = subprocess.run(
        [srun, "--ntasks=2", "sh", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert f"rank 1 of 1.sh on {socket.gethostname()} failed with exit code 3" in done.stderr


@pytest.mark.parametrize("how", [["--untraced"], ["--nsys"], ["--cupti"], ["--repeat", "2"]])
def test_a_benchmark_of_one_process_is_not_run_on_every_rank(
    how: list[str],
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert main(["run", *how, "p2p-latency"]) == 2
    said = "p2p-latency runs in one process: leave mpirun, or srun, out."
    assert said in capfd.readouterr().err
    assert main(["run", "--untraced", "--all"]) == 2
    assert "--all runs the benchmarks for one GPU: leave mpirun, or srun" in capfd.readouterr().err


def test_ranks_within_ranks_are_refused(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert run(in_folder, "works") == 2
    assert "this is rank 1 of 4 already" in capfd.readouterr().err
