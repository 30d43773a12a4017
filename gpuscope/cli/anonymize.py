"""Copy a trace without anything private, to attach it to a bug report or to share it.

An export of Nsight Systems holds the whole environment, host and user names, command lines, every
process of the machine and the program's output. The copy holds what gpuscope analyzes and nothing
else: times, sizes, the names of kernels, CUDA and MPI calls and NVTX ranges, the model of the GPU,
versions. Its analysis is that of the original. Names of kernels and ranges are yours: look whether
they may be seen.

For example:

  gpuscope anonymize report.nsys-rep clean.sqlite
  gpuscope anonymize runs/of-four-ranks clean      all ranks, into a run folder
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuscope.cli._options import say, say_left_out, trace_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope anonymize`."""
    parser.add_argument(
        "trace", type=trace_path, metavar="TRACE", help="trace, report or run folder"
    )
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="the copy: a SQLite file, of several ranks a folder"
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT")


def run(args: argparse.Namespace) -> int:
    """Write the copy."""
    from gpuscope import api
    from gpuscope.model.trace import RUN_TRACES
    from gpuscope.readers.anonymize import anonymize

    paths = api.of_ranks([args.trace])
    say_left_out(paths)
    for path in paths:
        out = args.out
        if len(paths) > 1:
            out = args.out / path.name / RUN_TRACES[0]
            out.parent.mkdir(parents=True, exist_ok=True)
        anonymize(api.find_export(path), out, force=args.force)
    say(f"Wrote {args.out}")
    return 0
