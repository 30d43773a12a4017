"""Measure the overlap in traces: figures, verdicts and causes.

A trace is a SQLite export of Nsight Systems, a .nsys-rep report (exported once, by the installed
nsys, into the cache folder) or a run folder of `gpuscope run`.

For example:

  gpuscope analyze trace.sqlite                       a table for people
  gpuscope analyze trace.sqlite --json                every figure, exact, for programs
  gpuscope analyze report.nsys-rep --range 'stream*'  some NVTX ranges only
  gpuscope analyze trace.sqlite --path '*/streamed'   ranges by their nesting
  gpuscope analyze trace.sqlite --window 0.1:0.3      0.1 s to 0.3 s after the first operation
  gpuscope analyze trace.sqlite --top 10              where most time could still be hidden

Several traces in one call are taken for the ranks of one run where they fit together: then the
figures of communication kernels keep transfer and waiting apart.

Exits with 0 whatever the verdicts are, and with 5 where a range asked for, or any GPU work, is not
in the trace.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.cli._options import (
    add_attribute_option,
    add_cache_option,
    add_class_option,
    add_domain_option,
    add_range_option,
    add_repeatable,
    add_traces,
    progress_bar,
    stdout_console,
    suggest,
)
from gpuscope.errors import CannotJudgeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuscope.analysis import Options
    from gpuscope.model.classes import ClassRule
    from gpuscope.model.result import Analysis
    from gpuscope.model.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope analyze`."""
    add_traces(parser, "trace or run folder")
    what = parser.add_argument_group("what to measure")
    add_range_option(what)
    add_repeatable(
        what,
        "--path",
        "A/B",
        "only the ranges nested like this, reported by path; a glob's * crosses / too",
    )
    add_domain_option(what)
    add_repeatable(
        what, "--category", "NAME", "only ranges of this NVTX category, by number, name or glob"
    )
    what.add_argument(
        "--window",
        metavar="START:END",
        help="clip the whole-trace figures: seconds from the first operation, "
        "or 'NUMBERns' on the trace's own clock",
    )
    add_attribute_option(what)
    what.add_argument(
        "--instances",
        action="store_true",
        help="each instance's and message's figures too (with --json)",
    )
    add_repeatable(what, "--only", "ANALYZER", "run only this analyzer")
    add_class_option(what)
    add_cache_option(parser)
    how = parser.add_argument_group("how to show it")
    form = how.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all figures, exact, as JSON")
    form.add_argument("--csv", action="store_true", help="one row a pair, exact")
    form.add_argument("--markdown", action="store_true", help="tables for a pull request")
    form.add_argument(
        "--show-classes", action="store_true", help="which rule took which kernel, and stop"
    )
    how.add_argument(
        "--top", type=int, metavar="N", help="the N scopes with most time that could be hidden"
    )


def run(args: argparse.Namespace) -> int:
    """Analyze and print."""
    from gpuscope import api
    from gpuscope.analysis import chosen
    from gpuscope.analyzers import ANALYZERS
    from gpuscope.model.classes import user_rules

    if args.top is not None and args.top < 1:
        msg = f"--top takes a number of scopes from 1, not {args.top}."
        raise UsageError(msg)
    if args.top is not None and args.json:
        msg = "--top is for tables: the JSON always holds all scopes."
        raise UsageError(msg)
    narrowed = args.path or args.range or args.domain or args.category or args.window
    if args.show_classes and narrowed:
        msg = "--show-classes lists the kernels of the whole trace: leave out what narrows it."
        raise UsageError(msg)
    if args.path and args.range:
        msg = "--range and --path exclude each other: a path names its ranges already."
        raise UsageError(msg)
    unknown = set(args.only) - {analyzer.name for analyzer in ANALYZERS}
    if unknown:
        msg = f"there is no analyzer {min(unknown)!r}: `gpuscope list` names them."
        raise UsageError(msg)
    analyzers = chosen(ANALYZERS, args.only)
    if (args.range or args.path) and [analyzer.name for analyzer in analyzers] == ["overlap"]:
        msg = "--only overlap measures whole devices: for ranges add --only ranges."
        raise UsageError(msg)
    rules = user_rules(args.class_rules)
    cached = not args.no_cache
    paths = api.of_ranks(args.trace)
    with progress_bar() as progress:
        if args.show_classes:
            for path in paths:
                _show_classes(api.open_trace(path, rules, analyzers, progress), rules)
            return 0
        request = api.Request(_options(args), args.window, tuple(rules), analyzers)
        analyses = api.analyze(paths, request, progress, use_cache=cached)
    _print(args, analyses)
    _check_found(args, paths, analyses)
    return 0


def _options(args: argparse.Namespace) -> Options:
    from gpuscope.analysis import Options

    return Options(
        ranges=tuple(args.path or args.range),
        domains=tuple(args.domain),
        categories=tuple(args.category),
        by_path=bool(args.path),
        attribute=args.attribute,
        instances=args.instances,
    )


def _print(args: argparse.Namespace, analyses: Sequence[Analysis]) -> None:
    from gpuscope import api
    from gpuscope.model import codec
    from gpuscope.report import table

    if args.json:
        sys.stdout.write(codec.dumps(api.answer(args.trace, analyses)))
    elif args.csv:
        sys.stdout.write(table.to_csv(analyses, args.top))
    elif args.markdown:
        sys.stdout.write(table.to_markdown(analyses, args.top))
    else:
        from gpuscope.report import phases, ranks
        from gpuscope.report.text import render_analysis

        console = stdout_console()
        for analysis in analyses:
            render_analysis(analysis, console, args.top)
        if analyses[0].apart:
            console.print(f"note: {analyses[0].apart}", markup=False, highlight=False)
        elif ranks.are_ranks(analyses):
            ranks.render(analyses, None, console)
        phases.render(analyses, _result_beside(analyses[0].trace.path), console)
        suggest(analyses, args.trace)


def _result_beside(trace: str) -> Mapping[str, Any] | None:
    """Return the result of the benchmark whose run a trace is of, if it lies in its folder."""
    from gpuscope.recording.folder import RunFolder, read_result

    folder = RunFolder(Path(trace).parent)
    is_its_trace = Path(trace).name in {folder.sqlite.name, folder.report.name}
    return read_result(folder.traced) if is_its_trace and folder.traced.is_file() else None


def _check_found(
    args: argparse.Namespace, paths: Sequence[Path], analyses: Sequence[Analysis]
) -> None:
    """Exit with "cannot judge" where what was asked for is not there."""
    from gpuscope import api
    from gpuscope.analysis import chosen
    from gpuscope.analyzers import ANALYZERS
    from gpuscope.scopes import did_you_mean, matches
    from gpuscope.units import format_ns

    names = {analyzer.name for analyzer in chosen(ANALYZERS, args.only)}
    measured_ranges = "ranges" in names
    measured_devices = "overlap" in names

    for path, analysis in zip(paths, analyses, strict=True):
        if not analysis.trace.operations:
            msg = (
                f"{analysis.trace.path} holds no GPU work: record with CUDA tracing (-t cuda), and "
                "make sure that the captured part launches something."
            )
            raise CannotJudgeError(msg)
        if args.window and measured_devices and not analysis.devices:
            msg = (
                f"no GPU work of {analysis.trace.path} lies in the window {args.window!r}: the "
                "GPU is idle then, or it is outside the "
                f"{format_ns(analysis.trace.duration_ns)} from the first operation to the last."
            )
            raise CannotJudgeError(msg)
        for pattern in (args.path or args.range) if measured_ranges else ():
            if not any(matches(entry.path or entry.name, [pattern]) for entry in analysis.ranges):
                whose, more = (
                    " on its own thread",
                    ("; with --attribute process the launches of other threads count too"),
                )
                if args.attribute == "process":
                    whose = more = ""
                hint = "" if args.path else did_you_mean(api.open_trace(path), pattern)
                msg = (
                    f"no range {pattern!r} in {analysis.trace.path} launched GPU work{whose}: "
                    f"`gpuscope analyze TRACE` lists the ranges that did{more}{hint or '.'}"
                )
                raise CannotJudgeError(msg)
        if (args.domain or args.category) and measured_ranges and not analysis.ranges:
            msg = (
                f"no range of the domains and categories asked for launched GPU work in "
                f"{analysis.trace.path}: leave out --domain and --category to see all ranges."
            )
            raise CannotJudgeError(msg)


def _show_classes(trace: Trace, rules: Sequence[ClassRule]) -> None:
    """Print every kernel name with its class and the rule that gave it."""
    import numpy as np

    from gpuscope.model.classes import CLASSES, built_in_rules, rule_for
    from gpuscope.readers import settings
    from gpuscope.units import printable

    every = (*rules, *settings.class_rules(), *built_in_rules())
    kernels = trace.rows_of("kernel", "comm", "fused", "gate")
    names, first, counts = np.unique(kernels.name, return_index=True, return_counts=True)
    for name, row, count in zip(names.tolist(), first.tolist(), counts.tolist(), strict=True):
        text = trace.strings[name]
        rule = rule_for(text, every)
        op_class = CLASSES[int(kernels.op_class[row])]
        why = f"{rule.source} rule {rule.pattern}" if rule else "no rule: a plain kernel"
        print(f"{op_class:<7} {count:>8} ×  {printable(text, 80)}  ({why})")
