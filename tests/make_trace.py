"""Traces written by hand: times are literals, streams and threads are names.

>>> trace = make_trace(kernels=[(0, 10, "s7")], h2d=[(5, 15, "s8")])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuscope.model.classes import CODE
from gpuscope.model.tables import ApiCalls, MpiCalls, Operations, Ranges
from gpuscope.model.trace import Device, Process, Stream, Thread, Trace

Row = Sequence[Any]


def make_trace(
    *,
    ranges: Sequence[Row] = (),
    mpi: Sequence[Row] = (),
    devices: int = 1,
    copy_engines: int | None = 2,
    launched: bool = True,
    lost_records: int | None = 0,
    environment: Mapping[str, str] | None = None,
    **operations: Sequence[Row],
) -> Trace:
    """Build a trace of one process.

    Parameters
    ----------
    operations
        Rows by class (``kernels``, or a class name): (start, end, stream) and, optionally, a dict
        with ``launch`` (start of the API call, by default the operation's own start), ``thread``,
        ``device``, ``bytes``, ``src``, ``dst``, ``name``, ``src_kind``, ``dst_kind``, ``api``.
        A stream is a name such as ``s7``, its number; each device has its own.
    ranges
        Rows (name, start, end), end None if it never came, and optionally a dict with ``thread``,
        ``kind``, ``domain``, ``category``, ``bytes``, ``peer``, ``communicator``.
    mpi
        Rows (name, start, end) and optionally a dict with ``thread``.
    launched
        False leaves the API calls out of the recording.
    """
    strings: list[str] = []
    threads: list[str] = ["main"]
    streams: list[tuple[int, int]] = []
    rows: list[dict[str, Any]] = []

    def index(names: list[Any], name: Any) -> int:
        if name not in names:
            names.append(name)
        return names.index(name)

    for key, listed in operations.items():
        op_class = "kernel" if key == "kernels" else key
        for start, end, stream, *more in listed:
            extra = more[0] if more else {}
            device = extra.get("device", 0)
            rows.append(
                {
                    "start_ns": start,
                    "end_ns": end,
                    "op_class": CODE[op_class],
                    "process": 0,
                    "device": device,
                    "stream": index(streams, (device, int(stream.lstrip("s")))),
                    "name": index(strings, extra.get("name", op_class)),
                    "size_bytes": extra.get("bytes", 0),
                    "src_device": extra.get("src", -1),
                    "dst_device": extra.get("dst", -1),
                    "src_kind": extra.get("src_kind", -1),
                    "dst_kind": extra.get("dst_kind", -1),
                    "flags": extra.get("flags", 0),
                    "graph_node": extra.get("graph_node", -1),
                    "_launch": extra.get("launch", start),
                    "_thread": index(threads, extra.get("thread", "main")),
                    "_api": index(strings, extra.get("api", "cudaLaunchKernel")),
                }
            )
    rows.sort(key=lambda row: (row["start_ns"], row["end_ns"]))
    order = sorted(range(len(rows)), key=lambda i: rows[i]["_launch"])
    for position, i in enumerate(order):
        rows[i]["launch"] = position if launched else -1
    for number, row in enumerate(rows):
        row["correlation"] = number + 1
    range_rows = sorted((_range(row, strings, threads, index) for row in ranges), key=_by_time)
    mpi_rows = sorted((_mpi(row, strings, threads, index) for row in mpi), key=_by_time)
    api_rows = [
        {
            "start_ns": rows[i]["_launch"],
            "end_ns": rows[i]["_launch"],
            "process": 0,
            "thread": rows[i]["_thread"],
            "correlation": rows[i]["correlation"],
            "name": rows[i]["_api"],
            "result": 0,
        }
        for i in order
    ]
    return Trace(
        path="made.sqlite",
        format="nsys-sqlite",
        tool_version=None,
        schema_version=None,
        processes=(Process(100, "made", None),),
        threads=tuple(Thread(0, 100 + i, name) for i, name in enumerate(threads)),
        devices=tuple(
            Device(0, number, "GPU", copy_engines, 132, f"gpu {number}")
            for number in range(devices)
        ),
        streams=tuple(Stream(0, device, 1, number, None, None) for device, number in streams),
        operations=_table(Operations, rows),
        api=_table(ApiCalls, api_rows) if launched else None,
        ranges=_table(Ranges, range_rows),
        mpi=_table(MpiCalls, mpi_rows) if mpi else None,
        strings=tuple(strings),
        lost_records=lost_records,
        environment=environment or {},
    )


def _by_time(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["start_ns"], row["end_ns"]


def _range(row: Row, strings: list[str], threads: list[str], index: Any) -> dict[str, Any]:
    name, start, end, *more = row
    extra = more[0] if more else {}
    domain = extra.get("domain")
    return {
        "start_ns": start,
        "end_ns": -1 if end is None else end,
        "kind": extra.get("kind", 0),
        "process": 0,
        "thread": index(threads, extra.get("thread", "main")),
        "domain": -1 if domain is None else index(strings, domain),
        "category": extra.get("category", -1),
        "name": index(strings, name),
        "size_bytes": extra.get("bytes", -1),
        "peer": extra.get("peer", -1),
        "communicator": extra.get("communicator", -1),
    }


def _mpi(row: Row, strings: list[str], threads: list[str], index: Any) -> dict[str, Any]:
    name, start, end, *more = row
    extra = more[0] if more else {}
    return {
        "start_ns": start,
        "end_ns": end,
        "process": 0,
        "thread": index(threads, extra.get("thread", "main")),
        "name": index(strings, name),
        "size_bytes": -1,
        "peer": -1,
        "communicator": -1,
    }


def _table(kind: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    if not rows:
        return kind.empty()
    return kind(
        **{
            name: np.array([row[name] for row in rows], empty.dtype)
            for name, empty in kind.empty().columns().items()
        }
    )


def of_rank(trace: Trace, rank: int | None) -> Trace:
    """Return a trace as that of an MPI rank."""
    processes = tuple(dataclasses.replace(each, rank=rank) for each in trace.processes)
    return dataclasses.replace(trace, processes=processes)
