"""Run a program and leave nothing of it behind: its output line by line, Ctrl-C, the whole tree.

nsys starts an agent that detaches itself, and puts the profiled program into a session of its own;
a signal to one process group reaches neither. While a program runs here, this process therefore
adopts orphans (Linux' child subreaper), so that every process the program starts, however it
detaches itself, stays a descendant that can be found, ended and reaped.

::

    Ctrl-C, SIGTERM, SIGHUP  → the caller's stop command, then SIGINT to the program
    again, or after a grace  → SIGTERM to the program
    again, or after 3 s      → SIGKILL to all of its tree
    the program has ended    → SIGTERM, then SIGKILL to whatever of the tree outlives it
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from gpuscope.errors import ProgramError
from gpuscope.units import printable

GRACE_S = 60.0
"""Time nsys gets after Ctrl-C to write its report, before it is ended."""
TERMINATE_S = 3.0
"""Time between SIGTERM and SIGKILL."""
OVER_S = 0.5
"""Time between SIGINT and SIGTERM to a program that has nothing left to do."""
SETTLE_S = 2.0
"""Time the rest of the tree gets to end by itself once the program has ended."""
SHOWN_LENGTH = 60
"""Of a command, so much is shown in a sentence."""

_POLL_S = 0.05
_LINE = re.compile(rb"(\r?\n|\r(?=[^\n]))")  # a last \r may be the first half of \r\n
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ESCALATION = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    code: int
    """Its exit code, as a shell shows it: 128 + n after signal n."""
    interrupted: bool
    """The user stopped it (Ctrl-C), or `stop_when` did."""
    timed_out: bool
    """It ran longer than it was allowed to, and was stopped."""
    outlived: tuple[str, ...]
    """Names of the processes it left running, which were ended."""
    signal: int | None = None
    """The signal that ended it; a program that hands on another one's exit code has none."""


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of the program's output."""

    text: str
    replaced: bool
    """It ends in a carriage return: a progress display will write over it."""
    is_product: bool
    """It comes from standard output, and standard error was kept apart."""


def run(
    argv: Sequence[str],
    *,
    on_line: Callable[[Line], None],
    env: Mapping[str, str] | None = None,
    quiet_input: bool = False,
    apart: bool = False,
    timeout_s: float | None = None,
    grace_s: float = GRACE_S,
    stop_argv: Sequence[str] | None = None,
    on_stop: Callable[[int], None] | None = None,
    stop_when: Callable[[], bool] | None = None,
    over_when: Callable[[], bool] | None = None,
) -> Ended:
    """Run `argv` until it and everything it started has ended.

    Parameters
    ----------
    argv
        The program and its arguments.
    on_line
        Called with every line of its output, standard output and standard error together.
    env
        Its environment; by default this process'.
    quiet_input
        Give it no standard input.
    apart
        Tell its standard output from its standard error, at the price of their exact order.
    timeout_s
        Stop it after this time, as Ctrl-C would.
    grace_s
        Time it gets after the first request to stop.
    stop_argv
        A command that asks it to finish; SIGINT follows once the command has ended.
    on_stop
        Called when it is asked to stop: with 0 for the first request, 1 for SIGTERM, 2 for SIGKILL.
    stop_when
        Asked again and again; once it says so, the program is stopped as Ctrl-C would.
    over_when
        Asked again and again; once it says so, all is done, and a program that goes on all the
        same is ended, with little patience.

    Raises
    ------
    ProgramError
        The program cannot be started.
    """
    with _adopting(), _collecting_signals() as requests:
        others = frozenset(_children_of(os.getpid()))
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL if quiet_input else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if apart else subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
                pass_fds=_launcher_fds(os.environ if env is None else env),
            )
        except OSError as error:
            msg = f"{argv[0]} cannot be started: {error.strerror}."
            raise ProgramError(msg) from None
        stopper = _Stopper(
            process, others, requests, grace_s, timeout_s, stop_argv, on_stop, stop_when, over_when
        )
        try:
            _follow(process, stopper, on_line)
        finally:
            stopper.close()
            outlived = _end_tree(process, others)
        return Ended(
            code=process.returncode if process.returncode >= 0 else 128 - process.returncode,
            interrupted=bool(requests) or stopper.asked,
            timed_out=stopper.timed_out,
            outlived=outlived,
            signal=-process.returncode if process.returncode < 0 else None,
        )


def _launcher_fds(env: Mapping[str, str]) -> tuple[int, ...]:
    """Return the open file that a rank talks to its launcher through, where there is one.

    mpiexec of MPICH and Intel MPI leaves one open, and its number in PMI_FD: MPI_Init needs it.
    """
    number = env.get("PMI_FD", "")
    if not number.isdecimal():
        return ()
    try:
        os.fstat(int(number))
    except OSError:
        return ()
    return (int(number),)


def shown(command: Sequence[str]) -> str:
    """Return what a sentence calls a program: its name and arguments, as far as they go.

    The name alone may be that of an interpreter.
    """
    words = shlex.join([os.path.basename(command[0]), *command[1:]])
    return printable(" ".join(words.split()), SHOWN_LENGTH)


def output(argv: Sequence[str], timeout_s: float = 30.0) -> tuple[int, str]:
    """Run a short helper such as ``nsys --version``; return its exit code and its output.

    A helper that cannot be started, or takes longer than `timeout_s`, gives code 127 or 124.
    """
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} gave no answer within {timeout_s:.0f} s"
    except OSError as error:
        return 127, f"{argv[0]}: {error.strerror}"
    return done.returncode, done.stdout.decode(errors="replace")


@dataclass(slots=True)
class _Stopper:
    """Decides, each time it is asked, which signal is due."""

    process: subprocess.Popen[bytes]
    others: frozenset[int]
    requests: list[int]
    grace_s: float
    timeout_s: float | None
    stop_argv: Sequence[str] | None
    on_stop: Callable[[int], None] | None
    stop_when: Callable[[], bool] | None
    over_when: Callable[[], bool] | None
    timed_out: bool = False
    asked: bool = False
    _begun: float = field(default_factory=time.monotonic)
    _over: bool = False
    _command: subprocess.Popen[bytes] | None = None
    _stage: int = 0
    _seen: int = 0
    _deadline: float | None = None

    def check(self) -> None:
        """Send the next signal, if the user, the time limit or the end of a grace asks for it."""
        now = time.monotonic()
        due = len(self.requests) > self._seen
        self._seen = len(self.requests)
        if self._stage == 0 and self.timeout_s is not None and now > self._begun + self.timeout_s:
            self.timed_out = due = True
        if self._stage == 0 and self.stop_when is not None and self.stop_when():
            self.asked = due = True
        if not self._over and self.over_when is not None and self.over_when():
            self._over = due = True
        if self._deadline is not None and now > self._deadline:
            due = True
        if self._command is not None and self._command.poll() is not None:
            self._command = None
            _send(self.process.pid, signal.SIGINT)
        if not due or self._stage >= len(_ESCALATION):
            return
        number = _ESCALATION[self._stage]
        if self.on_stop is not None and not self._over:
            self.on_stop(self._stage)
        if number is signal.SIGKILL:
            for pid in _tree(self.others):
                _send(pid, number)
        if number is signal.SIGINT and self.stop_argv and not self._over:
            self._command = _start_quietly(self.stop_argv)
        if self._command is None or number is not signal.SIGINT:
            _send(self.process.pid, number)
        pauses = (OVER_S if self._over else self.grace_s, TERMINATE_S, math.inf)
        self._deadline = now + pauses[self._stage]
        self._stage += 1

    def close(self) -> None:
        """End a stop command that is still at it."""
        if self._command is not None:
            self._command.kill()
            self._command.wait()


def _start_quietly(argv: Sequence[str]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None  # then the signal has to do


def _follow(
    process: subprocess.Popen[bytes], stopper: _Stopper, on_line: Callable[[Line], None]
) -> None:
    """Pass the output on until the program has ended and its output with it."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for pipe in filter(None, (process.stdout, process.stderr)):
            stack.enter_context(pipe)
            os.set_blocking(pipe.fileno(), False)
            is_product = pipe is process.stdout and process.stderr is not None
            selector.register(pipe, selectors.EVENT_READ, _Lines(on_line, is_product=is_product))
        while True:
            stopper.check()
            ready = selector.select(_POLL_S)
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                key.data.take(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            if not ready and process.poll() is not None:
                break  # silent, and ended: a process it left behind may hold the pipe open
        for key in list(selector.get_map().values()):
            key.data.take(b"")


class _Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self, on_line: Callable[[Line], None], *, is_product: bool) -> None:
        self._on_line = on_line
        self._is_product = is_product
        self._pending = b""

    def take(self, chunk: bytes) -> None:
        """Pass on the lines that `chunk` completes; nothing more will come after an empty one."""
        pieces = _LINE.split(self._pending + chunk)
        # Text and line end alternate; the last text has no end yet.
        for text, end in zip(pieces[0:-1:2], pieces[1::2], strict=True):
            self._pass(text, replaced=end == b"\r")
        self._pending = pieces[-1]
        if not chunk and self._pending:
            self._pass(self._pending.removesuffix(b"\r"), replaced=False)
            self._pending = b""

    def _pass(self, text: bytes, *, replaced: bool) -> None:
        self._on_line(Line(text.decode(errors="replace"), replaced, self._is_product))


def _end_tree(process: subprocess.Popen[bytes], others: frozenset[int]) -> tuple[str, ...]:
    """End everything of the program's tree that still runs; return the names of what had to be."""
    _wait_for_end(process, others, SETTLE_S if process.poll() is not None else 0.0)
    left = _tree(others)
    names = tuple(sorted(filter(None, map(_name, left))))
    for number, pause_s in ((signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, TERMINATE_S)):
        for pid in left:
            _send(pid, number)
        _wait_for_end(process, others, pause_s)
        left = _tree(others)
    process.wait()
    return names


def _wait_for_end(
    process: subprocess.Popen[bytes], others: frozenset[int], timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        process.poll()
        _reap(process, others)
        if not _tree(others) or time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)


def _reap(process: subprocess.Popen[bytes], others: frozenset[int]) -> None:
    """Collect adopted orphans that have ended; the program itself is Popen's to collect."""
    for pid in _children_of(os.getpid()):
        if pid != process.pid and pid not in others:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _tree(others: frozenset[int]) -> list[int]:
    """All living descendants of this process, without the children it had before."""
    children: dict[int, list[int]] = {}
    for pid, parent, state in _processes():
        if state not in "ZX":
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = [pid for pid in children.get(os.getpid(), []) if pid not in others]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def _children_of(parent: int) -> list[int]:
    return [pid for pid, its_parent, _ in _processes() if its_parent == parent]


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield (pid, parent, state) of every process."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # The command's name stands in parentheses and may itself hold some.
                stat = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2]
                state, parent = stat.split()[:2]
                yield int(entry.name), int(parent), state


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        name = os.path.basename(argv[0]).decode(errors="replace")
        return "" if name.startswith("nsys") else name
    return ""


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of orphaned descendants while the block runs."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextlib.contextmanager
def _collecting_signals() -> Iterator[list[int]]:
    """Collect requests to stop in a list, in place of dying from them half way."""
    requests: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield requests  # only the main thread may, and it gets the signals
        return

    def note(number: int, _frame: FrameType | None) -> None:
        requests.append(number)

    before = {
        number: signal.signal(number, note)
        for number in _STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
