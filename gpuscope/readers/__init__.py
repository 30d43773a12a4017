"""Reading a trace: sniff what a file is, and hand it to the reader that knows it."""

from __future__ import annotations

import stat
from collections.abc import Collection, Sequence
from pathlib import Path

from gpuscope.errors import TraceError
from gpuscope.model.classes import ClassRule
from gpuscope.model.trace import Trace
from gpuscope.progress import Progress, silent

SQLITE_MAGIC = b"SQLite format 3\x00"

_KNOWN_MAGIC = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip file; unpack it first"),
    (b"\x7fELF", "a program: record it with `gpuscope run --nsys -- PROGRAM`"),
    (b"{", "JSON; gpuscope reads reports of Nsight Systems, not Chrome traces"),
    (b"[", "JSON; gpuscope reads reports of Nsight Systems, not Chrome traces"),
)


def open_trace(
    path: Path,
    rules: Sequence[ClassRule] = (),
    tables: Collection[str] | None = None,
    progress: Progress = silent,
    *,
    use_cache: bool = True,
) -> Trace:
    """Read the SQLite export `path` of an Nsight Systems report.

    Parameters
    ----------
    path
        The file; it is opened read only, and nothing is written to it or beside it.
    rules
        Class rules that go before the built-in ones.
    tables
        Names of the tables of the trace to read; None: all.
    progress
        Told how many rows were read.
    use_cache
        Take a large trace from the cache folder, and keep it there. More tables than those asked
        for may then be in it.

    Raises
    ------
    TraceError
        The file is missing, is no such export, or is damaged beyond reading.
    """
    from gpuscope.readers import cache, columns, nsys_sqlite

    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            msg = f"{path} is a folder: name a trace, or a run folder that holds trace.sqlite."
            raise TraceError(msg)
        if not stat.S_ISREG(mode):
            msg = f"{path} is no file but a pipe or a device: export the report to a file."
            raise TraceError(msg)
        with path.open("rb") as file:
            head = file.read(16)
    except FileNotFoundError:
        msg = f"{path} does not exist: name a trace, a report or the folder of a run."
        raise TraceError(msg) from None
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}."
        raise TraceError(msg) from None
    if not head:
        msg = f"{path} is empty: the export that wrote it was cut off; export the report again."
        raise TraceError(msg)
    if head != SQLITE_MAGIC:
        kind = next((text for magic, text in _KNOWN_MAGIC if head.startswith(magic)), None)
        what = f"it is {kind}" if kind else "it is neither SQLite nor a report of Nsight Systems"
        msg = f"{path} is not a trace: {what}."
        raise TraceError(msg)
    wanted = nsys_sqlite.ALL_TABLES if tables is None else tables
    if not use_cache or not columns.worth_keeping(path):
        return nsys_sqlite.read(path, rules, wanted, progress)
    kept = columns.load(path, rules, wanted)
    if kept is not None:
        return kept
    identity = cache.identity_of(path)
    trace = nsys_sqlite.read(path, rules, wanted, progress)
    columns.keep(path, identity, trace, rules, wanted)
    return trace
