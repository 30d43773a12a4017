"""Call stacks of API calls, where they were recorded (``gpuscope run --why``).

nsys keeps the stack of native code in ``CUDA_CALLCHAINS``. That of Python is a mark in an NVTX
domain of its own, at the time of the call, whose payload lists the frames; it is in an export only
if that was asked to hold payloads as JSON. A call that has both is shown with its Python frames.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import distinct
from gpuscope.model.tables import ApiCalls, StackFrames
from gpuscope.readers import nsys_schema as schema
from gpuscope.readers.database import Database, quoted

Int64 = npt.NDArray[np.int64]
Frame = tuple[str, str, int]
"""Function, file or module, line; a line of -1 is unknown."""


def read_stacks(
    database: Database,
    api: ApiCalls | None,
    of_python: bool,
    call_of: Callable[[Int64, Int64], npt.NDArray[Any]],
    thread_of: Callable[[Int64], npt.NDArray[Any]],
    add: Callable[[str], int],
) -> StackFrames | None:
    """Read the call stacks of an export, None where none were recorded.

    Parameters
    ----------
    database
        The export.
    api
        Its API calls, as they were read.
    of_python
        Whether it has the domain of Python's stacks.
    call_of
        Turns globalTids and correlation ids into rows of `api`, -1 for none.
    thread_of
        Turns globalTids into indices of threads.
    add
        Turns a text into an index of the trace's strings.
    """
    if not api:
        return None
    stacks, begun = _native(database, call_of)
    if of_python:
        stacks |= _python(database, api, thread_of, begun)
    if not stacks:
        return None
    rows = [
        (call, depth, add(function), add(file), line)
        for call, frames in sorted(stacks.items())
        for depth, (function, file, line) in enumerate(frames)
    ]
    columns = zip(*rows, strict=True)
    names = StackFrames.empty().columns()
    return StackFrames(
        **{
            name: np.array(column, empty.dtype)
            for (name, empty), column in zip(names.items(), columns, strict=True)
        }
    )


def _native(
    database: Database, call_of: Callable[[Int64, Int64], npt.NDArray[Any]]
) -> tuple[dict[int, list[Frame]], dict[tuple[int, int], int]]:
    """Return the frames by call, and the call by (globalTid, start) of the row with its stack."""
    chains = database.fetch(schema.CALLCHAINS)
    table = database.find(schema.RUNTIME)
    if chains is None or table is None or "callchainId" not in database.columns(table):
        return {}, {}
    calls = database.fetch(schema.CALLS_WITH_STACK)
    assert calls is not None
    texts = database.strings(np.unique([chains["symbol"], chains["module"]]))
    frames: dict[int, list[Frame]] = {}
    for row in np.lexsort((chains["stackDepth"], chains["id"])).tolist():
        function, module = (int(chains[name][row]) for name in ("symbol", "module"))
        frame = (texts.get(function, "?"), texts.get(module, "?"), -1)
        frames.setdefault(int(chains["id"][row]), []).append(frame)
    rows = call_of(calls["globalTid"], calls["correlationId"]).tolist()
    keys = zip(calls["globalTid"].tolist(), calls["start"].tolist(), strict=True)
    begun = {key: row for key, row in zip(keys, rows, strict=True) if row >= 0}
    chained = zip(rows, calls["callchainId"].tolist(), strict=True)
    return {row: frames[chain] for row, chain in chained if row >= 0 and chain in frames}, begun


def _python(
    database: Database,
    api: ApiCalls,
    thread_of: Callable[[Int64], npt.NDArray[Any]],
    begun: dict[tuple[int, int], int],
) -> dict[int, list[Frame]]:
    (table,) = schema.NVTX.names
    if table not in database.tables or "jsonTextId" not in database.columns(table):
        return {}
    marks = database.rows(
        f"SELECT m.start, m.globalTid, ifnull(m.jsonText, s.value) FROM {quoted(table)} AS m "
        "LEFT JOIN StringIds AS s ON s.id = m.jsonTextId WHERE m.eventType = 34 AND EXISTS ("
        f"SELECT 1 FROM {quoted(table)} AS d WHERE d.eventType = 75 AND d.domainId = m.domainId "
        "AND d.globalTid >> 24 = m.globalTid >> 24 AND d.text = ?)",
        (schema.PYTHON_STACKS,),
    )
    payloads = [list(_frames(text)) if isinstance(text, str) else [] for *_, text in marks]
    ids = {part for frames in payloads for *both, _ in frames for part in both}
    texts = database.strings([part for part in ids if isinstance(part, int)])
    found: dict[int, list[Frame]] = {}
    times = np.array([start for start, *_ in marks], np.int64)
    running = _calls_at(api, thread_of(np.array([tid for _, tid, _ in marks], np.int64)), times)
    for (start, tid, _), payload, at in zip(marks, payloads, running.tolist(), strict=True):
        frames = [
            (str(texts.get(function, function)), str(texts.get(file, file)), line)
            for function, file, line in payload
        ]
        call = begun.get((tid, start), at)
        if call >= 0 and frames:
            found[call] = frames
    return found


def _calls_at(api: ApiCalls, thread: npt.NDArray[Any], time_ns: Int64) -> Int64:
    """Return the innermost call that runs on each of some threads at a time, -1 for none."""
    found = np.full(len(time_ns), -1, np.int64)
    for number in distinct(thread):
        asked = np.flatnonzero(thread == number)
        calls = np.flatnonzero(api.thread == number)
        end = api.end_ns[calls]
        reach = np.maximum.accumulate(end)
        at = np.searchsorted(api.start_ns[calls], time_ns[asked], side="right") - 1
        some = at >= 0
        some[some] = reach[at[some]] >= time_ns[asked[some]]
        asked, at = asked[some], at[some]
        # Calls inside another may be over: one of those before still runs.
        while len(over := np.flatnonzero(end[at] < time_ns[asked])):
            at[over] -= 1
        found[asked] = calls[at]
    return found


def _frames(text: str) -> Iterator[tuple[Any, Any, int]]:
    """Yield the frames of a payload, the innermost first; names are texts or their ids."""
    try:
        pending: list[Any] = [json.loads(text)]
    except ValueError:
        return
    while pending:
        value = pending.pop(0)
        if isinstance(value, dict) and {"Function", "File"} <= value.keys():
            line = value.get("Line")
            yield value["Function"], value["File"], line if isinstance(line, int) else -1
        elif isinstance(value, dict):
            pending[:0] = value.values()
        elif isinstance(value, list):
            pending[:0] = value
