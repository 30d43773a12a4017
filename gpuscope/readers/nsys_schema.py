"""What the tables of an Nsight Systems export are called, version by version.

This is the one place that knows about versions: a column that was renamed lists its names, newest
first; one that a version lacks has a default. Everything else reads these specifications.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuscope.model.trace import BLOCKING, NON_BLOCKING, NULL_STREAM

NONE_ID = 4_294_967_295
"""What some versions write where others write NULL: no stream, no event."""
UNNAMED = -1
"""The globalPid of rows that name no process."""


@dataclass(frozen=True, slots=True)
class Column:
    """An integer column: the names it has had, and its value where it is NULL or absent."""

    names: tuple[str, ...]
    default: int | None = None
    """None: a row without the value is damaged, and a table without the column unreadable."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table: the names it has had, and its columns by the name used here."""

    names: tuple[str, ...]
    columns: Mapping[str, Column]
    timed: bool = True
    """Whether rows have a start and an end in the right order."""
    open_ended: bool = False
    """Whether an end may be missing."""
    where: str = ""
    """SQL condition on the rows wanted."""


def _versions(name: str) -> tuple[str, ...]:
    return (name, f"{name}_V3", f"{name}_V2")


def _columns(*required: str, **optional: int | tuple[int, str]) -> dict[str, Column]:
    columns = {name: Column((name,)) for name in required}
    for name, default in optional.items():
        if isinstance(default, tuple):
            columns[name] = Column((name, default[1]), default[0])
        else:
            columns[name] = Column((name,), default)
    return columns


_PLACE = {
    "deviceId": 0,
    "contextId": 0,
    "streamId": NONE_ID,
    "correlationId": -1,
    "globalPid": UNNAMED,
}

KERNEL = TableSpec(
    _versions("CUPTI_ACTIVITY_KIND_KERNEL"),
    _columns("start", "end", **_PLACE, shortName=-1, demangledName=-1, graphNodeId=-1),
)
LARGEST_LAUNCH = {
    "gridX": (1 << 31) - 1,
    "gridY": 65_535,
    "gridZ": 65_535,
    "blockX": 1_024,
    "blockY": 1_024,
    "blockZ": 64,
    "registersPerThread": 255,
    "staticSharedMemory": 1 << 31,
    "dynamicSharedMemory": 1 << 31,
}
"""The columns of a launch configuration, and the most that CUDA allows; more is damage."""
_CONFIG = {
    name: Column((name,), 1 if name.startswith(("grid", "block")) else 0) for name in LARGEST_LAUNCH
}
KERNEL_WITH_CONFIG = TableSpec(
    KERNEL.names, {**KERNEL.columns, **_CONFIG, **_columns(launchType=1)}
)
"""The kernels with their launch configurations."""
COOPERATIVE = (2, 3)
"""Launch types of kernels whose blocks must all be on the GPU at once."""
MEMCPY = TableSpec(
    _versions("CUPTI_ACTIVITY_KIND_MEMCPY"),
    _columns(
        "start",
        "end",
        **_PLACE,
        bytes=0,
        copyKind=0,
        srcKind=-1,
        dstKind=-1,
        srcDeviceId=-1,
        dstDeviceId=-1,
        migrationCause=-1,
        graphNodeId=-1,
    ),
)
MEMSET = TableSpec(
    _versions("CUPTI_ACTIVITY_KIND_MEMSET"),
    _columns("start", "end", **_PLACE, bytes=0, graphNodeId=-1),
)
GRAPH = TableSpec(
    _versions("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
    _columns("start", "end", **_PLACE, graphId=-1),
)
RUNTIME = TableSpec(
    _versions("CUPTI_ACTIVITY_KIND_RUNTIME"),
    _columns("start", "end", "globalTid", correlationId=-1, nameId=-1, returnValue=0),
)
RUNTIME_NAMES = TableSpec(RUNTIME.names, _columns(nameId=-1), timed=False)
CALLS_WITH_STACK = TableSpec(
    RUNTIME.names,
    _columns("start", "globalTid", "callchainId", correlationId=-1),
    timed=False,
    where="callchainId IS NOT NULL",
)
STACK_ROWS = 67
"""Event class of rows beside those of the calls themselves, which only hold their stacks."""
CALLCHAINS = TableSpec(
    ("CUDA_CALLCHAINS",), _columns("id", "stackDepth", symbol=-1, module=-1), timed=False
)
PYTHON_STACKS = "Python Backtrace on CUDA"
"""The NVTX domain whose marks hold the Python stacks of API calls."""
SYNCHRONIZATION = TableSpec(
    _versions("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"),
    _columns("start", "end", **_PLACE, syncType=0, eventId=-1, eventSyncId=-1),
)
CUDA_EVENT = TableSpec(
    _versions("CUPTI_ACTIVITY_KIND_CUDA_EVENT"),
    _columns(**_PLACE, eventId=-1, eventSyncId=-1, timestamp=-1),
    timed=False,
)
NVTX = TableSpec(
    ("NVTX_EVENTS",),
    _columns("start", "eventType", end=-1, globalTid=-1, textId=-1, domainId=0, category=-1),
    open_ended=True,
    where="eventType IN (59, 60)",
)
MPI = tuple(
    TableSpec(
        (name,),
        _columns(
            "start",
            "globalTid",
            end=-1,
            textId=-1,
            size=-1,
            remoteRank=(-1, "rootRank"),
            commHandle=-1,
        ),
        open_ended=True,
    )
    for name in (
        "MPI_P2P_EVENTS",
        "MPI_COLLECTIVES_EVENTS",
        "MPI_START_WAIT_EVENTS",
        "MPI_OTHER_EVENTS",
    )
)
MPI_DOMAIN, MPI_CALL_PREFIX = "MPI", "MPI_"
"""Where versions without these tables (2022.4) record MPI calls: as ranges of a domain."""
PROFILER_OVERHEAD = TableSpec(("PROFILER_OVERHEAD",), _columns("start", "end"), timed=False)
MPI_RANKS = TableSpec(("MPI_RANKS",), _columns("globalTid", "rank"), timed=False)
GREEN_KERNELS = TableSpec(
    KERNEL.names,
    _columns(contextId=0, streamId=NONE_ID, greenContextId=-1, globalPid=UNNAMED),
    timed=False,
)
"""Of each kernel its stream, and the green context that this is of."""
_OWNER = _columns(hwId=-1, vmId=-1)
"""What else names a process: its hardware and its virtual machine."""
STREAM_INFO = TableSpec(
    ("TARGET_INFO_CUDA_STREAM",),
    {**_OWNER, **_columns("processId", "contextId", "streamId", priority=0, flag=0)},
    timed=False,
)
NULL_STREAM_INFO = (
    TableSpec(
        ("TARGET_INFO_CUDA_CONTEXT_INFO",),
        {**_OWNER, **_columns("processId", "contextId", "nullStreamId")},
        timed=False,
    ),
    TableSpec(
        ("TARGET_INFO_CUDA_NULL_STREAM",),
        {
            **_OWNER,
            **_columns("processId", "contextId"),
            "nullStreamId": Column(("streamId", "nullStreamId")),
        },
        timed=False,
    ),
)
GREEN_CONTEXTS = TableSpec(
    ("TARGET_INFO_CUDA_CONTEXT_INFO",),
    {**_OWNER, **_columns("processId", "contextId", isGreenContext=0, numMultiprocessors=0)},
    timed=False,
)
"""Contexts, and of green ones how many multiprocessors they have, which nsys 2025.3 leaves out."""
DEVICE_INFO = TableSpec(
    ("TARGET_INFO_CUDA_DEVICE",),
    _columns("gpuId", "cudaId", "pid"),
    timed=False,
)


@dataclass(frozen=True, slots=True)
class FactSpec:
    """A small table of facts: its name, and its columns to what they are called here."""

    table: str
    columns: Mapping[str, str]


GPU_INFO = (
    FactSpec(
        "TARGET_INFO_GPU",
        {
            name: name
            for name in (
                *("id", "name", "asyncEngines", "smCount", "uuid", "cuDevice"),
                *("maxWarpsPerSm", "threadsPerWarp", "maxBlocksPerSm", "maxRegistersPerSm"),
                "maxShmemPerSm",
            )
        },
    ),
    FactSpec(
        "TARGET_INFO_CUDA_GPU",
        {
            "id": "id",
            "deviceId": "id",
            "name": "name",
            "numMemcpyEngines": "asyncEngines",
            "numMultiprocessors": "smCount",
        },
    ),
)
"""The GPUs, best source first."""

OPERATION_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH)
"""The tables whose rows are operations."""

DIAGNOSTICS = "DIAGNOSTIC_EVENT"
"""The table of the profiler's messages about its recording."""
DIAGNOSTIC_ERROR = 3
"""Its severity of errors."""
STARTED = "Profiling has started"
STOPPED = "Profiling has stopped"
INCOMPLETE = "Not all CUDA events might have been collected"
UNSUPPORTED = "is not supported by this build of Nsight Systems"
DROPPED = re.compile(rf"{INCOMPLETE}: (\d{{1,15}}) found no buffer")
"""What gpuscope's own recorder says of records, of calls and of GPU work alike, that it lost."""
DIAGNOSTIC_PHRASES = (DROPPED.pattern, STARTED, STOPPED, INCOMPLETE, UNSUPPORTED)
"""What is known in the messages; the rest of a message may hold paths and names."""

NVPROF_TABLES = frozenset({"CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "CUPTI_ACTIVITY_KIND_MARKER"})
"""Tables that only databases of nvprof have."""

STREAM_FLAGS = {1: BLOCKING, 2: NON_BLOCKING, 3: NULL_STREAM}
"""CUPTI's stream flags; other values are unknown."""

UVM_HTOD, UVM_DTOH, UVM_DTOD = 11, 12, 13
"""Copy kinds of unified-memory migrations."""
USER_PREFETCH = 1
"""Migration cause of a prefetch that the program asked for."""
EVICTION = 4
"""Migration cause of pages that leave a device whose memory is full."""

COPY_KIND_CLASS = {
    1: "h2d",
    2: "d2h",
    3: "h2d",
    4: "d2h",
    5: "d2d",
    6: "d2d",
    7: "d2d",
    8: "d2d",
    9: "h2h",
    10: "p2p",
    UVM_HTOD: "uvm",
    UVM_DTOH: "uvm",
    UVM_DTOD: "uvm",
}
"""CUPTI's copy kinds to classes; what more it takes (peers, prefetches) the reader decides."""


@dataclass(frozen=True, slots=True)
class Enum:
    """What an export itself says of a column of codes, and the codes that these names have here."""

    table: str
    codes: Mapping[str, int]


def _enum(table: str, prefix: str, *names: str) -> Enum:
    return Enum(table, {f"{prefix}_{name}": code for code, name in enumerate(names) if name})


_MEMORY_KINDS = _enum(
    "ENUM_CUDA_MEM_KIND",
    "CUDA_MEMOPR_MEMORY_KIND",
    *("PAGEABLE", "PINNED", "DEVICE", "ARRAY", "MANAGED"),
    *("DEVICE_STATIC", "MANAGED_STATIC", "UNKNOWN"),
)
ENUMS = {
    "copyKind": _enum(
        "ENUM_CUDA_MEMCPY_OPER",
        "CUDA_MEMCPY_KIND",
        *("UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH"),
        *("PTOP", "UVM_HTOD", "UVM_DTOH", "UVM_DTOD"),
    ),
    "srcKind": _MEMORY_KINDS,
    "dstKind": _MEMORY_KINDS,
    "migrationCause": _enum(
        "ENUM_CUDA_UNIF_MEM_MIGRATION",
        "CUDA_UNIFIED_MEMORY_MIGRATION_CAUSE",
        *("UNKNOWN", "USER", "COHERENCE", "PREFETCH", "EVICTION", "ACCESS_COUNTERS"),
    ),
    "launchType": _enum(
        "ENUM_CUDA_KERNEL_LAUNCH_TYPE",
        "CUDA_KERNEL_LAUNCH_TYPE",
        *("UNKNOWN", "REGULAR", "COOPERATIVE_SINGLE_DEVICE", "COOPERATIVE_MULTI_DEVICE"),
    ),
    "syncType": _enum(
        "ENUM_CUPTI_SYNC_TYPE",
        "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE",
        *("UNKNOWN", "EVENT_SYNCHRONIZE", "STREAM_WAIT_EVENT"),
        *("STREAM_SYNCHRONIZE", "CONTEXT_SYNCHRONIZE"),
    ),
    "flag": _enum(
        "ENUM_CUPTI_STREAM_TYPE",
        "CUPTI_ACTIVITY_STREAM_CREATE_FLAG",
        *("UNKNOWN", "DEFAULT", "NON_BLOCKING", "NULL"),
    ),
}
"""Columns of codes whose meaning an export may state; where it does not, these numbers hold."""

_NUMBER = r"-?\d{1,9}"
_ALGORITHMS = (
    r"(?:[,;:^]|ring|tree|collnet(?:direct|chain)?|nvls(?:tree)?|pat"
    r"|all(?:reduce|gather)|broadcast|reduce(?:scatter)?)+"
)

VERSION_NAMES = ("CAPTURE_PRODUCT_VERSION", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
"""The names of the versions in the metadata."""
VERSION_PATTERN = r"\d[\w.-]{0,31}"
OWN_PRODUCT = ("EXPORT_PRODUCT_NAME", "gpuscope")
"""What the metadata say of a trace that gpuscope's own recorder wrote, in nsys's schema."""

MACHINE_TABLE = "TARGET_INFO_SYSTEM_ENV"
MACHINE_ALLOWED = {
    "CpuCores": _NUMBER,
    "CpuArchitecture": r"[\w-]{1,16}",
    "CpuDescription": r"[\w ()@.-]{1,64}",
    "OsDescription": r"[\w ()/.-]{1,64}",
    "NvDriverVersion": r"[\d.]{1,16}",
    "CudaDriverVersion": _NUMBER,
}
"""What is ever told of the machine, and what it must look like: no names of hosts or users."""

ENVIRONMENT_ALLOWED = {
    "CUDA_DEVICE_MAX_CONNECTIONS": _NUMBER,
    "CUDA_MODULE_LOADING": "eager|lazy|default",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": _NUMBER,
    "CUDA_LAUNCH_BLOCKING": _NUMBER,
    "NCCL_ALGO": _ALGORITHMS,
    "NCCL_PROTO": r"(?:[,;:^]|ll|ll128|simple|all(?:reduce|gather)|broadcast|reduce(?:scatter)?)+",
    "NCCL_MAX_NCHANNELS": _NUMBER,
    "NCCL_MIN_NCHANNELS": _NUMBER,
    "NCCL_MAX_CTAS": _NUMBER,
    "NCCL_MIN_CTAS": _NUMBER,
    "NCCL_NVLS_ENABLE": _NUMBER,
    "OMPI_COMM_WORLD_RANK": _NUMBER,
    "OMPI_COMM_WORLD_SIZE": _NUMBER,
    "PMI_RANK": _NUMBER,
    "PMI_SIZE": _NUMBER,
    "SLURM_PROCID": _NUMBER,
    "SLURM_NTASKS": _NUMBER,
    "RANK": _NUMBER,
    "WORLD_SIZE": _NUMBER,
}
"""The only environment variables ever taken from a report, and what their values must look like.

Numbers and names of algorithms, in any case; a variable with any other value is not taken.
"""

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables that give the MPI rank, best first."""
