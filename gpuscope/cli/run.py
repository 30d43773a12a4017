"""Record a benchmark, or your own program, and say what overlapped.

A benchmark runs twice: by itself for the times, then under Nsight Systems for the verdicts; what
the trace must show is held against what it shows. Your own program runs once, under Nsight Systems.
Where that is missing, or with --cupti, gpuscope records Python programs itself.

For example:
  gpuscope run --nsys streams                     a benchmark; `gpuscope list` names them
  gpuscope run --nsys streams --twin pageable     its variant that must not overlap
  gpuscope run --nsys streams --view              and open the page
  gpuscope run --untraced streams --chunks 16     only the times; --chunks is the benchmark's
  gpuscope run streams --sweep kernel-ratio=0.1,0.5,1,2,10    times, table, CSV and plot
  gpuscope run --nsys --all                       what this machine reaches, in one table
  gpuscope run --nsys -- python train.py          your program
  gpuscope run --nsys --why -- python train.py    with the lines of the calls that hold work up
  gpuscope run --cupti -- python train.py         without Nsight Systems
  gpuscope run --nsys --ranks 2 -- ./a.out        two MPI ranks, each recorded, judged together
  gpuscope run --nsys --capture nvtx:step@train -- python train.py    only its range `step`

The options below work before and after NAME; all others after NAME are the benchmark's
(`gpuscope run NAME --help`). The run's folder holds run.json, analysis.json, the report and its
SQLite export. Exits with 4 when a benchmark does not show what it must, with 5 when the trace
cannot tell or the times are void, with 1 when the program fails, with 130 after Ctrl-C: what was
recorded is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.cli._options import stdout_console, suggest
from gpuscope.errors import (
    INTERRUPTED,
    CannotJudgeError,
    GateError,
    GpuscopeError,
    OutputError,
    ProgramError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuscope.benchmarks import Benchmark
    from gpuscope.cli._ranks import Job
    from gpuscope.model.result import Analysis, Judgement
    from gpuscope.recording.display import Display
    from gpuscope.recording.folder import RunFolder
    from gpuscope.recording.nsys import Capture, Recording
    from gpuscope.recording.recorder import Recorder

MAX_RANKS = 100_000
"""More ranks than any machine runs: a slip of the hand."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope run`."""
    parser.usage = (
        "gpuscope run [options] NAME [benchmark options]\n"
        "       gpuscope run [options] --all\n"
        "       gpuscope run [options] -- COMMAND [ARGUMENT ...]"
    )
    _add_own_options(parser)
    parser.add_argument(
        "target",
        nargs=argparse.REMAINDER,
        metavar="NAME | -- COMMAND",
        help="a benchmark and its options, or -- and a program and its arguments",
    )


def _add_own_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that work on either side of NAME. No defaults: the second pass has none."""
    what = parser.add_argument_group("what to record")
    what.add_argument("--nsys", action="store_true", help="record with Nsight Systems")
    what.add_argument(
        "--cupti",
        action="store_true",
        help="record without Nsight Systems: Python programs, through CUPTI",
    )
    what.add_argument(
        "--untraced", action="store_true", help="stop after the timing run of a benchmark"
    )
    what.add_argument("--twin", metavar="NAME", help="the benchmark's variant NAME")
    what.add_argument("--reps", metavar="N", help="measured repetitions of the benchmark")
    what.add_argument(
        "--capture",
        metavar="PART",
        help="the part of your program to record: nvtx:RANGE@DOMAIN, cuda (from "
        "cudaProfilerStart to Stop), or delay:SECONDS,duration:SECONDS",
    )
    what.add_argument(
        "--trace",
        metavar="APIS",
        help="what nsys traces, such as cuda,nvtx,mpi (default: cuda,nvtx; of ranks mpi too)",
    )
    what.add_argument(
        "--why",
        action="store_true",
        help="record call stacks too: findings then name the line to change, and times suffer",
    )
    what.add_argument(
        "--nsys-args", metavar="ARGS", help="more for nsys: --nsys-args='--gpu-metrics-devices=all'"
    )
    what.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="stop the program after this time"
    )
    many = parser.add_argument_group("many runs")
    many.add_argument(
        "--all", action="store_true", help="every benchmark for one GPU: its figures in one table"
    )
    many.add_argument(
        "--sweep",
        action="append",
        metavar="OPTION=V,V,...",
        help="the times of the benchmark for each value of one of its options; given twice, of two",
    )
    many.add_argument(
        "--repeat", metavar="N", help="the times in N fresh processes: do they agree?"
    )
    ranks = parser.add_argument_group("MPI ranks")
    ranks.add_argument(
        "--ranks", type=_count, metavar="N", help="start N ranks, each under an nsys of its own"
    )
    ranks.add_argument(
        "--launcher",
        metavar="PROGRAM",
        help="mpirun (default), mpiexec, or srun (the default in Slurm)",
    )
    ranks.add_argument(
        "--launcher-args", metavar="ARGS", help="more for it: --launcher-args='--map-by numa'"
    )
    ranks.add_argument(
        "--hosts", type=_hosts, metavar="LIST", help="where they run: hostA:2,hostB:2"
    )
    where = parser.add_argument_group("where it goes")
    where.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: runs/NAME-TIME)"
    )
    where.add_argument("--force", action="store_true", help="replace the run in --out")
    where.add_argument("--json", action="store_true", help="print the run and analysis as JSON")
    where.add_argument("--view", action="store_true", help="open the page afterwards")
    where.add_argument("--port", metavar="N", help="the page's port")
    where.add_argument("--host", metavar="ADDRESS", help="the address the page listens on")
    where.add_argument("--no-browser", action="store_true", help="only print the page's address")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks, such as 2")
    return int(text)


def _hosts(text: str) -> str:
    if not all(part.partition(":")[0].strip() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} names no hosts, such as hostA:2,hostB:2")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0, such as 60")
    return value


@dataclass(frozen=True, slots=True)
class _Request:
    """What the command line asks for."""

    args: argparse.Namespace
    benchmark: Benchmark | None
    options: tuple[str, ...]
    """The benchmark's own options, --twin and --reps among them."""
    command: tuple[str, ...]
    """The user's program; empty for a benchmark."""
    capture: Capture | None

    @property
    def name(self) -> str:
        return self.benchmark.name if self.benchmark else Path(self.command[0]).name

    @property
    def shown(self) -> str:
        """What a sentence calls it."""
        from gpuscope.recording import process

        return self.benchmark.name if self.benchmark else process.shown(self.command)

    @property
    def launcher_hint(self) -> str:
        """What to do where the program is one that starts ranks; empty where it is none."""
        from gpuscope.recording.ranks import LAUNCHERS

        if self.benchmark is not None or self.name not in LAUNCHERS:
            return ""
        return (
            f"{self.name} starts ranks, which are not told apart this way: "
            f"`gpuscope run --nsys --ranks N -- PROGRAM` records each, and so does "
            f"`{self.name} … gpuscope run --nsys -- PROGRAM`"
        )

    @property
    def must_catch(self) -> bool:
        """Whether the benchmark must end by catching wrong data."""
        if self.benchmark is None or not self.args.twin:
            return False
        return self.benchmark.twin(self.args.twin).wrong_data


@dataclass(slots=True)
class _Outcome:
    """What came of it so far."""

    untraced: Mapping[str, Any] | None = None
    traced: Mapping[str, Any] | None = None
    recording: Recording | None = None
    analysis: Analysis | None = None
    judgement: Judgement | None = None
    perturbed: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False
    """By Ctrl-C."""
    caught: str | None = None
    """What the data check said of a twin that spoils the data."""
    no_ranges: str = ""
    """What to do about NVTX having recorded no range, if it has not."""
    table: str = ""
    """The benchmark's own table of times, for people."""
    failure: GpuscopeError | None = None

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        return self.failure.exit_code if self.failure else 0


def run(args: argparse.Namespace) -> int:
    """Record, analyze, judge, and print."""
    from gpuscope.cli import _many, _ranks
    from gpuscope.recording import folder as folders
    from gpuscope.recording.display import Display

    display = Display()
    request = None if args.all else _understand(args)
    if request is None or args.all:  # the latter where --all stands behind a name
        _many.check_all(args)
        return _all(args, display)
    if args.sweep or args.repeat:
        return _many.run_series(args, request.benchmark, _job(request), display)
    ranks_wanted = _ranks.wanted(args, request.benchmark)
    recorder = None if args.untraced else _choose_recorder(args, display)
    # Ranks that CUPTI records are runs of their own.
    if ranks_wanted and (args.ranks is not None or not recorder or recorder.name == "nsys"):
        return _ranks.run_ranks(
            args, _job(request), recorder, display, lambda folder: _view(args, folder)
        )
    folder = folders.prepare(args.out, request.name, force=args.force)
    outcome = _record(request, recorder, folder, display)
    _report(request, outcome, recorder, folder, display)
    if outcome.exit_code == INTERRUPTED:
        display.say("interrupted; what was recorded until then is kept and analyzed")
    elif args.view and outcome.analysis is not None:
        if outcome.failure:
            display.say(str(outcome.failure))
        _view(args, folder)
    if outcome.failure and outcome.exit_code != INTERRUPTED:
        raise outcome.failure
    return outcome.exit_code


def _job(request: _Request) -> Job:
    from gpuscope.cli._ranks import Job

    return Job(
        name=request.name,
        benchmark=request.benchmark.name if request.benchmark else None,
        options=request.options,
        command=request.command,
        capture=request.capture.text if request.capture else None,
        launcher_args=_split("launcher_args", request.args.launcher_args),
        must_catch=request.must_catch,
        of_two=request.benchmark is not None and request.benchmark.of_two,
    )


def _all(args: argparse.Namespace, display: Display) -> int:
    """Run every benchmark that this machine can, each as `gpuscope run NAME` does."""
    from gpuscope.cli import _many

    recorder = None if args.untraced else _choose_recorder(args, display)

    def run_one(name: str, folder: RunFolder) -> _Outcome:
        request = _understand(argparse.Namespace(**{**vars(args), "target": [name]}))
        outcome = _record(request, recorder, folder, display)
        _save(request, outcome, recorder, folder)
        return outcome

    return _many.run_all(args, run_one, display)


# ── understanding the command line ───────────────────────────────────────────────────────────────


def _understand(args: argparse.Namespace) -> _Request:
    """Tell run's own options from the benchmark's."""
    from gpuscope import benchmarks
    from gpuscope.recording import nsys as nsight

    if not args.target:
        msg = "name a benchmark (`gpuscope list`), or give your program after --."
        raise UsageError(msg)
    if args.why and args.untraced:
        msg = "--why and --untraced exclude each other: call stacks are recorded by nsys."
        raise UsageError(msg)
    if args.target[0] == "--":
        command = _command(args, tuple(args.target[1:]))
        capture = nsight.parse_capture(args.capture) if args.capture else None
        return _Request(args, None, (), command, capture)
    name, *rest = args.target
    try:
        benchmark = benchmarks.find_benchmark(name)
    except UsageError as error:
        if shutil.which(name):
            msg = (
                f"{error} To record the program, write -- before it: gpuscope run --nsys -- {name}"
            )
            raise UsageError(msg) from None
        raise
    if "--" in rest:
        split = rest.index("--")
        rest, verbatim = rest[:split], rest[split + 1 :]
    else:
        verbatim = []
    parser = argparse.ArgumentParser(
        prog="gpuscope run",
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    _add_own_options(parser)
    _, options = parser.parse_known_args(rest, namespace=args)
    if args.capture:
        msg = "--capture is for a program of yours: a benchmark captures its measured part itself."
        raise UsageError(msg)
    if args.twin:
        benchmark.twin(args.twin)  # raises for one that is not there
        options += ["--twin", args.twin]
    if args.reps:
        options += ["--reps", args.reps]
    options += verbatim
    _check_options(benchmark, options)  # here, before anything is started or made
    capture = nsight.parse_capture("cuda")
    return _Request(args, benchmark, tuple(options), (), capture)


def _check_options(benchmark: Benchmark, options: Sequence[str]) -> None:
    """Let the benchmark's own parser look at its options: a wrong one, or help, ends here."""
    from gpuscope.benchmarks._harness import add_common_arguments

    parser = argparse.ArgumentParser(
        prog=f"gpuscope run {benchmark.name}",
        description=f"{benchmark.summary}. The options of `gpuscope run --help` work here as well.",
        allow_abbrev=False,
    )
    benchmark.add_arguments(parser)
    add_common_arguments(parser, benchmark)
    parser.parse_args(options)


def _command(args: argparse.Namespace, command: tuple[str, ...]) -> tuple[str, ...]:
    if not command:
        msg = "no program follows --: gpuscope run --nsys -- COMMAND [ARGUMENT ...]"
        raise UsageError(msg)
    for option in ("untraced", "twin", "reps", "sweep", "repeat"):
        if getattr(args, option):
            msg = f"--{option} is for benchmarks; a program of yours is only recorded."
            raise UsageError(msg)
    found = shutil.which(command[0])
    if found is None and Path(command[0]).is_file():
        msg = (
            f"{command[0]} is not executable: put what runs it before it, such as "
            f"python {command[0]}, or chmod +x it."
        )
        raise UsageError(msg)
    if found is None:
        msg = f"there is no program {command[0]!r} to run; check its name, or give its path."
        raise UsageError(msg)
    return (found, *command[1:])


def _split(option: str, words: str | None) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(words or ""))
    except ValueError as error:
        msg = f"--{option.replace('_', '-')} {words!r} is not understood: {error}."
        raise UsageError(msg) from None


def _choose_recorder(args: argparse.Namespace, display: Display) -> Recorder:
    from gpuscope.recording import recorder

    return recorder.choose(
        nsys=args.nsys,
        cupti=args.cupti,
        trace=args.trace,
        nsys_args=_split("nsys_args", args.nsys_args),
        call_stacks=args.why,
        display=display,
    )


# ── recording and judging ────────────────────────────────────────────────────────────────────────


def _record(
    request: _Request, recorder: Recorder | None, folder: RunFolder, display: Display
) -> _Outcome:
    """Record and judge. What ends early leaves no folder, or one that says how it ended."""
    outcome = _Outcome()
    try:
        if request.benchmark is not None:
            _time(request, folder, display, outcome)
        if recorder is not None and not outcome.caught:
            _record_trace(request, recorder, folder, display, outcome)
    except BaseException as error:
        if not folder.remove_if_empty() and isinstance(error, GpuscopeError | KeyboardInterrupt):
            outcome.interrupted = isinstance(error, KeyboardInterrupt)
            outcome.failure = error if isinstance(error, GpuscopeError) else None
            with contextlib.suppress(OutputError):  # the first error is the one to tell
                _save(request, outcome, recorder, folder)
        raise
    return outcome


def _record_trace(
    request: _Request, recorder: Recorder, folder: RunFolder, display: Display, outcome: _Outcome
) -> None:
    from gpuscope.recording.folder import read_result

    if request.launcher_hint:
        display.say(request.launcher_hint)
    outcome.recording = _trace(request, recorder, folder, display)
    outcome.interrupted = outcome.recording.interrupted
    if folder.traced.exists():
        outcome.traced = read_result(folder.traced)
    _say_what_ended(outcome.recording, request, display)
    _analyze(request, recorder, folder, outcome, display)
    outcome.failure = _failure(request, outcome, folder) or outcome.failure


def _time(request: _Request, folder: RunFolder, display: Display, outcome: _Outcome) -> None:
    """Run the benchmark untraced. A twin that must be caught may end here."""
    from gpuscope.benchmarks import WRONG_DATA
    from gpuscope.cli._void import find_void
    from gpuscope.recording import launch
    from gpuscope.recording.folder import read_result

    done = launch.run_untraced(
        launch.benchmark_argv(request.name, request.options, folder.untraced),
        display=display,
        timeout_s=request.args.timeout,
    )
    caught = done.ended.code == 1 and (done.error or "").startswith(WRONG_DATA)
    if request.must_catch and caught:
        outcome.caught = done.error
        return
    launch.raise_if_failed(done, request.name, request.args.timeout)
    if request.must_catch:
        msg = f"the data check let {request.args.twin} pass, which spoils the data on purpose."
        raise GateError(msg)
    outcome.table = done.table
    outcome.untraced = read_result(folder.untraced)
    outcome.failure = find_void({request.name: outcome.untraced})


def _trace(request: _Request, recorder: Recorder, folder: RunFolder, display: Display) -> Recording:
    from gpuscope.recording import launch

    if request.benchmark is not None:
        command: Sequence[str] = launch.benchmark_argv(
            request.name, request.options, folder.traced, plan=folder.untraced
        )
    else:
        command = request.command
    return recorder.record(
        command,
        folder,
        display=display,
        capture=request.capture,
        timeout_s=request.args.timeout,
        quiet_input=request.benchmark is not None,
    )


def _say_what_ended(recording: Recording, request: _Request, display: Display) -> None:
    if recording.outlived and not recording.interrupted:
        names = ", ".join(recording.outlived)
        display.say(f"{request.name} left processes running, which were ended: {names}")


def _analyze(
    request: _Request, recorder: Recorder, folder: RunFolder, outcome: _Outcome, display: Display
) -> None:
    from gpuscope import api
    from gpuscope.analysis import Options
    from gpuscope.recording import perturbation

    recorder.export(folder, display)
    result = outcome.traced or outcome.untraced
    with display.step("analyzing"):
        trace = api.open_trace(folder.sqlite)
        if outcome.traced is not None:
            outcome.perturbed = perturbation.find(outcome.untraced, outcome.traced)
        options = Options(
            ratio_limits=api.ratio_limits(result) if result else {}, perturbed=outcome.perturbed
        )
        outcome.analysis = api.analyze_trace(trace, options)
    if not trace.ranges:
        outcome.no_ranges = _get_ranges(request, recorder)
    if outcome.no_ranges and outcome.analysis.trace.operations:
        display.say(outcome.no_ranges)
    if outcome.traced is not None:
        outcome.judgement = api.judge(outcome.traced, (outcome.analysis,))
        perturbation.say(outcome.perturbed, display)


def _get_ranges(request: _Request, recorder: Recorder) -> str:
    """Say what to do where NVTX recorded no range; nothing where none was asked for."""
    from gpuscope.recording import machine

    traced = request.args.trace
    if traced and "nvtx" not in traced.split(","):
        return ""
    version = machine.package_version("nvtx")
    with_nvtx = f" with nvtx {version}" if version and request.benchmark else ""
    return (
        f"NVTX recorded no range under {recorder.name} {recorder.version_text}{with_nvtx}: if "
        f"there should be some, {recorder.get_ranges}"
    )


def _failure(request: _Request, outcome: _Outcome, folder: RunFolder) -> GpuscopeError | None:
    """Decide what the run ends with, once all that can be said about it is known."""
    recording, analysis, judgement = outcome.recording, outcome.analysis, outcome.judgement
    assert recording is not None  # it was recorded
    assert analysis is not None
    if recording.timed_out:
        return ProgramError(f"{request.shown} was stopped after {request.args.timeout:g} s.")
    if recording.program_code != 0:
        return ProgramError(
            f"{request.shown} failed with exit code {recording.program_code}; "
            f"what was recorded until then is in {folder.path}."
        )
    if judgement is not None and judgement.cannot_judge:
        return CannotJudgeError("the trace does not show what the benchmark must show: see above.")
    if judgement is not None and not judgement.met:
        return GateError(f"{request.name} did not show what it must: see the rows marked above.")
    if request.benchmark is not None and judgement is None and not recording.interrupted:
        return ProgramError(f"{request.name} was recorded but wrote no result: run it again.")
    if analysis.trace.operations == 0:
        part = "the recorded part of it" if request.args.capture else "the program"
        return CannotJudgeError(
            f"{part} did nothing on a GPU, or the recorder could not see it: the trace in "
            f"{folder.path} has no kernel and no copy. `gpuscope doctor` checks the machine."
            + "".join(f" {why}." for why in (request.launcher_hint, outcome.no_ranges) if why)
        )
    return None


# ── telling ──────────────────────────────────────────────────────────────────────────────────────


def _report(
    request: _Request,
    outcome: _Outcome,
    recorder: Recorder | None,
    folder: RunFolder,
    display: Display,
) -> None:
    from gpuscope.model import codec

    record = _save(request, outcome, recorder, folder)
    if request.args.json:
        sys.stdout.write(codec.dumps({**record, "analysis": outcome.analysis}))
    elif outcome.analysis is not None:
        from gpuscope.report.text import render_run

        shown = outcome.untraced or outcome.traced
        render_run(shown, outcome.analysis, outcome.judgement, stdout_console())
    elif outcome.caught:
        print(f"{request.args.twin}: caught, as it must be ({outcome.caught})")
    else:
        print(outcome.table, end="")
    display.say_wrote(folder.path)
    if outcome.analysis is not None and not request.args.json:
        suggest([outcome.analysis], [folder.path])


def _save(
    request: _Request, outcome: _Outcome, recorder: Recorder | None, folder: RunFolder
) -> dict[str, Any]:
    """Write ``analysis.json`` and ``run.json``; return what is in the latter."""
    from gpuscope.model import codec

    record = _run_record(request, outcome, recorder)
    if outcome.analysis is not None:
        folder.write_json(folder.analysis, codec.dumps(outcome.analysis))
    folder.write_json(folder.run, codec.dumps(record))
    return record


def _run_record(request: _Request, outcome: _Outcome, recorder: Recorder | None) -> dict[str, Any]:
    """Return ``run.json``: all that a reader needs to repeat and to believe the run."""
    from gpuscope.recording import history

    result = outcome.untraced or outcome.traced or {}
    recording = outcome.recording
    return {
        **history.make_record(
            request.benchmark.name if request.benchmark else None,
            request.args.twin,
            request.command,
        ),
        "options": result.get("options", {}),
        "recorder": recorder
        and {
            "name": recorder.name,
            "version": recorder.version_text,
            "argv": list(recording.argv) if recording else None,
        },
        "untraced": outcome.untraced,
        "traced": outcome.traced,
        "perturbed": outcome.perturbed,
        "caught": outcome.caught,
        "expected": outcome.judgement.rows if outcome.judgement else None,
        "interrupted": outcome.interrupted,
        "program_exit_code": recording.program_code if recording else None,
        "exit_code": outcome.exit_code,
    }


def _view(args: argparse.Namespace, folder: RunFolder) -> None:
    """Show the run as `gpuscope view` does."""
    from gpuscope import cli

    view = cli.command_module("view")
    parser = argparse.ArgumentParser(prog="gpuscope view", allow_abbrev=False)
    view.add_arguments(parser)
    words = [str(folder.path)]
    words += [f"--port={args.port}"] if args.port else []
    words += [f"--host={args.host}"] if args.host else []
    words += ["--no-browser"] if args.no_browser else []
    view.run(parser.parse_args(words))
