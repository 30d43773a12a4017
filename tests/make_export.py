"""Small SQLite exports of Nsight Systems of any version, written by hand.

An export is written through the names of the newest schema; its :class:`Variant` says what they are
called in the version at hand, and what that version lacks. Tables exist once a row is added, as in
real exports.

>>> with Export(path, VARIANTS["2025.3"]) as export:
...     export.operation("KERNEL", 0, 10, stream=7, shortName="gemm", demangledName="gemm(int)")
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

ACTIVITY = "CUPTI_ACTIVITY_KIND_"
NONE_ID = 4_294_967_295

_PLACE = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid"
_TABLES = {
    f"{ACTIVITY}KERNEL": f"{_PLACE} demangledName! shortName! mangledName launchType cacheConfig "
    "registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! "
    "dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig",
    f"{ACTIVITY}MEMCPY": f"{_PLACE} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId "
    "srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress copyCount",
    f"{ACTIVITY}MEMSET": f"{_PLACE} value! bytes! graphNodeId memKind",
    f"{ACTIVITY}GRAPH_TRACE": f"{_PLACE} graphId! graphExecId! originalGraphId",
    f"{ACTIVITY}RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! "
    "callchainId",
    f"{ACTIVITY}SYNCHRONIZATION": f"{_PLACE} syncType! eventId! eventSyncId",
    f"{ACTIVITY}CUDA_EVENT": "deviceId! contextId! greenContextId streamId! correlationId "
    "globalPid eventId! eventSyncId timestamp",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid "
    "textId domainId uint64Value jsonTextId jsonText:TEXT binaryData:TEXT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId! schemaId! idx! flags type name:TEXT "
    "description:TEXT arrayOrUnionDetail offset",
    "MPI_P2P_EVENTS": "start! end globalTid textId commHandle tag remoteRank size requestHandle",
    "MPI_COLLECTIVES_EVENTS": "start! end globalTid textId commHandle rootRank size recvSize",
    "MPI_START_WAIT_EVENTS": "start! end globalTid textId requestHandle",
    "MPI_OTHER_EVENTS": "start! end globalTid textId",
    "MPI_RANKS": "globalTid rank",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId priority globalTid",
    "TARGET_INFO_GPU": "vmId! id! name:TEXT busLocation:TEXT smCount uuid:TEXT cuDevice "
    "asyncEngines maxWarpsPerSm threadsPerWarp maxBlocksPerSm maxRegistersPerSm maxShmemPerSm",
    "TARGET_INFO_CUDA_GPU": "deviceId! name:TEXT numMultiprocessors numMemcpyEngines",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid!",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId! hwId! vmId! processId! deviceId! contextId! "
    "isGreenContext numMultiprocessors",
    "TARGET_INFO_CUDA_NULL_STREAM": "streamId! hwId! vmId! processId! deviceId! contextId!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT! name:TEXT! nameEnum! value:TEXT!",
    "META_DATA_CAPTURE": "name:TEXT! value:TEXT",
    "META_DATA_EXPORT": "name:TEXT! value:TEXT",
    "EXPORT_META_DATA": "name:TEXT! value:TEXT",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text:TEXT! globalPid",
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! returnValue!",
    **{
        f"ENUM_{codes}": "id! name:TEXT label:TEXT"
        for codes in ("CUDA_MEMCPY_OPER", "CUDA_MEM_KIND", "CUPTI_STREAM_TYPE")
    },
}
"""Columns by table; ``!`` is NOT NULL, whatever is not ``:TEXT`` is a number."""


@dataclass(frozen=True)
class Variant:
    """What the exports of one version look like."""

    name: str
    metadata: str | None = "META_DATA_EXPORT"
    """The table that says which version exported; None where no table does."""
    gpu: str | None = "TARGET_INFO_GPU"
    """The table that describes the GPUs."""
    null_stream: str | None = "TARGET_INFO_CUDA_CONTEXT_INFO"
    suffix: str = ""
    """What the names of activity tables end with."""
    range_texts: bool = False
    """Whether ranges hold their names themselves instead of referring to StringIds."""
    enums: bool = True
    without: frozenset[str] = frozenset()
    """Columns that this version lacks, as ``TABLE.column`` or, in every table, ``column``."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Columns called otherwise, as ``column``."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Columns that this version has more, by table."""


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            "2020",
            metadata=None,
            gpu="TARGET_INFO_CUDA_GPU",
            null_stream="TARGET_INFO_CUDA_NULL_STREAM",
            range_texts=True,
            enums=False,
            without=frozenset(
                {"greenContextId", "mangledName", "graphNodeId", "migrationCause", "copyCount"}
                | {"sharedMemoryLimitConfig", "endGlobalTid", "virtualAddress", "rangeId"}
            ),
            renamed={"deprecatedSrcId": "srcId"},
        ),
        Variant(
            "2021",
            metadata=None,
            null_stream="TARGET_INFO_CUDA_NULL_STREAM",
            enums=False,
            without=frozenset({"greenContextId", "mangledName", "copyCount", "uuid"}),
        ),
        Variant(
            "2022.1",
            metadata="EXPORT_META_DATA",
            null_stream="TARGET_INFO_CUDA_NULL_STREAM",
            enums=False,
            without=frozenset({"greenContextId", "mangledName", "copyCount"}),
        ),
        Variant(
            "2022.4",
            metadata="EXPORT_META_DATA",
            null_stream="TARGET_INFO_CUDA_NULL_STREAM",
            without=frozenset({"greenContextId", "copyCount"}),
        ),
        Variant(
            "2023.4",
            without=frozenset({"greenContextId", "copyCount", f"{ACTIVITY}CUDA_EVENT.timestamp"}),
        ),
        Variant("2025.3"),
        Variant(
            "2026.2",
            more={
                f"{ACTIVITY}KERNEL": "clusterX clusterY clusterZ graphId priority smCount",
                f"{ACTIVITY}MEMCPY": "graphId channelId channelType",
                "NVTX_EVENTS": "payloadSchema",
            },
        ),
        Variant("suffix V2", suffix="_V2"),
        Variant("suffix V3", suffix="_V3"),
        Variant("no GPU info", gpu=None, null_stream=None),
    )
}


class Export:
    """An export being written; the rows are saved when the ``with`` block ends."""

    def __init__(self, path: Path, variant: Variant = VARIANTS["2025.3"]) -> None:
        self.variant = variant
        self.connection = sqlite3.connect(path)
        self._texts: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.execute(
            "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
        )
        if self.variant.metadata:
            self.add(self.variant.metadata, name="EXPORT_PRODUCT_VERSION", value="2099.1.2.3")
            self.add(self.variant.metadata, name="EXPORT_SCHEMA_VERSION", value="3.99.1")
        if self.variant.enums:
            self.add("ENUM_CUDA_MEMCPY_OPER", id=1, name="H2D", label="Host-to-Device")
        return self

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.closing(self.connection):
            self.connection.commit()

    def execute(self, sql: str, *parameters: Any) -> None:
        """Run any SQL: what other tools, or damage, did to the file."""
        self.connection.execute(sql, parameters)

    def text(self, value: str) -> int:
        """Return the id of a text in StringIds."""
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self.execute("INSERT INTO StringIds VALUES (?, ?)", self._texts[value], value)
        return self._texts[value]

    def table_name(self, table: str) -> str:
        """Return what this version calls `table`."""
        return table + self.variant.suffix if table.startswith(ACTIVITY) else table

    def _columns(self, table: str) -> dict[str, str]:
        """Return the columns of `table` in this version: by their newest name, the declaration."""
        columns = {}
        variant = self.variant
        for listed in f"{_TABLES[table]} {variant.more.get(table, '')}".split():
            name, _, kind = listed.removesuffix("!").partition(":")
            if name in variant.without or f"{table}.{name}" in variant.without:
                continue
            called = variant.renamed.get(name, name)
            not_null = " NOT NULL" if listed.endswith("!") else ""
            columns[name] = f'"{called}" {kind or "INTEGER"}{not_null}'
        return columns

    def add(self, table: str, **row: Any) -> None:
        """Add a row; numbers that may not be NULL are 0 where `row` lacks them.

        A text in a column of numbers goes to StringIds. What the version lacks is left out.
        """
        columns = self._columns(table)
        declared = ", ".join(columns.values())
        name = self.table_name(table)
        self.execute(f'CREATE TABLE IF NOT EXISTS "{name}" ({declared})')
        values = []
        for column, declaration in columns.items():
            value = row.get(column)
            if isinstance(value, str) and " TEXT" not in declaration:
                value = self.text(value)
            if value is None and "NOT NULL" in declaration:
                value = "" if " TEXT" in declaration else 0
            values.append(value)
        self.execute(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(values))})', *values)

    def operation(
        self, kind: str, start: int, end: int, *, pid: int = 100, stream: int | None = 7, **row: Any
    ) -> None:
        """Add a row of ``KERNEL``, ``MEMCPY``, ``MEMSET`` or the like: device 0, context 1."""
        place = {"deviceId": 0, "contextId": 1, "globalPid": pid << 24}
        row = {**place, "start": start, "end": end, "streamId": stream, **row}
        if kind == "KERNEL":
            row = {"gridX": 1, "gridY": 1, "gridZ": 1, "blockX": 32, "blockY": 1, "blockZ": 1} | row
            row.setdefault("demangledName", row.get("shortName"))
        self.add(f"{ACTIVITY}{kind}", **row)

    def call(
        self, name: str, start: int, end: int, *, pid: int = 100, tid: int | None = None, **row: Any
    ) -> None:
        """Add a call of the CUDA API; `row` may give ``correlationId``."""
        thread = pid << 24 | (tid or pid)
        self.add(f"{ACTIVITY}RUNTIME", start=start, end=end, globalTid=thread, nameId=name, **row)

    def range(
        self,
        name: str | None,
        start: int,
        end: int | None,
        *,
        pid: int = 100,
        tid: int | None = None,
        kind: int = 59,
        **row: Any,
    ) -> None:
        """Add a row of NVTX_EVENTS; `kind` 75 is a domain."""
        label: dict[str, Any] = {"text" if self.variant.range_texts else "textId": name}
        thread = pid << 24 | (tid or pid)
        row = {"domainId": 0, **label, **row}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=thread, **row)

    def mpi(self, table: str, name: str, start: int, end: int | None, **row: Any) -> None:
        """Add a row of ``MPI_<table>_EVENTS`` of the thread 100 of process 100."""
        thread = row.pop("globalTid", 100 << 24 | 100)
        row = {"start": start, "end": end, "globalTid": thread, "textId": name, **row}
        self.add(f"MPI_{table}_EVENTS", **row)

    def gpu(self, number: int = 0, *, pid: int = 100, cuda: int | None = None, **row: Any) -> None:
        """Describe a GPU in the table of this version, and which CUDA device of `pid` it is."""
        if self.variant.gpu == "TARGET_INFO_GPU":
            facts = {"name": "NVIDIA H200", "smCount": 132, "asyncEngines": 3, "cuDevice": number}
            self.add("TARGET_INFO_GPU", **{"id": number, "uuid": f"u{number}", **facts, **row})
            self.device(number, number if cuda is None else cuda, pid)
        elif self.variant.gpu:
            old = {"name": "NVIDIA H200", "numMultiprocessors": 132, "numMemcpyEngines": 3}
            self.add("TARGET_INFO_CUDA_GPU", **{"deviceId": number, **old, **row})

    def device(self, gpu: int, cuda: int, pid: int = 100) -> None:
        """Say that CUDA device `cuda` of a process is a GPU."""
        self.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=cuda, pid=pid)

    def stream_info(
        self, number: int, *, pid: int = 100, context: int = 1, priority: int = 0, flag: int = 2
    ) -> None:
        """Describe a stream: flag 1 blocking, 2 non-blocking, 3 null."""
        self.add(
            "TARGET_INFO_CUDA_STREAM",
            streamId=number,
            processId=pid,
            contextId=context,
            priority=priority % (1 << 32),
            flag=flag,
        )

    def null_stream(self, number: int = 7, *, pid: int = 100, context: int = 1) -> None:
        """Say which stream is the null stream, in the form of this version."""
        table = self.variant.null_stream
        if table:
            column = "nullStreamId" if table.endswith("CONTEXT_INFO") else "streamId"
            self.add(table, **{column: number, "processId": pid, "contextId": context})
