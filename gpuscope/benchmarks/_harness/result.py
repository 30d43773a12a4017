"""What a benchmark hands back, and its JSON file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gpuscope.benchmarks._harness.stats import Statistics
from gpuscope.errors import OutputError, UsageError
from gpuscope.units import format_ns, format_rate, format_ratio

NOT_JUDGED = "not judged"
"""The expected verdict of a pair whose overlap the schedule leaves too little room for."""
NOT_OBSERVABLE = "inconclusive (not observable)"
"""The expected verdict of a pair of which one class happens inside kernels, and leaves no rows."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the trace must show for classes `a` < `b` in the range of a pass.

    ``verdict`` is one of the analyzer's, or :data:`NOT_JUDGED` or :data:`NOT_OBSERVABLE`.
    ``ratio_limit`` is the largest overlap ratio (0 to 1) that the schedule allows, None with those.
    ``least_rho`` is the share of that limit that must be reached besides, None for what the verdict
    itself takes.
    """

    range: str
    a: str
    b: str
    verdict: str
    ratio_limit: float | None
    least_rho: float | None = None
    kind: Literal["pair"] = "pair"


@dataclass(frozen=True, slots=True)
class ExpectedPeak:
    """How many operations of class ``op_class`` must run at once at the peak of range ``range``.

    ``least`` and ``most`` are both allowed.
    """

    range: str
    op_class: str
    least: int
    most: int
    kind: Literal["peak"] = "peak"


@dataclass(frozen=True, slots=True)
class ExpectedPingPong:
    """Whether the copies of class ``op_class`` in range ``range`` must go there and back.

    That is ``copies`` in each instance, never two at once, and between two GPUs each in the other
    direction than the one before. ``wanted`` is False for a twin that must be seen not to do that.
    """

    range: str
    op_class: str
    copies: int
    wanted: bool
    kind: Literal["ping-pong"] = "ping-pong"


@dataclass(frozen=True, slots=True)
class ExpectedLinks:
    """What the trace must show for the copies of two directions, such as ``0>1`` and ``1>0``.

    ``verdict`` and ``least_rho`` are as those of a pair; the schedule allows all of it.
    """

    range: str
    a: str
    b: str
    verdict: str
    least_rho: float | None = None
    kind: Literal["links"] = "links"


@dataclass(frozen=True, slots=True)
class ExpectedCount:
    """How many operations of class ``op_class`` an instance of range ``range`` must have.

    That is on average, on each rank; ``least`` and ``most`` are both allowed.
    """

    range: str
    op_class: str
    least: int
    most: int
    kind: Literal["count"] = "count"


@dataclass(frozen=True, slots=True)
class ExpectedHidden:
    """What share (0 to 1) of the transfers of a range must lie under kernels that compute.

    Halos are short beside a step, so that no class of copies alone need be material. Where all
    from 0 to 1 is allowed, it is not judged.
    """

    range: str
    least: float
    most: float
    kind: Literal["hidden"] = "hidden"


Expectation: TypeAlias = (
    "Expected | ExpectedPeak | ExpectedCount | ExpectedPingPong | ExpectedLinks | ExpectedHidden"
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A figure that the machine limits: its value, the limit, and where the limit is from.

    The unit is ``bytes/s``, ``updates/s`` or ``kernels``, of which more is better, or ``ns``.
    """

    name: str
    value: float | None
    unit: Literal["bytes/s", "updates/s", "kernels", "ns"]
    limit: float | None
    limit_source: str

    @property
    def reached_ratio(self) -> float | None:
        """The share of the limit that was reached; None where either is not known."""
        if not self.value or not self.limit:
            return None
        return self.limit / self.value if self.unit == "ns" else self.value / self.limit


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one benchmark.

    ``passes`` are the times of the measured ranges by name, ``baselines`` names for a pass the one
    that its speed-up is against, ``issued`` are the times that the host took to issue them.
    ``stages`` (ns), ``figures`` and ``machine`` are the benchmark's own keys. ``valid`` is False
    where the measurement must not be used, and ``notes`` say why. ``table`` is the short text for
    people.
    """

    benchmark: str
    twin: str | None
    options: Mapping[str, Any]
    repetitions: int
    warmup: int
    passes: Mapping[str, Statistics]
    baselines: Mapping[str, str]
    issued: Mapping[str, Statistics]
    stages: Mapping[str, int | None]
    figures: Mapping[str, float | None]
    quantities: tuple[Quantity, ...]
    expected: tuple[Expectation, ...]
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
    width = max(12, *(len(name) + 1 for name in passes))
    lines = [f"{'pass':<{width}}{''.join(f'{title:>10}' for title in titles)}     n"]
    for name, times in passes.items():
        cells = (format_ns(getattr(times, f"{title}_ns")) for title in titles)
        lines.append(f"{name:<{width}}{''.join(f'{cell:>10}' for cell in cells)}{times.n:>6}")
    return lines


def quantity_row(quantity: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Return the fields of a quantity as text: name, value, limit, share reached, limit's source.

    `quantity` is one of a result's, as its JSON has it.
    """
    value, limit = quantity["value"], quantity["limit"]
    reached = Quantity(**quantity).reached_ratio
    shown = (_format_quantity(each, quantity["unit"]) for each in (value, limit))
    return (quantity["name"], *shown, format_ratio(reached), quantity["limit_source"])


def _format_quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "ns":
        return format_ns(value)
    if unit == "bytes/s":
        return format_rate(value)
    if unit == "updates/s":
        return f"{value / 1e9:.1f} Gupdates/s"
    return f"{value:.0f}"


def quantity_table(quantities: Sequence[Quantity]) -> list[str]:
    """Return quantities and their limits as lines for people."""
    if not quantities:
        return []
    lines = [f"{'quantity':<30}{'value':>18}{'limit':>18}{'reached':>9}  limit from"]
    for each in quantities:
        name, value, limit, reached, source = quantity_row(asdict(each))
        lines.append(f"{name:<30}{value:>18}{limit:>18}{reached:>9}  {source}")
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


def chosen_options(
    arguments: argparse.Namespace, benchmark: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a value for each name in `defaults`: of the plan, else as given, else the default."""
    plan = {} if arguments.plan is None else read_plan(arguments.plan, benchmark)
    chosen: dict[str, Any] = {}
    for name, default in defaults.items():
        values = (plan.get(name), getattr(arguments, name), default)
        chosen[name] = next((value for value in values if value is not None), None)
    return chosen


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
