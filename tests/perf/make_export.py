"""Write a large synthetic export with the schema of Nsight Systems 2025.3.

Usage: python -m tests.perf.make_export OUT.sqlite OPERATIONS

Half of the operations are kernels, half copies, over eight streams of one GPU; every operation has
its API call, every fourth call a second one, and every three operations an NVTX range, in steps of
twelve, so that each operation lies in two ranges.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator

import numpy as np

_PROCESS = 4242 << 24
_STREAMS = 8
_BATCH = 200_000

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
 deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
 streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
 demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
 launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL,
 gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
 blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
 staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
 localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
 gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
 sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
 deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
 streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
 copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER,
 srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
 migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
 eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
 returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
 rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
 endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER,
 doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER,
 jsonText TEXT, binaryData TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, asyncEngines INTEGER, smCount INTEGER);
"""

_NAMES = (
    "gemm",
    "softmax",
    "layernorm",
    "ncclDevKernel_AllReduce",
    "cudaLaunchKernel_v7000",
    "cudaMemcpyAsync_v3020",
    "cudaEventRecord_v3020",
    "step",
    "chunk",
)


def write(path: str, operations: int, seed: int = 1) -> None:
    """Write an export with `operations` operations to `path`, which must not exist."""
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {_SCHEMA}")
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(_NAMES, 1))
    connection.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3')")
    connection.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'synthetic', 3, 132)")
    random = np.random.default_rng(seed)
    free = np.zeros(_STREAMS, np.int64)
    for first in range(0, operations, _BATCH):
        count = min(_BATCH, operations - first)
        _insert(connection, first, count, random, free)
    connection.commit()
    connection.close()


def _insert(
    connection: sqlite3.Connection,
    first: int,
    count: int,
    random: np.random.Generator,
    free: np.ndarray,
) -> None:
    number = np.arange(first, first + count)
    duration = random.integers(2_000, 12_000, count)
    launch = number * 1_500 + random.integers(0, 900, count)
    stream = number % _STREAMS
    start = np.empty(count, np.int64)
    for each in range(_STREAMS):
        mine = stream == each
        # Each operation starts when it is launched and its predecessor in the stream is done.
        total = np.cumsum(duration[mine])
        ready = launch[mine] + 2_000
        done = np.maximum(np.maximum.accumulate(ready - (total - duration[mine])), free[each])
        start[mine] = done + total - duration[mine]
        free[each] = start[mine][-1] + duration[mine][-1]
    end = start + duration
    kernel = number % 2 == 0
    name = np.where(number % 26 == 0, 4, 1 + number // 2 % 3)
    connection.executemany(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 28)})",
        (
            (
                s,
                e,
                0,
                1,
                None,
                7 + q,
                n,
                _PROCESS,
                k,
                k,
                None,
                1,
                0,
                32,
                132,
                1,
                1,
                256,
                1,
                1,
                0,
                0,
                0,
                0,
                n,
                0,
                None,
                0,
            )
            for s, e, q, n, k in _rows(kernel, start, end, stream, number, name)
        ),
    )
    connection.executemany(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({', '.join('?' * 21)})",
        (
            (
                s,
                e,
                0,
                1,
                None,
                7 + q,
                n,
                _PROCESS,
                65536,
                k,
                None,
                1,
                2,
                0,
                1,
                0,
                1,
                None,
                None,
                None,
                1,
            )
            for s, e, q, n, k in _rows(~kernel, start, end, stream, number, 1 + number // 2 % 2)
        ),
    )
    connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
        _calls(number, launch, kernel),
    )
    connection.executemany(
        f"INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, {', '.join(['NULL'] * 4)}, ?, NULL, ?, 0"
        f"{', NULL' * 9})",
        _ranges(first, count),
    )


def _rows(mask: np.ndarray, *columns: np.ndarray) -> Iterator[tuple[int, ...]]:
    return zip(*(column[mask].tolist() for column in columns), strict=True)


def _calls(
    number: np.ndarray, launch: np.ndarray, kernel: np.ndarray
) -> Iterator[tuple[int, int, int, int, int]]:
    thread = _PROCESS | 4242
    for n, at, is_kernel in zip(number.tolist(), launch.tolist(), kernel.tolist(), strict=True):
        yield at, at + 400, thread, n, 5 if is_kernel else 6
        if n % 4 == 0:
            yield at + 450, at + 500, thread, -1 - n, 7


def _ranges(first: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    thread = _PROCESS | 4242
    for n in range(first, first + count):
        if n % 12 == 0:
            yield n * 1_500, (n + 12) * 1_500 - 10, thread, 8
        if n % 4 == 0:
            yield n * 1_500 + 1, (n + 4) * 1_500 - 20, thread, 9


if __name__ == "__main__":
    write(sys.argv[1], int(float(sys.argv[2])))
