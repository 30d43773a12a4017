"""What a benchmark hands back, and its JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuscope.benchmarks._harness.stats import Statistics
from gpuscope.errors import OutputError, UsageError
from gpuscope.units import format_ns

NOT_JUDGED = "not judged"
"""The expected verdict of a pair whose overlap the schedule leaves too little room for."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the trace must show for classes `a` < `b` in the range of a pass.

    ``verdict`` is one of the analyzer's, or :data:`NOT_JUDGED`. ``ratio_limit`` is the largest
    overlap ratio (0 to 1) that the schedule allows, None where not judged.
    """

    range: str
    a: str
    b: str
    verdict: str
    ratio_limit: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one benchmark.

    ``passes`` are the times of the measured ranges by name; ``stages`` (ns), ``figures`` and
    ``machine`` are the benchmark's own keys. ``valid`` is False where the measurement must not be
    used, and ``notes`` say why. ``table`` is the short text for people.
    """

    benchmark: str
    twin: str | None
    options: Mapping[str, Any]
    repetitions: int
    warmup: int
    passes: Mapping[str, Statistics]
    stages: Mapping[str, int | None]
    figures: Mapping[str, float | None]
    expected: tuple[Expected, ...]
    machine: Mapping[str, Any]
    notes: tuple[str, ...]
    valid: bool
    table: str = field(compare=False)

    def to_json(self) -> str:
        """Return the JSON text; the table for people is not part of it."""
        values = asdict(self)
        del values["table"]
        return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def pass_table(passes: Mapping[str, Statistics]) -> list[str]:
    """Return the times of the passes as lines for people."""
    titles = ("median", "p10", "p90", "min", "max", "mad")
    lines = [f"{'pass':<12}{''.join(f'{title:>10}' for title in titles)}     n"]
    for name, times in passes.items():
        cells = (format_ns(getattr(times, f"{title}_ns")) for title in titles)
        lines.append(f"{name:<12}{''.join(f'{cell:>10}' for cell in cells)}{times.n:>6}")
    return lines


def write_result(result: Result, path: str) -> None:
    """Write the JSON of `result`, whole or not at all.

    Raises
    ------
    OutputError
        The folder is missing or not writable, or the disk is full.
    """
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        partial.write_text(result.to_json(), encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write the result to {path}: {reason}.") from error


def read_plan(path: str, benchmark: str) -> dict[str, Any]:
    """Return the resolved options of an earlier result of `benchmark`.

    Raises
    ------
    UsageError
        The file cannot be read, is no result, or is another benchmark's.
    """
    try:
        plan = json.loads(Path(path).read_text(encoding="utf-8"))
        name, options = plan["benchmark"], dict(plan["options"])
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is not the result of a benchmark: give a file written by --result."
        ) from error
    if name != benchmark:
        raise UsageError(f"{path} is a result of {name!r}, not of {benchmark!r}.")
    return options
