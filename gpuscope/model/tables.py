"""The tables of a trace: one frozen dataclass of equally long NumPy arrays for each kind of row.

Times are int64 nanoseconds on the trace's clock, half open. An index of -1 means "none". A table
that is None was not recorded; an empty table was recorded and nothing happened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gpuscope.model.classes import CLASSES

if TYPE_CHECKING:
    import pandas as pd

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
UInt8 = npt.NDArray[np.uint8]

STAGED = 1
"""Flag of a copy: a leg of a peer copy that the driver staged through the host."""
PREFETCH = 2
"""Flag of a copy: a unified-memory migration that the program asked for."""
COMMUNICATION = 4
"""Flag of a copy: launched inside an NCCL call."""
TO_HOST = 8
"""Flag of a unified-memory migration: from a device to the host."""
EVICTED = 16
"""Flag of a unified-memory migration: pages that had to leave, for the device's memory was full."""

MEMORY_KINDS = (
    "pageable",
    "pinned",
    "device",
    "array",
    "managed",
    "device static",
    "managed static",
    "unknown",
)
"""Names of the memory kinds in ``Operations.src_kind`` and ``dst_kind``."""
PAGEABLE = MEMORY_KINDS.index("pageable")
PINNED = MEMORY_KINDS.index("pinned")
DEVICE_MEMORY_KINDS = tuple(MEMORY_KINDS.index(k) for k in ("device", "array", "device static"))

PUSH_POP = 0
"""Kind of an NVTX range that was pushed and popped on one thread."""
START_END = 1
"""Kind of an NVTX range that was started and ended, perhaps on two threads."""


def in_classes(op_class: UInt8, codes: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return which of some class codes are among `codes`."""
    wanted = np.zeros(len(CLASSES), np.bool_)
    wanted[list(codes)] = True
    return wanted[op_class]


@dataclass(frozen=True)
class Table:
    """Base of the tables: length, selection of rows, conversion to pandas."""

    def __len__(self) -> int:
        first = dataclasses.fields(self)[0].name
        return len(getattr(self, first))

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns by name, as views."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def take(self, rows: npt.NDArray[Any] | slice) -> Self:
        """Return the rows selected by a mask, an index array or a slice."""
        columns = self.columns().items()
        if isinstance(rows, slice):
            return type(self)(**{name: column[rows] for name, column in columns})
        at = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return type(self)(**{name: column.take(at) for name, column in columns})

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a DataFrame, a column a field."""
        import pandas as pd

        return pd.DataFrame(self.columns())

    @classmethod
    def empty(cls) -> Self:
        """Return a table without rows."""
        dtypes = {f.name: f.metadata["dtype"] for f in dataclasses.fields(cls)}
        return cls(**{name: np.empty(0, dtype) for name, dtype in dtypes.items()})


def _column(dtype: type[np.generic], meaning: str) -> Any:
    return dataclasses.field(metadata={"dtype": dtype, "meaning": meaning})


@dataclass(frozen=True)
class Operations(Table):
    """GPU activities, sorted by (start_ns, end_ns), stable in the order of recording."""

    start_ns: Int64 = _column(np.int64, "start")
    end_ns: Int64 = _column(np.int64, "end; never before the start")
    op_class: UInt8 = _column(np.uint8, "code of the class, see model.classes")
    process: Int32 = _column(np.int32, "index into Trace.processes")
    device: Int32 = _column(np.int32, "index into Trace.devices")
    stream: Int32 = _column(np.int32, "index into Trace.streams")
    correlation: Int64 = _column(np.int64, "correlation id, unique within the process; -1 none")
    launch: Int32 = _column(np.int32, "index into Trace.api of the call that launched it, or -1")
    name: Int32 = _column(np.int32, "index into Trace.strings")
    size_bytes: Int64 = _column(np.int64, "bytes copied or set; 0 for kernels")
    src_device: Int32 = _column(np.int32, "CUDA device number copied from, or -1")
    dst_device: Int32 = _column(np.int32, "CUDA device number copied to, or -1")
    src_kind: Int8 = _column(np.int8, "memory kind copied from, or -1")
    dst_kind: Int8 = _column(np.int8, "memory kind copied to, or -1")
    flags: UInt8 = _column(np.uint8, "STAGED, PREFETCH, COMMUNICATION, TO_HOST, EVICTED")
    graph_node: Int64 = _column(np.int64, "id of the CUDA-graph node, or -1")


@dataclass(frozen=True)
class ApiCalls(Table):
    """CUDA runtime and driver API calls, sorted by start_ns."""

    start_ns: Int64 = _column(np.int64, "start on the CPU")
    end_ns: Int64 = _column(np.int64, "return on the CPU")
    process: Int32 = _column(np.int32, "index into Trace.processes")
    thread: Int32 = _column(np.int32, "index into Trace.threads")
    correlation: Int64 = _column(np.int64, "correlation id, or -1")
    name: Int32 = _column(np.int32, "index into Trace.strings, such as cudaMemcpyAsync_v3020")
    result: Int32 = _column(np.int32, "CUDA's return value; 0 is success")


@dataclass(frozen=True)
class Ranges(Table):
    """NVTX ranges, sorted by start_ns."""

    start_ns: Int64 = _column(np.int64, "push or start on the CPU")
    end_ns: Int64 = _column(np.int64, "pop or end on the CPU; -1 when it never came")
    kind: UInt8 = _column(np.uint8, "PUSH_POP or START_END")
    process: Int32 = _column(np.int32, "index into Trace.processes")
    thread: Int32 = _column(np.int32, "index into Trace.threads: where it began")
    domain: Int32 = _column(np.int32, "index into Trace.strings; -1 the default domain")
    category: Int64 = _column(np.int64, "category number, or -1")
    name: Int32 = _column(np.int32, "index into Trace.strings")
    size_bytes: Int64 = _column(np.int64, "message size in an NCCL payload, or -1")
    peer: Int32 = _column(np.int32, "peer or root rank in an NCCL payload, or -1")
    communicator: Int64 = _column(np.int64, "hash of the communicator in an NCCL payload, or -1")


@dataclass(frozen=True)
class MpiCalls(Table):
    """MPI calls, sorted by start_ns; a Waitall appears once."""

    start_ns: Int64 = _column(np.int64, "entry on the CPU")
    end_ns: Int64 = _column(np.int64, "return on the CPU")
    process: Int32 = _column(np.int32, "index into Trace.processes")
    thread: Int32 = _column(np.int32, "index into Trace.threads")
    name: Int32 = _column(np.int32, "index into Trace.strings, such as MPI_Sendrecv")
    size_bytes: Int64 = _column(np.int64, "message size, or -1")
    peer: Int32 = _column(np.int32, "remote or root rank, or -1")
    communicator: Int64 = _column(np.int64, "handle of the communicator, or -1")


@dataclass(frozen=True)
class SyncRecords(Table):
    """CUPTI's synchronization records, sorted by start_ns.

    Their recorded types mislead; take the meaning from the API call's name first.
    """

    start_ns: Int64 = _column(np.int64, "start on the CPU")
    end_ns: Int64 = _column(np.int64, "end on the CPU")
    process: Int32 = _column(np.int32, "index into Trace.processes")
    stream: Int32 = _column(np.int32, "index into Trace.streams, or -1")
    correlation: Int64 = _column(np.int64, "correlation id of the call")
    launch: Int32 = _column(np.int32, "index into Trace.api of the call, or -1")
    sync_type: Int32 = _column(np.int32, "recorded type: 1 event, 2 stream wait, 3 stream, 4 ctx")
    event: Int64 = _column(np.int64, "event id, or -1")
    event_sync: Int64 = _column(np.int64, "id that links to the event's record, or -1")


@dataclass(frozen=True)
class EventRecords(Table):
    """Records of CUDA events into streams, in the order of their API calls."""

    process: Int32 = _column(np.int32, "index into Trace.processes")
    stream: Int32 = _column(np.int32, "index into Trace.streams")
    correlation: Int64 = _column(np.int64, "correlation id of the call")
    launch: Int32 = _column(np.int32, "index into Trace.api of the call, or -1")
    event: Int64 = _column(np.int64, "event id, unique within the context")
    event_sync: Int64 = _column(np.int64, "id that waits refer to, or -1")
    timestamp_ns: Int64 = _column(np.int64, "when the GPU reached it; -1 where that was not traced")


@dataclass(frozen=True)
class StackFrames(Table):
    """Call stacks of API calls, a row a frame, by (call, depth)."""

    call: Int64 = _column(np.int64, "index into Trace.api")
    depth: Int32 = _column(np.int32, "0 is the frame that made the call")
    function: Int32 = _column(np.int32, "index into Trace.strings")
    file: Int32 = _column(np.int32, "index into Trace.strings: the source file, or the module")
    line: Int32 = _column(np.int32, "line of the source file, or -1")


@dataclass(frozen=True)
class KernelConfigs(Table):
    """Launch configuration of the kernels, a row for each, in the order of Operations."""

    operation: Int64 = _column(np.int64, "index into Trace.operations")
    grid_blocks: Int64 = _column(np.int64, "blocks in the grid")
    block_threads: Int32 = _column(np.int32, "threads in a block")
    registers_per_thread: Int32 = _column(np.int32, "registers a thread")
    shared_bytes: Int64 = _column(np.int64, "static and dynamic shared memory of a block")
    cooperative: UInt8 = _column(np.uint8, "1 if all blocks must be on the GPU at once")
