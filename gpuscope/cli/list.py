"""List the benchmarks, with their options, twins and needs, the analyzers, and the shipped traces.

A twin is a variant of a benchmark that must come out differently: because the verdict tells the two
apart, it can be believed.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuscope.analysis import Analyzer
    from gpuscope.benchmarks import Benchmark


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope list`."""
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(args: argparse.Namespace) -> int:
    """Print the registries."""
    from gpuscope import samples
    from gpuscope.analyzers import ANALYZERS
    from gpuscope.benchmarks import BENCHMARKS

    shows = {name: facts["shows"] for name, facts in samples.manifest().items()}
    if args.json:
        from gpuscope.model import codec

        content = {
            "schema_version": 1,
            "benchmarks": [_as_object(benchmark) for benchmark in BENCHMARKS],
            "analyzers": [{"name": one.name, "summary": one.summary} for one in ANALYZERS],
            "traces": [{"name": name, "shows": text} for name, text in shows.items()],
        }
        sys.stdout.write(codec.dumps(content))
    else:
        sys.stdout.write(_as_text(BENCHMARKS, ANALYZERS, shows))
    return 0


def _as_object(benchmark: Benchmark) -> dict[str, object]:
    return {
        "name": benchmark.name,
        "summary": benchmark.summary,
        "options": benchmark.options,
        "needs": benchmark.needs,
        "twins": [
            {"name": twin.name, "summary": twin.summary, "expectation": twin.expectation}
            for twin in benchmark.twins
        ],
    }


def _as_text(
    benchmarks: tuple[Benchmark, ...], analyzers: tuple[Analyzer, ...], shows: Mapping[str, str]
) -> str:
    lines = ["benchmarks: gpuscope run --nsys NAME [options] [--twin TWIN]", ""]
    for benchmark in benchmarks:
        lines += [
            f"  {benchmark.name}  {benchmark.summary}",
            f"    needs    {benchmark.needs}",
            f"    options  {benchmark.options}",
        ]
        width = max((len(twin.name) for twin in benchmark.twins), default=0)
        for place, twin in enumerate(benchmark.twins):
            label = "twins" if place == 0 else ""
            lines.append(f"    {label:<7}  {twin.name:<{width}}  {twin.summary}")
            lines.append(f"    {'':<7}  {'':<{width}}  must be: {twin.expectation}")
        lines.append("")
    width = max(len(analyzer.name) for analyzer in analyzers)
    lines += ["analyzers: gpuscope analyze TRACE", ""]
    lines += [f"  {analyzer.name:<{width}}  {analyzer.summary}" for analyzer in analyzers]
    width = max(map(len, shows))
    lines += ["", "shipped traces: gpuscope demo NAME", ""]
    lines += [f"  {name:<{width}}  {text}" for name, text in shows.items()]
    return "\n".join(lines) + "\n"
