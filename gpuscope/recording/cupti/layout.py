"""What CUPTI's activity records look like in memory.

From one CUDA version to the next a record only grows at its end: every field named here lies where
it lay in CUDA 12.1, and a record of a version that lacks a field is too short to hold it. So one
table serves all versions; how long the records of the loaded library are, it says itself
(:meth:`gpuscope.recording.cupti.library.Library.record_sizes`).

Source: ``cupti_activity.h`` of CUDA 12.1 to 13.5.

Only the standard library is used, because this also runs inside the recorded program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpuscope.errors import TraceError

INVALID = 0
KIND_BITS = 0x7FFFFFFF
"""The highest bit of a kind marks a record that CUPTI has not completed."""
MEMCPY = 1
MEMSET = 2
DRIVER = 4
RUNTIME = 5
DEVICE = 8
CONTEXT = 9
CONCURRENT_KERNEL = 10
MARKER = 12
MARKER_DATA = 13
OVERHEAD = 17
MEMCPY_PEER = 22
CUDA_EVENT = 36
STREAM = 37
SYNCHRONIZATION = 38
GRAPH_TRACE = 51


class Field(NamedTuple):
    """Where a field lies in its record, and its type as NumPy writes it."""

    offset: int
    format: str

    @property
    def end(self) -> int:
        """The first byte behind the field."""
        return self.offset + int(self.format[2:])


def _fields(**fields: tuple[int, str]) -> dict[str, Field]:
    return {name: Field(offset, f"<{kind}") for name, (offset, kind) in fields.items()}


_API = _fields(
    cbid=(4, "u4"),
    start=(8, "u8"),
    end=(16, "u8"),
    processId=(24, "u4"),
    threadId=(28, "u4"),
    correlationId=(32, "u4"),
    returnValue=(36, "u4"),
)

FIELDS: Mapping[int, Mapping[str, Field]] = {
    MEMCPY: _fields(
        copyKind=(4, "u1"),
        srcKind=(5, "u1"),
        dstKind=(6, "u1"),
        bytes=(8, "u8"),
        start=(16, "u8"),
        end=(24, "u8"),
        deviceId=(32, "u4"),
        contextId=(36, "u4"),
        streamId=(40, "u4"),
        correlationId=(44, "u4"),
        graphNodeId=(64, "u8"),
        copyCount=(88, "u8"),
    ),
    MEMCPY_PEER: _fields(
        copyKind=(4, "u1"),
        srcKind=(5, "u1"),
        dstKind=(6, "u1"),
        bytes=(8, "u8"),
        start=(16, "u8"),
        end=(24, "u8"),
        deviceId=(32, "u4"),
        contextId=(36, "u4"),
        streamId=(40, "u4"),
        srcDeviceId=(44, "u4"),
        srcContextId=(48, "u4"),
        dstDeviceId=(52, "u4"),
        dstContextId=(56, "u4"),
        correlationId=(60, "u4"),
        graphNodeId=(72, "u8"),
    ),
    MEMSET: _fields(
        value=(4, "u4"),
        bytes=(8, "u8"),
        start=(16, "u8"),
        end=(24, "u8"),
        deviceId=(32, "u4"),
        contextId=(36, "u4"),
        streamId=(40, "u4"),
        correlationId=(44, "u4"),
        memoryKind=(50, "u2"),
        graphNodeId=(64, "u8"),
    ),
    DRIVER: _API,
    RUNTIME: _API,
    DEVICE: _fields(
        globalMemoryBandwidth=(8, "u8"),
        globalMemorySize=(16, "u8"),
        constantMemorySize=(24, "u4"),
        l2CacheSize=(28, "u4"),
        numThreadsPerWarp=(32, "u4"),
        coreClockRate=(36, "u4"),
        numMemcpyEngines=(40, "u4"),
        numMultiprocessors=(44, "u4"),
        maxWarpsPerMultiprocessor=(52, "u4"),
        maxBlocksPerMultiprocessor=(56, "u4"),
        maxSharedMemoryPerMultiprocessor=(60, "u4"),
        maxRegistersPerMultiprocessor=(64, "u4"),
        maxRegistersPerBlock=(68, "u4"),
        maxSharedMemoryPerBlock=(72, "u4"),
        maxThreadsPerBlock=(76, "u4"),
        maxBlockDimX=(80, "u4"),
        maxBlockDimY=(84, "u4"),
        maxBlockDimZ=(88, "u4"),
        maxGridDimX=(92, "u4"),
        maxGridDimY=(96, "u4"),
        maxGridDimZ=(100, "u4"),
        computeCapabilityMajor=(104, "u4"),
        computeCapabilityMinor=(108, "u4"),
        id=(112, "u4"),
        uuid=(120, "V16"),
        name=(136, "u8"),
    ),
    CONTEXT: _fields(
        contextId=(4, "u4"),
        deviceId=(8, "u4"),
        nullStreamId=(14, "u2"),
        parentContextId=(16, "u4"),
        isGreenContext=(20, "u1"),
        numMultiprocessors=(22, "u2"),
    ),
    CONCURRENT_KERNEL: _fields(
        registersPerThread=(6, "u2"),
        start=(16, "u8"),
        end=(24, "u8"),
        deviceId=(40, "u4"),
        contextId=(44, "u4"),
        streamId=(48, "u4"),
        gridX=(52, "i4"),
        gridY=(56, "i4"),
        gridZ=(60, "i4"),
        blockX=(64, "i4"),
        blockY=(68, "i4"),
        blockZ=(72, "i4"),
        staticSharedMemory=(76, "i4"),
        dynamicSharedMemory=(80, "i4"),
        localMemoryPerThread=(84, "u4"),
        localMemoryTotal=(88, "u4"),
        correlationId=(92, "u4"),
        gridId=(96, "i8"),
        name=(104, "u8"),
        launchType=(136, "u1"),
        sharedMemoryExecuted=(140, "u4"),
        graphNodeId=(144, "u8"),
    ),
    MARKER: _fields(
        flags=(4, "u4"),
        timestamp=(8, "u8"),
        id=(16, "u4"),
        processId=(24, "u4"),
        threadId=(28, "u4"),
        name=(40, "u8"),
        domain=(48, "u8"),
    ),
    MARKER_DATA: _fields(flags=(4, "u4"), id=(8, "u4"), color=(24, "u4"), category=(28, "u4")),
    OVERHEAD: _fields(
        overheadKind=(4, "u4"),
        objectKind=(8, "u4"),
        processId=(12, "u4"),
        threadId=(16, "u4"),
        start=(24, "u8"),
        end=(32, "u8"),
    ),
    CUDA_EVENT: _fields(
        correlationId=(4, "u4"),
        contextId=(8, "u4"),
        streamId=(12, "u4"),
        eventId=(16, "u4"),
        cudaEventSyncId=(48, "u8"),
    ),
    STREAM: _fields(contextId=(4, "u4"), streamId=(8, "u4"), priority=(12, "u4"), flag=(16, "u4")),
    SYNCHRONIZATION: _fields(
        type=(4, "u4"),
        start=(8, "u8"),
        end=(16, "u8"),
        correlationId=(24, "u4"),
        contextId=(28, "u4"),
        streamId=(32, "u4"),
        cudaEventId=(36, "u4"),
        cudaEventSyncId=(40, "u8"),
    ),
    GRAPH_TRACE: _fields(
        correlationId=(4, "u4"),
        start=(8, "u8"),
        end=(16, "u8"),
        deviceId=(24, "u4"),
        graphId=(28, "u4"),
        contextId=(32, "u4"),
        streamId=(36, "u4"),
    ),
}
"""The fields that are read, by kind of record; all begin with the kind, four bytes."""

TEXTS: Mapping[int, tuple[str, ...]] = {
    CONCURRENT_KERNEL: ("name",),
    MARKER: ("name", "domain"),
    DEVICE: ("name",),
}
"""Fields that hold the address of a text in the recorded program."""


def walk(data: memoryview, sizes: Mapping[int, int]) -> dict[int, list[int]]:
    """Find the records of one buffer.

    Parameters
    ----------
    data
        The buffer. Where less of it was filled than it is long, the rest is zero.
    sizes
        Length of a record in bytes, by kind.

    Returns
    -------
    dict
        The offsets of the records, by kind.

    Raises
    ------
    TraceError
        Something else than a known record is in it.
    """
    kinds = data[: len(data) // 4 * 4].cast("I")
    found: dict[int, list[int]] = {}
    at, end = 0, len(data)
    while at < end:
        kind = kinds[at >> 2] & KIND_BITS
        if kind == INVALID:
            break
        size = sizes.get(kind)
        if size is None or at + size > end:
            msg = (
                f"byte {at} of a CUPTI buffer is no record of a known kind ({kind}): the libcupti "
                "that wrote it is not the one whose records are known; record again with one of "
                "CUDA 12.1 to 13.5, or with nsys."
            )
            raise TraceError(msg)
        found.setdefault(kind, []).append(at)
        at += size
    return found
