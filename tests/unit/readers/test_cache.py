"""What is kept of large exports: the same answer, made anew whenever anything changed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscope import api, samples
from gpuscope.analyzers import ANALYZERS
from gpuscope.errors import UsageError
from gpuscope.model.tables import Table
from gpuscope.model.trace import Trace
from gpuscope.readers import cache, columns, nsys_sqlite, open_trace
from tests.perf.make_export import write

COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, in which every export is worth keeping."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(cache, "SMALLEST_SOURCE_BYTES", 0)
    monkeypatch.setattr(cache, "_SETTLED_NS", -1)  # the files of a test are all new
    return tmp_path / "xdg" / "gpuscope"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "user" / "trace.sqlite"
    path.parent.mkdir()
    write(str(path), 600)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The exports that were really read."""
    read = nsys_sqlite.read
    found = []

    def watched(path: Path, *rest: Any) -> Trace:
        found.append(path)
        return read(path, *rest)

    monkeypatch.setattr(nsys_sqlite, "read", watched)
    return found


def opened(path: Path, **options: Any) -> Trace:
    trace = open_trace(path, **options)
    columns.finish()
    return trace


MOVE_LAST_COPY = (
    f"UPDATE {COPIES} SET start = start + 100000000, end = end + 100000000 "
    f"WHERE rowid = (SELECT max(rowid) FROM {COPIES})"
)


def move_last_copy(path: Path) -> None:
    """Move one copy by 100 ms, in place."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(MOVE_LAST_COPY)
        connection.commit()


def assert_same(one: Trace, other: Trace) -> None:
    for field in dataclasses.fields(Trace):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Table):
            assert len(mine) == len(its)
            for name, column in mine.columns().items():
                assert column.dtype == its.columns()[name].dtype
                np.testing.assert_array_equal(column, its.columns()[name], f"{field.name}.{name}")
        else:
            assert mine == its, field.name


@pytest.mark.parametrize("name", ["streams", "p2p", "jacobi_nccl_r0", "graph_node"])
def test_a_trace_from_the_cache_is_the_trace(name: str, tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "trace.sqlite"
    shutil.copyfile(samples.path(name), path)
    first, second = opened(path), opened(path)
    assert reads == [path]
    assert_same(first, second)


def test_every_table_of_a_trace_is_kept() -> None:
    annotated = {f.name for f in dataclasses.fields(Trace) if "| None" in str(f.type)}
    assert set(columns.table_types()) == annotated & set(nsys_sqlite.ALL_TABLES)


def test_fewer_tables_come_from_more(export: Path, reads: list[Path]) -> None:
    opened(export)
    assert opened(export, tables={"operations"}).operations is not None
    assert len(reads) == 1


def test_more_tables_are_read(export: Path, reads: list[Path]) -> None:
    assert opened(export, tables={"operations"}).ranges is None
    assert opened(export).ranges is not None
    assert len(reads) == 2


def test_one_copy_moved_inside_a_file_of_the_same_size_is_seen(export: Path) -> None:
    before = opened(export)
    size = export.stat().st_size
    move_last_copy(export)
    assert export.stat().st_size == size
    after = opened(export)
    assert before.operations is not None
    assert after.operations is not None
    assert after.duration_ns > before.duration_ns


def test_the_same_is_seen_with_the_times_of_the_file_put_back(export: Path) -> None:
    before = opened(export)
    stat = export.stat()
    move_last_copy(export)
    os.utime(export, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert export.stat().st_mtime_ns == stat.st_mtime_ns
    assert opened(export).duration_ns > before.duration_ns


def test_a_file_that_changes_again_at_once_is_not_known_by_its_times(
    export: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(cache, "_SETTLED_NS", 10**12)
    opened(export)
    assert list((folder / "columns").iterdir())
    assert not (folder / "known").exists()


def test_a_log_beside_the_file_is_read(export: Path, reads: list[Path]) -> None:
    before = opened(export)
    connection = sqlite3.connect(export)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(MOVE_LAST_COPY)
    connection.commit()
    assert Path(f"{export}-wal").stat().st_size
    after = opened(export)
    connection.close()
    assert after.duration_ns > before.duration_ns
    assert len(reads) == 2


def test_a_copy_of_the_file_and_a_touched_file_are_known_by_content(
    export: Path, reads: list[Path], tmp_path: Path
) -> None:
    opened(export)
    os.utime(export)
    opened(export)
    other = tmp_path / "other.sqlite"
    shutil.copyfile(export, other)
    trace = opened(other)
    assert reads == [export]
    assert trace.path == str(other)


def test_two_may_keep_the_same_at_once(export: Path, folder: Path, reads: list[Path]) -> None:
    threads = [threading.Thread(target=opened, args=(export,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    columns.finish()
    assert len(cache.entries()) == 1
    assert not list(folder.glob(".unfinished-*"))
    read = len(reads)
    opened(export)
    assert len(reads) == read


@pytest.mark.parametrize("file", ["trace.json", "operations.arrow", "api.arrow"])
@pytest.mark.parametrize("damage", ["cut", "gone", "noise"])
def test_a_damaged_entry_is_made_anew(
    file: str, damage: str, export: Path, reads: list[Path], folder: Path
) -> None:
    before = opened(export)
    (path,) = folder.glob(f"columns/*/*/{file}")
    if damage == "gone":
        path.unlink()
    else:
        half = path.read_bytes()[: path.stat().st_size // 2]
        path.write_bytes(half if damage == "cut" else half[::-1])
    assert_same(before, opened(export))
    assert len(reads) == 2
    opened(export)
    assert len(reads) == 2


def test_other_code_and_other_rules_do_not_use_it(
    export: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(export)
    monkeypatch.setattr(columns, "code_fingerprint", lambda: "other")
    opened(export)
    assert len(reads) == 2


def test_nothing_is_kept_of_small_exports_or_when_not_wanted(
    export: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(export, use_cache=False)
    monkeypatch.setattr(cache, "SMALLEST_SOURCE_BYTES", export.stat().st_size + 1)
    opened(export)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_no_failure(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert opened(export).operations is not None


def test_nothing_is_written_beside_the_export(export: Path) -> None:
    before = export.read_bytes()
    opened(export)
    opened(export)
    assert list(export.parent.iterdir()) == [export]
    assert export.read_bytes() == before


def test_what_was_not_used_for_longest_makes_room(folder: Path) -> None:
    old = time.time() - 1000
    for age, name in enumerate(["newest", "middle", "oldest"]):
        path = folder / "exports" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
        os.utime(path, (old - age, old - age))
    removed = cache.shrink(250)
    assert [entry.path.name for entry in removed] == ["oldest"]
    cache.use(folder / "exports" / "middle")
    assert [entry.path.name for entry in cache.shrink(0)] == ["newest"]
    assert [entry.path.name for entry in cache.entries()] == ["middle"]


def test_the_limit_is_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "2g")
    assert cache.limit_bytes() == 2 << 30
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "")  # as some set what they do not want
    assert cache.limit_bytes() == cache.DEFAULT_LIMIT_BYTES
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "much")
    with pytest.raises(UsageError, match="GPUSCOPE_CACHE_LIMIT"):
        cache.limit_bytes()


# Answers


def test_an_answer_is_kept_and_named_after_its_file(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = api.analyze([export])
    copy = tmp_path / "copy.sqlite"
    shutil.copyfile(export, copy)
    with monkeypatch.context() as patch:
        patch.setattr(api, "run_all", None)
        second = api.analyze([export])
        other = api.analyze([copy])
    assert second == first
    assert other[0].trace.path == str(copy)
    assert other[0].devices == second[0].devices


@pytest.mark.parametrize(
    "other",
    [
        api.Request(window="0:0.00001"),
        api.Request(options=dataclasses.replace(api.Request().options, by_path=True)),
        api.Request(analyzers=ANALYZERS[:1]),
    ],
)
def test_another_question_has_another_answer(export: Path, other: api.Request) -> None:
    first = api.analyze([export])
    assert api.analyze([export], other) != first
    assert len([entry for entry in cache.entries() if entry.kind == "results"]) == 2


def test_an_answer_about_a_file_that_changed_is_made_anew(export: Path) -> None:
    first = api.analyze([export])
    move_last_copy(export)
    second = api.analyze([export])
    assert second[0].trace.duration_ns > first[0].trace.duration_ns


def test_no_answer_is_kept_when_not_wanted(export: Path, folder: Path) -> None:
    api.analyze([export], use_cache=False)
    assert not folder.exists()


def test_a_bad_limit_is_said_before_the_work(
    export: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "much")
    with pytest.raises(UsageError, match="500M"):
        api.analyze([export])
    assert reads == []
