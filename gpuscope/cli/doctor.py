"""Check what gpuscope needs on this machine: what is found, what is missing, how to get it.

Reading and showing traces needs none of it. Exits with 0 when programs can be recorded here (GPU,
driver, and an nsys whose importer runs), with 3 when they cannot; CuPy, nvtx, MPI and NCCL are for
benchmarks and do not count. nsys really records an empty program, which takes a second or two.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from gpuscope.cli._options import stdout_console
from gpuscope.errors import MissingError

if TYPE_CHECKING:
    from gpuscope.recording.checks import Check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope doctor`."""
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(args: argparse.Namespace) -> int:
    """Look for everything and print it."""
    from gpuscope.model import codec
    from gpuscope.recording import checks, machine

    found = checks.check_all()
    ready = checks.can_record(found)
    if args.json:
        report = {
            "schema_version": 1,
            "can_record": ready,
            "checks": found,
            "machine": machine.describe(),
        }
        sys.stdout.write(codec.dumps(report))
    else:
        _print(found, ready)
    return 0 if ready else MissingError.exit_code


def _print(found: tuple[Check, ...], ready: bool) -> None:
    from rich.text import Text

    from gpuscope.recording.checks import FOUND, MISSING

    console = stdout_console(highlight=False, soft_wrap=True)
    marks = {FOUND: ("✓", "green"), MISSING: ("–", "yellow")}
    group = ""
    for check in found:
        if check.needed_for != group:
            group = check.needed_for
            console.print(Text(f"\nfor {group}", style="bold"))
        mark, style = marks.get(check.state, ("✗", "red"))
        console.print(Text.assemble("  ", (mark, style), f" {check.name:<14} {check.detail}"))
        if check.remedy:
            console.print(Text(f"    → {check.remedy}", style="cyan"))
    console.print()
    console.print(
        "Programs can be recorded here."
        if ready
        else "Programs cannot be recorded here yet: see → above. Traces can be read and shown."
    )
