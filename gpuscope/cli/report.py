"""Write a report about traces: one HTML file with an interactive timeline, or markdown.

The HTML file opens anywhere, without gpuscope, a server or a network. It has the verdicts, the
causes, the overlap of each pair and the timeline: of a large trace at reduced detail, so that it
stays under 5 MB. Markdown is for a pull request.

For example:

  gpuscope report trace.sqlite -o report.html
  gpuscope report rank0.sqlite rank1.sqlite -o report.html
  gpuscope report runs/streams-20261130-120000 --format md
  gpuscope report trace.sqlite -o report.md            markdown, by its name
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuscope.cli import _output
from gpuscope.cli._options import add_cache_option, add_traces, progress_bar
from gpuscope.errors import CannotJudgeError, UsageError

_FORMATS = {".md": "md", ".markdown": "md", ".html": "html", ".htm": "html"}
"""What a file is to hold, by the ending of its name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope report`."""
    add_traces(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write; - is stdout (markdown: default)",
    )
    parser.add_argument(
        "--format", choices=("html", "md"), help="what to write (default: by FILE's name, or html)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    add_cache_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write the report."""
    named = None if args.out is None else _FORMATS.get(args.out.suffix.lower())
    form = args.format or named or "html"
    if form == "html" and args.out is None:
        msg = "an HTML report needs a place: add -o report.html, or take --format md."
        raise UsageError(msg)
    if named not in {None, form}:
        msg = f"{args.out} is no name for --format {form}: change one of the two."
        raise UsageError(msg)
    out = args.out or _output.STDOUT
    _output.check_free(out, args.force)
    text, empty = _markdown(args) if form == "md" else _html(args)
    _output.write(out, text)
    if empty:
        raise CannotJudgeError(f"{empty[0]} holds no GPU work: there is nothing to report of it.")
    return 0


def _markdown(args: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the text, and the traces without GPU work."""
    from gpuscope import api
    from gpuscope.report import table

    with progress_bar() as progress:
        analyses = api.analyze(
            api.of_ranks(args.trace), api.Request(), progress, use_cache=not args.no_cache
        )
    empty = [each.trace.path for each in analyses if not each.trace.operations]
    return table.to_markdown(analyses), empty


def _html(args: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the page, and the traces without GPU work."""
    from gpuscope import api
    from gpuscope.app import report
    from gpuscope.app.state import Session

    paths = api.of_ranks(args.trace)
    with progress_bar() as progress:
        traces = [
            api.open_trace(path, progress=progress, use_cache=not args.no_cache) for path in paths
        ]
        beside = [api.told_beside(path) for path in paths]
        empty = [trace.path for trace in traces if not trace.operations]
        return report.write(Session(traces, beside, progress)), empty
