"""Write a report about traces: one HTML file with an interactive timeline, or markdown.

The HTML file opens anywhere, without gpuscope, a server or a network. It has the verdicts, the
causes, the overlap of each pair and the timeline: of a large trace at reduced detail, so that it
stays under 5 MB. Markdown is for a pull request.

For example:

  gpuscope report trace.sqlite -o report.html
  gpuscope report rank0.sqlite rank1.sqlite -o report.html
  gpuscope report runs/streams-20261130-120000 --format md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpuscope.cli._options import add_cache_option, progress_bar, say
from gpuscope.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope report`."""
    parser.add_argument(
        "trace", nargs="+", type=Path, metavar="TRACE", help="trace, report or run folder"
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="where to write (markdown: default stdout)"
    )
    parser.add_argument(
        "--format", choices=("html", "md"), default="html", help="what to write (default: html)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    add_cache_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write the report."""
    if args.format == "html" and args.out is None:
        msg = "an HTML report needs a place: add -o report.html, or take --format md."
        raise UsageError(msg)
    if args.out is not None and args.out.exists() and not args.force:
        msg = f"{args.out} exists: choose another name, or overwrite it with --force."
        raise UsageError(msg)
    text = _markdown(args) if args.format == "md" else _html(args)
    if args.out is None:
        sys.stdout.write(text)
        return 0
    args.out.write_text(text, "utf-8")
    say(f"Wrote {args.out}")
    return 0


def _markdown(args: argparse.Namespace) -> str:
    from gpuscope import api
    from gpuscope.report import table

    with progress_bar() as progress:
        analyses = api.analyze_files(
            args.trace, api.Request(), progress, use_cache=not args.no_cache
        )
    return table.to_markdown(analyses.traces)


def _html(args: argparse.Namespace) -> str:
    from gpuscope import api
    from gpuscope.app import report
    from gpuscope.app.state import Session

    with progress_bar() as progress:
        traces = [
            api.open_trace(path, progress=progress, use_cache=not args.no_cache)
            for path in args.trace
        ]
        limits = [api.run_limits(path) for path in args.trace]
        return report.write(Session(traces, limits, progress))
