"""The runs of a folder, and the names ``last`` and ``last~1`` for the latest with a trace."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope._version import __version__
from gpuscope.errors import TraceError
from gpuscope.recording import machine
from gpuscope.recording.folder import DEFAULT_PARENT, RunFolder
from gpuscope.units import counted

RECORD = "run.json"
_LAST = re.compile(r"last(?:~(\d+))?")


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run folder and what its ``run.json`` says."""

    path: Path
    record: Mapping[str, Any]

    @property
    def written_utc(self) -> str:
        """When it ended, as ISO 8601."""
        return str(self.record.get("written_utc") or "")

    @property
    def has_trace(self) -> bool:
        """Whether it was recorded, and not only timed."""
        folders = [self.path, *self.path.glob("rank*")]
        return any(RunFolder(folder).has_trace() for folder in folders)


def make_record(
    benchmark: str | None, twin: str | None, command: Sequence[str] | None
) -> dict[str, Any]:
    """Return what every ``run.json`` says: what ran, when it ended, and on which machine."""
    return {
        "schema_version": 1,
        "gpuscope": __version__,
        "written_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "benchmark": benchmark,
        "twin": twin,
        "command": list(command or ()) or None,
        "machine": machine.describe(),
    }


def runs_in(parent: Path) -> tuple[PastRun, ...]:
    """Return the runs in the folder `parent`, the oldest first; folders of anything else are none.

    Raises
    ------
    TraceError
        There is no such folder.
    """
    if not parent.is_dir():
        msg = f"there is no folder {parent}: record a run, or name the folder that holds some."
        raise TraceError(msg)
    found = []
    for file in parent.glob(f"*/{RECORD}"):
        try:
            record = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue  # half written, or somebody else's
        if isinstance(record, dict) and "gpuscope" in record:
            found.append(PastRun(file.parent, record))
    return tuple(sorted(found, key=lambda run: (run.written_utc, run.path.name)))


def find_run(path: Path, parent: Path = DEFAULT_PARENT) -> Path:
    """Return `path`; ``last`` and ``last~N``, where no file is called so, are runs of `parent`.

    Only runs with a trace count.

    Raises
    ------
    TraceError
        There are not so many runs.
    """
    match = _LAST.fullmatch(str(path))
    if match is None or path.exists():
        return path
    back = int(match[1] or 0)
    runs = [run for run in runs_in(parent) if run.has_trace]
    if back >= len(runs):
        msg = f"{path} is not there: {parent} holds {counted(len(runs), 'run')} with a trace."
        raise TraceError(msg)
    return runs[-1 - back].path
