"""Show traces or runs in the browser, several together on one clock.

The page is served on this machine alone, needs no network, and never writes to the trace.

For example:

  gpuscope view trace.sqlite
  gpuscope view report.nsys-rep         exported once by the installed nsys, into the cache folder
  gpuscope view runs/streams-20261130-120000
  gpuscope view rank0.sqlite rank1.sqlite
  gpuscope view --port 8050 trace.sqlite    on a server: see it through ssh -L 8050:localhost:8050
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli._options import add_page_options, add_traces, serve_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuscope.app.state import Session
    from gpuscope.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope view`."""
    add_traces(parser)
    add_page_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    return show(args.trace, args)


def show(paths: Sequence[Path], args: argparse.Namespace) -> int:
    """Serve the page of the traces at `paths`; `args` has the page's options."""
    from gpuscope import api
    from gpuscope.app import state

    paths = api.of_ranks(paths)

    def load(progress: Progress) -> Session:
        traces = [api.open_trace(path, progress=progress) for path in paths]
        return state.Session(traces, [api.told_beside(path) for path in paths], progress)

    serve_page(load, ", ".join(str(api.find_trace(path)) for path in paths), args)
    return 0
