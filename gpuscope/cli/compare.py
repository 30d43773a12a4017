"""Say what changed between two runs, and what is only noise.

For example:

  gpuscope compare before.sqlite after.sqlite
  gpuscope compare last~1 last                      the latest two runs in the folder `runs`
  gpuscope compare a1.sqlite a2.sqlite a3.sqlite --with b1.sqlite b2.sqlite b3.sqlite
  gpuscope compare runs/before runs/after           folders that hold repetitions of a run each
  gpuscope compare before.sqlite after.sqlite --path '*/streamed'
  gpuscope compare last~1 last --view --align '*/streamed'    both timelines on one clock

Runs of several ranks are compared rank by rank.
Ranges are matched by path, operations by name and occurrence. Every figure is the median over the
instances; its difference is given with a 95 % interval, and called noise where the spread of the
instances explains it. Five instances on each side, better more, are needed for that. Exits with 0
whatever changed, with 5 where the two have nothing in common. To fail a build, use
`gpuscope verify`.
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli._options import (
    add_cache_option,
    add_class_option,
    add_page_options,
    add_repeatable,
    add_traces,
    progress_bar,
    serve_page,
    stdout_console,
    trace_path,
)
from gpuscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuscope.model.comparison import Comparison
    from gpuscope.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope compare`."""
    add_traces(parser, "before and after, or see --with")
    parser.add_argument(
        "--with",
        dest="after",
        nargs="+",
        type=trace_path,
        default=[],
        metavar="TRACE",
        help="repetitions after; those before stand in front of it",
    )
    add_repeatable(
        parser, "--path", "A/B", "only the ranges nested like this; a glob's * crosses / too"
    )
    add_class_option(parser)
    add_cache_option(parser)
    page = parser.add_argument_group("both timelines on one page")
    page.add_argument("--view", action="store_true", help="open the page afterwards")
    page.add_argument(
        "--align",
        metavar="A/B",
        help="put the first instances of this range, a path or glob, at one time (default: the "
        "first range that changed, else the first operations); with repetitions, of the first",
    )
    add_page_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every figure, exact, as JSON")
    form.add_argument("--markdown", action="store_true", help="tables for a pull request")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    before, after = args.trace, args.after
    if not after:
        if len(before) != 2:
            msg = "give two traces, or the repetitions after the change behind --with."
            raise UsageError(msg)
        before, after = before[:1], before[1:]
    if args.align and not args.view:
        msg = "--align is for the page: give --view too."
        raise UsageError(msg)
    from gpuscope import api
    from gpuscope.model import codec
    from gpuscope.model.classes import user_rules
    from gpuscope.report import compare

    runs = api.all_repetitions(before), api.all_repetitions(after)
    of_ranks = any(map(api.is_of_ranks, chain(*runs)))
    with progress_bar() as progress:
        compared = [
            api.compare(
                *sides,
                paths=args.path,
                rules=user_rules(args.class_rules),
                progress=progress,
                use_cache=not args.no_cache,
            )
            for sides in api.by_rank(*runs)
        ]
    if args.json:
        sys.stdout.write(codec.dumps(compared if of_ranks else compared[0]))
    elif args.markdown:
        sys.stdout.write("\n".join(map(compare.to_markdown, compared)))
    else:
        for comparison in compared:
            compare.render_comparison(comparison, stdout_console())
    if args.view:
        _view(args, compared)
    return 0


def _view(args: argparse.Namespace, compared: Sequence[Comparison]) -> None:
    """Serve the page of the first run of each side, all its ranks, until Ctrl-C."""
    from gpuscope import api
    from gpuscope.app import state
    from gpuscope.figures.compare import align, labelled
    from gpuscope.model.trace import shown_name

    sides = [
        (side, Path(paths[0]))
        for comparison in compared
        for side, paths in (("before", comparison.before), ("after", comparison.after))
    ]
    at = args.align or next((each.first_changed for each in compared if each.first_changed), None)

    def load(progress: Progress) -> state.Session:
        traces = [
            labelled(api.open_trace(path, progress=progress), side, shown_name(path))
            for side, path in sides
        ]
        beside = [api.told_beside(path) for _, path in sides]
        return state.Session(traces, beside, progress, align(traces, at))

    serve_page(load, " and ".join(str(path) for _, path in sides), args)
