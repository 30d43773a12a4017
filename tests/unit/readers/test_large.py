"""Tables large enough for the compiled reader give the same trace as row by row."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscope.model.tables import Table
from gpuscope.model.trace import Trace
from gpuscope.readers import database, open_trace
from tests.perf.make_export import write

OPERATIONS = 6_000


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "a b%20c.sqlite"
    write(str(path), OPERATIONS)
    return path


def tables(trace: Trace) -> dict[str, Table]:
    found = {"operations": trace.operations, "api": trace.api, "ranges": trace.ranges}
    return {name: table for name, table in found.items() if table is not None}


def test_both_readers_agree(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tables(open_trace(export))
    monkeypatch.setattr(database, "_LARGE_ROWS", 100)
    monkeypatch.setattr(database, "_CHUNK_ROWS", 700)
    used = []
    compiled = database.Database._fetch_compiled

    def watched(self: database.Database, *what: Any) -> object:
        columns = compiled(self, *what)
        used.append(columns is not None)
        return columns

    monkeypatch.setattr(database.Database, "_fetch_compiled", watched)
    fast = tables(open_trace(export))
    assert any(used)
    assert set(fast) == set(slow) == {"operations", "api", "ranges"}
    for name, table in slow.items():
        for column, values in table.columns().items():
            np.testing.assert_array_equal(fast[name].columns()[column], values, f"{name}.{column}")
    assert len(slow["operations"]) == OPERATIONS


@pytest.mark.parametrize("value", ["'text'", "1.5", "x'ff'"])
def test_what_the_compiled_reader_cannot_read_is_left_to_the_careful_path(
    value: str, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = sqlite3.connect(export)
    connection.execute(f"UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET start = {value} WHERE rowid = 700")
    connection.commit()
    connection.close()
    monkeypatch.setattr(database, "_LARGE_ROWS", 100)
    monkeypatch.setattr(database, "_CHUNK_ROWS", 700)
    trace = open_trace(export)
    assert trace.operations is not None
    assert len(trace.operations) == OPERATIONS - 1
    assert sum(trace.damaged.values()) == 1


def test_without_the_compiled_reader_sqlite3_reads(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LARGE_ROWS", 100)
    monkeypatch.setattr(database, "_CHUNK_ROWS", 700)
    monkeypatch.setitem(sys.modules, "connectorx", None)
    trace = open_trace(export)
    assert trace.operations is not None
    assert len(trace.operations) == OPERATIONS


def test_reading_tells_how_far_it_is(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_LARGE_ROWS", 100)
    monkeypatch.setattr(database, "_CHUNK_ROWS", 700)
    told: list[tuple[int, int]] = []
    open_trace(export, progress=lambda what, done, total: told.append((done, total)))

    assert len(told) > OPERATIONS // 700
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > OPERATIONS


@pytest.mark.parametrize(
    ("chunks", "constant"),
    [
        ([[7, 7], [7]], True),
        ([[7, 7], [7, 8]], False),  # only the last value is another
        ([[8, 7], [7]], False),
        ([[], [7], []], True),
        ([[], []], False),
    ],
)
def test_a_column_takes_no_memory_only_where_all_of_its_values_are_one(
    chunks: list[list[int]], constant: bool
) -> None:
    found = database._joined([np.array(chunk, np.int64) for chunk in chunks])
    assert found.tolist() == [value for chunk in chunks for value in chunk]
    assert (len(found) > 0 and found.strides == (0,)) == constant
