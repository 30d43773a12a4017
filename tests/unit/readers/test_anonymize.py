"""The copy to hand out: nothing private in it, and the same analysis."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gpuscope import api, samples
from gpuscope.cli import main
from gpuscope.errors import OutputError, TraceError, UsageError
from gpuscope.model import codec
from gpuscope.readers import open_trace
from gpuscope.readers.anonymize import anonymize
from tests.make_export import ACTIVITY, VARIANTS, Export, Variant

SECRET = "s3cret"
LAUNCH = "cudaLaunchKernel_v7000"


def analysis(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = codec.to_jsonable(api.analyze([path])[0])
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
    with pytest.raises(OutputError, match="--force"):
        anonymize(source, target)
    assert target.read_text() == "mine"
    anonymize(source, target, force=True)
    assert analysis(target) == analysis(source)
    with pytest.raises(OutputError, match="another name"):
        anonymize(source, source, force=True)


def test_what_cannot_be_written_or_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        anonymize(samples.path("tiny"), tmp_path / "no" / "such" / "folder.sqlite")
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(samples.path("tiny").read_bytes()[:50_000])
    with pytest.raises(TraceError):
        anonymize(broken, tmp_path / "clean.sqlite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.sqlite"]


def test_green_contexts_are_kept(tmp_path: Path) -> None:
    source, clean = tmp_path / "trace.sqlite", tmp_path / "clean.sqlite"
    with Export(source) as export:
        export.null_stream()
        export.add(
            "TARGET_INFO_CUDA_CONTEXT_INFO",
            nullStreamId=14,
            processId=100,
            contextId=2,
            isGreenContext=1,
        )
        export.operation("KERNEL", 0, 10, stream=15, greenContextId=2)
        export.operation("KERNEL", 20, 30, stream=16)

    anonymize(source, clean)

    for path in (source, clean):
        parts = {s.number: (s.part, s.part_sm_count) for s in open_trace(path).streams}
        assert parts == {15: (2, None), 16: (None, None)}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_version_and_damage_keep_their_analysis(variant: Variant, tmp_path: Path) -> None:
    source, clean = tmp_path / "trace.sqlite", tmp_path / "clean.sqlite"
    with Export(source, variant) as export:
        export.gpu()
        export.null_stream()
        export.stream_info(13, priority=-5)
        export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='PMI_RANK="2"')
        for number in range(1, 30):
            start = 1000 * number
            export.call(LAUNCH, start - 90, start - 80, correlationId=number)
            export.operation(
                "KERNEL",
                start,
                start + 700,
                stream=13,
                correlationId=number,
                shortName="gemm",
                demangledName="void a::gemm<int>()",
            )
            export.operation("MEMCPY", start + 50, start + 900, copyKind=1, srcKind=0, bytes=64)
            export.range(f"step {number % 3}", start - 99, start - 10)
        export.range("open", 500, None)
        export.call(LAUNCH, 50_000, 50_010, correlationId=77)
        export.operation("MEMCPY", 90, 80, copyKind=1)
        export.operation("MEMCPY", 70, 80, copyKind=1)
        copies = export.table_name(f"{ACTIVITY}MEMCPY")
        export.execute(f"UPDATE {copies} SET start = 'soon' WHERE start = 70")
        export.mpi("OTHER", "MPI_Sendrecv", 100, 900)
        export.add("DIAGNOSTIC_EVENT", severity=3, text=f"/home/{SECRET} is gone")
        for text in (
            "Profiling has started.",
            f"Not all CUDA events might have been collected. {SECRET}",
        ):
            export.add("DIAGNOSTIC_EVENT", severity=1, text=text)
    anonymize(source, clean)
    assert analysis(clean) == analysis(source)
    assert SECRET.encode() not in clean.read_bytes()
    read, original = api.open_trace(clean), api.open_trace(source)
    assert (read.checks, read.damaged) == (original.checks, original.damaged)
    assert [process.rank for process in read.processes] == [2]
    assert len(read.notes) == 2
    assert sum(read.damaged.values()) == 2


def test_what_is_beside_the_copy_stays(tmp_path: Path) -> None:
    (tmp_path / "clean.sqlite.part").write_text("mine")
    anonymize(samples.path("tiny"), tmp_path / "clean.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean.sqlite", "clean.sqlite.part"]


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = tmp_path / "clean.sqlite"
    assert main(["anonymize", str(samples.path("tiny")), str(clean)]) == 0
    assert capsys.readouterr().err == f"Wrote {clean}\n"
    assert main(["anonymize", str(samples.path("tiny")), str(clean)]) == 1
    assert main(["anonymize", str(samples.path("tiny")), str(clean), "--force"]) == 0
    assert main(["anonymize", str(clean), str(tmp_path), "--force"]) == 1


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    link = tmp_path / "link.sqlite"
    link.symlink_to(victim)
    with pytest.raises(UsageError, match="no regular file"):
        anonymize(samples.path("tiny"), link, force=True)
    assert victim.read_text() == "mine"
    assert link.is_symlink()
