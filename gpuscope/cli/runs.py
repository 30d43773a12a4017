"""List the runs of a folder, sweeps and other series too, with what came of them.

For example:

  gpuscope runs                       the folder `runs`
  gpuscope runs results/november --json

The names in the first column, `last` and `last~1` and so on, can be given wherever a trace is
named; they count in the folder `runs`, and what was only timed has none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.cli._options import stdout_console
from gpuscope.errors import CannotJudgeError

if TYPE_CHECKING:
    from gpuscope.recording.history import PastRun

OUTCOMES = {
    0: "done",
    1: "failed",
    3: "something missing",
    4: "NOT MET",
    5: "cannot judge",
    130: "interrupted",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope runs`."""
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help="folder of runs (default: runs)"
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the runs, the latest last."""
    from gpuscope.model import codec
    from gpuscope.recording.folder import DEFAULT_PARENT
    from gpuscope.recording.history import runs_in

    runs = runs_in(args.folder or DEFAULT_PARENT)
    traced = [past.path for past in reversed(runs) if past.has_trace]
    back = {path: number for number, path in enumerate(traced)}
    rows = [_row(past, back.get(past.path)) for past in runs]
    if args.json:
        sys.stdout.write(codec.dumps(rows))
    elif rows:
        _print(rows)
    else:
        print("no runs")
    return 0


def _row(past: PastRun, back: int | None) -> dict[str, Any]:
    """Return the line of a run, `back` from the latest of those with a trace."""
    record = past.record
    code = record.get("exit_code")
    expected = record.get("expected") or ()
    return {
        "name": None if back is None else f"last~{back}" if back else "last",
        "path": str(past.path),
        "written_utc": past.written_utc or None,
        "benchmark": record.get("benchmark"),
        "twin": record.get("twin"),
        "command": record.get("command"),
        "series": record.get("series"),
        "outcome": _outcome(record, code),
        "exit_code": code,
        "expected": len(expected),
        "met": sum(row.get("met") is True for row in expected),
        "passes": {
            name: times["median_ns"]
            for name, times in ((record.get("untraced") or {}).get("passes") or {}).items()
        },
    }


def _outcome(record: Any, code: Any) -> str:
    if code == 0 and record.get("caught"):
        return "caught"
    if code == 0 and record.get("expected"):
        return "as expected"
    # A series of one benchmark takes nothing but times.
    times_alone = record.get("series") and record.get("benchmark")
    void = times_alone or not (record.get("untraced") or {}).get("valid", True)
    if code == CannotJudgeError.exit_code and void:
        return "times void"
    return OUTCOMES.get(code, f"exit code {code}")


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from gpuscope.report.text import simple_table
    from gpuscope.units import printable

    table = simple_table()
    for name in ("", "what", "outcome", "folder"):
        table.add_column(name)
    for row in rows:
        program, *arguments = row["command"] or [row["series"] or "?"]
        what = row["benchmark"] or " ".join((Path(program).name, *arguments))
        beside = ", ".join(filter(None, (row["twin"], row["benchmark"] and row["series"])))
        twin = f" ({beside})" if beside else ""
        met = f" ({row['met']} of {row['expected']} met)" if row["expected"] else ""
        good = row["exit_code"] == 0
        table.add_row(
            row["name"] or "–",
            Text(printable(what + twin, 40)),
            Text(row["outcome"] + met, "green" if good else "bold red"),
            Text(printable(Path(row["path"]).name)),
        )
    stdout_console().print(table)
