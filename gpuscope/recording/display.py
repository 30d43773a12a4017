"""What the user sees on stderr while something runs: its output, and on a terminal a spinner."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gpuscope.recording import machine
from gpuscope.units import printable


class Display:
    """Talk on stderr: nothing written here is the product of a command.

    On a terminal a step shows a spinner, the time it takes and, where it is known, how far it is;
    elsewhere (a log, CI) each step is one line.
    """

    def __init__(self) -> None:
        self.console = Console(
            stderr=True, highlight=False, soft_wrap=True, **machine.console_options()
        )
        self._progress: Progress | None = None

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show that `title` is going on until the block ends."""
        started = time.monotonic()
        if not self.console.is_terminal:
            self.say(f"{title} …")
            yield
            return
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        progress.add_task(title, total=None)
        self._progress = progress
        try:
            with progress:
                yield
        finally:
            self._progress = None
        self.say(f"{title}: {time.monotonic() - started:.1f} s")

    def advance(self, ratio: float) -> None:
        """Show how far the running step is, from 0 to 1."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], total=1.0, completed=ratio)

    def say(self, text: str) -> None:
        """Say a sentence of gpuscope's own."""
        self.console.print(f"gpuscope: {printable(text, None)}", markup=False)

    def say_wrote(self, path: Path) -> None:
        """Say where the files of a run are."""
        here = Path.cwd()
        self.say(f"Wrote {path.relative_to(here) if path.is_relative_to(here) else path}")

    def program_line(self, text: str) -> None:
        """Show a line of the program's output as it is, control sequences included."""
        if self._progress is None:
            print(text, file=sys.stderr, flush=True)
        else:
            # While a progress display is live, rich redirects stderr and prints above it.
            self.console.print(text, markup=False, emoji=False)
