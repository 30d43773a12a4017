"""The command line: one table of commands, one file a command.

Each command module has ``add_arguments(parser)`` and ``run(args) -> int``. Only the module of the
chosen command is imported, and heavy imports stand inside its ``run``, so that ``--help`` is quick.
stdout carries the product, stderr the talk. Every :class:`~gpuscope.errors.GpuscopeError` ends here
as one sentence and its exit code.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from gpuscope import errors
from gpuscope._version import __version__
from gpuscope.cli._options import say

COMMANDS = (
    ("run", "record a benchmark, or your own program, and say what overlapped"),
    ("analyze", "measure the overlap in a trace"),
    ("verify", "hold expectations against a trace: fail when overlap is lost"),
    ("explain", "tell why an operation, or a range, started when it did"),
    ("compare", "say what changed between two runs, and what is only noise"),
    ("runs", "list the runs of a folder, with what came of them"),
    ("view", "show a trace or a run in the browser"),
    ("report", "write a report: one HTML file with the timeline, or markdown"),
    ("demo", "show a shipped trace in the browser: no GPU needed"),
    ("info", "say what a trace holds, and whether it can be trusted"),
    ("anonymize", "copy a trace without anything private, to hand it out"),
    ("cache", "show or empty the folder where what was read is kept"),
    ("list", "list the benchmarks, the analyzers and the shipped traces"),
    ("doctor", "check what gpuscope needs on this machine, and how to get it"),
)
"""Command name and summary, in the order of the help. The module is ``gpuscope.cli.NAME``."""

_COMPUTE_ONCE = frozenset(("analyze", "verify", "explain", "compare", "report", "info"))
"""Commands that compute much and then end: memory that they free may stay with them."""

_DESCRIPTION = "See whether GPU copies, kernels and communication really ran at the same time."
_EPILOG = """\
start here:
  gpuscope demo                      the page, on a trace recorded on a GPU: needs none itself
  gpuscope doctor                    what is installed, what is missing
  gpuscope run --nsys streams        record the classic experiment and get the verdicts
  gpuscope run --nsys -- ./a.out     the same for your program
  gpuscope analyze report.nsys-rep   figures and verdicts of a trace you have

TRACE is a .sqlite export, a .nsys-rep report, the folder of a run, with all its ranks, or one of
the latest runs in the folder `runs`: last, last~1

exit codes: 0 done, 1 failed, 2 usage, 3 tool or GPU missing, 4 expectation not met,
5 cannot judge, 130 interrupted
"""


def command_module(name: str) -> ModuleType:
    """Import the module of the command `name`."""
    return importlib.import_module(f"gpuscope.cli.{name}")


def _help() -> str:
    rows = "".join(f"  {name:<10} {summary}\n" for name, summary in COMMANDS)
    return (
        f"usage: gpuscope COMMAND [options]\n\n{_DESCRIPTION}\n\ncommands:\n{rows}"
        "\n  gpuscope COMMAND --help    what a command does and takes\n"
        f"  gpuscope --version         {__version__}\n\n{_EPILOG}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default ``sys.argv[1:]``) and return the exit code."""
    argv = [*(sys.argv[1:] if argv is None else argv)]  # `list` is also a command here
    codecs.register_error("gpuscope", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gpuscope")
    if sys.stdout is None:
        sys.stdout = _Closed()
    try:
        if not argv or argv[0] in {"-h", "--help", "help"}:
            print(_help(), end="")
            return 0
        if argv[0] in {"-V", "--version"}:
            print(f"gpuscope {__version__}")
            return 0
        name = argv[0]
        if name not in dict(COMMANDS):
            raise errors.UsageError(_unknown(name))
        module = command_module(name)
        parser = argparse.ArgumentParser(
            prog=f"gpuscope {name}",
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(parser)
        args = parser.parse_args(argv[1:])
        if name in _COMPUTE_ONCE:
            from gpuscope import memory

            memory.keep_freed()
        code = int(module.run(args))
        sys.stdout.flush()
        return code
    except errors.GpuscopeError as error:
        say(f"gpuscope: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        print("gpuscope: interrupted", file=sys.stderr)
        return errors.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error, and nothing more to say.
        _drop_stdout()
        return 0
    except OSError as error:
        where = f"{error.filename} " if error.filename else "a file or the output "
        say(f"gpuscope: {where}cannot be used: {error.strerror}.")
        if error.errno == errno.ENOSPC:
            _drop_stdout()
        return 1


_ASCII = {
    **{"×": "x", "·": "|", "∩": "&", "µ": "u", "→": "->", "–": "-", "−": "-", "…": "...", "✓": "v"},
    **{"█": "#", "▒": "%", "░": ".", "─": "-", "├": "|", "┤": "|", "│": "|", "└": "`"},
}
"""What gpuscope writes itself, for terminals and logs that cannot show it."""


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace what an output cannot encode: a codec's error handler."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_ASCII.get(char, "?") for char in lost), error.end


class _Closed(io.TextIOBase):
    """What stands for stdout where there is none: a product that is written is lost."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


def _drop_stdout() -> None:
    """Send what is still to be written nowhere, so that it does not fail again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unknown(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, [command for command, _ in COMMANDS], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"there is no command {name!r}.{hint} `gpuscope --help` lists them."
