"""A copy of an export that is safe to hand out: only what the analysis reads, and nothing else.

The copy is written from an allowlist into a new file, so that no table or column can slip through
because nobody thought of it: the tables and columns of `nsys_schema`, the names of kernels, API
calls, ranges and MPI calls, the GPU's model, versions, and environment variables whose values are
numbers or names of algorithms. Host, user, paths, command lines, program output, names of processes
and of threads but MPI ranks stay out.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.errors import OutputError, UsageError
from gpuscope.readers import nccl_payload, nsys_facts, open_trace
from gpuscope.readers import nsys_schema as schema
from gpuscope.readers.database import Database

_TABLES = (
    schema.KERNEL_WITH_CONFIG,
    schema.MEMCPY,
    schema.MEMSET,
    schema.GRAPH,
    schema.RUNTIME,
    schema.SYNCHRONIZATION,
    schema.CUDA_EVENT,
    *schema.MPI,
    schema.MPI_RANKS,
    schema.STREAM_INFO,
    *schema.NULL_STREAM_INFO,
    schema.GREEN_KERNELS,
    schema.GREEN_CONTEXTS,
    schema.DEVICE_INFO,
    schema.PROFILER_OVERHEAD,
)
"""Tables of numbers, copied column by column; ``NVTX_EVENTS`` also has texts."""

_NAME_COLUMNS = ("shortName", "demangledName", "nameId", "textId")
"""Columns that refer to the texts that are kept."""

_NVTX_TYPES = (59, 60, 75, 33)
"""Ranges, the creation of domains, and the names of categories."""

_MODEL = r"[\w ()+/.-]{1,64}"
_FACTS: Mapping[str, Mapping[str, str]] = {
    "TARGET_INFO_GPU": {
        "id": "",
        "name": _MODEL,
        "asyncEngines": "",
        "smCount": "",
        "maxWarpsPerSm": "",
        "threadsPerWarp": "",
        "maxBlocksPerSm": "",
        "maxRegistersPerSm": "",
        "maxShmemPerSm": "",
        "cuDevice": "",
    },
    "TARGET_INFO_CUDA_GPU": {
        "id": "",
        "deviceId": "",
        "name": _MODEL,
        "numMemcpyEngines": "",
        "numMultiprocessors": "",
    },
    "TARGET_INFO_SESSION_START_TIME": {"utcEpochNs": ""},
    **{enum.table: {"id": "", "name": r"[A-Z_]{1,64}"} for enum in schema.ENUMS.values()},
}
"""Small tables, their columns, and what the texts in these must look like; others are numbers."""


def anonymize(source: Path, target: Path, *, force: bool = False) -> None:
    """Write a copy of the export `source` without anything private to `target`.

    Raises
    ------
    TraceError
        `source` is no export, or damaged beyond reading.
    UsageError
        `target` is something else than a file.
    OutputError
        `target` exists and `force` is false, or is `source`, or cannot be written.
    """
    trace = open_trace(source, tables={"operations", "ranges"})
    if target.is_symlink() or not (target.is_file() or target.is_dir() or not target.exists()):
        msg = f"{target} is no regular file: give the name of a new one."
        raise UsageError(msg)
    if target.exists() and (not force or target.samefile(source)):
        msg = f"{target} exists: give another name" + ("." if force else ", or --force.")
        raise OutputError(msg)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".gpuscope-") as folder:
            made = Path(folder) / "copy.sqlite"
            with Database(source) as database, contextlib.closing(sqlite3.connect(made)) as copy:
                _Copy(database, copy).write(trace.environment)
                copy.commit()
            made.replace(target)
    except (OSError, sqlite3.Error) as error:
        msg = f"{target} cannot be written: {getattr(error, 'strerror', None) or error}."
        raise OutputError(msg) from None


class _Copy:
    """Writes the allowed parts of one export into a new database."""

    def __init__(self, source: Database, target: sqlite3.Connection) -> None:
        self._source, self._target = source, target
        self._texts: set[int] = set()

    def write(self, environment: Mapping[str, str]) -> None:
        """Write everything; `environment` holds the allowed variables."""
        columns: dict[str, dict[str, None]] = {}
        for spec in _TABLES:
            table = self._source.find(spec)
            if table is not None:
                named = columns.setdefault(table, {})
                named.update(dict.fromkeys(n for c in spec.columns.values() for n in c.names))
        for table, names in columns.items():
            self._copy_numbers(table, tuple(names))
        self._copy_ranges()
        for table, facts in _FACTS.items():
            self._copy_facts(table, facts)
        self._copy_ranks()
        self._write_versions()
        machine = nsys_facts.machine_facts(self._source)
        self._insert(schema.MACHINE_TABLE, ("name", "value"), machine.items())
        messages = nsys_facts.diagnostics(self._source)
        if messages:
            self._insert(schema.DIAGNOSTICS, ("severity", "text"), messages)
        self._insert("META_DATA_CAPTURE", ("name", "value"), environment.items())
        self._write_texts()

    def _insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        listed = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        self._target.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({listed})')
        self._target.executemany(f'INSERT INTO "{table}" ({listed}) VALUES ({marks})', rows)

    def _copy_numbers(
        self, table: str, names: Iterable[str], texts: Sequence[str] = (), condition: str = ""
    ) -> None:
        """Copy the columns `names` as integers, `texts` as they are."""
        known = self._source.columns(table)
        numbers = [name for name in names if name in known]
        texts = [name for name in texts if name in known]
        if not numbers:
            return
        declared = [f'"{name}" INTEGER' for name in numbers] + [f'"{name}" TEXT' for name in texts]
        self._target.execute(f'CREATE TABLE "{table}" ({", ".join(declared)})')
        # Whatever is no integer comes out as NULL: no text can hide there.
        selected = [f'CASE typeof("{n}") WHEN \'integer\' THEN "{n}" END' for n in numbers]
        selected += [f'"{name}"' for name in texts]
        rows = self._source.iterate(f'SELECT {", ".join(selected)} FROM "{table}"{condition}')
        self._insert(table, [*numbers, *texts], rows)
        for name in _NAME_COLUMNS:
            if name in numbers:
                found = self._target.execute(f'SELECT DISTINCT "{name}" FROM "{table}"')
                self._texts.update(key for (key,) in found if key is not None)

    def _copy_ranges(self) -> None:
        (table,) = schema.NVTX.names
        if table in self._source.tables:
            kinds = ", ".join(map(str, _NVTX_TYPES))
            self._copy_numbers(
                table, schema.NVTX.columns, ("text",), f" WHERE eventType IN ({kinds})"
            )
            self._copy_payloads(table, f"eventType IN ({kinds})")

    def _copy_payloads(self, table: str, condition: str) -> None:
        """Keep of the payloads of ranges what NCCL says of sizes, peers and communicators."""
        layout = nccl_payload.layout_of(self._source)
        if not layout or "binaryData" not in self._source.columns(table):
            return
        self._insert(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            ("domainId", "schemaId", "name", "type", "offset"),
            nccl_payload.layout_rows(layout),
        )
        self._target.execute(f'ALTER TABLE "{table}" ADD COLUMN binaryData BLOB')
        payloads = self._source.iterate(
            f"SELECT domainId, CASE typeof(binaryData) WHEN 'blob' THEN binaryData END "
            f'FROM "{table}" WHERE {condition}'
        )
        # The rows of the copy are numbered from 1, in the order of reading.
        kept = (
            (nccl_payload.cleaned(payload, domain, layout), row)
            for row, (domain, payload) in enumerate(payloads, start=1)
            if payload is not None
        )
        self._target.executemany(f'UPDATE "{table}" SET binaryData = ? WHERE rowid = ?', kept)

    def _copy_facts(self, table: str, patterns: Mapping[str, str]) -> None:
        records = self._source.records(table, *patterns)
        if records:
            rows = [
                [_allowed(value, patterns[name]) for name, value in record.items()]
                for record in records
            ]
            self._insert(table, list(records[0]), rows)

    def _copy_ranks(self) -> None:
        """Keep of the threads' names only those that give MPI ranks."""
        ranks = [
            (key, thread)
            for key, thread, name in nsys_facts.thread_names(self._source)
            if nsys_facts.MPI_RANK_THREAD.fullmatch(name)
        ]
        self._texts.update(key for key, _ in ranks)
        self._insert("ThreadNames", ("nameId", "globalTid"), ranks)

    def _write_versions(self) -> None:
        for table in nsys_facts.METADATA:
            rows = [
                (record["name"], record["value"])
                for record in self._source.records(table, "name", "value")
                if (
                    record.get("name") in schema.VERSION_NAMES
                    and _allowed(record.get("value"), schema.VERSION_PATTERN)
                )
                or (record.get("name"), record.get("value")) == schema.OWN_PRODUCT
            ]
            if rows:
                self._insert(table, ("name", "value"), rows)

    def _write_texts(self) -> None:
        self._target.execute(
            "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
        )
        rows = self._source.iterate("SELECT id, value FROM StringIds WHERE value IS NOT NULL")
        self._target.executemany(
            "INSERT OR IGNORE INTO StringIds VALUES (?, ?)",
            (row for row in rows if row[0] in self._texts),
        )


def _allowed(value: Any, pattern: str) -> Any:
    """Return `value` where it is an integer or a text of the form `pattern`, else None."""
    if isinstance(value, int) or (isinstance(value, str) and re.fullmatch(pattern, value)):
        return value
    return None
