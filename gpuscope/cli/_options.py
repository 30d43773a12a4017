"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that show the page."""
    page = parser.add_argument_group("the page")
    page.add_argument("--port", type=int, default=0, help="port to serve on (default: a free one)")
    page.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to serve on (default: 127.0.0.1, reachable from this machine only)",
    )
    page.add_argument("--no-browser", action="store_true", help="do not open a browser")


def say(text: str) -> None:
    """Tell the user something beside the product: on stderr."""
    print(text, file=sys.stderr, flush=True)
