"""Files that are no trace, or a damaged one: a sentence or a count, and nothing written."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.cli import main
from gpuscope.errors import GpuscopeError, TraceError
from gpuscope.model import codec
from gpuscope.readers import database, nsys_facts, open_trace
from gpuscope.readers.anonymize import anonymize
from gpuscope.report.text import render_analysis

MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    path = tmp_path / "trace.sqlite"
    shutil.copyfile(samples.path("streams"), path)
    return path


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def make_folder(path: Path) -> None:
    path.mkdir()


def make_other_database(path: Path) -> None:
    change(path, "CREATE TABLE notes (text TEXT)")


def make_nvprof(path: Path) -> None:
    change(path, "CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (_id_ INTEGER)")


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("none.sqlite", lambda path: None, "does not exist"),
        ("folder", make_folder, "is a folder"),
        ("empty.sqlite", lambda path: path.touch(), "is empty"),
        ("notes.txt", lambda path: path.write_text("hello, I am no trace"), "is not a trace"),
        ("a.out", lambda path: path.write_bytes(b"\x7fELF" + bytes(60)), "it is a program"),
        ("trace.json", lambda path: path.write_text('{"traceEvents": []}'), "it is JSON"),
        ("other.db", make_other_database, "no export of Nsight Systems"),
        ("old.nvvp", make_nvprof, "written by nvprof"),
        ("renamed.nsys-rep", make_nvprof, "written by nvprof"),
        ("text.nsys-rep", lambda path: path.write_text("hello, I am no trace"), "is not a trace"),
        ("empty.nsys-rep", lambda path: path.touch(), "is empty"),
    ],
)
def test_what_is_no_trace_is_said(
    name: str,
    make: Callable[[Path], object],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NSYS", str(tmp_path / "no-nsys"))  # none is needed to tell
    path = tmp_path / name
    make(path)
    assert main(["analyze", str(path)]) == 1
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("keep", [17, 4_096, 50_000, 200_000])
def test_a_truncated_trace_is_said(keep: int, copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:keep])
    with pytest.raises(TraceError, match="damaged"):
        open_trace(copy)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (f"UPDATE {MEMCPY} SET start = 'soon' WHERE rowid = 3", "value missing or no number"),
        (f"UPDATE {MEMCPY} SET end = start - 1 WHERE rowid = 3", "end before start"),
        (f"UPDATE {MEMCPY} SET start = -5 WHERE rowid = 3", "time out of range"),
        (f"UPDATE {MEMCPY} SET end = 9223372036854775807 WHERE rowid = 3", "time out of range"),
        (f"UPDATE {MEMCPY} SET start = 1.5 WHERE rowid = 3", "value missing or no number"),
        (f"UPDATE {MEMCPY} SET start = x'00ff' WHERE rowid = 3", "value missing or no number"),
    ],
)
def test_a_damaged_row_is_left_out_and_counted(statement: str, reason: str, copy: Path) -> None:
    change(copy, statement)
    trace = open_trace(copy)
    assert dict(trace.damaged) == {f"{MEMCPY}: {reason}": 1}
    assert trace.operations is not None
    assert len(trace.operations) == 74
    assert api.analyze_trace(trace).trace.damaged == 1


def test_names_may_be_anything(copy: Path) -> None:
    change(
        copy,
        "UPDATE StringIds SET value = CAST(x'ff00fe' AS TEXT) WHERE id IN"
        " (SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL)",
    )
    assert api.analyze_trace(open_trace(copy)).trace.operations == 75


def test_missing_tables_are_not_recorded_rather_than_empty(copy: Path) -> None:
    change(copy, "DROP TABLE NVTX_EVENTS", "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    trace = open_trace(copy)
    assert (trace.api, trace.ranges) == (None, None)
    analysis = api.analyze_trace(trace)
    assert analysis.ranges == ()
    assert "ranges" in {gone.analyzer for gone in analysis.abstained}
    assert analysis.devices[0].scope.busy_ns == 61403597


def test_a_missing_column_is_said(copy: Path) -> None:
    change(copy, f"ALTER TABLE {MEMCPY} RENAME COLUMN start TO begin")
    with pytest.raises(TraceError, match="has no column start"):
        open_trace(copy)


def test_no_gpu_table_cannot_be_judged(copy: Path) -> None:
    change(copy, f"DROP TABLE {MEMCPY}", "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    assert main(["analyze", str(copy)]) == 5


@pytest.mark.parametrize("name", ["a b?c#d%20e'.sqlite", "ünï ☃.sqlite", "-x;y.sqlite"])
def test_names_of_files_may_be_anything(name: str, copy: Path) -> None:
    path = copy.rename(copy.with_name(name))
    assert open_trace(path).duration_ns == 84099822


def test_a_symbolic_link_is_followed(copy: Path) -> None:
    link = copy.with_name("link.sqlite")
    link.symlink_to(copy)
    assert open_trace(link).duration_ns == 84099822


def test_a_declaration_that_is_no_text_makes_nothing_print(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The compiled reader would panic on it, and print a backtrace."""
    data, changed = re.subn(rb"(?<=INTEG)ER(?=\s+NOT NULL,)", b"\xff\xfe", copy.read_bytes())
    assert changed
    copy.write_bytes(data)
    monkeypatch.setattr(database, "_LARGE_ROWS", 1)
    trace = open_trace(copy)
    assert trace.operations is not None
    assert len(trace.operations) == 75
    assert capfd.readouterr() == ("", "")


def test_a_locked_trace_is_said(copy: Path) -> None:
    writer = sqlite3.connect(copy, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(TraceError, match="locked"):
            open_trace(copy)
    finally:
        writer.close()


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_write_ahead_log_is_read_and_left_alone(copy: Path) -> None:
    writer = sqlite3.connect(copy, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute(f"DELETE FROM {MEMCPY} WHERE rowid = 1")
    kept = copy.with_name("kept")
    kept.mkdir()
    for path in (copy, Path(f"{copy}-wal")):
        shutil.copyfile(path, kept / path.name)
    writer.close()
    before = digests(kept)
    trace = open_trace(kept / copy.name)
    assert trace.operations is not None
    assert len(trace.operations) == 74  # the row is gone in the log only
    assert digests(kept) == before


def test_nothing_is_written_beside_a_trace(copy: Path) -> None:
    before = digests(copy.parent)
    stat = copy.stat()
    api.analyze([copy])
    assert digests(copy.parent) == before
    assert (copy.stat().st_mtime_ns, copy.stat().st_size) == (stat.st_mtime_ns, stat.st_size)


def test_a_copy_that_moved_is_seen(copy: Path) -> None:
    """One copy moved by 100 ms: the same size, and the times of the file put back."""
    stat = copy.stat()
    first = api.analyze([copy])[0].devices[0].scope
    change(copy, f"UPDATE {MEMCPY} SET start = start + 100000000, end = end + 100000000"
                 f" WHERE rowid = 5")  # fmt: skip
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert api.analyze([copy])[0].devices[0].scope != first


FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
RICH = samples.path("jacobi_nccl_r0")
"""The trace with most tables: MPI, NCCL's payloads, events."""


@FUZZ
@given(
    st.sampled_from(["pinned", "jacobi_nccl_r0"]),
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=64)),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_flipped_bytes_give_a_trace_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
    name: str,
    flips: list[tuple[float, bytes]],
    compiled: bool,
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace.sqlite"
    data = bytearray(samples.path(name).read_bytes())
    for where, value in flips:
        at = int(where * len(data))
        data[at : at + len(value)] = value
    path.write_bytes(data)
    look_at_all(path, compiled=compiled)
    assert capfd.readouterr() == ("", "")


def look_at_all(path: Path, *, compiled: bool) -> None:
    """Do what the commands do: any other error than one of ours fails the test."""
    with contextlib.suppress(GpuscopeError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_LARGE_ROWS", 1 if compiled else 200_000)
        nsys_facts.take_inventory(path)
    with contextlib.suppress(GpuscopeError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_LARGE_ROWS", 1 if compiled else 200_000)
        trace = open_trace(path)
        analysis = api.analyze_trace(trace, Options())
        json.loads(codec.dumps(analysis))
        render_analysis(analysis, Console(file=io.StringIO()))
        if trace.operations is not None:
            assert (np.diff(trace.operations.start_ns) >= 0).all()
    with contextlib.suppress(GpuscopeError):
        anonymize(path, path.with_name("copy.sqlite"))


VALUES = st.sampled_from(
    [
        *("NULL", "'text'", "-1", "0", "1", "4294967295", "1.5", "x'ff'", "1e300"),
        *("9223372036854775807", "-9223372036854775808", "CAST(x'ff00' AS TEXT)"),
    ]
)


def columns_of(path: Path) -> list[tuple[str, str]]:
    """Every column of every table that has rows."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if connection.execute(f'SELECT EXISTS (SELECT 1 FROM "{name}")').fetchone()[0]
        ]
        return [
            (table, row[1])
            for table in tables
            for row in connection.execute(f'PRAGMA table_info("{table}")')
        ]


@FUZZ
@given(
    st.lists(
        st.tuples(st.sampled_from(columns_of(RICH)), VALUES, st.integers(1, 12)),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_any_value_gives_a_trace_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
    changes: list[tuple[tuple[str, str], str, int]],
    compiled: bool,
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace.sqlite"
    shutil.copyfile(RICH, path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    # What is declared NOT NULL can be NULL in a damaged file, and a key can be double.
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    connection.commit()
    connection.close()
    connection = sqlite3.connect(path)
    for (table, column), value, every in changes:
        with contextlib.suppress(sqlite3.Error):  # such as a key that is there already
            connection.execute(
                f'UPDATE "{table}" SET "{column}" = {value} WHERE rowid % {every} = 0'
            )
    connection.commit()
    connection.close()
    look_at_all(path, compiled=compiled)
    assert capfd.readouterr() == ("", "")
