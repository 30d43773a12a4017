"""`gpuscope run --sweep`: a benchmark over the values of an option, or over a grid of two."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, Any

from gpuscope.cli import _series
from gpuscope.cli._void import MARK
from gpuscope.errors import UsageError
from gpuscope.figures.scaling import (
    RANKS,
    bound_reached,
    label,
    scaling,
    scaling_kind,
    scaling_void,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.table import Table

    from gpuscope.benchmarks import Benchmark
    from gpuscope.cli._ranks import Job
    from gpuscope.figures.scaling import Rows
    from gpuscope.recording.display import Display
    from gpuscope.recording.folder import RunFolder

_GIGA = 1e9
MOST_OPTIONS = 2
"""A table and a plot show a grid; with three options they would show none of them well."""


def parse(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read ``OPTION=V,V,...``, one or two: the values by the name without dashes.

    The number of ranks comes last, so that what differs in it alone is run one after the other.

    Raises
    ------
    UsageError
        One is not of that form, names no two values, or one twice; or the options are too many.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        option, equals, rest = text.partition("=")
        option = option.strip("-")
        values = tuple(value.strip() for value in rest.split(","))
        if not option or not equals or not all(values):
            raise UsageError(
                f"--sweep {text!r} is not understood: write it like --sweep size=16M,64M."
            )
        if len(values) < 2 or len(set(values)) < len(values):
            raise UsageError(f"--sweep {text!r} must name two or more values, each once.")
        if option in found:
            raise UsageError(f"--sweep {option} is given twice: name all of its values in one.")
        found[option] = values
    if len(found) > MOST_OPTIONS:
        raise UsageError(f"--sweep takes {MOST_OPTIONS} options at most: leave one out.")
    return dict(sorted(found.items(), key=lambda item: item[0] == RANKS))


def check(args: argparse.Namespace, benchmark: Benchmark) -> None:
    """Check all values before anything is run.

    Raises
    ------
    UsageError
        The benchmark does not have the option, or it is not to be swept so.
    SystemExit
        The benchmark refuses a value.
    """
    for option, values in parse(args.sweep).items():
        for value in values:
            if _is_ranks(option, benchmark):
                _check_ranks(args, value)
            else:
                _check_value(benchmark, option, value)


def run(
    args: argparse.Namespace,
    benchmark: Benchmark,
    job: Job,
    folder: RunFolder,
    display: Display,
) -> None:
    """Run the benchmark for the times of each value, or each pair of values."""
    swept = parse(args.sweep)
    options = tuple(swept)
    rows: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []
    plans: dict[tuple[str, ...], Path] = {}
    over_ranks = _is_ranks(options[-1], benchmark)
    with _series.kept_if_measured(folder, display):
        for values in itertools.product(*swept.values()):
            display.say(label(options, values))
            name = _file_name(options, values)
            others = tuple(
                f"--{option}={value}"
                for option, value in zip(options, values, strict=True)
                if not _is_ranks(option, benchmark)
            )
            own = dataclasses.replace(job, options=(*job.options, *others))
            ranked, plan = args, None
            if over_ranks:
                ranked = argparse.Namespace(**{**vars(args), "ranks": int(values[-1])})
                plan = plans.get(others)
                # With more ranks the same is done as what the first number of them came to.
                plans.setdefault(others, folder.path / f"{name}.json")
            rows.append((values, _series.measure(ranked, own, folder, name, display, plan)))
    _write_plot(folder.path / "sweep.html", options, rows)
    series = _series.Series("sweep", options, benchmark, rows)
    _series.finish(args, folder, series, lambda: make_table(options, rows), display)


def _is_ranks(option: str, benchmark: Benchmark) -> bool:
    return option == RANKS and benchmark.ranks


def _file_name(options: Sequence[str], values: Sequence[str]) -> str:
    words = values if len(options) == 1 else map("-".join, zip(options, values, strict=True))
    return re.sub(r"[^0-9A-Za-z._-]", "_", "_".join(words))


def _check_ranks(args: argparse.Namespace, value: str) -> None:
    """Check a value of a sweep over the number of ranks."""
    if args.ranks is not None:
        raise UsageError("--sweep ranks=N,N,... says how many ranks: leave --ranks out.")
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"--sweep ranks={value}: {value!r} is not a number of ranks.")


def _check_value(benchmark: Benchmark, option: str, value: str) -> None:
    """Let the benchmark's own parser look at a value of the option that is swept."""
    parser = argparse.ArgumentParser(
        prog=f"gpuscope run {benchmark.name}", add_help=False, allow_abbrev=False
    )
    benchmark.add_arguments(parser)
    _, unknown = parser.parse_known_args([f"--{option}={value}"])
    if unknown:
        raise UsageError(
            f"{benchmark.name} has no option --{option}: there are {benchmark.options}."
        )


def _write_plot(path: Path, options: Sequence[str], rows: Rows) -> None:
    """Write the plot as a page of its own, which needs no network."""
    from gpuscope.figures.palette import LIGHT
    from gpuscope.figures.sweep import sweep_figure

    sweep_figure(options, rows, LIGHT).write_html(path)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def make_table(options: Sequence[str], rows: Rows) -> Table:
    """Return a line a run; of a benchmark without a speed-up, a line a quantity instead."""
    if all(bound_reached(result) is not None for _, result in rows):
        return _steps_table(options, rows)
    if not any("speedup" in result["figures"] for _, result in rows):
        return _quantities_table(options, rows)
    return _speedup_table(options, rows)


def _steps_table(options: Sequence[str], rows: Rows) -> Table:
    """Return of each run a step, what it consists of alone, its bound, and how the work scales."""
    from gpuscope.units import format_ns, format_ratio

    scaled = scaling(options, rows)
    void = scaling_void(options, rows) if scaled else []
    title = f"untraced, {scaling_kind(rows)}" if scaled else "untraced"
    columns = ("a step", "kernels", "exchange", "T_lb", "reached", "Gupdates/s")
    table = _series.make_table(
        title, *options, *columns, *(("times", "efficiency") if scaled else ())
    )
    for at, (values, result) in enumerate(rows):
        figures = result["figures"]
        cells = [
            format_ns(figures[key]) for key in ("t_step_ns", "t_comp_ns", "t_comm_ns", "t_lb_ns")
        ]
        reached = bound_reached(result)
        assert reached is not None  # the caller has looked
        cells += [format_ratio(reached), f"{figures['updates_per_s'] / _GIGA:.1f}"]
        if scaled:
            factor, efficiency = scaled[at]
            cells += [f"{factor:.2f}", _marked(format_ratio(efficiency), void[at])]
        table.add_row(*_value_cells(values, result), *cells)
    return table


def _speedup_table(options: Sequence[str], rows: Rows) -> Table:
    from gpuscope.units import format_ns

    passes = list(rows[0][1]["passes"])
    columns = (*passes, "speed-up", "possible", "kernel / copy")
    table = _series.make_table("untraced", *options, *columns)
    for values, result in rows:
        figures = result["figures"]
        shown = [figures.get(key) for key in ("speedup", "speedup_max", "kernel_copy_ratio")]
        table.add_row(
            *_value_cells(values, result),
            *(format_ns(result["passes"][name]["median_ns"]) for name in passes),
            *("–" if number is None else f"{number:.2f}" for number in shown),
        )
    return table


def _value_cells(values: Sequence[str], result: Mapping[str, Any]) -> list[str]:
    """Return the values, the last with a mark where the times are void."""
    *others, last = values
    return [*others, _marked(last, not result["valid"])]


def _marked(text: str, void: bool) -> str:
    return f"{text} ({MARK})" if void else text


def _quantities_table(options: Sequence[str], rows: Rows) -> Table:
    """Return a line for each quantity that any of the runs has, and a column a run."""
    from gpuscope.benchmarks import quantity_row

    titles = [_marked(label(options, values), not result["valid"]) for values, result in rows]
    table = _series.make_table("untraced", "quantity", *titles)
    found = [
        {each["name"]: quantity_row(each)[1] for each in result["quantities"]} for _, result in rows
    ]
    for name in dict.fromkeys(name for each in found for name in each):
        table.add_row(name, *(each.get(name, "–") for each in found))
    return table
