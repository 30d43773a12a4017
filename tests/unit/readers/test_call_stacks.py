"""Call stacks: native ones from their table, Python's from marks, and the frame that is named."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.cases import own_frame
from gpuscope.model.tables import ApiCalls
from gpuscope.readers import open_trace
from gpuscope.readers.call_stacks import _calls_at
from gpuscope.readers.nsys_schema import PYTHON_STACKS

TID = 281491888145392
CUDA = "/usr/lib/libcuda.so.580.1"
CUPY = "/venv/lib/python3.12/site-packages/cupy/cuda/stream.so"

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT,
  streamId INT, correlationId INT, globalPid INT, shortName INT, demangledName INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT,
  nameId INT, returnValue INT, callchainId INT, eventClass INT);
CREATE TABLE CUDA_CALLCHAINS (id INT, symbol INT, module INT, stackDepth INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT,
  domainId INT, jsonTextId INT, jsonText TEXT);
"""


def export(
    folder: Path,
    calls: list[tuple[int, int, int | None]],
    chains: list[tuple[int, int, str, str]] = (),  # type: ignore[assignment]
    marks: list[tuple[int, str]] = (),  # type: ignore[assignment]
    domain: str = PYTHON_STACKS,
) -> Path:
    """Write an export: calls (start, end, chain), chains (id, depth, symbol, module), marks."""
    path = folder / "trace.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
        texts = ["cudaStreamSynchronize_v3020", "compute"]
        texts += [text for _, _, *both in chains for text in both]
        number = {text: place for place, text in enumerate(texts)}
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(n, t) for t, n in number.items()]
        )
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 1, 7, 99, ?, 1, 1)", (TID,)
        )
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0, 0, ?, 0)",
            [(a, b, TID, place, chain) for place, (a, b, chain) in enumerate(calls)],
        )
        database.executemany(
            "INSERT INTO CUDA_CALLCHAINS VALUES (?, ?, ?, ?)",
            [(c, number[symbol], number[module], d) for c, d, symbol, module in chains],
        )
        database.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) "
            "VALUES (0, 75, ?, ?, 3)",
            (domain, TID),
        )
        database.executemany(
            "INSERT INTO NVTX_EVENTS (start, eventType, globalTid, domainId, jsonText) "
            "VALUES (?, 34, ?, 3, ?)",
            [(start, TID, text) for start, text in marks],
        )
    database.close()
    return path


def stacks(path: Path) -> list[tuple[int, int, str, str, int]]:
    trace = open_trace(path)
    if trace.stacks is None:
        return []
    columns = [column.tolist() for column in trace.stacks.columns().values()]
    return [
        (call, depth, trace.strings[function], trace.strings[file], line)
        for call, depth, function, file, line in zip(*columns, strict=True)
    ]


def test_native_stacks_in_order_of_depth(tmp_path: Path) -> None:
    chains = [(4, 1, "main", "/app/solver"), (4, 0, "0x7f", CUDA)]

    found = stacks(export(tmp_path, [(10, 20, None), (30, 90, 4), (95, 99, 5)], chains))

    assert found == [(1, 0, "0x7f", CUDA, -1), (1, 1, "main", "/app/solver", -1)]


def test_python_stacks_take_the_place_of_native_ones(tmp_path: Path) -> None:
    frames = [
        {"Function": "synchronize", "File": CUPY, "Line": 7},
        {"Function": "step", "File": "/app/train.py", "Line": 42},
    ]
    text = json.dumps({"Thread state": "x", "Frames count": 2, "Frames": frames})
    chains = [(4, 0, "main", "/app/solver")]

    found = stacks(export(tmp_path, [(10, 20, None), (30, 90, 4)], chains, [(30, text)]))

    assert found == [(1, 0, "synchronize", CUPY, 7), (1, 1, "step", "/app/train.py", 42)]


def test_names_in_payloads_may_be_ids_of_texts(tmp_path: Path) -> None:
    """As Nsight Systems 2025.3 writes them."""
    frames = [{"Function": 2, "File": 3, "Line": 23}]
    text = json.dumps({PYTHON_STACKS: {"Frames count": 1, "Frames": frames}})
    chains = [(4, 0, "chunks", "/app/host_sync.py")]

    found = stacks(export(tmp_path, [(10, 20, None), (30, 90, None)], chains, [(30, text)]))

    assert found == [(1, 0, "chunks", "/app/host_sync.py", 23)]


def test_a_stack_in_a_row_of_its_own_belongs_to_the_call_inside(tmp_path: Path) -> None:
    text = '[{"Function": "step", "File": "/app/train.py", "Line": 42}]'
    path = export(tmp_path, [(10, 20, None), (30, 90, None)], [(4, 0, "main", "/a")], [(29, text)])
    with sqlite3.connect(path) as database:
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (29, 91, ?, 1, 0, 0, 4, 67)", (TID,)
        )
    database.close()

    trace = open_trace(path)

    assert trace.api is not None
    assert trace.api.start_ns.tolist() == [10, 30]
    assert stacks(path) == [(1, 0, "step", "/app/train.py", 42)]


@pytest.mark.parametrize(
    ("mark", "domain"),
    [
        ((30, "{broken"), PYTHON_STACKS),
        ((30, '{"Frames": []}'), PYTHON_STACKS),
        ((25, '[{"Function": "f", "File": "g", "Line": 1}]'), PYTHON_STACKS),
        ((30, '[{"Function": "f", "File": "g", "Line": 1}]'), "another domain"),
    ],
    ids=["no JSON", "no frames", "in no call", "no stack"],
)
def test_marks_that_tell_no_stack(mark: tuple[int, str], domain: str, tmp_path: Path) -> None:
    assert stacks(export(tmp_path, [(10, 20, None), (30, 90, None)], [], [mark], domain)) == []


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        ([("sync", CUPY, 3), ("step", "/app/train.py", 42)], "/app/train.py:42 (step)"),
        ([("sync", CUPY, 3), ("run", "<frozen runpy>", 1)], f"{CUPY}:3 (sync)"),
        ([("0x7", CUDA, -1), ("step(int)", "/app/bin/solver", -1)], "solver (step(int))"),
        ([("cudaFree", "/app/solver", -1), ("main", "/app/solver", -1)], "solver (main)"),
        ([("f", CUPY, -1), ("main", "/app/solver", -1)], "solver (main)"),
        ([("f", CUPY, -1), ("_PyEval", "/usr/bin/python3.12", -1)], "stream.so (f)"),
        ([("0x7", CUDA, -1), ("[Broken backtraces]", "[Broken backtraces]", -1)], None),
    ],
)
def test_the_frame_that_is_the_programs_own(
    stack: list[tuple[str, str, int]], place: str | None
) -> None:
    assert own_frame(stack) == place


CALLS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 1)), max_size=20)
ASKED = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), max_size=12)


@given(CALLS.map(sorted), ASKED)
def test_the_innermost_call_that_runs_at_a_time(
    calls: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    columns = ApiCalls.empty().columns()
    columns = {name: np.zeros(len(calls), column.dtype) for name, column in columns.items()}
    columns["start_ns"] = np.array([start for start, _, _ in calls], np.int64)
    columns["end_ns"] = np.array([start + length for start, length, _ in calls], np.int64)
    columns["thread"] = np.array([thread for _, _, thread in calls], np.int32)
    times, threads = (np.array([each[i] for each in asked], np.int64) for i in (0, 1))
    expected = []
    for time, thread in asked:
        running = [
            row
            for row, (start, length, its) in enumerate(calls)
            if its == thread and start <= time <= start + length
        ]
        expected.append(max(running, default=-1))
    assert _calls_at(ApiCalls(**columns), threads, times).tolist() == expected
