"""Several runs of one benchmark: how each is measured, and where all of them are written."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.cli._options import stdout_console
from gpuscope.cli._void import find_void
from gpuscope.errors import GpuscopeError
from gpuscope.figures.scaling import bound_reached, label, scaling
from gpuscope.report.table import csv_text
from gpuscope.report.text import simple_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.table import Table

    from gpuscope.benchmarks import Benchmark
    from gpuscope.cli._ranks import Job
    from gpuscope.figures.scaling import Rows
    from gpuscope.recording.display import Display
    from gpuscope.recording.folder import RunFolder


@contextlib.contextmanager
def kept_if_measured(folder: RunFolder, display: Display) -> Iterator[None]:
    """Where the runs end early, keep the folder only with results in it, and say where they are."""
    try:
        yield
    except (GpuscopeError, KeyboardInterrupt):
        if not folder.remove_if_empty():
            display.say(f"what was measured before is in {folder.path}")
        raise


def measure(
    args: argparse.Namespace,
    job: Job,
    folder: RunFolder,
    name: str,
    display: Display,
    plan: Path | None = None,
) -> Mapping[str, Any]:
    """Run the benchmark in processes of its own, and return its result: NAME.json."""
    from gpuscope.cli import _ranks
    from gpuscope.recording import launch
    from gpuscope.recording.folder import read_result

    assert job.benchmark is not None
    file = folder.path / f"{name}.json"
    if args.ranks is not None:
        result = _ranks.time_once(args, job, folder.path / name, plan, display)
        folder.write_json(file, json.dumps(result, indent=2))
        return result
    argv = launch.benchmark_argv(job.benchmark, job.options, file, plan)
    done = launch.run_untraced(argv, display=display, timeout_s=args.timeout)
    launch.raise_if_failed(done, job.benchmark, args.timeout)
    return read_result(file)


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one benchmark that were measured together."""

    name: str
    """``sweep`` or ``repeat``, and of the files of the results."""
    options: Sequence[str]
    """What differs from run to run."""
    benchmark: Benchmark
    rows: Rows


def finish(
    args: argparse.Namespace,
    folder: RunFolder,
    series: Series,
    table: Callable[[], Table],
    display: Display,
) -> None:
    """Write the results, print the table, and say where all is.

    Raises
    ------
    CannotJudgeError
        Times of a run are void.
    """
    _write(folder, series)
    show(args, folder, series.name, table)
    display.say_wrote(folder.path)
    named = {label(series.options, values): result for values, result in series.rows}
    if void := find_void(named):
        raise void


def _write(folder: RunFolder, series: Series) -> None:
    """Write NAME.json, all results whole, and NAME.csv, a line a run."""
    from gpuscope.model import codec

    content = {
        "schema_version": 1,
        "benchmark": series.benchmark.name,
        "options": list(series.options),
        "runs": [
            {"values": dict(zip(series.options, values, strict=True)), "result": result}
            for values, result in series.rows
        ],
    }
    folder.write_json(folder.path / f"{series.name}.json", codec.dumps(content))
    folder.write_json(folder.path / f"{series.name}.csv", to_csv(series.options, series.rows))


def to_csv(options: Sequence[str], rows: Rows) -> str:
    """Return a line a run, with all digits.

    That is the values, what the other options came to (each run calibrates itself), the times of
    each pass, stages, and figures.
    """
    lines = []
    scaled = scaling(options, rows)
    for at, (values, result) in enumerate(rows):
        line: dict[str, Any] = {**dict(zip(options, values, strict=True)), "valid": result["valid"]}
        came_to = result["options"].items()
        line |= {key: value for key, value in came_to if key.replace("_", "-") not in options}
        for name, times in result["passes"].items():
            for key in ("median_ns", "p10_ns", "p90_ns"):
                line[f"{name}_{key}"] = times[key]
        if scaled:
            line["scaling"], line["efficiency"] = scaled[at]
        if (reached := bound_reached(result)) is not None:
            line["bound_reached_ratio"] = reached
        lines.append({**line, **result["stages"], **result["figures"]})
    keys = list(dict.fromkeys(key for line in lines for key in line))
    return csv_text([keys, *([line.get(key) for key in keys] for line in lines)])


def show(
    args: argparse.Namespace, folder: RunFolder, name: str, table: Callable[[], Table]
) -> None:
    """Print the table, or with --json the file of all results."""
    if args.json:
        sys.stdout.write((folder.path / f"{name}.json").read_text(encoding="utf-8"))
    else:
        stdout_console().print(table())


def make_table(title: str, *columns: str) -> Table:
    """Return a table without lines."""
    table = simple_table(title)
    for column in columns:
        table.add_column(column)
    return table
