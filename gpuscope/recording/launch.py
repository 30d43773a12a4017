"""Start a benchmark in a process of its own, which is also what a profiler wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gpuscope.recording import process
from gpuscope.recording.display import Display

STOP_GRACE_S = 10.0
"""Time a benchmark gets after Ctrl-C to free the GPU by itself."""


def benchmark_argv(
    name: str, options: Sequence[str], result: Path, plan: Path | None = None
) -> list[str]:
    """Build the command line of the benchmark `name`.

    `result` is where it writes its figures; `plan` an earlier result whose sizes and calibration it
    takes over, so that both runs do the same work.
    """
    argv = [sys.executable, "-u", "-m", "gpuscope.benchmarks", name, *options]
    if plan is not None:
        argv += ["--plan", str(plan)]
    return [*argv, "--result", str(result)]


def run_untraced(
    argv: Sequence[str], *, display: Display, timeout_s: float | None = None
) -> tuple[process.Ended, list[str]]:
    """Run a benchmark's command line by itself; return how it ended and its last lines."""
    words: list[str] = []

    def hear(line: process.Line) -> None:
        if not line.replaced:
            words.append(line.text)
            del words[:-40]
            display.program_line(line.text)

    with display.step("timing run, untraced"):
        ended = process.run(
            argv,
            on_line=hear,
            quiet_input=True,
            timeout_s=timeout_s,
            grace_s=STOP_GRACE_S,
            on_stop=lambda stage: display.say("stopping" if stage == 0 else "ending the benchmark"),
        )
    return ended, words


def show_benchmark_help(name: str) -> str:
    """Return the help text of a benchmark."""
    return process.output([sys.executable, "-m", "gpuscope.benchmarks", name, "--help"])[1]
