"""Options that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from gpuscope.progress import Progress, silent

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


def add_cache_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that read traces."""
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="read and analyze anew, and keep nothing (see gpuscope cache)",
    )


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show how far long work is, on stderr if that is a terminal, once it takes over a second."""
    if not sys.stderr.isatty():
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

                bars = Bars(console=Console(stderr=True), transient=True)
                shown.append((stack.enter_context(bars), {}))
            bars, tasks = shown[0]
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell


def say(text: str) -> None:
    """Tell the user something beside the product: on stderr."""
    print(text, file=sys.stderr, flush=True)
