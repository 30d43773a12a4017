"""What `gpuscope run` does when it runs a benchmark more than once, or all of them."""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import io
import json
import re
import statistics
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gpuscope.cli._options import stdout_console
from gpuscope.cli._void import MARK, find_void
from gpuscope.errors import (
    INTERRUPTED,
    CannotJudgeError,
    GateError,
    GpuscopeError,
    OutputError,
    UsageError,
    exit_code_of,
)
from gpuscope.figures.scaling import RANKS, scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.table import Table

    from gpuscope.benchmarks import Benchmark
    from gpuscope.cli._ranks import Job
    from gpuscope.model.result import Judgement
    from gpuscope.recording.display import Display
    from gpuscope.recording.folder import RunFolder

REPEATABLE_RATIO = 0.15
"""Medians of fresh processes further apart than this, over their median, do not agree."""

Rows: TypeAlias = "Sequence[tuple[str, Mapping[str, Any]]]"
"""Of each run its value of the option, or its number, and the benchmark's result."""


class Outcome(Protocol):
    """What came of one run among all."""

    untraced: Mapping[str, Any] | None
    judgement: Judgement | None
    failure: GpuscopeError | None

    @property
    def exit_code(self) -> int: ...


# ── one benchmark several times ──────────────────────────────────────────────────────────────────


def run_series(
    args: argparse.Namespace, benchmark: Benchmark | None, job: Job, display: Display
) -> int:
    """Run a benchmark for the times alone: once for each value, or in several fresh processes."""
    from gpuscope.cli import _ranks
    from gpuscope.recording import folder as folders

    if benchmark is None:
        raise UsageError("--sweep and --repeat are for benchmarks: name one.")
    if args.nsys or args.view or (args.sweep and args.repeat):
        raise UsageError(
            "--sweep and --repeat measure times: use one of them, without --nsys or --view."
        )
    if args.twin and benchmark.twin(args.twin).wrong_data:
        raise UsageError(f"{args.twin} ends without figures: there is nothing to compare.")
    if args.sweep:
        _check_sweep(args, benchmark)
    elif not args.repeat.isdecimal() or int(args.repeat) < 2:
        raise UsageError(f"--repeat {args.repeat!r} is not a number of at least 2.")
    _ranks.prepare_series(args, benchmark)
    kind, measure = ("sweep", _sweep) if args.sweep else ("repeat", _repeat)
    folder = folders.prepare(args.out, f"{benchmark.name}-{kind}", force=args.force)
    with _on_record(folder, f"{kind} {args.sweep or args.repeat}", benchmark.name, args.twin):
        measure(args, benchmark, job, folder, display)
    return 0


def parse_sweep(text: str) -> tuple[str, tuple[str, ...]]:
    """Read ``OPTION=V,V,...``: the name without dashes, and the values.

    Raises
    ------
    UsageError
        It is not of that form, names no two values, or one twice.
    """
    name, equals, rest = text.partition("=")
    values = tuple(value.strip() for value in rest.split(","))
    if not name.strip("-") or not equals or not all(values):
        raise UsageError(f"--sweep {text!r} is not understood: write it like --sweep size=16M,64M.")
    if len(values) < 2 or len(set(values)) < len(values):
        raise UsageError(f"--sweep {text!r} must name two or more values, each once.")
    return name.strip("-"), values


def _sweep(
    args: argparse.Namespace,
    benchmark: Benchmark,
    job: Job,
    folder: RunFolder,
    display: Display,
) -> None:
    option, values = parse_sweep(args.sweep)
    over_ranks = _over_ranks(option, benchmark)
    rows: list[tuple[str, Mapping[str, Any]]] = []
    first: Path | None = None
    with _kept_if_measured(folder, display):
        for value in values:
            display.say(f"{option} {value}")
            name = re.sub(r"[^0-9A-Za-z._-]", "_", value)
            if over_ranks:
                ranked = argparse.Namespace(**{**vars(args), "ranks": int(value)})
                rows.append((value, _measure(ranked, job, folder, name, display, plan=first)))
                first = first or folder.path / f"{name}.json"  # all do what it was calibrated to
            else:
                more = dataclasses.replace(job, options=(*job.options, f"--{option}={value}"))
                rows.append((value, _measure(args, more, folder, name, display)))
    _write_series(folder, "sweep", option, benchmark, rows)
    _write_plot(folder.path / "sweep.html", option, rows)
    _show_series(args, folder, "sweep", lambda: _series_table(option, rows))
    display.say_wrote(folder.path)
    if void := find_void({f"{option} {value}": result for value, result in rows}):
        raise void


def _over_ranks(option: str, benchmark: Benchmark) -> bool:
    """Whether a sweep is over the number of ranks."""
    return option == RANKS and benchmark.ranks


def _check_sweep(args: argparse.Namespace, benchmark: Benchmark) -> None:
    """Check all values of a sweep before anything is run."""
    option, values = parse_sweep(args.sweep)
    for value in values:
        if _over_ranks(option, benchmark):
            _check_ranks(args, value)
        else:
            _check_value(benchmark, option, value)


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


def _repeat(
    args: argparse.Namespace,
    benchmark: Benchmark,
    job: Job,
    folder: RunFolder,
    display: Display,
) -> None:
    rows: list[tuple[str, Mapping[str, Any]]] = []
    first: Path | None = None
    with _kept_if_measured(folder, display):
        for number in range(1, int(args.repeat) + 1):
            display.say(f"process {number} of {args.repeat}")
            name = str(number)
            rows.append((name, _measure(args, job, folder, name, display, plan=first)))
            first = first or folder.path / f"{name}.json"  # all do what it was calibrated to
    _write_series(folder, "repeat", "process", benchmark, rows)
    spreads = _spreads([result for _, result in rows])
    _show_series(args, folder, "repeat", lambda: _repeat_table(spreads))
    display.say_wrote(folder.path)
    if void := find_void({f"process {number}": result for number, result in rows}):
        raise void
    far = [name for name, (_, _, _, ratio) in spreads.items() if ratio > REPEATABLE_RATIO]
    if far:
        raise GateError(
            f"fresh processes do not agree: the medians of {', '.join(far)} are more than "
            f"{REPEATABLE_RATIO:.0%} apart. Is something else using the machine?"
        )


@contextlib.contextmanager
def _on_record(
    folder: RunFolder, series: str, benchmark: str | None = None, twin: str | None = None
) -> Iterator[None]:
    """Write the ``run.json`` by which `gpuscope runs` lists many runs, however they end."""
    from gpuscope.model import codec
    from gpuscope.recording import history

    def save(exit_code: int) -> None:
        record = history.make_record(benchmark, twin, command=None)
        content = {**record, "series": series, "exit_code": exit_code}
        folder.write_json(folder.run, codec.dumps(content))

    try:
        yield
    except (GpuscopeError, KeyboardInterrupt) as error:
        if folder.path.is_dir():
            with contextlib.suppress(OutputError):  # the first error is the one to tell
                save(exit_code_of(error))
        raise
    save(0)


@contextlib.contextmanager
def _kept_if_measured(folder: RunFolder, display: Display) -> Iterator[None]:
    """Where the runs end early, keep the folder only with results in it, and say where they are."""
    try:
        yield
    except (GpuscopeError, KeyboardInterrupt):
        if not folder.remove_if_empty():
            display.say(f"what was measured before is in {folder.path}")
        raise


def _measure(
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


def _spreads(results: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, int, int, float]]:
    """Return for each pass the median, least and largest of the medians, and how far apart."""
    spreads = {}
    for name in results[0]["passes"]:
        medians = [result["passes"][name]["median_ns"] for result in results]
        middle = statistics.median(medians)
        ratio = (max(medians) - min(medians)) / middle
        spreads[name] = (middle, min(medians), max(medians), ratio)
    return spreads


# ── all benchmarks ───────────────────────────────────────────────────────────────────────────────


def check_all(args: argparse.Namespace) -> None:
    """Refuse what does not go with --all.

    Raises
    ------
    UsageError
        Something of it is given.
    """
    if args.target or args.sweep or args.repeat or args.twin or args.view:
        raise UsageError("--all takes no name, no --twin, --sweep, --repeat or --view.")
    if args.ranks is not None:
        raise UsageError("--all runs the benchmarks for one GPU: leave --ranks out.")


def run_all(
    args: argparse.Namespace, run_one: Callable[[str, RunFolder], Outcome], display: Display
) -> int:
    """Run every benchmark for one GPU, and print what the machine reached in one table.

    One that fails does not keep the others from running; the first failure is raised at the end.
    """
    from gpuscope.recording import folder as folders

    folder = folders.prepare(args.out, "all", force=args.force)
    with _on_record(folder, "all"):
        _run_each(args, run_one, folder, display)
    return 0


def _run_each(
    args: argparse.Namespace,
    run_one: Callable[[str, RunFolder], Outcome],
    folder: RunFolder,
    display: Display,
) -> None:
    from gpuscope.benchmarks import BENCHMARKS
    from gpuscope.model import codec
    from gpuscope.recording import folder as folders

    results: dict[str, Mapping[str, Any]] = {}
    verdicts: dict[str, str] = {}
    failures: list[GpuscopeError] = []
    with _kept_if_measured(folder, display):
        for benchmark in BENCHMARKS:
            if benchmark.needs != "1 GPU":
                continue
            display.say(benchmark.name)
            part = folders.prepare(folder.path / benchmark.name, benchmark.name, force=args.force)
            try:
                outcome = run_one(benchmark.name, part)
            except GpuscopeError as error:
                display.say(str(error))
                failures.append(error)
                verdicts[benchmark.name] = "failed"
                continue
            if outcome.exit_code == INTERRUPTED:
                raise KeyboardInterrupt
            if outcome.failure:
                failures.append(outcome.failure)
            verdicts[benchmark.name] = _verdict(outcome)
            if outcome.untraced is not None:
                results[benchmark.name] = outcome.untraced
        if not results:
            raise failures[0]
    content = {
        "schema_version": 1,
        "verdicts": verdicts,
        "valid": {name: result["valid"] for name, result in results.items()},
        "quantities": {name: result["quantities"] for name, result in results.items()},
        "machine": next((result["machine"] for result in results.values()), None),
    }
    file = folder.path / "all.json"
    folder.write_json(file, codec.dumps(content))
    _show_series(args, folder, "all", lambda: _all_table(results, verdicts))
    display.say_wrote(folder.path)
    if failures:
        raise failures[0]


def _verdict(outcome: Outcome) -> str:
    """Say in a word or two how a run among all came out."""
    void = "" if outcome.untraced is None or outcome.untraced["valid"] else f", times {MARK}"
    if outcome.judgement is None:
        failed = outcome.failure is not None and outcome.exit_code != CannotJudgeError.exit_code
        return f"{'failed' if failed else 'not traced'}{void}"
    rows = outcome.judgement.rows
    met = sum(row.met is True for row in rows)
    return f"{met} of {len(rows)} as expected{void}"


# ── writing and showing ──────────────────────────────────────────────────────────────────────────


def _write_series(
    folder: RunFolder, name: str, option: str, benchmark: Benchmark, rows: Rows
) -> None:
    """Write NAME.json, all results whole, and NAME.csv, a line a run."""
    from gpuscope.model import codec

    content = {
        "schema_version": 1,
        "benchmark": benchmark.name,
        "option": option,
        "runs": [{"value": value, "result": result} for value, result in rows],
    }
    folder.write_json(folder.path / f"{name}.json", codec.dumps(content))
    folder.write_json(folder.path / f"{name}.csv", series_csv(option, rows))


def series_csv(option: str, rows: Rows) -> str:
    """Return a line a run: the value, times of each pass, stages, and figures, with all digits."""
    lines = []
    scaled = scaling(rows) if option == RANKS else None
    for at, (value, result) in enumerate(rows):
        line: dict[str, Any] = {option: value, "valid": result["valid"]}
        for name, times in result["passes"].items():
            for key in ("median_ns", "p10_ns", "p90_ns"):
                line[f"{name}_{key}"] = times[key]
        if scaled:
            line["scaling"], line["efficiency"] = scaled[at]
        lines.append({**line, **result["stages"], **result["figures"]})
    keys = list(dict.fromkeys(key for line in lines for key in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _write_plot(path: Path, option: str, rows: Rows) -> None:
    """Write the plot as a page of its own, which needs no network."""
    from gpuscope.figures.palette import LIGHT
    from gpuscope.figures.sweep import sweep_figure

    sweep_figure(option, rows, LIGHT).write_html(path)


def _show_series(
    args: argparse.Namespace, folder: RunFolder, name: str, table: Callable[[], Table]
) -> None:
    """Print the table, or with --json the file of all results."""
    if args.json:
        sys.stdout.write((folder.path / f"{name}.json").read_text(encoding="utf-8"))
    else:
        stdout_console().print(table())


def _make_table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def _series_table(option: str, rows: Rows) -> Table:
    """Return a line a run; of a benchmark without a speed-up, a line a quantity instead."""
    from gpuscope.units import format_ns

    if not any("speedup" in result["figures"] for _, result in rows):
        return _quantities_table(option, rows)
    passes = list(rows[0][1]["passes"])
    table = _make_table("untraced", option, *passes, "speed-up", "possible", "kernel / copy")
    for value, result in rows:
        figures = result["figures"]
        shown = [figures.get(key) for key in ("speedup", "speedup_max", "kernel_copy_ratio")]
        table.add_row(
            value if result["valid"] else f"{value} ({MARK})",
            *(format_ns(result["passes"][name]["median_ns"]) for name in passes),
            *("–" if number is None else f"{number:.2f}" for number in shown),
        )
    return table


def _quantities_table(option: str, rows: Rows) -> Table:
    """Return a line for each quantity that any of the runs has, and a column a run."""
    from gpuscope.benchmarks import quantity_row

    titles = [
        f"{option} {value}{'' if result['valid'] else f' ({MARK})'}" for value, result in rows
    ]
    table = _make_table("untraced", "quantity", *titles)
    found = [
        {each["name"]: quantity_row(each)[1] for each in result["quantities"]} for _, result in rows
    ]
    for name in dict.fromkeys(name for each in found for name in each):
        table.add_row(name, *(each.get(name, "–") for each in found))
    return table


def _repeat_table(spreads: Mapping[str, tuple[float, int, int, float]]) -> Table:
    from gpuscope.units import format_ns, format_ratio

    table = _make_table("medians of fresh processes", "pass", "median", "least", "largest", "apart")
    for name, (middle, least, largest, ratio) in spreads.items():
        times = (format_ns(each) for each in (middle, least, largest))
        table.add_row(name, *times, format_ratio(ratio))
    return table


def machine_title(machine: Mapping[str, Any]) -> str:
    """Name the GPU and its driver, as far as they are known."""
    driver = machine.get("driver")
    return (machine.get("gpu") or "no GPU") + (f", driver {driver}" if driver else "")


def _all_table(results: Mapping[str, Mapping[str, Any]], verdicts: Mapping[str, str]) -> Table:
    from gpuscope.benchmarks import quantity_row

    machine: Mapping[str, Any] = next((each["machine"] for each in results.values()), {})
    table = _make_table(
        machine_title(machine), "quantity", "value", "limit", "reached", "limit from"
    )
    for name, verdict in verdicts.items():
        table.add_row(f"[bold]{name}[/bold]: {verdict}", "", "", "", "")
        for quantity in results[name]["quantities"] if name in results else ():
            label, *cells = quantity_row(quantity)
            table.add_row(f"  {label}", *cells)
    return table
