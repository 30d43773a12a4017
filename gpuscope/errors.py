"""Every error gpuscope raises on purpose, and the exit code each one ends the program with.

::

    GpuscopeError             1   failed
    ├── TraceError            1   not a trace, or too damaged to read
    ├── ProgramError          1   the program that was run failed, or its data was wrong
    ├── OutputError           1   a file or folder could not be written
    ├── UsageError            2   the command line makes no sense
    ├── MissingError          3   a tool, a library, a GPU or a driver is missing
    │   └── ReportTooNewError 3   the report was written by a newer Nsight Systems
    ├── GateError             4   a gate failed, or a benchmark's expected verdict was not met
    └── CannotJudgeError      5   what was asked for is not in the trace, or times are void

A message says what is wrong, where, and what to do about it, in one or two sentences.
`gpuscope.cli.main` is the only place that turns these into exit codes.
"""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class GpuscopeError(Exception):
    """Base of all deliberate errors; ``str(error)`` is the sentence shown to the user."""

    exit_code = 1


class TraceError(GpuscopeError):
    """The file is not a trace gpuscope can read, or is damaged beyond use."""


class ProgramError(GpuscopeError):
    """The program that was started failed, or a benchmark found wrong data."""


class OutputError(GpuscopeError):
    """A result could not be written: no space, no permission, or it exists already."""


class UsageError(GpuscopeError):
    """The command line, or an argument of a public function, makes no sense."""

    exit_code = 2


class MissingError(GpuscopeError):
    """A tool, a library, a driver or a GPU is missing; the message says how to get it."""

    exit_code = 3


class ReportTooNewError(MissingError):
    """The report was written by a newer Nsight Systems than the one that would export it."""


class GateError(GpuscopeError):
    """A gate failed, or a benchmark did not show the verdict it must show."""

    exit_code = 4


class CannotJudgeError(GpuscopeError):
    """What was asked for cannot be judged: a range or table is absent, or the times are void."""

    exit_code = 5


def exit_code_of(error: GpuscopeError | KeyboardInterrupt) -> int:
    """Return the exit code of what ended a command early."""
    return error.exit_code if isinstance(error, GpuscopeError) else INTERRUPTED
