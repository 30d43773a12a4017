"""Show a trace that is shipped with gpuscope in the browser: no GPU needed.

The default is the classic experiment, which `gpuscope run --nsys streams` recorded on an H200: the
same chunks copied, computed on and copied back, once one after the other and once on four streams.
"""

from __future__ import annotations

import argparse

from gpuscope.cli._options import add_page_options

DEFAULT_TRACE = "streams_run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope demo`."""
    parser.add_argument(
        "name",
        nargs="?",
        default=DEFAULT_TRACE,
        metavar="NAME",
        help=f"shipped trace to show (default: {DEFAULT_TRACE}; `gpuscope list` names all)",
    )
    add_page_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from gpuscope import samples
    from gpuscope.cli import view

    return view.show([samples.path(args.name)], args)
