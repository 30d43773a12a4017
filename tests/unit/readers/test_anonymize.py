"""The copy to hand out: nothing private in it, and the same analysis."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gpuscope import api, samples
from gpuscope.errors import OutputError, TraceError, UsageError
from gpuscope.model import codec
from gpuscope.readers.anonymize import anonymize

SECRET = "s3cret"


def analysis(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = codec.to_jsonable(api.analyze([path]).to_json())
    found["trace"].pop("path")
    return found


@pytest.mark.parametrize("name", samples.names())
def test_the_analysis_is_that_of_the_original(name: str, tmp_path: Path) -> None:
    source = samples.path(name)
    anonymize(source, tmp_path / "clean.sqlite")
    assert analysis(tmp_path / "clean.sqlite") == analysis(source)


def planted(tmp_path: Path) -> Path:
    """Return an export with a secret in every text column of every table, and in a new table."""
    path = tmp_path / "private.sqlite"
    shutil.copyfile(samples.path("jacobi_nccl_r0"), path)
    connection = sqlite3.connect(path)
    kept = {
        row[0]
        for table, column in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
            ("NVTX_EVENTS", "textId"),
            ("MPI_P2P_EVENTS", "textId"),
            ("MPI_COLLECTIVES_EVENTS", "textId"),
            ("MPI_OTHER_EVENTS", "textId"),
        )
        for row in connection.execute(f"SELECT DISTINCT {column} FROM {table}")
    }
    tables = [
        row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    seen = 0
    for table in tables:
        columns = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
        rows = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
        for _, column, kind, *_ in columns:
            if kind == "TEXT" and table not in {"StringIds", "NVTX_EVENTS", "TARGET_INFO_GPU"}:
                connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (f"{SECRET}-{table}",))
                if rows:
                    seen += 1
    for column in ("jsonText", "binaryData"):
        connection.execute(f"UPDATE NVTX_EVENTS SET {column} = ?", (SECRET,))
    # Marks and thread names of NVTX, and every text that no name refers to.
    connection.execute(
        "UPDATE NVTX_EVENTS SET text = ? WHERE eventType NOT IN (59, 60, 75)", (SECRET,)
    )
    for column in ("busLocation", "uuid", "ctxswDevPath"):
        connection.execute(f"UPDATE TARGET_INFO_GPU SET {column} = ?", (SECRET,))
    for (key,) in connection.execute("SELECT id FROM StringIds").fetchall():
        if key not in kept:
            connection.execute(
                "UPDATE StringIds SET value = ? WHERE id = ?", (f"{SECRET} {key}", key)
            )
    # A column of numbers holds any text in SQLite.
    connection.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = ?", (SECRET,))
    connection.execute("CREATE TABLE OTHER_TOOL (note TEXT)")
    connection.execute("INSERT INTO OTHER_TOOL VALUES (?)", (SECRET,))
    connection.execute(
        "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT', ?)",
        (f"AWS_TOKEN={SECRET} CUDA_DEVICE_MAX_CONNECTIONS=8 HOME=/{SECRET}",),
    )
    connection.commit()
    connection.close()
    assert seen > 5
    assert SECRET.encode() in path.read_bytes()
    return path


def test_no_secret_of_any_table_gets_through(tmp_path: Path) -> None:
    clean = tmp_path / "clean.sqlite"
    anonymize(planted(tmp_path), clean)
    assert SECRET.encode() not in clean.read_bytes()
    trace = api.open_trace(clean)
    assert trace.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert "ncclDevKernel_SendRecv" in trace.strings
    assert "nccl_overlap" in trace.strings


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    source = tmp_path / "trace.sqlite"
    shutil.copyfile(samples.path("tiny"), source)
    target = tmp_path / "clean.sqlite"
    target.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        anonymize(source, target)
    assert target.read_text() == "mine"
    anonymize(source, target, force=True)
    assert analysis(target) == analysis(source)
    with pytest.raises(UsageError, match="another name"):
        anonymize(source, source, force=True)


def test_what_cannot_be_written_or_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        anonymize(samples.path("tiny"), tmp_path / "no" / "such" / "folder.sqlite")
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(samples.path("tiny").read_bytes()[:50_000])
    with pytest.raises(TraceError):
        anonymize(broken, tmp_path / "clean.sqlite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.sqlite"]
