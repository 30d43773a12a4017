"""Options that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from gpuscope.app.state import Session
    from gpuscope.model.result import Analysis

_UNBROKEN = 10_000
"""Characters of a line in a pipe, more than any has."""
_QUIET_S = 1.0
"""Work that is done by then needs no progress bar."""


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that show the page."""
    page = parser.add_argument_group("the page")
    page.add_argument("--port", type=int, default=0, help="port to serve on (default: a free one)")
    page.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to serve on (default: 127.0.0.1, reachable from this machine only)",
    )
    page.add_argument("--no-browser", action="store_true", help="do not open a browser")


def add_repeatable(
    group: argparse._ActionsContainer,
    option: str,
    metavar: str,
    what: str,
    dest: str | None = None,
) -> None:
    """Add an option that may be given several times: a list, empty without it."""
    group.add_argument(
        option,
        dest=dest or option.strip("-"),
        action="append",
        default=[],
        metavar=metavar,
        help=f"{what} (repeatable)",
    )


def add_traces(
    parser: argparse.ArgumentParser, what: str = "trace, report or run folder", nargs: str = "+"
) -> None:
    """Add the traces that a command is about."""
    parser.add_argument("trace", nargs=nargs, type=trace_path, metavar="TRACE", help=what)


def add_attribute_option(group: argparse._ActionsContainer) -> None:
    """Add the option that says whose launches belong to a range."""
    group.add_argument(
        "--attribute",
        choices=("thread", "process"),
        default="thread",
        help="whose launches inside a range's window belong to it (default: its thread's)",
    )


def add_range_option(group: argparse._ActionsContainer) -> None:
    """Add the option that names ranges."""
    add_repeatable(group, "--range", "NAME", "only the NVTX ranges of this name or glob")


def add_domain_option(group: argparse._ActionsContainer) -> None:
    """Add the option that names domains of ranges."""
    what = "only ranges of this NVTX domain; '' is the default domain"
    add_repeatable(group, "--domain", "NAME", what)


def add_class_option(group: argparse._ActionsContainer) -> None:
    """Add the option that puts kernels into classes."""
    what = "put kernels whose base name matches into a class, such as comm=halo_.*"
    add_repeatable(group, "--class", "CLASS=REGEX", what, dest="class_rules")


def add_cache_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that read traces."""
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="read and analyze anew, and keep nothing (see gpuscope cache)",
    )


def serve_page(load: Callable[[Progress], Session], what: str, args: argparse.Namespace) -> None:
    """Serve the page of what `load` gives until Ctrl-C; `args` has the options of the page."""
    from gpuscope.app.server import serve

    serve(load, what=what, host=args.host, port=args.port, browser=not args.no_browser, say=say)


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show how far long work is, on stderr if that is a terminal, once it takes over a second."""
    from gpuscope.recording import machine

    if not sys.stderr.isatty() or machine.mpi_rank() is not None:
        yield silent
        return
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        shown: list[tuple[Any, dict[str, Any]]] = []

        def tell(what: str, done: int, total: int) -> None:
            if not shown:
                if time.monotonic() - begun < _QUIET_S:
                    return
                from rich.console import Console
                from rich.progress import Progress as Bars

                bars = Bars(
                    console=Console(stderr=True, **machine.console_options()), transient=True
                )
                shown.append((stack.enter_context(bars), {}))
            bars, tasks = shown[0]
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell


def say(text: str) -> None:
    """Tell the user something beside the product: on stderr, without control characters."""
    print(clean(text), file=sys.stderr, flush=True)


def say_left_out(paths: Sequence[Path]) -> None:
    """Tell which ranks of the run, or runs, that `paths` are of have no trace."""
    from gpuscope import api

    for note in filter(None, (api.left_out(path)[1] for path in paths)):
        say(note)


def suggest(analyses: Sequence[Analysis], named: Sequence[Path]) -> None:
    """Tell who reads at a terminal what to type next, on stderr."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        from gpuscope.report.next_steps import next_steps

        say_next(next_steps(analyses, [str(path) for path in named]))


def say_next(steps: Sequence[tuple[str, str]]) -> None:
    """Tell commands to type, and what each is for."""
    width = max((len(command) for command, _ in steps), default=0)
    for place, (command, what) in enumerate(steps):
        say(f"{'    ' if place else 'next'}  {command:<{width}}  {what}")


def clean(text: str) -> str:
    """Make a text safe for a terminal: a file may be called anything, with ends of lines, too."""
    from gpuscope.units import printable

    return "\n  ".join(printable(line, None) for line in text.split("\n"))


def trace_path(text: str) -> Path:
    """Take the path of a trace from the command line."""
    if not text:
        msg = "an empty path names no trace"
        raise argparse.ArgumentTypeError(msg)
    return Path(text)


def stdout_console(**options: Any) -> Console:
    """Return what writes tables to stdout, and leaves a reader that goes away to `main`.

    Into a file or a pipe lines are as long as they are, unless COLUMNS says how wide it is.
    """
    import os

    from rich.console import Console

    from gpuscope.recording import machine

    class Stdout(Console):
        def on_broken_pipe(self) -> None:
            raise

    # Some CI systems set COLUMNS=0, in which nothing would be shown.
    environment = {
        key: value for key, value in os.environ.items() if (key, value) != ("COLUMNS", "0")
    }
    plain = not sys.stdout.isatty() or machine.mpi_rank() is not None
    if plain and not environment.get("COLUMNS", "").isdecimal():
        options.setdefault("width", _UNBROKEN)
    return Stdout(_environ=environment, **machine.console_options(), **options)
