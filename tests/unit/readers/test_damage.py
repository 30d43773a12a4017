"""Files that are no trace, or a damaged one: a sentence or a count, and nothing written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.cli import main
from gpuscope.errors import GpuscopeError, TraceError
from gpuscope.readers import open_trace

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
    ],
)
def test_what_is_no_trace_is_said(
    name: str,
    make: Callable[[Path], object],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    first = api.analyze([copy]).traces[0].devices[0].scope
    change(copy, f"UPDATE {MEMCPY} SET start = start + 100000000, end = end + 100000000"
                 f" WHERE rowid = 5")  # fmt: skip
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert api.analyze([copy]).traces[0].devices[0].scope != first


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 237_567), st.binary(min_size=1, max_size=64)),
        min_size=1,
        max_size=8,
    )
)
def test_flipped_bytes_give_a_trace_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace.sqlite"
    data = bytearray(samples.path("pinned").read_bytes())
    for at, value in flips:
        data[at : at + len(value)] = value
    path.write_bytes(data)
    # Any other error than one of ours fails the test.
    with contextlib.suppress(GpuscopeError):
        api.analyze_trace(open_trace(path), Options())


VALUES = st.sampled_from(
    ["NULL", "'text'", "-1", "0", "9223372036854775807", "-9223372036854775808", "1.5", "x'ff'"]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(
        [
            (MEMCPY, "copyKind"),
            (MEMCPY, "srcKind"),
            (MEMCPY, "bytes"),
            (MEMCPY, "streamId"),
            (MEMCPY, "deviceId"),
            (MEMCPY, "contextId"),
            (MEMCPY, "globalPid"),
            (MEMCPY, "correlationId"),
            (MEMCPY, "start"),
            (MEMCPY, "end"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "gridX"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
            ("NVTX_EVENTS", "start"),
            ("NVTX_EVENTS", "end"),
            ("NVTX_EVENTS", "globalTid"),
            ("NVTX_EVENTS", "textId"),
            ("NVTX_EVENTS", "domainId"),
            ("NVTX_EVENTS", "eventType"),
            ("TARGET_INFO_GPU", "asyncEngines"),
            ("TARGET_INFO_GPU", "smCount"),
            ("TARGET_INFO_CUDA_STREAM", "priority"),
            ("TARGET_INFO_CUDA_STREAM", "streamId"),
            ("PROCESSES", "globalPid"),
        ]
    ),
    VALUES,
    st.integers(1, 12),
)
def test_any_value_gives_a_trace_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, where: tuple[str, str], value: str, every: int
) -> None:
    table, column = where
    path = tmp_path_factory.mktemp("fuzz") / "trace.sqlite"
    connection = sqlite3.connect(path)
    source = sqlite3.connect(samples.path("pinned"))
    source.backup(connection)
    source.close()
    schema = connection.execute(
        "SELECT sql FROM sqlite_master WHERE name = ?", (table,)
    ).fetchone()[0]
    # What is declared NOT NULL can be NULL in a damaged file.
    connection.execute(f'ALTER TABLE "{table}" RENAME TO old')
    connection.execute(schema.replace("NOT NULL", ""))
    connection.execute(f'INSERT INTO "{table}" SELECT * FROM old')
    connection.execute("DROP TABLE old")
    connection.execute(f'UPDATE "{table}" SET "{column}" = {value} WHERE rowid % {every} = 0')
    connection.commit()
    connection.close()
    with contextlib.suppress(GpuscopeError):
        trace = open_trace(path)
        api.analyze_trace(trace, Options())
        assert trace.operations is not None
        assert (np.diff(trace.operations.start_ns) >= 0).all()
