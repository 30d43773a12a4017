"""Writes what CUPTI recorded as SQLite, in the schema of an export of Nsight Systems 2025.3."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import platform
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope._version import __version__
from gpuscope.errors import CannotJudgeError, OutputError, ProgramError
from gpuscope.recording import machine
from gpuscope.recording.cupti import collector, layout, library, names, schema
from gpuscope.recording.cupti.spool import Buffers, End, Spool, Start
from gpuscope.units import counted

Records = npt.NDArray[Any]
"""Records of one kind: a structured array."""
_Value = Any
"""A column: an array or list, or the one value of all rows."""

NO_ID = 0xFFFFFFFF
"""What CUPTI, and nsys after it, write for no stream and no event."""
UNNAMED = "(name lost)"
"""The name of kernels and ranges of a program that was killed before it could give them."""

_PID_SHIFT = 24
"""A globalTid is the process, shifted by the 24 bits of the thread."""
_DRIVER_CLASS, _RUNTIME_CLASS = 1, 0
_MARK, _PUSH_POP, _START_END, _DOMAIN = 34, 59, 60, 75
_FLAG_MARK, _FLAG_START, _FLAG_END = 1, 2, 4
_FLAG_ARGB, _RGB = 2, 0xFFFFFF
"""That a range has a colour, and what nsys keeps of it."""
_UNKNOWN_MEMORY = 7
"""nsys's number of "unknown" memory; its other kinds are CUPTI's less one."""
DEVICE_FACTS = {
    "l2CacheSize": ("l2CacheSize", 1),
    "totalMemory": ("globalMemorySize", 1),
    "memoryBandwidth": ("globalMemoryBandwidth", 1_000),  # from kB/s
    "clockRate": ("coreClockRate", 1_000),  # from kHz
    "smCount": ("numMultiprocessors", 1),
    "cuDevice": ("id", 1),
    "constantMemory": ("constantMemorySize", 1),
    "maxRegistersPerBlock": ("maxRegistersPerBlock", 1),
    "maxShmemPerBlock": ("maxSharedMemoryPerBlock", 1),
    "maxShmemPerSm": ("maxSharedMemoryPerMultiprocessor", 1),
    "maxRegistersPerSm": ("maxRegistersPerMultiprocessor", 1),
    "threadsPerWarp": ("numThreadsPerWarp", 1),
    "asyncEngines": ("numMemcpyEngines", 1),
    "maxWarpsPerSm": ("maxWarpsPerMultiprocessor", 1),
    "maxBlocksPerSm": ("maxBlocksPerMultiprocessor", 1),
    "maxThreadsPerBlock": ("maxThreadsPerBlock", 1),
    "maxBlockDimX": ("maxBlockDimX", 1),
    "maxBlockDimY": ("maxBlockDimY", 1),
    "maxBlockDimZ": ("maxBlockDimZ", 1),
    "maxGridDimX": ("maxGridDimX", 1),
    "maxGridDimY": ("maxGridDimY", 1),
    "maxGridDimZ": ("maxGridDimZ", 1),
    "computeMajor": ("computeCapabilityMajor", 1),
    "computeMinor": ("computeCapabilityMinor", 1),
    "smMajor": ("computeCapabilityMajor", 1),
    "smMinor": ("computeCapabilityMinor", 1),
}
"""nsys's names of what CUPTI says of a device: its name there, and the factor to nsys's unit."""
_OVERHEADS = {
    1 << 16: "CUPTI Buffer flush",
    2 << 16: "CUPTI Instrumentation",
    3 << 16: "CUPTI Resource Management",
    7 << 16: "CUPTI Buffer request",
}
"""The kinds of overhead that the recorder causes, the first three in nsys's words; the others are
the driver's own work.
"""
_INFO, _WARNING, _ERROR = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Written:
    """What it cost, and what was lost."""

    dropped: int
    """Records that found no buffer."""
    callbacks: int
    callback_ns: int
    was_killed: bool
    """The program ended without a chance to write the names."""
    notes: tuple[str, ...]


def read_records(spool: Spool, start: Start) -> dict[int, Records]:
    """Read all records of a recording.

    Raises
    ------
    TraceError
        There is something else in the buffers.
    """
    pieces: dict[int, list[Records]] = {}
    with Buffers(spool.buffers) as buffers:
        for data in buffers:
            raw = np.frombuffer(data, np.uint8)
            for kind, offsets in layout.walk(memoryview(data), start.record_sizes).items():
                size = start.record_sizes[kind]
                at = np.array(offsets)[:, None] + np.arange(size)
                pieces.setdefault(kind, []).append(
                    raw[at].view(_dtype(kind, size)).reshape(len(offsets))
                )
    return {kind: np.concatenate(parts) for kind, parts in pieces.items()}


def _dtype(kind: int, size: int) -> np.dtype[Any]:
    """Return the layout of a record; fields that this version lacks are not in it."""
    fields = {name: f for name, f in layout.FIELDS[kind].items() if f.end <= size}
    return np.dtype(
        {
            "names": list(fields),
            "formats": [field.format for field in fields.values()],
            "offsets": [field.offset for field in fields.values()],
            "itemsize": size,
        }
    )


def write(spool: Spool, path: Path, *, within: tuple[str, str | None] | None = None) -> Written:
    """Write the recording in `spool` to `path`, whole or not at all.

    Parameters
    ----------
    spool
        The recording; it stays as it is.
    path
        The SQLite file; one that is there is replaced.
    within
        Keep only what lies in the first NVTX range of this name and domain; the domain "" is the
        default one, None is any.

    Raises
    ------
    ProgramError
        Recording never began.
    TraceError
        The records are of a version that is not known.
    CannotJudgeError
        The range never came.
    OutputError
        `path` cannot be written.
    """
    start, end = spool.read_start(), spool.read_end()
    if start is None:
        msg = "the program ended before anything could be recorded; its own words are above."
        raise ProgramError(msg)
    export = _Export(start, end, read_records(spool, start), within)
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(part)) as connection:
            export.write(connection)
            connection.commit()
        part.replace(path)
    except (OSError, sqlite3.OperationalError) as error:
        part.unlink(missing_ok=True)
        msg = f"{path} cannot be written ({error}): free some space, or give another folder."
        raise OutputError(msg) from None
    return Written(
        dropped=end.dropped if end else 0,
        callbacks=end.callbacks if end else 0,
        callback_ns=end.callback_ns if end else 0,
        was_killed=end is None,
        notes=(*(end.notes if end else ()), *export.notes),
    )


class _Export:
    """Turns records into rows."""

    def __init__(
        self,
        start: Start,
        end: End | None,
        records: dict[int, Records],
        within: tuple[str, str | None] | None,
    ) -> None:
        self.notes: list[str] = []
        self._start = start
        self._end = end
        self._texts = end.texts if end else {}
        self._records = records
        self._ids: dict[str, int] = {}
        self._global_pid = start.pid << _PID_SHIFT
        self._drop_unfinished()
        self._ranges = _pair_markers(
            self._rows(layout.MARKER), self._rows(layout.MARKER_DATA), self._texts
        )
        if within is not None:
            self._keep_within(*within)
        times = [
            int(rows["start"].min())
            for kind, rows in records.items()
            if _has(rows, "start") and len(rows)
        ]
        times += [int(self._ranges["start"].min())] if len(self._ranges["start"]) else []
        first = min(times, default=0)
        # A call may have begun before the recording did: nothing is to start before 0.
        self._origin = min(end.started_ns, first or end.started_ns) if end else first
        contexts = self._rows(layout.CONTEXT)
        self._device_of = {int(row["contextId"]): int(row["deviceId"]) for row in contexts}
        # nsys names the context that a green one was made in, and the green one beside it.
        self._parent_of = {
            int(row["contextId"]): int(row["parentContextId"])
            for row in (contexts if _has(contexts, "isGreenContext") else ())
            if row["isGreenContext"]
        }

    def _rows(self, kind: int) -> Records:
        found = self._records.get(kind)
        size = max(field.end for field in layout.FIELDS[kind].values())
        return np.empty(0, _dtype(kind, size)) if found is None else found

    def _drop_unfinished(self) -> None:
        """Leave out records without times: CUPTI gets those of GPU work some time after it."""
        for kind, rows in self._records.items():
            if _has(rows, "end") and kind != layout.OVERHEAD:
                whole = (rows["start"] > 0) & (rows["end"] >= rows["start"])
                if not whole.all():
                    count = counted(int((~whole).sum()), "record was", "records were")
                    self.notes.append(
                        f"{count} left out: CUPTI had no times for them when the recording ended"
                    )
                    self._records[kind] = rows[whole]

    def _keep_within(self, name: str, domain: str | None) -> None:
        """Keep the first range of this name, and what was launched in it."""
        ranges = self._ranges
        matching = [
            row
            for row, (own, its_domain) in enumerate(
                zip(ranges["name"], ranges["domain"], strict=True)
            )
            if own == name and domain in {None, its_domain or ""} and ranges["end"][row]
        ]
        if not matching:
            of_domain = f" of domain {domain}" if domain else " of the default domain"
            msg = f"nothing was recorded: the program never ended an NVTX range {name}"
            msg += "" if domain is None else of_domain
            msg += "." if domain else f" ({library.RANGES_LOST}: record those with --nsys)."
            raise CannotJudgeError(msg)
        first = min(matching, key=lambda row: int(ranges["start"][row]))
        low, high = int(ranges["start"][first]), int(ranges["end"][first])
        calls: list[npt.NDArray[np.uint32]] = []
        for kind in (layout.RUNTIME, layout.DRIVER):
            rows = self._rows(kind)
            kept = (rows["start"] >= low) & (rows["start"] <= high)
            self._records[kind] = rows[kept]
            calls.append(rows["correlationId"][kept])
        launched = np.concatenate(calls)
        for kind, rows in self._records.items():
            if _has(rows, "correlationId"):
                self._records[kind] = rows[np.isin(rows["correlationId"], launched)]
            elif kind == layout.OVERHEAD:
                self._records[kind] = rows[(rows["end"] >= low) & (rows["start"] <= high)]
        inside = (ranges["start"] >= low) & (ranges["start"] <= high)
        rows_kept = np.flatnonzero(inside).tolist()
        self._ranges = {
            column: values[inside]
            if isinstance(values, np.ndarray)
            else [values[row] for row in rows_kept]
            for column, values in ranges.items()
        }

    # Columns

    def _text(self, value: str) -> int:
        return self._ids.setdefault(value, len(self._ids))

    def _texts_of(self, addresses: npt.NDArray[np.uint64]) -> tuple[list[str], npt.NDArray[Any]]:
        """Return the distinct texts, and for each row which one it has."""
        distinct, codes = np.unique(addresses, return_inverse=True)
        return [self._texts.get(int(address), UNNAMED) for address in distinct], codes

    def _time(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return values.astype(np.int64) - self._origin

    def _thread(self, rows: Mapping[str, Any] | Records) -> npt.NDArray[np.int64]:
        process: npt.NDArray[np.int64] = rows["processId"].astype(np.int64)
        return (process << _PID_SHIFT) | rows["threadId"].astype(np.int64)

    def _place(self, rows: Records) -> dict[str, _Value]:
        columns: dict[str, _Value] = {
            "deviceId": rows["deviceId"]
            if _has(rows, "deviceId")
            else [self._device_of.get(int(context), 0) for context in rows["contextId"]],
            "contextId": rows["contextId"],
            "streamId": rows["streamId"],
            "correlationId": rows["correlationId"],
            "globalPid": self._global_pid,
        }
        if self._parent_of:
            own = rows["contextId"].tolist()
            columns["contextId"] = [self._parent_of.get(context, context) for context in own]
            columns["greenContextId"] = [
                context if context in self._parent_of else None for context in own
            ]
        if _has(rows, "start"):
            columns |= {"start": self._time(rows["start"]), "end": self._time(rows["end"])}
        if _has(rows, "graphNodeId"):
            columns["graphNodeId"] = _none_if_zero(rows["graphNodeId"])
        return columns

    # Tables

    def write(self, connection: sqlite3.Connection) -> None:
        """Write all tables."""
        for table, rows in self._tables():
            connection.execute(schema.create_statement(table))
            _insert(connection, table, rows)
        # The texts are known when all else is written.
        connection.execute(schema.create_statement("StringIds"))
        _insert(
            connection,
            "StringIds",
            {"id": list(self._ids.values()), "value": list(self._ids)},
        )
        for table, meanings in schema.ENUMS.items():
            connection.execute(schema.create_statement(table))
            by_column = zip(*meanings, strict=True)
            _insert(connection, table, dict(zip(schema.columns(table), by_column, strict=True)))

    def _tables(self) -> Iterator[tuple[str, dict[str, _Value]]]:
        """Yield (table, columns); activities only where there are any, as nsys does."""
        activities = (
            ("KERNEL", self._rows(layout.CONCURRENT_KERNEL), self._kernels),
            ("MEMSET", self._rows(layout.MEMSET), self._memsets),
            ("GRAPH_TRACE", self._rows(layout.GRAPH_TRACE), self._graphs),
            ("SYNCHRONIZATION", self._rows(layout.SYNCHRONIZATION), self._syncs),
            ("CUDA_EVENT", self._rows(layout.CUDA_EVENT), self._events),
        )
        for name, rows, build in activities:
            if len(rows):
                yield schema.PREFIX + name, build(rows)
        copies, peers = self._rows(layout.MEMCPY), self._rows(layout.MEMCPY_PEER)
        if len(copies) or len(peers):
            yield f"{schema.PREFIX}MEMCPY", self._copies(copies, peers)
        calls = [(layout.RUNTIME, _RUNTIME_CLASS), (layout.DRIVER, _DRIVER_CLASS)]
        if any(len(self._rows(kind)) for kind, _ in calls):
            yield f"{schema.PREFIX}RUNTIME", self._calls()
        if len(self._ranges["start"]):
            yield "NVTX_EVENTS", self._nvtx()
        overhead = self._rows(layout.OVERHEAD)
        own = np.isin(overhead["overheadKind"], list(_OVERHEADS))
        if own.any():
            yield "PROFILER_OVERHEAD", self._overheads(overhead[own])
        yield from self._facts()

    def _kernels(self, rows: Records) -> dict[str, _Value]:
        mangled, codes = self._texts_of(rows["name"])
        demangled = [names.demangle(text) for text in mangled]
        same = (
            "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
            "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread",
            "localMemoryTotal", "gridId", "sharedMemoryExecuted",
        )  # fmt: skip
        return {
            **self._place(rows),
            **{name: rows[name] for name in same},
            # nsys counts from 1; its 0 is unknown.
            "launchType": rows["launchType"].astype(np.int64) + 1,
            "mangledName": _pick([self._text(text) for text in mangled], codes),
            "demangledName": _pick([self._text(text) for text in demangled], codes),
            "shortName": _pick([self._text(names.short_name(text)) for text in demangled], codes),
        }

    def _copies(self, copies: Records, peers: Records) -> dict[str, _Value]:
        parts = []
        for rows in (copies, peers):
            ends = ("srcDeviceId", "srcContextId", "dstDeviceId", "dstContextId")
            is_peer = _has(rows, "srcDeviceId")
            columns = {
                **self._place(rows),
                "bytes": rows["bytes"],
                "copyKind": rows["copyKind"],
                "srcKind": _memory_kind(rows["srcKind"]),
                "dstKind": _memory_kind(rows["dstKind"]),
                "copyCount": rows["copyCount"] if _has(rows, "copyCount") else None,
                **{name: rows[name] if is_peer else None for name in ends},
            }
            parts.append({name: _as_list(column, len(rows)) for name, column in columns.items()})
        return {name: parts[0][name] + parts[1][name] for name in parts[0]}

    def _memsets(self, rows: Records) -> dict[str, _Value]:
        return {
            **self._place(rows),
            "value": rows["value"],
            "bytes": rows["bytes"],
            "memKind": _memory_kind(rows["memoryKind"]),
        }

    def _graphs(self, rows: Records) -> dict[str, _Value]:
        return {**self._place(rows), "graphId": rows["graphId"]}

    def _syncs(self, rows: Records) -> dict[str, _Value]:
        return {
            **self._place(rows),
            "syncType": rows["type"],
            "eventId": rows["cudaEventId"],
            "eventSyncId": _sync_ids(rows),
        }

    def _events(self, rows: Records) -> dict[str, _Value]:
        return {
            **self._place(rows),
            "eventId": rows["eventId"],
            "eventSyncId": _sync_ids(rows),
        }

    def _calls(self) -> dict[str, _Value]:
        """Return the calls of both APIs. What the runtime calls of the driver CUPTI leaves out."""
        runtime, driver = self._rows(layout.RUNTIME), self._rows(layout.DRIVER)
        parts = []
        for rows, event_class, call_names in (
            (runtime, _RUNTIME_CLASS, self._start.runtime_calls),
            (driver, _DRIVER_CLASS, self._start.driver_calls),
        ):
            distinct, codes = np.unique(rows["cbid"], return_inverse=True)
            ids = [self._text(call_names.get(int(number), f"call {number}")) for number in distinct]
            columns = {
                "start": self._time(rows["start"]),
                "end": self._time(rows["end"]),
                "eventClass": event_class,
                "globalTid": self._thread(rows),
                "correlationId": rows["correlationId"],
                "nameId": _pick(ids, codes),
                "returnValue": rows["returnValue"],
            }
            parts.append({name: _as_list(column, len(rows)) for name, column in columns.items()})
        return {name: parts[0][name] + parts[1][name] for name in parts[0]}

    def _nvtx(self) -> dict[str, _Value]:
        ranges = self._ranges
        distinct = sorted({domain for domain in ranges["domain"] if domain})
        numbers = {domain: number for number, domain in enumerate(distinct, 1)}
        count = len(distinct)
        start = self._time(ranges["start"])
        domain_threads = [
            int(self._thread(ranges)[ranges["domain"].index(domain)]) for domain in distinct
        ]
        ends = [int(value) - self._origin if value else None for value in ranges["end"].tolist()]
        # A domain is made known by a row of its own, before its first range.
        return {
            "start": [int(start.min())] * count + start.tolist(),
            "end": [None] * count + ends,
            "eventType": [_DOMAIN] * count + ranges["type"].tolist(),
            "text": distinct + [None] * len(start),
            "textId": [None] * count + [self._text(name) for name in ranges["name"]],
            "globalTid": domain_threads + self._thread(ranges).tolist(),
            "domainId": list(numbers.values())
            + [numbers.get(domain, 0) for domain in ranges["domain"]],
            "category": [None] * count + ranges["category"],
            "color": [None] * count + ranges["color"],
        }

    def _overheads(self, rows: Records) -> dict[str, _Value]:
        return {
            "start": self._time(rows["start"]),
            "end": self._time(rows["end"]),
            "globalTid": self._thread(rows),
            "nameId": [self._text(_OVERHEADS[int(kind)]) for kind in rows["overheadKind"]],
            "returnValue": 0,
        }

    def _facts(self) -> Iterator[tuple[str, dict[str, _Value]]]:
        pid, end = self._start.pid, self._end
        devices, contexts = self._rows(layout.DEVICE), self._rows(layout.CONTEXT)
        devices = devices[np.unique(devices["id"], return_index=True)[1]]
        if len(devices):
            texts, codes = self._texts_of(devices["name"])
            yield (
                "TARGET_INFO_GPU",
                {
                    "vmId": 0,
                    "id": devices["id"],
                    "name": [None if texts[code] == UNNAMED else texts[code] for code in codes],
                    "uuid": [str(uuid.UUID(bytes=bytes(row))) for row in devices["uuid"]],
                    **{
                        name: devices[own].astype(np.int64) * factor
                        for name, (own, factor) in DEVICE_FACTS.items()
                    },
                },
            )
            yield (
                "TARGET_INFO_CUDA_DEVICE",
                {"gpuId": devices["id"], "cudaId": devices["id"], "pid": pid},
            )
        place = {"hwId": 0, "vmId": 0, "processId": pid}
        if len(contexts):
            yield (
                "TARGET_INFO_CUDA_CONTEXT_INFO",
                {
                    **place,
                    **{
                        name: contexts[name] if _has(contexts, name) else None
                        for name in layout.FIELDS[layout.CONTEXT]
                    },
                },
            )
        streams = self._rows(layout.STREAM)
        if len(streams):
            same = ("streamId", "contextId", "priority", "flag")
            yield "TARGET_INFO_CUDA_STREAM", {**place, **{name: streams[name] for name in same}}
        yield (
            "PROCESSES",
            {"globalPid": [self._global_pid], "pid": pid, "name": self._start.program},
        )
        if end and end.threads:
            yield (
                "ThreadNames",
                {
                    "nameId": [self._text(name) for name in end.threads.values()],
                    "globalTid": [self._global_pid | tid for tid in end.threads],
                },
            )
        yield "TARGET_INFO_SESSION_START_TIME", _session_start(self._origin)
        if end:
            duration = end.stopped_ns - self._origin
            yield (
                "ANALYSIS_DETAILS",
                {"globalVid": [0], "duration": duration, "startTime": 0, "stopTime": duration},
            )
        yield "TARGET_INFO_SYSTEM_ENV", _machine_facts()
        yield "DIAGNOSTIC_EVENT", self._diagnostics()
        yield "META_DATA_CAPTURE", self._capture_facts()
        yield "META_DATA_EXPORT", _named(_export_facts())

    def _diagnostics(self) -> dict[str, _Value]:
        """Return what the recorder says of its recording, in the words that nsys uses."""
        said = [(0, _INFO, "Profiling has started.")]
        end = self._end
        at = end.stopped_ns - self._origin if end else 0
        dropped = end.dropped if end else 0
        said += [(at, _WARNING, sentence) for sentence in self.notes]
        if dropped:
            said.append(
                (
                    at,
                    _ERROR,
                    f"Not all CUDA events might have been collected: {dropped} found no buffer.",
                )
            )
        if end:
            said.append((at, _INFO, "Profiling has stopped."))
        return {
            "timestamp": [row[0] for row in said],
            "timestampType": 1,
            "source": 1,
            "severity": [row[1] for row in said],
            "text": [row[2] for row in said],
            "globalPid": self._global_pid,
        }

    def _capture_facts(self) -> dict[str, _Value]:
        version = self._start.api_version
        return _named(
            {
                "CAPTURE_PRODUCT_NAME": "gpuscope through CUPTI",
                "CAPTURE_PRODUCT_VERSION": __version__,
                "CAPTURE_CUPTI_API_VERSION": str(version),
                **{f"PROCESS_0:{name}": value for name, value in self._start.environment.items()},
            }
        )


def _pair_markers(markers: Records, more: Records, texts: Mapping[int, str]) -> dict[str, Any]:
    """Bring together what comes as records of their own: both ends of NVTX ranges, and the rest.

    Returns
    -------
    dict
        By column: ``start`` and ``end`` (0 where none came) in UTC ns, ``type``, ``processId``,
        ``threadId``, and the lists ``name``, ``domain`` (None is the default domain), ``category``
        and ``color`` (None where none was given).
    """
    begun = markers[(markers["flags"] & (_FLAG_START | _FLAG_MARK)) > 0]
    ended = markers[(markers["flags"] & _FLAG_END) > 0]
    ended = ended[np.argsort(ended["id"])]
    at = np.searchsorted(ended["id"], begun["id"])
    found = at < len(ended)
    found[found] = ended["id"][at[found]] == begun["id"][found]
    end = np.zeros(len(begun), np.uint64)
    end[found] = ended["timestamp"][at[found]]
    same_thread = np.ones(len(begun), np.bool_)
    same_thread[found] = ended["threadId"][at[found]] == begun["threadId"][found]
    is_mark = (begun["flags"] & _FLAG_MARK) > 0
    rest = {int(row["id"]): row for row in more}
    attributes = [rest.get(int(number)) for number in begun["id"]]
    domains = [texts.get(int(address)) for address in begun["domain"]]
    return {
        "start": begun["timestamp"],
        "end": end,
        "type": np.where(is_mark, _MARK, np.where(same_thread, _PUSH_POP, _START_END)),
        "processId": begun["processId"],
        "threadId": begun["threadId"],
        "name": [texts.get(int(address), UNNAMED) for address in begun["name"]],
        "domain": [None if name == collector.DEFAULT_DOMAIN else name for name in domains],
        "category": [None if row is None else int(row["category"]) or None for row in attributes],
        "color": [
            None if row is None or not row["flags"] & _FLAG_ARGB else int(row["color"]) & _RGB
            for row in attributes
        ],
    }


def _insert(connection: sqlite3.Connection, table: str, columns: Mapping[str, _Value]) -> None:
    """Write columns as rows."""
    count = next(len(column) for column in columns.values() if _is_column(column))
    lists = [_as_list(column, count) for column in columns.values()]
    quoted = ", ".join(f'"{name}"' for name in columns)
    connection.executemany(
        f'INSERT INTO "{table}" ({quoted}) VALUES ({", ".join("?" * len(columns))})',
        zip(*lists, strict=True),
    )


def _has(rows: Records, name: str) -> bool:
    """Whether records of this version have the field `name`."""
    return name in (rows.dtype.names or ())


def _is_column(column: _Value) -> bool:
    return isinstance(column, np.ndarray | list | tuple)


def _as_list(column: _Value, count: int) -> list[Any]:
    """Return a column as values that SQLite takes."""
    if isinstance(column, np.ndarray):
        values: list[Any] = column.tolist()
        return values
    return list(column) if _is_column(column) else list(itertools.repeat(column, count))


def _pick(values: Sequence[int], codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    picked: npt.NDArray[np.int64] = np.array(values, np.int64)[codes]
    return picked


def _none_if_zero(values: npt.NDArray[np.uint64]) -> list[int | None]:
    return [value or None for value in values.astype(np.int64).tolist()]


def _memory_kind(kinds: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    shifted: npt.NDArray[np.int64] = kinds.astype(np.int64) - 1
    shifted[shifted < 0] = _UNKNOWN_MEMORY
    return shifted


def _sync_ids(rows: Records) -> _Value:
    """Return which record of an event is meant; nothing where the version does not say."""
    if not _has(rows, "cudaEventSyncId"):
        return None
    ids = rows["cudaEventSyncId"]
    return [NO_ID if value >= NO_ID else value for value in ids.tolist()]


def _session_start(origin_ns: int) -> dict[str, _Value]:
    moment = datetime.datetime.fromtimestamp(origin_ns // 10**9, datetime.UTC)
    return {
        "utcEpochNs": [origin_ns],
        "utcTime": moment.strftime("%Y-%m-%dT%H:%M:%S"),
        "localTime": moment.astimezone().strftime("%Y-%m-%dT%H:%M:%S"),
    }


def _named(facts: Mapping[str, str]) -> dict[str, _Value]:
    return {"name": list(facts), "value": list(facts.values())}


def _machine_facts() -> dict[str, _Value]:
    """Return what readers are told of the machine: no names of hosts or users."""
    facts = {
        "CpuCores": str(os.cpu_count() or 0),
        "CpuArchitecture": platform.machine(),
        "OsDescription": machine.system(),
        "NvDriverVersion": machine.graphics().driver,
        "CudaDriverVersion": str(version) if (version := library.driver_cuda_version()) else None,
    }
    known = {name: value for name, value in facts.items() if value}
    return {
        "globalVid": 0,
        "devStateName": "Local",
        "name": list(known),
        "nameEnum": 0,
        "value": list(known.values()),
    }


def _export_facts() -> dict[str, str]:
    return {
        "EXPORT_PRODUCT_NAME": "gpuscope",
        "EXPORT_PRODUCT_VERSION": __version__,
        "EXPORT_SCHEMA_VERSION": schema.SCHEMA_VERSION,
    }
