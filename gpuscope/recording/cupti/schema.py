"""The tables of an export of Nsight Systems 2025.3, as far as they are written here.

Names, order, types and constraints of the columns are those of nsys, so that whatever reads its
exports reads these. ``!`` is NOT NULL; what is not ``:TEXT`` or ``:REAL`` is an integer.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEMA_VERSION = "3.20.3"
"""The version of the schema, in nsys's own counting."""
PREFIX = "CUPTI_ACTIVITY_KIND_"

OWN = ("TARGET_INFO_CUDA_CONTEXT_INFO", "numMultiprocessors")
"""The one column that nsys 2025.3 does not write: how large a green context is."""
_PLACE = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid"

TABLES: Mapping[str, str] = {
    "StringIds": "id! value:TEXT!",
    f"{PREFIX}KERNEL": f"{_PLACE} demangledName! shortName! mangledName launchType cacheConfig "
    "registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! "
    "dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig",
    f"{PREFIX}MEMCPY": f"{_PLACE} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId "
    "srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress copyCount",
    f"{PREFIX}MEMSET": f"{_PLACE} value! bytes! graphNodeId memKind",
    f"{PREFIX}GRAPH_TRACE": f"{_PLACE} graphId! graphExecId originalGraphId",
    f"{PREFIX}RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! "
    "callchainId",
    f"{PREFIX}SYNCHRONIZATION": f"{_PLACE} deprecatedSyncType syncType! eventId! eventSyncId",
    f"{PREFIX}CUDA_EVENT": "deviceId! contextId! greenContextId streamId! correlationId globalPid "
    "eventId! eventSyncId",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid "
    "textId domainId uint64Value int64Value doubleValue:REAL uint32Value int32Value "
    "floatValue:REAL jsonTextId jsonText:TEXT binaryData:TEXT",
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! returnValue!",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId! priority globalTid",
    "TARGET_INFO_GPU": "vmId! id! name:TEXT busLocation:TEXT isDiscrete l2CacheSize totalMemory "
    "memoryBandwidth clockRate smCount pwGpuId uuid:TEXT luid chipName:TEXT cuDevice "
    "ctxswDevPath:TEXT ctrlDevPath:TEXT revision nodeMask constantMemory maxIPC "
    "maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm "
    "threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX "
    "maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor "
    "smMajor smMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid!",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId! hwId! vmId! processId! deviceId! contextId! "
    "parentContextId isGreenContext numMultiprocessors",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT! name:TEXT! nameEnum! value:TEXT!",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text:TEXT! globalPid",
    "META_DATA_CAPTURE": "name:TEXT! value:TEXT",
    "META_DATA_EXPORT": "name:TEXT! value:TEXT",
    "ENUM_CUDA_MEMCPY_OPER": "id! name:TEXT label:TEXT",
    "ENUM_CUDA_MEM_KIND": "id! name:TEXT label:TEXT",
    "ENUM_CUPTI_STREAM_TYPE": "id! name:TEXT label:TEXT",
    "ENUM_CUPTI_SYNC_TYPE": "id! name:TEXT label:TEXT",
    "ENUM_NSYS_EVENT_CLASS": "id! name:TEXT label:TEXT",
    "ENUM_NSYS_EVENT_TYPE": "id! name:TEXT label:TEXT",
}

ENUMS: Mapping[str, tuple[tuple[int, str, str], ...]] = {
    "ENUM_CUDA_MEMCPY_OPER": (
        (0, "CUDA_MEMCPY_KIND_UNKNOWN", "Unknown"),
        (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
        (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
        (3, "CUDA_MEMCPY_KIND_HTOA", "Host-to-Array"),
        (4, "CUDA_MEMCPY_KIND_ATOH", "Array-to-Host"),
        (5, "CUDA_MEMCPY_KIND_ATOA", "Array-to-Array"),
        (6, "CUDA_MEMCPY_KIND_ATOD", "Array-to-Device"),
        (7, "CUDA_MEMCPY_KIND_DTOA", "Device-to-Array"),
        (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        (9, "CUDA_MEMCPY_KIND_HTOH", "Host-to-Host"),
        (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
    ),
    "ENUM_CUDA_MEM_KIND": (
        (0, "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"),
        (1, "CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned"),
        (2, "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "Device"),
        (3, "CUDA_MEMOPR_MEMORY_KIND_ARRAY", "Array"),
        (4, "CUDA_MEMOPR_MEMORY_KIND_MANAGED", "Managed"),
        (5, "CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC", "Device Static"),
        (6, "CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC", "Managed Static"),
        (7, "CUDA_MEMOPR_MEMORY_KIND_UNKNOWN", "Unknown"),
    ),
    "ENUM_CUPTI_STREAM_TYPE": (
        (0, "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_UNKNOWN", "Unknown stream type"),
        (1, "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_DEFAULT", "Default stream"),
        (2, "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING", "Non-blocking stream"),
        (3, "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL", "Null stream"),
    ),
    "ENUM_CUPTI_SYNC_TYPE": (
        (0, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN", "Unknown"),
        (1, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        (2, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        (3, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        (4, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    ),
    "ENUM_NSYS_EVENT_CLASS": (
        (0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        (1, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
    ),
    "ENUM_NSYS_EVENT_TYPE": (
        (34, "NvtxMark", "NvtxMark"),
        (59, "NvtxPushPopRange", "NvtxPushPopRange"),
        (60, "NvtxStartEndRange", "NvtxStartEndRange"),
        (75, "NvtxDomainCreate", "NvtxDomainCreate"),
    ),
}
"""What the numbers in the other tables mean."""


def columns(table: str) -> list[str]:
    """Return the names of the columns of `table`."""
    return [word.partition(":")[0].rstrip("!") for word in TABLES[table].split()]


def create_statement(table: str) -> str:
    """Return the SQL that makes `table`."""
    is_list = table == "StringIds" or table.startswith("ENUM_")
    lines = []
    for word in TABLES[table].split():
        name, _, kind = word.rstrip("!").partition(":")
        constraint = " NOT NULL" if word.endswith("!") else ""
        key = " PRIMARY KEY" if name == "id" and is_list else ""
        lines.append(f'"{name}" {kind or "INTEGER"}{constraint}{key}')
    return f'CREATE TABLE "{table}" ({", ".join(lines)})'
