"""What `gpuscope run` does when it runs a benchmark more than once, or all of them."""

from __future__ import annotations

import argparse
import contextlib
import statistics
from typing import TYPE_CHECKING, Any, Protocol

from gpuscope.cli import _series
from gpuscope.cli._void import MARK
from gpuscope.errors import (
    INTERRUPTED,
    CannotJudgeError,
    GateError,
    GpuscopeError,
    OutputError,
    UsageError,
    exit_code_of,
)

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
    from gpuscope.cli import _ranks, _sweep
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
        _sweep.check(args, benchmark)
    elif not args.repeat.isdecimal() or int(args.repeat) < 2:
        raise UsageError(f"--repeat {args.repeat!r} is not a number of at least 2.")
    _ranks.prepare_series(args, benchmark)
    kind, measure = ("sweep", _sweep.run) if args.sweep else ("repeat", _repeat)
    folder = folders.prepare(args.out, f"{benchmark.name}-{kind}", force=args.force)
    values = " ".join(args.sweep or [args.repeat])
    with _on_record(folder, f"{kind} {values}", benchmark.name, args.twin):
        measure(args, benchmark, job, folder, display)
    return 0


def _repeat(
    args: argparse.Namespace,
    benchmark: Benchmark,
    job: Job,
    folder: RunFolder,
    display: Display,
) -> None:
    rows: list[tuple[tuple[str], Mapping[str, Any]]] = []
    first: Path | None = None
    with _series.kept_if_measured(folder, display):
        for number in range(1, int(args.repeat) + 1):
            display.say(f"process {number} of {args.repeat}")
            name = str(number)
            result = _series.measure(args, job, folder, name, display, first)
            rows.append(((name,), result))
            first = first or folder.path / f"{name}.json"  # all do what it was calibrated to
    spreads = _spreads([result for _, result in rows])
    series = _series.Series("repeat", ("process",), benchmark, rows)
    _series.finish(args, folder, series, lambda: _repeat_table(spreads), display)
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

    folder.forget_replaced()  # a series replaces file by file
    try:
        yield
    except (GpuscopeError, KeyboardInterrupt) as error:
        if folder.path.is_dir():
            with contextlib.suppress(OutputError):  # the first error is the one to tell
                save(exit_code_of(error))
        raise
    save(0)


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
        Something of it is given, or this process is one of several ranks.
    """
    from gpuscope.recording.ranks import membership

    if args.target or args.sweep or args.repeat or args.twin or args.view:
        raise UsageError("--all takes no name, no --twin, --sweep, --repeat or --view.")
    if args.ranks is not None:
        raise UsageError("--all runs the benchmarks for one GPU: leave --ranks out.")
    if membership() is not None:
        raise UsageError("--all runs the benchmarks for one GPU: leave mpirun, or srun, out.")


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
    with _series.kept_if_measured(folder, display):
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
    _series.show(args, folder, "all", lambda: _all_table(results, verdicts))
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


def _repeat_table(spreads: Mapping[str, tuple[float, int, int, float]]) -> Table:
    from gpuscope.units import format_ns, format_ratio

    table = _series.make_table(
        "medians of fresh processes", "pass", "median", "least", "largest", "apart"
    )
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
    table = _series.make_table(
        machine_title(machine), "quantity", "value", "limit", "reached", "limit from"
    )
    for name, verdict in verdicts.items():
        table.add_row(f"[bold]{name}[/bold]: {verdict}", "", "", "", "")
        for quantity in results[name]["quantities"] if name in results else ():
            label, *cells = quantity_row(quantity)
            table.add_row(f"  {label}", *cells)
    return table
