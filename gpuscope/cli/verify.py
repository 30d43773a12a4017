"""Hold expectations against a trace: a test that fails when overlap is lost.

For example:

  gpuscope verify trace.sqlite --expect 'streamed: overlap(h2d, kernel) >= 0.6'
  gpuscope verify runs/streams-20261130-120000 --expect 'no pageable-copy in stream*'
  gpuscope verify --record good.sqlite -o budget.toml
  gpuscope verify trace.sqlite --budget budget.toml --junit gates.xml
  gpuscope verify --figures                            all figures, units, statistics and causes

Several traces in one call are the ranks of one run; with --record they are repetitions of it,
and the folder of a run stands for all of its ranks.
docs/gates.md has the grammar. Exits with 0 when all expectations are met, with 4 when one is not,
and with 5 when none fails but one cannot be judged: its range, class or table is not there, records
were lost, or the clock is too coarse. Under GitHub Actions each of these becomes an annotation.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli import _output
from gpuscope.cli._options import (
    add_cache_option,
    add_class_option,
    add_domain_option,
    add_repeatable,
    add_traces,
    progress_bar,
    say_next,
    stdout_console,
)
from gpuscope.errors import TraceError, UsageError

if TYPE_CHECKING:
    from gpuscope.gates.budget import Budget
    from gpuscope.model.gates import Verification


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope verify`."""
    add_traces(parser, "trace or run folder", "*")
    what = parser.add_argument_group("what must hold")
    add_repeatable(what, "--expect", "TEXT", "an expectation")
    what.add_argument("--budget", type=Path, metavar="FILE", help="a TOML file of expectations")
    what.add_argument(
        "--attribute",
        choices=("thread", "process"),
        help="whose launches inside a range's window belong to it (default: its thread's, and "
        "nothing is judged where other threads launched over 20 %% of the work)",
    )
    add_domain_option(what)
    what.add_argument(
        "--window",
        metavar="START:END",
        help="clip the whole trace: seconds from the first operation, or 'NUMBERns' on its clock",
    )
    add_class_option(what)
    add_cache_option(parser)
    what.add_argument("--figures", action="store_true", help="list what can be expected, and stop")
    record = parser.add_argument_group("proposing a budget")
    record.add_argument(
        "--record", action="store_true", help="propose the budget that these good runs meet"
    )
    record.add_argument(
        "--times", action="store_true", help="with spans and rates, for this kind of machine only"
    )
    record.add_argument("-o", "--out", type=Path, metavar="FILE", help="where the budget goes")
    record.add_argument("--force", action="store_true", help="replace the file")
    how = parser.add_argument_group("how to show it")
    form = how.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every scope and value, exact, as JSON")
    form.add_argument("--markdown", action="store_true", help="a table for a pull request")
    how.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML too")


def run(args: argparse.Namespace) -> int:
    """Judge and print, or record a budget."""
    if args.figures:
        _print_figures()
        return 0
    if not args.trace:
        msg = "name a trace or a run folder: gpuscope verify TRACE --expect TEXT"
        raise UsageError(msg)
    if args.record:
        return _record(args)
    if args.out is not None or args.times:
        msg = "-o and --times belong to --record, which proposes a budget."
        raise UsageError(msg)
    from gpuscope import api
    from gpuscope.gates.grammar import parse
    from gpuscope.gates.verify import CAUSES
    from gpuscope.model.classes import user_rules

    budget = _read_budget(args.budget)
    expectations = [parse(text, CAUSES) for text in args.expect]
    expectations += budget.expectations if budget else ()
    if not expectations:
        msg = "nothing is expected: give --expect TEXT or --budget FILE."
        raise UsageError(msg)
    if args.junit is not None:
        _output.check_free(args.junit, force=True)
    attribute = args.attribute or (budget.attribute if budget else None)
    with progress_bar() as progress:
        verification = api.verify(
            api.of_ranks(args.trace, complete=True),
            expectations,
            attribute=attribute,
            domains=args.domain,
            window=args.window,
            rules=user_rules(args.class_rules),
            progress=progress,
            use_cache=not args.no_cache,
        )
    _print(args, verification)
    return verification.exit_code


def _read_budget(path: Path | None) -> Budget | None:
    from gpuscope.gates.budget import read_budget

    if path is None:
        return None
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        msg = f"the budget {path} cannot be read: {reason}."
        raise TraceError(msg) from None
    return read_budget(text, str(path))


def _record(args: argparse.Namespace) -> int:
    from gpuscope import api
    from gpuscope.model.classes import user_rules

    judging = (args.expect, args.budget, args.junit, args.json, args.markdown)
    if any(judging) or args.domain or args.window:
        msg = "--record only proposes a budget: leave out what judges or narrows."
        raise UsageError(msg)
    if args.out is None:
        msg = "--record needs the file that the budget goes to: -o budget.toml"
        raise UsageError(msg)
    _output.check_free(args.out, args.force)
    text = api.propose_budget(
        args.trace, attribute=args.attribute, rules=user_rules(args.class_rules), times=args.times
    )
    _output.write(args.out, text)
    return 0


def _print(args: argparse.Namespace, verification: Verification) -> None:
    from gpuscope.model import codec
    from gpuscope.report import gates
    from gpuscope.report.next_steps import after_gates

    if args.json:
        sys.stdout.write(codec.dumps(verification))
    elif args.markdown:
        sys.stdout.write(gates.to_markdown(verification))
    else:
        gates.render_verification(verification, stdout_console())
        sys.stdout.flush()
        say_next(after_gates(verification, [str(path) for path in args.trace]))
    if args.junit is not None:
        _output.write(args.junit, gates.to_junit(verification))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        # The runner reads its commands from either stream; stdout is the product.
        sys.stdout.flush()
        sys.stderr.write(gates.to_annotations(verification))


def _print_figures() -> None:
    from gpuscope.gates import figures, grammar
    from gpuscope.gates.verify import CAUSES

    for figure in figures.FIGURES:
        form = f"{figure.name}({figure.takes})" if figure.takes else figure.name
        print(f"{form:<22} {figure.kind:<8} {figure.summary}")
    print()
    for kind, units in figures.UNITS.items():
        names = ", ".join(unit for unit in units if unit) or "–"
        words = ", ".join(grammar.VERDICTS) if kind == figures.VERDICT else f"units {names}"
        print(f"{kind:<22} {words}")
    print(f"{'classes':<22} {', '.join(grammar.CLASS_NAMES)}, or a link such as 0>1")
    print(f"{'statistics':<22} {', '.join(grammar.STATISTICS)}")
    print(f"{'causes':<22} {', '.join(CAUSES)}")
