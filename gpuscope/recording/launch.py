"""Start a benchmark in a process of its own, which is also what a profiler wraps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import ProgramError
from gpuscope.recording import process
from gpuscope.recording.display import Display

ERROR_PREFIX = "gpuscope: "
"""How a benchmark marks the sentence it fails with."""
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


@dataclass(frozen=True, slots=True)
class Untraced:
    """What came of a timing run."""

    ended: process.Ended
    table: str
    """What it wrote to standard output."""
    error: str | None
    """The sentence it failed with; None where it gave none."""


def run_untraced(
    argv: Sequence[str],
    *,
    display: Display,
    timeout_s: float | None = None,
    stop_when: Callable[[], bool] | None = None,
) -> Untraced:
    """Run a benchmark's command line by itself, showing only what it says on the way.

    It is stopped after `timeout_s`, or once `stop_when` says so.
    """
    table: list[str] = []
    errors: list[str] = []

    def hear(line: process.Line) -> None:
        if line.is_product:
            table.append(line.text)
        elif line.text.startswith(ERROR_PREFIX):
            errors.append(line.text.removeprefix(ERROR_PREFIX))
        elif not line.replaced:
            display.program_line(line.text)

    with display.step("timing run, untraced"):
        ended = process.run(
            argv,
            on_line=hear,
            quiet_input=True,
            apart=True,
            timeout_s=timeout_s,
            grace_s=STOP_GRACE_S,
            stop_when=stop_when,
            on_stop=lambda stage: display.say("stopping" if stage == 0 else "ending the benchmark"),
        )
    return Untraced(ended, "".join(f"{line}\n" for line in table), errors[-1] if errors else None)


def raise_if_failed(done: Untraced, name: str, timeout_s: float | None) -> None:
    """Raise what a benchmark that did not end well comes to.

    Raises
    ------
    KeyboardInterrupt
        It was stopped by Ctrl-C.
    ProgramError
        It took longer than `timeout_s`, or failed: with its own sentence and exit code if it gave
        them.
    """
    if done.ended.interrupted:
        raise KeyboardInterrupt
    if done.ended.timed_out:
        msg = f"{name} was stopped: it ran longer than {timeout_s:g} s."
        raise ProgramError(msg)
    code = done.ended.code
    if code == 0:
        return
    if done.error is None:
        msg = f"{name} failed with exit code {code}; its own words are above."
        raise ProgramError(msg)
    error = ProgramError(done.error)
    error.exit_code = code
    raise error
