"""`gpuscope run`, from the command line to the folder it leaves, with a stand-in for nsys.

The benchmark is a stand-in too: it writes the result that `streams` would, and the "recording" is
the shipped trace of that name, so that analysis and judgement are the real ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpuscope.cli import main
from gpuscope.cli._options import stdout_console
from gpuscope.errors import TraceError
from gpuscope.recording import launch, nsys
from gpuscope.recording.display import Display
from gpuscope.recording.recorder import NsysRecorder
from tests.make_export import Export
from tests.unit.recording import fake_nsys

ROOT = Path(__file__).parents[2]
HELLO = [sys.executable, "-c", "print('hello from the program')"]

BENCHMARK = """\
import json, sys
result = json.loads({result!r})
arguments = sys.argv[1:]
print("says: warming up", *arguments, file=sys.stderr)
if {error!r}:
    print("gpuscope: " + {error!r}, file=sys.stderr)
    sys.exit({code})
path = arguments[arguments.index("--result") + 1]
traced = "--plan" in arguments
if traced:
    result["passes"]["streamed"]["median_ns"] = int(
        result["passes"]["streamed"]["median_ns"] * {slowdown})
json.dump(result, open(path, "w"))
print("the benchmark's table")
sys.exit({code})
"""


def expected(verdict: str, limit: float = 0.75) -> list[dict[str, Any]]:
    pairs = [("d2h", "h2d"), ("d2h", "kernel"), ("h2d", "kernel")]
    rows = [("sequential", "serialized", 1.0), ("streamed", verdict, limit)]
    return [
        {"range": name, "a": a, "b": b, "verdict": each, "ratio_limit": ratio}
        for name, each, ratio in rows
        for a, b in pairs
    ]


def result(verdict: str = "overlapped") -> dict[str, Any]:
    statistics = {"p10_ns": 1, "p90_ns": 2, "min_ns": 1, "max_ns": 2, "mad_ns": 0, "n": 3}
    return {
        "benchmark": "streams",
        "twin": None,
        "options": {"chunks": 4},
        "repetitions": 3,
        "warmup": 5,
        "passes": {
            "sequential": {"times_ns": [20_000_000], "median_ns": 20_000_000, **statistics},
            "streamed": {"times_ns": [10_000_000], "median_ns": 10_000_000, **statistics},
        },
        "stages": {},
        "figures": {"speedup": 2.0, "speedup_max": 2.2, "pipeline_efficiency": 0.9, "t_lb_ns": 9e6},
        "expected": expected(verdict),
        "machine": {},
        "notes": [],
        "valid": True,
    }


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a fresh folder, with an nsys there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NSYS", str(fake_nsys.make(tmp_path / "bin")))
    nsys.examine.cache_clear()
    return tmp_path


@pytest.fixture
def benchmark(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stand a script in for `python -m gpuscope.benchmarks streams`."""

    def stand_in(
        content: dict[str, Any] | None = None,
        *,
        error: str = "",
        code: int = 0,
        slowdown: float = 1.0,
    ) -> None:
        script = in_folder / "benchmark.py"
        text = json.dumps(content or result())
        script.write_text(BENCHMARK.format(result=text, error=error, code=code, slowdown=slowdown))

        def argv(
            name: str, options: Sequence[str], result: Path, plan: Path | None = None
        ) -> list[str]:
            real = original(name, options, result, plan)
            return [sys.executable, str(script), *real[5:]]

        monkeypatch.setattr(launch, "benchmark_argv", argv)

    original = launch.benchmark_argv
    stand_in()
    return stand_in


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


# ── a benchmark ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("benchmark")
def test_a_benchmark_from_start_to_verdict(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--nsys", "streams"]) == 0

    out, err = capfd.readouterr()
    assert "streamed" in out
    assert "overlapped" in out
    assert "serialized" in out
    assert "met" in out
    assert "gpuscope: Wrote runs/streams-" in err
    assert "perturbed" not in err
    run = only_run(in_folder)
    assert {path.name for path in run.iterdir()} == {
        "untraced.json",
        "traced.json",
        "trace.nsys-rep",
        "trace.sqlite",
        "analysis.json",
        "run.json",
    }
    record = json.loads((run / "run.json").read_text())
    assert record["exit_code"] == 0
    assert record["recorder"]["version"] == "2025.3.2.474"
    assert "--capture-range=cudaProfilerApi" in record["recorder"]["argv"]
    assert {row["met"] for row in record["expected"]} == {True}
    assert record["options"] == {"chunks": 4}
    analysis = json.loads((run / "analysis.json").read_text())
    streamed = next(one for one in analysis["ranges"] if one["name"] == "streamed")
    assert {pair["ratio_limit"] for pair in streamed["scope"]["pairs"]} == {0.75}


def test_an_expectation_that_is_not_met(
    benchmark: Callable[..., None], in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    benchmark(result("serialized"))

    assert main(["run", "--nsys", "streams"]) == 4
    out, err = capfd.readouterr()
    assert "NOT MET" in out
    assert err.endswith("gpuscope: streams did not show what it must: see the rows marked above.\n")
    assert json.loads((only_run(in_folder) / "run.json").read_text())["exit_code"] == 4


def test_void_times_end_the_run_but_no_verdict_is_lost(
    benchmark: Callable[..., None], in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    benchmark(result() | {"valid": False, "notes": ["the SM clock drifted"]})

    assert main(["run", "--nsys", "streams"]) == 5
    out, err = capfd.readouterr()
    assert "untraced: VOID, not to be used" in out
    assert "NOT MET" not in out
    assert "the times of streams are void and must not be used: the SM clock drifted." in err
    assert json.loads((only_run(in_folder) / "run.json").read_text())["exit_code"] == 5

    benchmark(result("serialized") | {"valid": False, "notes": ["the SM clock drifted"]})
    assert main(["run", "--nsys", "streams", "--out", "worse"]) == 4  # the verdict comes first
    assert "untraced: VOID, not to be used" in capfd.readouterr().out


def test_an_expectation_that_cannot_be_judged(benchmark: Callable[..., None]) -> None:
    content = result()
    content["expected"] = [{**content["expected"][0], "range": "absent"}]
    benchmark(content)

    assert main(["run", "--nsys", "streams"]) == 5


def test_a_run_slowed_by_the_profiler_is_flagged(
    benchmark: Callable[..., None], in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    benchmark(slowdown=1.25)

    assert main(["run", "--nsys", "streams"]) == 0
    assert "perturbed: streamed took 25% longer" in capfd.readouterr().err
    record = json.loads((only_run(in_folder) / "run.json").read_text())
    assert record["perturbed"] == {"streamed": 0.25}


@pytest.mark.usefixtures("benchmark")
def test_json_is_all_of_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--nsys", "streams", "--json"]) == 0

    content = json.loads(capfd.readouterr().out)
    assert content["benchmark"] == "streams"
    assert content["analysis"]["ranges"]


@pytest.mark.usefixtures("benchmark")
def test_own_options_work_on_either_side_and_the_rest_is_the_benchmarks(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--chunks", "4", "--reps", "3", "--nsys", "--out", "here", "--size", "64M"]
    assert main(["run", "--twin", "pageable", "streams", *words]) == 0

    err = capfd.readouterr().err
    shared = "--chunks 4 --size 64M --twin pageable --reps 3"
    here = in_folder / "here"
    assert f"says: warming up {shared} --result {here}/untraced.json\n" in err
    traced = f"{shared} --plan {here}/untraced.json --result {here}/traced.json\n"
    assert f"says: warming up {traced}" in err


@pytest.mark.usefixtures("benchmark")
def test_untraced_stops_after_the_times(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NSYS", "/nowhere/nsys")  # not even looked for

    assert main(["run", "--untraced", "streams"]) == 0
    assert capfd.readouterr().out == "the benchmark's table\n"
    assert {path.name for path in only_run(in_folder).iterdir()} == {"untraced.json", "run.json"}


def test_a_twin_that_must_be_caught(
    benchmark: Callable[..., None], in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    benchmark(error="wrong data: 3 of 8 elements differ", code=1)

    assert main(["run", "--nsys", "streams", "--twin", "shared-buffer"]) == 0
    out = capfd.readouterr().out
    assert out == ("shared-buffer: caught, as it must be (wrong data: 3 of 8 elements differ)\n")
    assert "3 of 8" in json.loads((only_run(in_folder) / "run.json").read_text())["caught"]


def test_a_twin_that_must_be_caught_and_is_not(
    benchmark: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--nsys", "streams", "--twin", "shared-buffer"]) == 4
    assert "let shared-buffer pass" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(TraceError("it is cut short"), "failed"), (KeyboardInterrupt(), "interrupted")],
)
def test_a_run_that_ends_behind_its_times_is_listed_as_what_it_is(
    benchmark: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    outcome: str,
) -> None:
    monkeypatch.setattr(NsysRecorder, "export", Mock(side_effect=error))

    assert main(["run", "--nsys", "streams"]) == (1 if outcome == "failed" else 130)
    assert main(["runs"]) == 0
    assert re.search(rf"last +streams +{outcome} +streams-", capfd.readouterr().out)


@pytest.mark.parametrize(
    ("error", "code"),
    [("no CUDA driver or GPU found: …", 3), ("wrong data: 1 of 2 elements differ", 1)],
)
def test_the_benchmarks_own_sentence_and_code_end_the_run(
    benchmark: Callable[..., None],
    in_folder: Path,
    capfd: pytest.CaptureFixture[str],
    error: str,
    code: int,
) -> None:
    benchmark(error=error, code=code)

    assert main(["run", "--nsys", "streams"]) == code
    assert capfd.readouterr().err.endswith(f"\ngpuscope: {error}\n")
    assert not (in_folder / "runs").exists()


def test_a_benchmark_that_crashes(
    benchmark: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    benchmark(code=77)

    assert main(["run", "--nsys", "streams"]) == 1
    assert "streams failed with exit code 77" in capfd.readouterr().err


# ── a program of the user's ──────────────────────────────────────────────────────────────────────


def test_a_program(in_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--nsys", "--out", "r", "--capture", "nvtx:x@y", "--", *HELLO]) == 0

    out, err = capfd.readouterr()
    assert "hello from the program\n" in err
    assert "hello" not in out
    assert "streamed" in out
    record = json.loads((in_folder / "r" / "run.json").read_text())
    assert record["command"] == HELLO
    assert "--nvtx-capture=x@y" in record["recorder"]["argv"]
    assert record["benchmark"] is None


def test_a_program_that_fails_is_still_analyzed(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--nsys", "--", sys.executable, "-c", "raise SystemExit(7)"]) == 1

    out, err = capfd.readouterr()
    assert "streamed" in out
    assert "failed with exit code 7; what was recorded until then is in" in err
    assert json.loads((only_run(in_folder) / "run.json").read_text())["program_exit_code"] == 7


@pytest.mark.parametrize("works", [False, True])
def test_no_gpu_work_is_said_before_no_range(
    works: bool, in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Export(in_folder / "e.sqlite") as export:
        if works:
            export.operation("KERNEL", 0, 10, stream=7, shortName="k", demangledName="k()")
    fake_nsys.make(in_folder / "bin", version="2023.4.4.54", trace=in_folder / "e.sqlite")
    assert main(["run", "--nsys", "--", *HELLO]) == (0 if works else 5)

    err = capfd.readouterr().err
    no_range = "NVTX recorded no range under nsys 2023.4.4.54: if there should be some, install"
    assert err.count(no_range) == 1
    no_work = "has no kernel and no copy. `gpuscope doctor` checks the machine. NVTX recorded"
    assert (no_work in err) != works
    # Nobody wanted ranges here.
    wanted = ["--trace", "cuda", "--out", "cuda"]
    assert main(["run", "--nsys", *wanted, "--", *HELLO]) == (0 if works else 5)
    assert "NVTX" not in capfd.readouterr().err


def test_nsys_is_chosen_and_said_when_nothing_is_asked_for(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--", *HELLO]) == 0

    assert "gpuscope: recording with Nsight Systems (--nsys)" in capfd.readouterr().err


def test_a_folder_in_use_is_not_touched_without_force(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    used = in_folder / "used"
    used.mkdir()
    (used / "run.json").write_text("mine")
    (used / "notes.txt").write_text("mine")

    assert main(["run", "--nsys", "--out", "used", "--", *HELLO]) == 1
    assert "used is not empty: --force" in capfd.readouterr().err
    assert (used / "run.json").read_text() == "mine"

    assert main(["run", "--nsys", "--out", "used", "--force", "--", *HELLO]) == 0
    assert (used / "run.json").read_text() != "mine"
    assert (used / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "file").touch()

    assert main(["run", "--nsys", "--out", "file/below", "--", *HELLO]) == 1
    assert "file/below cannot be written (Not a directory)" in capfd.readouterr().err


def test_no_nsys(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NSYS")
    monkeypatch.setattr(nsys, "INSTALLATIONS", ())
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))

    assert main(["run", "--nsys", "--", *HELLO]) == 3
    assert "install Nsight Systems" in capfd.readouterr().err
    assert not (in_folder / "runs").exists()
    for words in (["--all", "streams"], ["streams", "--all"], ["--all", "--sweep", "x=1"]):
        assert main(["run", *words]) == 2
        assert "--all takes no name" in capfd.readouterr().err


def test_a_missing_importer_is_found_before_the_program_is_run(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_nsys.make(in_folder / "bin", fault="no-importer")
    monkeypatch.setattr(nsys, "missing_libraries", lambda tool: ("libdw.so.1",))

    assert main(["run", "--nsys", "--", *HELLO]) == 3
    err = capfd.readouterr().err
    assert "libdw.so.1 is missing (apt-get install libdw1)" in err
    assert "hello" not in err


def test_the_page_is_opened_with_its_options(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuscope import cli

    view = cli.command_module("view")
    seen: list[Any] = []

    def note(args: Any) -> int:
        seen.append(args)
        return 0

    monkeypatch.setattr(view, "run", note)
    words = ["--view", "--port", "8123", "--no-browser", "--out", "r"]
    assert main(["run", "--nsys", *words, "--", *HELLO]) == 0

    (args,) = seen
    assert args.port == 8123
    assert args.no_browser
    assert args.trace == [in_folder / "r"]


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a benchmark"),
        (["--nsys", "--"], "no program follows --"),
        (["streems"], "did you mean 'streams'"),
        (["ls"], "gpuscope run --nsys -- ls"),
        (["--", "./plain.txt"], "./plain.txt is not executable: put what runs it before it"),
        (["--ranks", "2", "--hosts", "", "--", "ls"], "'' names no hosts"),
        (["--", "no-such-program"], "there is no program 'no-such-program'"),
        (["streams", "--twin", "no-such"], "has no twin 'no-such'"),
        (["streams", "--bogus"], "unrecognized arguments: --bogus"),
        (["streams", "--capture", "cuda"], "--capture is for a program of yours"),
        (["--capture", "soon", "--", "ls"], "--capture 'soon' is not understood"),
        (["--reps", "3", "--", "ls"], "--reps is for benchmarks"),
        (["--untraced", "--", "ls"], "--untraced is for benchmarks"),
        (["--nsys-args", "'", "--", "ls"], "No closing quotation"),
        (["--timeout", "0", "--", "ls"], "seconds above 0"),
    ],
)
def test_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plain.txt").touch()
    try:
        code = main(["run", *words])
    except SystemExit as exited:  # argparse ends itself
        code = int(exited.code or 0)

    assert code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["NO_COLOR", "OMPI_COMM_WORLD_RANK"])
def test_text_without_colours_has_no_escape_sequences(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as where there is a terminal
    monkeypatch.delenv("NO_COLOR", raising=False)
    stdout_console().print("[bold]thick[/bold]")
    Display().console.print("[bold]thick[/bold]")
    assert all("\x1b[" in text for text in capsys.readouterr())

    monkeypatch.setenv(name, "1")
    stdout_console().print("[bold]thick[/bold]")
    Display().console.print("[bold]thick[/bold]")
    assert capsys.readouterr() == ("thick\n", "thick\n")


def test_ranks_in_one_recording_are_not_told_apart(
    in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mpirun = in_folder / "mpirun"
    mpirun.write_text('#!/bin/sh\nexec "$@"\n')
    mpirun.chmod(0o755)
    assert main(["run", "--nsys", "--out", "r", "--", "./mpirun", *HELLO]) == 0
    assert "mpirun starts ranks, which are not told apart" in capfd.readouterr().err
    fake_nsys.make(in_folder / "bin", trace=in_folder / "idle.sqlite")
    with Export(in_folder / "idle.sqlite"):
        pass
    assert main(["run", "--nsys", "--force", "--out", "r", "--", "./mpirun", *HELLO]) == 5
    assert "--ranks N -- PROGRAM` records each" in capfd.readouterr().err.splitlines()[-1]


# ── Ctrl-C ───────────────────────────────────────────────────────────────────────────────────────

STUBBORN = """\
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
print("the program runs", flush=True)
time.sleep(600)
"""


def running_with(mark: str) -> list[int]:
    """Return the processes that have `mark` in their environment, the dead ones left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("fault", ["", "stubborn"])
def test_ctrl_c_leaves_no_process_and_keeps_what_was_recorded(
    in_folder: Path, number: signal.Signals, fault: str
) -> None:
    fake_nsys.make(in_folder / "bin", fault=fault)
    mark = f"GPUSCOPE_TEST_MARK={in_folder}"
    (in_folder / "stubborn.py").write_text(STUBBORN)
    program = [sys.executable, "stubborn.py"]
    run = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "run", "--nsys", "--out=r", "--", *program],
        env={**os.environ, "GPUSCOPE_TEST_MARK": str(in_folder), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    heard = ""
    while "the program runs" not in heard:
        line = run.stderr.readline()
        assert line, heard
        heard += line
    time.sleep(0.3)
    assert len(running_with(mark)) >= 4  # gpuscope, nsys, its agent, the program and its child
    run.send_signal(number)
    out, err = run.communicate(timeout=60)

    assert run.returncode == 130
    assert running_with(mark) == []
    assert "stopping: nsys writes what it has recorded" in err
    assert "interrupted; what was recorded until then is kept and analyzed" in err
    assert "Traceback" not in err
    assert "streamed" in out
    record = json.loads((in_folder / "r" / "run.json").read_text())
    assert record["interrupted"] is True
    assert record["exit_code"] == 130
    assert (in_folder / "r" / "trace.nsys-rep").is_file()
    assert (in_folder / "r" / "analysis.json").is_file()
    stopped = (in_folder / "bin" / "stopped").read_text()
    assert stopped == f"stop --session=gpuscope-{run.pid}\n"


def test_ctrl_c_in_the_timing_run_leaves_nothing(
    in_folder: Path, benchmark: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    script = in_folder / "benchmark.py"
    script.write_text(
        f"import os, signal, time\nos.kill({os.getpid()}, signal.SIGINT)\ntime.sleep(60)\n"
    )

    assert main(["run", "--nsys", "streams"]) == 130
    assert capfd.readouterr().err.endswith("gpuscope: interrupted\n")
    assert not (in_folder / "runs").exists()
