"""Runs a Python program under the recorder, from outside of it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from gpuscope.errors import CannotJudgeError, MissingError, ProgramError, UsageError
from gpuscope.recording import process
from gpuscope.recording.cupti import export, launcher
from gpuscope.recording.cupti.spool import Spool
from gpuscope.recording.display import Display
from gpuscope.recording.nsys import Capture, Recording
from gpuscope.units import counted

GRACE_S = 20.0
"""Time a program gets after Ctrl-C to end by itself and to hand over its records."""

_PYTHON = re.compile(r"(python|pypy)\d*(\.\d+)?t?")
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
_LAST_OPTION = re.compile(r"-([bBdEhiIOPqRsSuvVx]*)([cm])")
_SHEBANG = re.compile(rb"#!\s*(\S+)(?:[ \t]+(\S+))?")


def understand(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell the interpreter and its options from the program and its arguments.

    Raises
    ------
    UsageError
        It is no Python program, or Python without one.
    """
    interpreter = _interpreter(command[0])
    if interpreter is None:
        msg = (
            f"{Path(command[0]).name} is no Python program, and the CUPTI recorder works from "
            "inside Python: record it with Nsight Systems, gpuscope run --nsys -- "
            f"{Path(command[0]).name}."
        )
        raise UsageError(msg)
    if interpreter != [command[0]]:
        return interpreter, list(command)  # a script that names its interpreter
    words = list(command[1:])
    options: list[str] = []
    while words:
        word = words[0]
        last = _LAST_OPTION.fullmatch(word)
        if last:
            options += [f"-{last[1]}"] if last[1] else []
            return [command[0], *options], [f"-{last[2]}", *words[1:]]
        if not word.startswith("-") or word == "-":
            break
        taken = 2 if word in _WITH_VALUE else 1
        options += words[:taken]
        words = words[taken:]
    if not words or words[0] == "-":
        msg = "python has no program to run: name a script, or give -m MODULE or -c CODE."
        raise UsageError(msg)
    return [command[0], *options], words


def _interpreter(program: str) -> list[str] | None:
    """Return the Python that runs `program`; None where something else does."""
    path = Path(program)
    if _PYTHON.fullmatch(path.name):
        return [program]
    try:
        with path.open("rb") as file:
            shebang = _SHEBANG.match(file.read(256))
    except OSError:
        return None
    if shebang is None:
        return None
    named, argument = (os.fsdecode(word) if word else None for word in shebang.groups())
    if Path(str(named)).name == "env" and argument:
        named, argument = shutil.which(argument), None
    if named is None or not _PYTHON.fullmatch(Path(named).name):
        return None
    return [named, argument] if argument else [named]


def record(
    command: Sequence[str],
    spool: Spool,
    *,
    display: Display,
    capture: Capture | None = None,
    timeout_s: float | None = None,
    quiet_input: bool = False,
) -> Recording:
    """Run `command` under the recorder and return what it left in `spool`.

    Parameters
    ----------
    command
        The program and its arguments; a Python program.
    spool
        Where the records go.
    display
        Shows the program's output.
    capture
        What is recorded: from ``cudaProfilerStart`` to ``cudaProfilerStop``, an NVTX range, or all.
    timeout_s
        The program is stopped after this time; what was recorded is kept.
    quiet_input
        Give the program no standard input.

    Raises
    ------
    UsageError
        It is no Python program, or the capture is one of nsys alone.
    MissingError
        There is no driver, or no libcupti that fits.
    ProgramError, CannotJudgeError
        The program ended, and nothing was recorded.
    """
    interpreter, program = understand(command)
    if capture is not None and capture.text.startswith("d"):
        msg = (
            f"--capture {capture.text} is for nsys: the CUPTI recorder takes nvtx:RANGE@DOMAIN "
            "and cuda."
        )
        raise UsageError(msg)
    options = {"between_profiler_calls": capture is not None and capture.text == "cuda"}
    argv = [*interpreter, launcher.__file__, str(spool.folder), json.dumps(options), *program]
    spool.folder.mkdir(parents=True, exist_ok=True)
    try:
        with display.step("recording through CUPTI"):
            ended = process.run(
                argv,
                on_line=lambda line: None if line.replaced else display.program_line(line.text),
                quiet_input=quiet_input,
                timeout_s=timeout_s,
                grace_s=GRACE_S,
                on_stop=lambda stage: display.say(_STOPPING[stage]),
            )
        problem = _problem(spool, Path(command[0]).name, capture, ended)
        if problem is not None:
            raise problem
    except BaseException:
        shutil.rmtree(spool.folder, ignore_errors=True)
        raise
    return Recording(
        report=spool.folder,
        program_code=0 if ended.interrupted or ended.timed_out else ended.code,
        interrupted=ended.interrupted,
        timed_out=ended.timed_out,
        outlived=ended.outlived,
        argv=tuple(argv),
    )


def _problem(
    spool: Spool, name: str, capture: Capture | None, ended: process.Ended
) -> BaseException | None:
    """Say why nothing was recorded; None if something was."""
    if sentence := spool.read_problem():
        return MissingError(sentence)
    if spool.read_start() is None:
        if ended.interrupted:
            return KeyboardInterrupt()
        return ProgramError(
            f"{name} ended with exit code {ended.code} before anything could be recorded; "
            "its own words are above."
        )
    end = spool.read_end()
    if capture is not None and end is not None and not end.was_started:
        if ended.code:
            return ProgramError(
                f"{name} ended with exit code {ended.code} and nothing was recorded; "
                "its own words are above."
            )
        return CannotJudgeError(f"nothing was recorded: {capture.missed}.")
    return None


_STOPPING = (
    "stopping: the program hands over what was recorded (Ctrl-C again gives that up)",
    "ending the program",
    "killing what is left",
)


def write(
    spool: Spool, sqlite_path: Path, *, display: Display, capture: Capture | None = None
) -> export.Written:
    """Write the recording in `spool` as SQLite, say what it cost, and remove the spool."""
    within = None
    if capture is not None and capture.text.startswith("nvtx:"):
        name, _, domain = capture.text.removeprefix("nvtx:").partition("@")
        within = (name, None if domain == "*" else domain)
    try:
        with display.step("writing the trace"):
            written = export.write(spool, sqlite_path, within=within)
    finally:
        shutil.rmtree(spool.folder, ignore_errors=True)
    for sentence in sentences(written):
        display.say(sentence)
    return written


def sentences(written: export.Written) -> list[str]:
    """Say what a recording cost the program, and what is missing in it."""
    said = list(written.notes)
    if written.was_killed:
        said.append(
            "the program was killed: what CUPTI had written until then is kept, without the names "
            "of kernels and ranges"
        )
        return said
    if written.dropped:
        lost = counted(
            written.dropped, "record found no buffer and is", "records found no buffer and are"
        )
        said.append(f"{lost} lost: record a part of the program (--capture cuda)")
    times = counted(written.callbacks, "time")
    said.append(
        f"while it was recorded, the program ran the recorder's Python {times}, "
        f"{written.callback_ns / 1e6:.3f} ms in all"
    )
    return said
