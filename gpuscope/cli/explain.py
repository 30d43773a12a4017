"""Tell why an operation, or the operations of a range, started when they did.

What each waited for is a line: its launching call, the operation before it in its stream, events,
the null stream, its copy engine, and what the launching thread did instead of launching it. The
last of them to be over is the reason of its start, with the time that it cost.

For example:

  gpuscope explain trace.sqlite                       every outermost range, the longest first
  gpuscope explain trace.sqlite --range 'stream*'     ranges of this name or glob
  gpuscope explain trace.sqlite --op 120              operation 120, as numbered in findings
  gpuscope explain trace.sqlite --op 1.5ms            what ran 1.5 ms after the first, or next
  gpuscope explain rank0.sqlite rank1.sqlite          of several ranks, one after the other
  gpuscope explain trace.sqlite --op 120 --json       the same for programs

Exits with 5 where the range or the operation is not in the trace.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from gpuscope.cli._options import (
    add_attribute_option,
    add_range_option,
    add_traces,
    clean,
    say_left_out,
    stdout_console,
)
from gpuscope.errors import CannotJudgeError, UsageError

if TYPE_CHECKING:
    from gpuscope.cases import Case
    from gpuscope.story import Explanation

MOST_RANGES = 4
"""Ranges that are told where none is named."""
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|\u00b5s|\u03bcs|ms|s)")
_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # the micro sign
    "\u03bcs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope explain`."""
    add_traces(parser, "trace, report or run folder; those of several ranks one after the other")
    add_range_option(parser)
    parser.add_argument(
        "--op",
        metavar="ID|TIME",
        help="one operation: its number, or a time after the first, such as 1.5ms (what ran then, "
        "or next)",
    )
    add_attribute_option(parser)
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(args: argparse.Namespace) -> int:
    """Read the trace and tell."""
    if args.op is not None and args.range:
        msg = "--op and --range exclude each other: an operation is in one place already."
        raise UsageError(msg)
    moment = None if args.op is None else _moment(args.op)
    from gpuscope import api
    from gpuscope.analysis import Options
    from gpuscope.cases import Case
    from gpuscope.model import codec
    from gpuscope.report.story import story_text
    from gpuscope.scopes import did_you_mean

    paths = api.of_ranks(args.trace)
    if moment is not None and len(paths) > 1:
        msg = f"--op is of one trace, and these are {len(paths)}: name its own, such as {paths[0]}."
        raise UsageError(msg)
    say_left_out(paths)
    options = Options(ranges=tuple(args.range), attribute=args.attribute)
    told, texts, hint = [], [], ""
    for trace in map(api.open_trace, paths):
        if not trace.operations:
            continue
        case = Case.of(trace, options)
        found = _ranges(case, args) if moment is None else _operation(case, args.op, *moment)
        if found is not None:
            told.append(found)
            heading = f"{clean(trace.path)}\n\n" if len(paths) > 1 else ""
            texts.append(heading + story_text(found, trace.origin_ns, stdout_console().width))
        elif args.range and not hint:
            hint = did_you_mean(trace, args.range[0])
    if not told:
        raise CannotJudgeError(_nothing(args, hint))
    if args.json:
        sys.stdout.write(codec.dumps(api.answer(args.trace, told)))
    else:
        sys.stdout.write("\n".join(texts))
    return 0


def _moment(text: str) -> tuple[int, bool]:
    """Return the number in ``--op``, and whether it is a time in ns."""
    if text.isdecimal():
        return int(text), False
    match = _TIME.fullmatch(text)
    if match is None:
        msg = f"--op {text!r} is neither the number of an operation nor a time such as 1.5ms."
        raise UsageError(msg)
    return round(float(match[1]) * _UNIT_NS[match[2]]), True


def _operation(case: Case, asked: str, number: int, is_time: bool) -> Explanation:
    from gpuscope.story import Explanation, operation_at, tell_operation
    from gpuscope.units import format_ns

    trace, count = case.trace, len(case.ops)
    found = operation_at(trace, trace.origin_ns + number) if is_time else number
    if is_time and found is None:
        msg = (
            f"nothing ran {asked} after the first operation of {trace.path}, nor later: the last "
            f"one ended after {format_ns(trace.duration_ns)}."
        )
        raise CannotJudgeError(msg)
    if found is None or found >= count:
        msg = f"there is no operation {asked} in {trace.path}: it has {count}, numbered from 0."
        raise CannotJudgeError(msg)
    later = int(case.ops.start_ns[found]) - trace.origin_ns - number if is_time else 0
    told = (tell_operation(case, found),)
    return Explanation(trace.path, told, (), 0, later if later > 0 else None)


def _nothing(args: argparse.Namespace, hint: str) -> str:
    """Say that nothing of what was asked for is there."""
    if args.range:
        return (
            f"no range {', '.join(map(repr, args.range))} with GPU work is in {_listed(args)}: "
            f"`gpuscope analyze TRACE` lists those that are{hint or '.'}"
        )
    return f"no GPU work is in {_listed(args)}: record it with -t cuda."


def _listed(args: argparse.Namespace) -> str:
    return ", ".join(str(path) for path in args.trace)


def _ranges(case: Case, args: argparse.Namespace) -> Explanation | None:
    """Return the story of the ranges, None where there is none of them."""
    from gpuscope.story import Explanation, tell_range

    regions = [r for r in case.levels[0] if r.name is not None or not args.range]
    if not regions:
        return None
    if not args.range:
        regions.sort(key=lambda region: -region.span_ns)
    told = regions if args.range else regions[:MOST_RANGES]
    return Explanation(
        case.trace.path,
        (),
        tuple(tell_range(case, region) for region in told),
        len(regions) - len(told),
    )
