"""Show a trace or a run in the browser.

The page is served on this machine alone, needs no network, and never writes to the trace.

For example:

  gpuscope view trace.sqlite
  gpuscope view report.nsys-rep         exported once by the installed nsys, into the cache folder
  gpuscope view runs/streams-20261130-120000
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuscope.cli._options import add_page_options, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope view`."""
    parser.add_argument("trace", type=Path, metavar="TRACE", help="trace, report or run folder")
    add_page_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    return show(args.trace, args)


def show(path: Path, args: argparse.Namespace) -> int:
    """Serve the page of the trace at `path`; `args` has the page's options."""
    from gpuscope import api

    trace = api.open_trace(path)
    if trace.duration_ns > 0 and trace.operations is not None and len(trace.operations) > 500_000:
        say(f"Laying out {len(trace.operations):,} operations …")

    from gpuscope.app.server import serve
    from gpuscope.app.state import Session

    session = Session(trace, api.run_limits(path))
    serve(session, host=args.host, port=args.port, browser=not args.no_browser, say=say)
    return 0
