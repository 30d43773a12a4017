"""The ranks of an MPI program, each started and recorded by a process of its own.

mpirun or srun starts on every rank ``python -m gpuscope.recording.ranks FOLDER``, which records
the program there (one nsys a rank) and leaves word of how it ended. The folder is what they have in
common, so it must lie where all hosts see it. ::

    FOLDER/ranks.json        what every rank has to do: the leader writes it
    FOLDER/rank0/rank.json   how that rank ended: the rank writes it, once, at its end
    FOLDER/rank0/trace.nsys-rep
    FOLDER/stop              the ranks end what they run when they see it

A rank that fails takes the others down: they see its word, and end after a moment. It stays itself
until they have, because mpirun kills the rest, and the reports they write, when one rank has gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from gpuscope.errors import GpuscopeError, MissingError, ProgramError
from gpuscope.recording import launch as launching
from gpuscope.recording import nsys as nsight
from gpuscope.recording import process
from gpuscope.recording.display import Display
from gpuscope.recording.folder import STOP, TASK, WORD, RunFolder
from gpuscope.units import counted, printable

PEER_GRACE_S = 5.0
"""Time the other ranks get to end by themselves after one has failed."""
MPIRUN_GRACE_S = 30
"""Time that mpirun, when it ends the ranks itself, waits before it kills them; 1 s is its own.

Open MPI does so as soon as a process that called MPI_Init is gone without MPI_Finalize, and then
waits all of this time, twice, even if no rank is left: see LINGER_S.
"""
PATIENCE = "OMPI_MCA_odls_base_sigkill_timeout"
IMPATIENT = (
    f"mpirun kills all ranks, and their reports, 1 s after one calls MPI_Abort or dies: before it, "
    f"export {PATIENCE}={MPIRUN_GRACE_S} gives them time"
)
LINGER_S = 1.0
"""Time mpirun gets to end by itself once every rank has left word."""
GATHER_S = 90.0
"""Time a rank that is told to stop gets to write its report: more than nsys gets."""
START_S = 120.0
"""Time the ranks of an MPI run of the user's get to meet."""
POLL_S = 0.3
"""Time between two looks at the folder, which may lie on a network."""
SOON_S = 5.0
"""Time after which a rank that waits for rank 0 says so."""
ALONE_S = 60.0
"""Ranks that still run this long after another one ended are named to the user."""
SILENT_S = 300.0
"""Time without a line from any rank after which the user is told how to end them."""
FIRST_LINES = 12
"""Lines of the launcher's own that are kept: it begins with what is wrong."""
LAST_LINES = 12
"""Lines of a failed rank's output that are repeated at the end."""
GET_MPI = "install an MPI (apt-get install openmpi-bin)"
LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "srun")
"""Programs that start ranks."""
RANK_FOLDER = "{rank_folder}"
"""Stands in a command for the folder of the rank."""

_T = TypeVar("_T")

DEFAULT_TRACE = "cuda,nvtx,mpi"

_STACK_FRAME = re.compile(r"\[\S+:\d+\] \[ ?\d+\] ")  # of Open MPI, below what happened
_LINE = re.compile(r"\[(\d+)\] ?(.*)", re.S)


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program that starts ranks."""

    path: str
    name: str
    """``mpirun``, ``mpiexec`` or ``srun``, as it was asked for."""
    mpi: str | None
    """What nsys calls the MPI: ``openmpi`` or ``mpich``; None where the launcher does not tell."""

    def argv(self, ranks: int, hosts: str | None, extra: Sequence[str]) -> list[str]:
        """Build the command line before the program."""
        if self.name == "srun":
            # Slurm takes plain names, and places the ranks itself.
            names = [part.partition(":")[0] for part in (hosts or "").split(",")]
            where = [f"--nodelist={','.join(names)}"] if hosts else []
            return [self.path, f"--ntasks={ranks}", *where, *extra]
        where = [] if not hosts else ["--host" if self.mpi == "openmpi" else "-hosts", hosts]
        return [self.path, "-n", str(ranks), *where, *extra]

    def environment(self, scratch: str) -> dict[str, str]:
        """Return the environment for it: ranks that are told to end get time for their reports.

        What it writes of its own goes to the folder `scratch`: where it is ended it leaves that.
        """
        own = {
            PATIENCE: f"{MPIRUN_GRACE_S}",
            "OMPI_MCA_orte_tmpdir_base": scratch,
        }
        return {**(own if self.mpi == "openmpi" else {}), **os.environ}


@dataclass(frozen=True, slots=True)
class Membership:
    """What a process that an MPI launcher started knows of itself."""

    rank: int
    size: int
    run: str
    """Names the MPI run; equal on all of its ranks."""


@dataclass(frozen=True, slots=True)
class Task:
    """What every rank has to do."""

    run: str
    """Names the MPI run that it is for; empty where it is the only one that can see the folder."""
    number: int
    """Counts the tasks of a run; a task without a command is the end of it."""
    command: tuple[str, ...]
    size: int
    traced: bool
    capture: str | None = None
    trace: str = DEFAULT_TRACE
    extra: tuple[str, ...] = ()
    call_stacks: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """How a rank ended."""

    rank: int
    number: int
    """Of the task."""
    host: str
    command: tuple[str, ...]
    """What it ran: ranks that the user started may run different programs."""
    code: int = 0
    """The program's exit code; 0 where it was stopped."""
    stopped: bool = False
    """It was ended because another rank failed, or the user said so."""
    timed_out: bool = False
    error: str | None = None
    """The sentence that recording failed with, or the benchmark."""
    exit_code: int = 0
    """The exit code that goes with `error`."""
    argv: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    """Of its output."""
    table: tuple[str, ...] = ()
    """What an untraced benchmark prints: rank 0's are the figures of all ranks."""
    ended_utc_ns: int = 0
    """When it ended, by its host's clock; recorded, with its report written."""

    @property
    def failed(self) -> bool:
        """Whether it did not end as it should, by itself."""
        return not self.stopped and (self.code != 0 or self.error is not None or self.timed_out)


# ── launchers ────────────────────────────────────────────────────────────────────────────────────


def find_launcher(name: str | None) -> Launcher:
    """Find the launcher `name` (or a path); by default srun inside a Slurm allocation, else mpirun.

    Raises
    ------
    MissingError
        It is not there.
    """
    in_slurm = "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None
    wanted = name or ("srun" if in_slurm else "mpirun")
    path = shutil.which(wanted)
    if path is None:
        get = "it is part of Slurm" if Path(wanted).name == "srun" else GET_MPI
        msg = (
            f"there is no {wanted} to start the ranks with: {get}; or name another launcher with "
            "--launcher."
        )
        raise MissingError(msg)
    if Path(path).name == "srun":
        return Launcher(path, "srun", None)
    _, text = process.output([path, "--version"])
    mpi = "openmpi" if "Open MPI" in text or "OpenRTE" in text else "mpich"
    return Launcher(path, Path(path).name, mpi)


_MEMBERSHIPS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ("PMI_RANK", "PMI_SIZE", ("PMI_JOBID",)),
)
"""Variables of the rank, of the number of ranks, and of the names of the run, by launcher."""


def mpirun_is_impatient(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a rank of Open MPI's mpirun that nobody gave patience with its ranks."""
    return "OMPI_COMM_WORLD_RANK" in environment and PATIENCE not in environment


def membership(environment: Mapping[str, str] = os.environ) -> Membership | None:
    """Tell which rank of an MPI run this process is; None where it is none, or the only one."""
    for rank, size, names in _MEMBERSHIPS:
        number, count = environment.get(rank, ""), environment.get(size, "")
        if number.isdecimal() and count.isdecimal() and int(count) > 1:
            named = [environment[name] for name in names if name in environment]
            # Ranks of one host, where the launcher names no run, have the parent in common.
            run = "-".join(named) or f"{socket.gethostname()}-{os.getppid()}"
            return Membership(int(number), int(count), re.sub(r"[^\w.-]+", "-", run))
    return None


# ── the leader ───────────────────────────────────────────────────────────────────────────────────


def rank_folder(folder: Path, rank: int) -> RunFolder:
    """Return the folder of a rank."""
    return RunFolder(folder / f"rank{rank}")


def prepare(folder: Path, size: int) -> None:
    """Make the folders of the ranks."""
    for rank in range(size):
        (folder / f"rank{rank}").mkdir(exist_ok=True)


def launch(
    launcher: Launcher,
    task: Task,
    folder: Path,
    display: Display,
    *,
    hosts: str | None = None,
    extra: Sequence[str] = (),
) -> list[Word]:
    """Start the ranks of `task`, show their output, and return how each ended.

    Raises
    ------
    KeyboardInterrupt
        The user stopped it before any rank began.
    ProgramError
        The launcher did not start the ranks, or one was killed.
    """
    if launcher.name == "srun" and ":" in (hosts or ""):
        display.say(
            "srun places the ranks itself: the counts in --hosts are left out; "
            "--launcher-args=--ntasks-per-node=N sets one"
        )
    _give(folder, task)
    here: list[str] = []
    watch = _Watch(folder, task, display)

    def hear(line: process.Line) -> None:
        watch.heard()
        if _LINE.match(line.text):
            if not line.replaced:
                display.program_line(line.text)
        elif line.text.strip() and len(here) < FIRST_LINES:
            here.append(line.text)

    argv = launcher.argv(task.size, hosts, extra)
    worker = [sys.executable, "-m", "gpuscope.recording.ranks", str(folder)]
    with (
        tempfile.TemporaryDirectory(prefix="gs") as scratch,
        display.step(f"running {counted(task.size, 'rank')} with {launcher.name}"),
    ):
        ended = process.run(
            [*argv, *worker],
            on_line=hear,
            env=launcher.environment(scratch),
            quiet_input=True,
            grace_s=GATHER_S,
            stop_argv=[*worker, "--stop"],
            over_when=watch.look,
            on_stop=lambda stage: display.say(
                "stopping: the ranks write what they have recorded (Ctrl-C again gives that up)"
                if stage == 0
                else "ending the ranks"
            ),
        )
    (folder / STOP).unlink(missing_ok=True)
    words = _words(folder, task)
    if ended.interrupted:  # also those that were ending just then
        words = [dataclasses.replace(word, stopped=not word.failed) for word in words]
    if not words:
        (folder / TASK).unlink(missing_ok=True)  # nobody took it: nothing of this run is left
    if ended.interrupted and not words:
        raise KeyboardInterrupt
    if len(words) < task.size and not ended.interrupted:
        raise _lost(launcher, task, words, folder, here, ended.code)
    failed = any(word.failed for word in words)
    if any(word.stopped for word in words) and not ended.interrupted and not failed:
        msg = (
            f"{launcher.name} ended the ranks with exit code {ended.code}, as MPI_Abort makes it "
            f"do; it said: {_said(here)}"
        )
        raise ProgramError(msg)
    return words


class _Watch:
    """Looks after the ranks from outside, at the words that they leave.

    The user is told of ranks that seem to hang: they are not ended, since they may be at work.
    """

    def __init__(self, folder: Path, task: Task, display: Display) -> None:
        self._folder, self._task, self._display = folder, task, display
        self._heard = time.monotonic()
        self._looked = self._heard
        self._ended: float | None = None
        self._all_ended: float | None = None
        self._told = False

    def heard(self) -> None:
        """Note that a rank printed something."""
        self._heard = time.monotonic()

    def look(self) -> bool:
        """Say once what seems to hang; return whether the launcher alone is left."""
        now = time.monotonic()
        if now - self._looked >= POLL_S:
            self._looked = now
            self._read(now)
        return self._all_ended is not None and now - self._all_ended > LINGER_S

    def _read(self, now: float) -> None:
        ended = {word.rank for word in _words(self._folder, self._task)}
        if ended and self._ended is None:
            self._ended = now
        if len(ended) == self._task.size and self._all_ended is None:
            self._all_ended = now
        if self._told or self._task.timeout_s is not None or self._all_ended is not None:
            return
        if self._ended is not None and now - self._ended > ALONE_S:
            left = ", ".join(str(rank) for rank in range(self._task.size) if rank not in ended)
            self._tell(f"rank {left} still runs, {ALONE_S:.0f} s after another rank ended")
        elif now - self._heard > SILENT_S:
            self._tell(f"no rank has printed anything for {SILENT_S:.0f} s")

    def _tell(self, what: str) -> None:
        self._told = True
        self._display.say(
            f"{what}: if the ranks hang, Ctrl-C ends them and keeps what was recorded; "
            "--timeout SECONDS does so by itself"
        )


def _lost(
    launcher: Launcher,
    task: Task,
    words: Sequence[Word],
    folder: Path,
    said: Sequence[str],
    code: int,
) -> ProgramError:
    """Say which ranks left no word."""
    gone = sorted(set(range(task.size)) - {word.rank for word in words})
    names = ", ".join(map(str, gone))
    if not words:
        return ProgramError(
            f"{launcher.name} started no rank (exit code {code}); it said: {_said(said)}"
        )
    return ProgramError(
        f"of rank {names} nothing came back: it was killed, or runs on a host that does not see "
        f"{folder}; {launcher.name} said: {_said(said)}"
    )


_REMEDIES = (
    ("allow-run-as-root", "it does not run as root; add --launcher-args=--allow-run-as-root"),
    (
        "not enough slots",
        "there are more ranks than cores or slots; start fewer, name hosts with more (--hosts "
        "NAME:SLOTS), or let ranks share cores: add --launcher-args=--oversubscribe",
    ),
    (
        "mpi/pmix",
        "a rank ended without MPI_Finalize, and Slurm's PMIx killed all at once, before nsys had "
        "written; with --launcher mpirun in the allocation the reports are kept",
    ),
)
"""What is said in place of what Open MPI or Slurm say at length, by a part of that."""


def _said(lines: Sequence[str]) -> str:
    for sign, remedy in _REMEDIES:
        if any(sign in line for line in lines):
            return remedy
    text = " ".join(line.strip() for line in lines if not re.fullmatch(r"\W*", line))
    return printable(text or "nothing", 400)


def lead(me: Membership, task: Task, folder: Path, display: Display) -> list[Word]:
    """Do the part of rank 0 of an MPI run of the user's, and return how each rank ended."""
    task = dataclasses.replace(task, run=me.run, size=me.size)
    _give(folder, task)
    _work(folder, task, me.rank)
    with display.step("waiting for the other ranks"):
        _wait(lambda: len(_words(folder, task)) == task.size, GATHER_S + (task.timeout_s or 0))
    words = _words(folder, task)
    if len(words) < task.size:
        gone = ", ".join(map(str, sorted(set(range(task.size)) - {word.rank for word in words})))
        msg = f"rank {gone} did not end within {GATHER_S:g} s of rank 0: give --timeout."
        raise ProgramError(msg)
    return words


def dismiss(me: Membership, folder: Path, number: int) -> None:
    """Tell the other ranks of the user's MPI run that no task follows."""
    _give(folder, Task(me.run, number, (), me.size, traced=False))


def follow(me: Membership, folder: Path, command: tuple[str, ...]) -> int:
    """Do the part of another rank of the user's MPI run; return the exit code of the last task.

    `command` is this rank's program, which may be another than rank 0's; empty for a benchmark,
    which rank 0 makes up for all.
    """
    code = 0
    for number in count():
        look = partial(_task, folder, me.run, number)
        task = _wait(look, SOON_S)
        if task is None and number == 0:
            _RankDisplay(me.rank).say(f"waiting for rank 0 to begin in {folder}")
        task = task or _wait(look, START_S + GATHER_S * number)
        if task is None:
            msg = (
                f"rank {me.rank} waited {START_S:g} s for rank 0 to begin in {folder}: the folder "
                "must be one that all ranks see; name it with --out."
            )
            raise ProgramError(msg)
        if not task.command:
            break
        word = _work(folder, dataclasses.replace(task, command=command or task.command), me.rank)
        code = word.exit_code if word.error else word.code
    return code


def _wait(look: Callable[[], _T], limit_s: float) -> _T:
    """Look until something is found, or the time is over; return what was found last."""
    end = time.monotonic() + limit_s
    while not (found := look()) and time.monotonic() < end:
        time.sleep(POLL_S)
    return found


def _give(folder: Path, task: Task) -> None:
    RunFolder(folder).write_json(folder / TASK, json.dumps(dataclasses.asdict(task), indent=2))


def _task(folder: Path, run: str, number: int) -> Task | None:
    """Return the task `number` of a run, once it is there."""
    data = _read(folder / TASK)
    if data is None or (data["run"], data["number"]) != (run, number):
        return None
    return Task(**{**data, "command": tuple(data["command"]), "extra": tuple(data["extra"])})


def _words(folder: Path, task: Task) -> list[Word]:
    """Return what the ranks have said of `task` so far, in their order."""
    found = []
    for rank in range(task.size):
        data = _read(folder / f"rank{rank}" / WORD)
        if data is not None and data["number"] == task.number:
            lists = {name: tuple(data[name]) for name in ("command", "argv", "last_lines", "table")}
            found.append(Word(**{**data, **lists}))
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return data


# ── a rank ───────────────────────────────────────────────────────────────────────────────────────


class _RankDisplay(Display):
    """Shows whose a line is; what goes on all the same on every rank is not told."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._rank = rank

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        yield

    def say(self, text: str) -> None:
        self._put(f"gpuscope: {text}")

    def program_line(self, text: str) -> None:
        if not _STACK_FRAME.match(text):
            self.last.append(text)
        self._put(text)

    def _put(self, text: str) -> None:
        print(f"[{self._rank}] {text}", file=sys.stderr, flush=True)


class _Peers:
    """Watches the other ranks for one that failed."""

    def __init__(self, folder: Path, task: Task, rank: int) -> None:
        self._folder, self._task, self._rank = folder, task, rank
        self._looked = 0.0
        self._failed_at: float | None = None

    def must_end(self) -> bool:
        """Whether this rank is to stop: a rank failed a moment ago, or the leader says so."""
        now = time.monotonic()
        if now - self._looked >= POLL_S:
            self._looked = now
            if (self._folder / STOP).exists():
                return True
            if self._failed_at is None and any(w.failed for w in self._words()):
                self._failed_at = now
        return self._failed_at is not None and now - self._failed_at > PEER_GRACE_S

    def all_ended(self) -> bool:
        return len(self._words()) == self._task.size

    def _words(self) -> list[Word]:
        return _words(self._folder, self._task)


def _work(folder: Path, task: Task, rank: int) -> Word:
    """Run the task of a rank, and leave word of how it ended."""
    own, display, peers = rank_folder(folder, rank), _RankDisplay(rank), _Peers(folder, task, rank)
    command = [word.replace(RANK_FOLDER, str(own.path)) for word in task.command]
    word = Word(rank, task.number, socket.gethostname(), tuple(command))
    try:
        if task.traced:
            word = _record(task, command, own, display, peers, word)
        else:
            word = _time(task, command, display, peers, word)
    except KeyboardInterrupt:
        word = dataclasses.replace(word, stopped=True)
    except GpuscopeError as error:
        word = dataclasses.replace(word, error=str(error), exit_code=error.exit_code)
    word = dataclasses.replace(word, last_lines=tuple(display.last), ended_utc_ns=time.time_ns())
    text = json.dumps(dataclasses.asdict(word), indent=2)
    own.write_json(own.path / WORD, text)
    if word.failed:
        _wait(peers.all_ended, PEER_GRACE_S + GATHER_S)
    return word


def _time(task: Task, command: Sequence[str], display: Display, peers: _Peers, word: Word) -> Word:
    """Run a benchmark untraced."""
    done = launching.run_untraced(
        command, display=display, timeout_s=task.timeout_s, stop_when=peers.must_end
    )
    ended = done.ended
    return dataclasses.replace(
        word,
        code=0 if ended.interrupted or ended.timed_out else ended.code,
        stopped=ended.interrupted,
        timed_out=ended.timed_out,
        error=done.error if ended.code and not ended.interrupted else None,
        exit_code=ended.code if done.error else 0,
        table=tuple(done.table.splitlines()),
    )


def _record(
    task: Task,
    command: Sequence[str],
    own: RunFolder,
    display: Display,
    peers: _Peers,
    word: Word,
) -> Word:
    recording = nsight.record(
        nsight.find(),
        command,
        own.report,
        display=display,
        capture=nsight.parse_capture(task.capture) if task.capture else None,
        trace=task.trace,
        extra=task.extra,
        call_stacks=task.call_stacks,
        timeout_s=task.timeout_s,
        quiet_input=True,
        stop_when=peers.must_end,
    )
    if recording.outlived and not recording.interrupted:
        display.say(f"left processes running, which were ended: {', '.join(recording.outlived)}")
    return dataclasses.replace(
        word,
        code=recording.program_code,
        stopped=recording.interrupted,
        timed_out=recording.timed_out,
        argv=recording.argv,
    )


def main(arguments: Sequence[str]) -> int:
    """Do what is to be done on a rank; with ``--stop``, tell all to end, and wait for it."""
    folder = Path(arguments[0])
    data = _read(folder / TASK)
    task = _task(folder, data["run"], data["number"]) if data else None
    if task is None:
        msg = f"{folder} is not to be seen on {socket.gethostname()}: all hosts must see it."
        print(f"gpuscope: {msg}", file=sys.stderr)
        return MissingError.exit_code
    if "--stop" in arguments:
        (folder / STOP).touch()
        _wait(lambda: len(_words(folder, task)) == task.size, GATHER_S)
        return 0
    me = membership()
    _work(folder, task, me.rank if me else 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
