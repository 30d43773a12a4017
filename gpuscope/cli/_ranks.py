"""`gpuscope run --ranks N`: the ranks of an MPI program, judged one by one and jointly."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.cli._options import stdout_console, suggest
from gpuscope.cli._void import find_void
from gpuscope.errors import (
    INTERRUPTED,
    CannotJudgeError,
    GateError,
    GpuscopeError,
    MissingError,
    OutputError,
    ProgramError,
    TraceError,
    UsageError,
    exit_code_of,
)
from gpuscope.units import printable

if TYPE_CHECKING:
    from gpuscope.benchmarks import Benchmark
    from gpuscope.model.result import Analysis, Judgement
    from gpuscope.recording.display import Display
    from gpuscope.recording.folder import RunFolder
    from gpuscope.recording.ranks import Launcher, Membership, Task, Word
    from gpuscope.recording.recorder import NsysRecorder, Recorder


BENCHMARK_TIMEOUT_S = 600.0
"""Time each run of a benchmark gets without --timeout: none takes a tenth of it, and ranks hang."""
TOLD_RANKS = 4
"""Ranks of which a sentence repeats the last line: more are in ``run.json``."""
LAST_LINE_LENGTH = 160
"""Of a last line, so much is repeated."""

_IN_TRACEBACK = re.compile(r'Traceback \(most recent call last\)|  File ".*", line \d+')
_SIGNALLED = 128
"""Exit codes above it are those of programs that a signal ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the ranks run."""

    name: str
    benchmark: str | None
    options: tuple[str, ...]
    """Of the benchmark."""
    command: tuple[str, ...]
    """The program; empty for a benchmark."""
    capture: str | None
    launcher_args: tuple[str, ...]
    must_catch: bool
    """The benchmark must end by catching wrong data."""
    of_two: bool = False
    """Two ranks of the benchmark do the work, and the others look on."""


def prepare_series(args: argparse.Namespace, benchmark: Benchmark) -> None:
    """See how many ranks each of several runs is to have: ``args.ranks``, None for one process.

    Raises
    ------
    UsageError
        The options contradict each other, or this process is a rank itself.
    """
    if wanted(args, benchmark) and args.ranks is None:
        msg = "--sweep and --repeat start the ranks themselves: leave mpirun out."
        raise UsageError(msg)


def time_once(
    args: argparse.Namespace, job: Job, folder: Path, plan: Path | None, display: Display
) -> Mapping[str, Any]:
    """Run a benchmark of ranks for the times alone, into a folder of its own; return the result."""
    from gpuscope.recording import folder as folders
    from gpuscope.recording import ranks

    launcher = ranks.find_launcher(args.launcher)
    own = folders.prepare(folder, job.name, force=args.force, of_all_ranks=True)
    own.forget_replaced()
    try:
        return _Session(args, job, None, own, display, launcher, None).time(plan)
    except (GpuscopeError, KeyboardInterrupt):
        own.clear()  # how they ended is in the error
        own.remove_if_empty()
        raise


def wanted(args: argparse.Namespace, benchmark: Benchmark | None) -> bool:
    """Whether ranks are to be started, or this process is a rank itself.

    A benchmark of ranks gets one a GPU, where `args` name no number.

    Raises
    ------
    UsageError
        The options contradict that.
    """
    from gpuscope.recording import ranks

    inside = ranks.membership()
    if benchmark is not None and benchmark.ranks:
        if args.ranks is None and inside is None:
            args.ranks = _default_ranks()
    elif benchmark is not None and args.ranks is not None:
        msg = f"{benchmark.name} runs in one process: leave --ranks out."
        raise UsageError(msg)
    elif benchmark is not None and inside is not None:
        # Each rank would run all of it on the same GPUs, and their times would be void.
        msg = f"{benchmark.name} runs in one process: leave mpirun, or srun, out."
        raise UsageError(msg)
    if args.ranks is None:
        for option in ("launcher", "launcher_args", "hosts"):
            if getattr(args, option):
                msg = f"--{option.replace('_', '-')} is for --ranks N, which starts N ranks."
                raise UsageError(msg)
        return inside is not None
    if inside is not None:
        msg = f"this is rank {inside.rank} of {inside.size} already: leave --ranks out."
        raise UsageError(msg)
    return True


def _default_ranks() -> int:
    from gpuscope.recording import machine

    return max(2, len(machine.graphics().gpus))


def run_ranks(
    args: argparse.Namespace,
    job: Job,
    recorder: Recorder | None,
    display: Display,
    view: Callable[[RunFolder], None],
) -> int:
    """Record all ranks into one run folder, analyze them together, judge, and print.

    `view` shows what was recorded, if the user asked for it.
    """
    from gpuscope.recording import folder as folders
    from gpuscope.recording import ranks
    from gpuscope.recording.recorder import NsysRecorder

    if recorder is not None and not isinstance(recorder, NsysRecorder):
        msg = "ranks are recorded with Nsight Systems alone: install it, and leave --cupti out."
        raise MissingError(msg)
    me = ranks.membership()
    out = args.out
    if me is not None and out is None:
        # Not named by the program: each rank may run another one.
        out = folders.DEFAULT_PARENT / f"{job.benchmark or 'mpi'}-{me.run}"
    if me is not None and me.rank:
        return ranks.follow(me, out.absolute(), job.command)
    launcher = None if me else ranks.find_launcher(args.launcher)
    if me and recorder is not None and ranks.mpirun_is_impatient():
        display.say(ranks.IMPATIENT)
    folder = folders.prepare(out, job.name, force=args.force, of_all_ranks=True)
    session = _Session(args, job, recorder, folder, display, launcher, me)
    try:
        code = session.run()
        if args.view and recorder is not None and code != INTERRUPTED:
            view(folder)
        return code
    except (GpuscopeError, KeyboardInterrupt) as error:
        session.list_failed(error)
        raise
    finally:
        session.end()
        folder.remove_if_empty()


class _Session:
    """One run of all ranks."""

    def __init__(
        self,
        args: argparse.Namespace,
        job: Job,
        recorder: NsysRecorder | None,
        folder: RunFolder,
        display: Display,
        launcher: Launcher | None,
        me: Membership | None,
    ) -> None:
        from gpuscope.recording import ranks

        self.args, self.job, self.recorder, self.folder = args, job, recorder, folder
        self.display, self.launcher, self.me = display, launcher, me
        self.size = me.size if me else args.ranks
        default_s = BENCHMARK_TIMEOUT_S if job.benchmark is not None else None
        self.timeout_s: float | None = default_s if args.timeout is None else args.timeout
        self.tasks = 0
        self.table: Sequence[str] = ()
        self.words: Sequence[Word] = ()
        self.untraced: Mapping[str, Any] | None = None
        self.traced: Mapping[str, Any] | None = None
        self.perturbed: Mapping[str, float] = {}
        ranks.prepare(folder.path, self.size)

    def end(self) -> None:
        """Let the other ranks of the user's MPI run go."""
        from gpuscope.recording import ranks

        if self.me is not None:
            ranks.dismiss(self.me, self.folder.path, self.tasks)

    def run(self) -> int:
        """Record, analyze, judge, print; return the exit code, or raise the failure."""
        words: Sequence[Word] = ()
        if self.job.must_catch:
            return self._caught(self._do(traced=False))
        if self.job.benchmark is not None:
            words = self._do(traced=False)
            self.untraced = self._times(words)
            self.table = words[0].table
        analyses: Sequence[Analysis] = ()
        judgement: Judgement | None = None
        failure: GpuscopeError | None = None
        stopped_by_user = False
        if self.recorder is not None:
            words = self._do(traced=True)
            stopped_by_user = all(word.stopped for word in words)
            analyses = self._analyze(words)
            judgement = self._judge(analyses)
            failure = self._failure(words, analyses, judgement)
        if self.untraced is not None:
            failure = failure or find_void({self.job.name: self.untraced})
        code = INTERRUPTED if stopped_by_user else failure.exit_code if failure else 0
        self._report(words, analyses, judgement, code)
        if failure is not None and not stopped_by_user:
            raise failure
        return code

    def list_failed(self, error: GpuscopeError | KeyboardInterrupt) -> None:
        """Write the ``run.json`` of a run that ended before its report, if a rank left anything."""
        from gpuscope.model import codec

        if exit_code_of(error) in (UsageError.exit_code, MissingError.exit_code):
            self._forget_refused()
        left = any(path.is_file() for path in self.folder.path.glob("rank*/*"))
        if left and not self.folder.run.exists():
            record = self._record(self.words, None, exit_code_of(error), None)
            with contextlib.suppress(OutputError):  # the first error is the one to tell
                self.folder.write_json(self.folder.run, codec.dumps(record))

    def _forget_refused(self) -> None:
        """Remove the words of ranks that could not begin, where there is nothing else."""
        if not any(own.has_trace() or own.untraced.exists() for own in self._folders()):
            self.folder.clear()

    def time(self, plan: Path | None) -> Mapping[str, Any]:
        """Run the benchmark for the times alone; return the result."""
        return self._times(self._do(traced=False, plan=plan))

    def _times(self, words: Sequence[Word]) -> Mapping[str, Any]:
        from gpuscope.recording.folder import read_result

        _raise_failure(self.job, self.timeout_s, words)
        return read_result(self._folders()[0].untraced)

    def _caught(self, words: Sequence[Word]) -> int:
        """End the run of a twin that spoils the data; return the exit code.

        Raises
        ------
        GateError
            No rank noticed.
        """
        from gpuscope.benchmarks import WRONG_DATA

        said = next((word.error for word in words if (word.error or "").startswith(WRONG_DATA)), "")
        if not said:
            _raise_failure(self.job, self.timeout_s, words)
            msg = f"the data check let {self.args.twin} pass, which spoils the data on purpose."
            raise GateError(msg)
        self._report(words, (), None, 0, caught=said)
        return 0

    def _do(self, *, traced: bool, plan: Path | None = None) -> Sequence[Word]:
        """Have all ranks do one task, and return how each ended.

        Raises
        ------
        KeyboardInterrupt
            The user stopped them, and nothing was recorded.
        """
        from gpuscope.recording import ranks

        task = self._task(traced, plan)
        self.tasks += 1
        if self.me is not None:
            self.words = ranks.lead(self.me, task, self.folder.path, self.display)
        else:
            assert self.launcher is not None
            self.words = ranks.launch(
                self.launcher,
                task,
                self.folder.path,
                self.display,
                hosts=self.args.hosts,
                extra=self.job.launcher_args,
            )
        stopped = any(word.stopped for word in self.words)
        if stopped and not traced and not any(word.failed for word in self.words):
            raise KeyboardInterrupt
        return self.words

    def _task(self, traced: bool, plan: Path | None) -> Task:
        from gpuscope.recording import launch, ranks

        job, command = self.job, self.job.command
        if job.benchmark is not None:
            own = Path(ranks.RANK_FOLDER)
            result = own / ("traced.json" if traced else "untraced.json")
            plan = own / "untraced.json" if traced else plan
            command = tuple(launch.benchmark_argv(job.benchmark, job.options, result, plan))
        trace = self.args.trace or ranks.DEFAULT_TRACE
        recorder = self.recorder
        return ranks.Task(
            run="",
            number=self.tasks,
            command=command,
            size=self.size,
            traced=traced,
            capture=job.capture,
            trace=trace,
            extra=(*self._mpi_option(trace), *(recorder.extra if recorder else ())),
            call_stacks=recorder is not None and recorder.call_stacks,
            timeout_s=self.timeout_s,
        )

    def _mpi_option(self, trace: str) -> tuple[str, ...]:
        """Name the MPI to nsys where it is known."""
        mpi = self.launcher.mpi if self.launcher else None
        if self.recorder is None or mpi is None or "mpi" not in trace.split(","):
            return ()
        named = any(word.startswith("--mpi-impl") for word in self.recorder.extra)
        known = "--mpi-impl" in self.recorder.nsys.options
        return (f"--mpi-impl={mpi}",) if known and not named else ()

    def _folders(self) -> list[RunFolder]:
        from gpuscope.recording import ranks

        return [ranks.rank_folder(self.folder.path, rank) for rank in range(self.size)]

    def _analyze(self, words: Sequence[Word]) -> Sequence[Analysis]:
        """Export the reports that there are, and analyze them as the ranks of one run."""
        from gpuscope import api
        from gpuscope.analysis import Options
        from gpuscope.recording import perturbation
        from gpuscope.recording.folder import read_result

        assert self.recorder is not None  # something was recorded
        result = self._folders()[0].traced
        if result.exists():
            self.traced = read_result(result)
            self.perturbed = perturbation.find(self.untraced, self.traced)
            perturbation.say(self.perturbed, self.display)
        found = []
        for each in self._folders():
            try:
                if each.report.is_file():
                    self.recorder.export(each, self.display)
                    found.append(each)
            except TraceError as error:
                if not any(word.failed for word in words):
                    raise
                self.display.say(str(error))  # a report that was cut short with its rank
        if not found:
            return ()
        with self.display.step("analyzing"):
            request = api.Request(Options(perturbed=self.perturbed))
            return api.analyze([each.path for each in found], request)

    def _judge(self, analyses: Sequence[Analysis]) -> Judgement | None:
        """Hold what the benchmark must show against the worst that a rank shows."""
        from gpuscope import api

        if not analyses or self.traced is None:
            return None
        return api.judge(self.traced, analyses, 2 if self.job.of_two else self.size)

    def _silent(self, analyses: Sequence[Analysis]) -> list[str]:
        """Return the numbers of the ranks that recorded no GPU work."""
        worked = {Path(each.trace.path).parent for each in analyses if each.trace.operations}
        return [str(rank) for rank, own in enumerate(self._folders()) if own.path not in worked]

    def _failure(
        self,
        words: Sequence[Word],
        analyses: Sequence[Analysis],
        judgement: Judgement | None,
    ) -> GpuscopeError | None:
        try:
            _raise_failure(self.job, self.timeout_s, words)
        except GpuscopeError as error:
            return error
        silent = self._silent(analyses)
        if judgement is not None and judgement.cannot_judge and silent and not self.job.of_two:
            msg = (
                f"rank {', '.join(silent)} of {self.job.name} recorded no GPU work, so that what "
                "must show on every rank cannot be judged: see its output above."
            )
            return CannotJudgeError(msg)
        if judgement is not None and judgement.cannot_judge:
            return CannotJudgeError("the traces do not show what the benchmark must show.")
        if judgement is not None and not judgement.met:
            return GateError(f"{self.job.name} did not show what it must on every rank.")
        if len(silent) == self.size:
            return CannotJudgeError(
                f"no rank did anything on a GPU, or nsys could not see it: the traces in "
                f"{self.folder.path} have no kernel and no copy."
            )
        return None

    def _report(
        self,
        words: Sequence[Word],
        analyses: Sequence[Analysis],
        judgement: Judgement | None,
        code: int,
        caught: str | None = None,
    ) -> None:
        from gpuscope.model import codec
        from gpuscope.report import phases
        from gpuscope.report import ranks as joint
        from gpuscope.report.text import render_run

        told = self.traced or self.untraced  # the times of the run that the traces show
        remarks = phases.remarks(phases.phase_rows(analyses, told), told)
        record = {**self._record(words, judgement, code, caught), "remarks": remarks}
        self.folder.write_json(self.folder.run, codec.dumps(record))
        if analyses:
            self.folder.write_json(self.folder.analysis, codec.dumps(analyses))
        if self.args.json:
            sys.stdout.write(codec.dumps({**record, "analyses": analyses or None}))
        elif analyses:
            console = stdout_console()
            first, *others = analyses
            render_run(self.untraced, first, None, console)
            for analysis in others:
                render_run(None, analysis, None, console)
            phases.render(analyses, told, console)
            if len(analyses) == self.size:  # else what the ranks did together is not known
                joint.render(analyses, judgement, console)
        elif caught:
            print(f"{self.args.twin}: caught, as it must be ({caught})")
        else:
            print("\n".join(self.table))
        self.display.say_wrote(self.folder.path)
        if analyses and not self.args.json:
            suggest(analyses, [self.folder.path])

    def _record(
        self, words: Sequence[Word], judgement: Judgement | None, code: int, caught: str | None
    ) -> Mapping[str, Any]:
        """Return ``run.json``."""
        from gpuscope.recording import history

        return {
            **history.make_record(self.job.benchmark, self.args.twin, self.job.command),
            "options": self.untraced["options"] if self.untraced else {},
            "recorder": self.recorder
            and {"name": self.recorder.name, "version": self.recorder.version_text},
            "launcher": self.launcher.path if self.launcher else None,
            "untraced": self.untraced,
            "traced": self.traced,
            "perturbed": self.perturbed,
            "caught": caught,
            "ranks": words,
            "expected": judgement.rows if judgement else None,
            "exit_code": code,
        }


def _raise_failure(job: Job, timeout_s: float | None, words: Sequence[Word]) -> None:
    """Raise what the ranks that did not end well come to.

    One that a signal ended counts before those that left by themselves, of equal ones the first to
    end, and one that ran out of time only where no other failed: they may have waited for it.
    """
    from gpuscope.recording import process

    failed = min(
        (word for word in words if word.failed),
        key=lambda word: (word.timed_out, word.code <= _SIGNALLED, word.ended_utc_ns),
        default=None,
    )
    if failed is None:
        return
    name = job.name if job.benchmark else process.shown(failed.command)
    who = f"rank {failed.rank} of {name} on {failed.host}"
    if failed.error is not None:
        error = ProgramError(f"{who}: {failed.error}")
        error.exit_code = failed.exit_code
        raise error
    late = ", ".join(str(word.rank) for word in words if word.timed_out)
    if failed.timed_out:
        msg = f"{name} was stopped after {timeout_s:g} s; still running: rank {late}"
        raise ProgramError(msg + _why_late(words))
    others = (
        f"rank {late} was stopped after {timeout_s:g} s" if late else "the other ranks were ended"
    )
    said = " | ".join(failed.last_lines) or "nothing"
    msg = f"{who} failed with exit code {failed.code}, and {others}; its last words: {said}"
    raise ProgramError(msg)


def _why_late(words: Sequence[Word]) -> str:
    """Return the end of the sentence on ranks that ran out of time: what they said last.

    Those that show the traceback of a Python error come to the fore: such a rank waits for the
    others in MPI_Finalize, as they do for it.
    """
    lines = {word.rank: _own_lines(word) for word in words}
    raised = [rank for rank, own in lines.items() if any(_IN_TRACEBACK.match(each) for each in own)]
    telling = raised or [rank for rank, own in lines.items() if own]
    said = "".join(
        f"; rank {rank} said last: {printable(lines[rank][-1].strip(), LAST_LINE_LENGTH)}"
        for rank in telling[:TOLD_RANKS]
    )
    hint = (
        ". A Python error in one rank leaves all of them waiting for each other: start the program "
        "with `python -m mpi4py`, which makes MPI_Abort of it."
    )
    return said + (hint if raised else ".")


def _own_lines(word: Word) -> tuple[str, ...]:
    """Return what a rank printed last, without the traceback that stopping a program gives."""
    lines = tuple(line for line in word.last_lines if line.strip())
    if not lines or not lines[-1].startswith("KeyboardInterrupt"):
        return lines
    starts = [row for row, line in enumerate(lines) if line.startswith("Traceback ")]
    return lines[: starts[-1]] if starts else ()
