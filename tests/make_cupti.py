"""Recordings of CUPTI, written by hand: the bytes that CUPTI of CUDA 13.0 would have left.

>>> recording = Recording()
>>> recording.add(layout.CONCURRENT_KERNEL, start=10, end=20, name="gemm", streamId=7)
>>> recording.write(spool)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from gpuscope.recording.cupti import layout
from gpuscope.recording.cupti.spool import BUFFER_BYTES, End, Spool, Start

PID, TID = 4242, 4243
UTC_NS = 1_796_025_000_000_000_000
"""When the recordings begin; the times given to :meth:`Recording.add` are counted from it."""

SIZES_13 = {
    layout.MEMCPY: 96,
    layout.MEMSET: 88,
    layout.DRIVER: 40,
    layout.RUNTIME: 40,
    layout.DEVICE: 184,
    layout.CONTEXT: 32,
    layout.CONCURRENT_KERNEL: 216,
    layout.MARKER: 56,
    layout.MARKER_DATA: 40,
    layout.OVERHEAD: 56,
    layout.MEMCPY_PEER: 96,
    layout.CUDA_EVENT: 56,
    layout.STREAM: 24,
    layout.SYNCHRONIZATION: 56,
    layout.GRAPH_TRACE: 56,
}
"""Lengths of the records, as libcupti of CUDA 13.0 says them."""
SIZES_13_5 = {
    **SIZES_13,
    layout.MEMCPY: 112,
    layout.MEMSET: 104,
    layout.DEVICE: 192,
    layout.CONTEXT: 40,
    layout.CONCURRENT_KERNEL: 248,
    layout.CUDA_EVENT: 80,
}
"""Likewise of CUDA 13.5."""
SIZES_12_1 = {
    **SIZES_13,
    layout.MEMCPY: 88,
    layout.DEVICE: 176,
    layout.CONTEXT: 16,
    layout.CONCURRENT_KERNEL: 208,
    layout.MARKER_DATA: 32,
    layout.OVERHEAD: 40,
    layout.CUDA_EVENT: 24,
    layout.SYNCHRONIZATION: 40,
    layout.GRAPH_TRACE: 48,
}
"""Likewise of CUDA 12.1."""

DRIVER_CALLS = {307: "cuLaunchKernel", 308: "cuProfilerStart", 309: "cuProfilerStop"}
RUNTIME_CALLS = {
    41: "cudaMemcpyAsync_v3020",
    20: "cudaMalloc_v3020",
    131: "cudaStreamSynchronize_v3020",
    147: "cudaStreamWaitEvent_v3020",
    171: "cudaProfilerStart_v4000",
    172: "cudaProfilerStop_v4000",
    211: "cudaLaunchKernel_v7000",
}
_CODES = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i4": "i", "i8": "q"}
_TIMES = {"start", "end", "timestamp"}


def pack(kind: int, sizes: Mapping[int, int], values: Mapping[str, Any]) -> bytes:
    """Return a record of `kind`; fields that are not given are 0."""
    data = bytearray(sizes[kind])
    struct.pack_into("<I", data, 0, kind)
    for name, value in values.items():
        offset, code = layout.FIELDS[kind][name]
        if isinstance(value, bytes):
            data[offset : offset + len(value)] = value
        else:
            struct.pack_into(f"<{_CODES[code.lstrip('<')]}", data, offset, value)
    return bytes(data)


class Recording:
    """Records to be, and what else a recorder writes down."""

    def __init__(self, sizes: Mapping[int, int] = SIZES_13) -> None:
        self.sizes = dict(sizes)
        self.buffers = [bytearray()]
        self.texts: dict[str, int] = {}

    def add(self, kind: int, **values: Any) -> None:
        """Add a record; times are ns from the beginning, texts are given as such."""
        place = {"deviceId", "contextId", "processId", "threadId"} & layout.FIELDS[kind].keys()
        defaults = {"contextId": 1, "processId": PID, "threadId": TID, "deviceId": 0}
        values = {name: defaults[name] for name in place} | values
        for name, value in values.items():
            if isinstance(value, str):
                values[name] = self.texts.setdefault(value, 0x7F00_0000_0000 + 64 * len(self.texts))
            elif name in _TIMES and value:
                values[name] = UTC_NS + value
        self.buffers[-1] += pack(kind, self.sizes, values)

    def api(self, name: str, start: int, end: int, correlation: int, **values: Any) -> None:
        """Add a call of the runtime or the driver."""
        for kind, names in ((layout.RUNTIME, RUNTIME_CALLS), (layout.DRIVER, DRIVER_CALLS)):
            for number, known in names.items():
                if known == name:
                    self.add(
                        kind, cbid=number, start=start, end=end, correlationId=correlation, **values
                    )

    def range(
        self, name: str, start: int, end: int | None, number: int, domain: str | None = None
    ) -> None:
        """Add both ends of an NVTX range."""
        where = {"domain": domain} if domain else {}
        self.add(layout.MARKER, flags=2, timestamp=start, id=number, name=name, **where)
        if end is not None:
            self.add(layout.MARKER, flags=4, timestamp=end, id=number, **where)

    def next_buffer(self) -> None:
        """Put what follows into another buffer."""
        self.buffers.append(bytearray())

    def write(self, spool: Spool, *, killed: bool = False, **end: Any) -> None:
        """Write the folder; of a program that was killed, without what comes at the end."""
        spool.folder.mkdir(parents=True, exist_ok=True)
        spool.write_start(
            Start(
                pid=PID,
                program="train.py",
                library="/usr/lib/libcupti.so.13",
                api_version=130001,
                record_sizes=self.sizes,
                driver_calls=DRIVER_CALLS,
                runtime_calls=RUNTIME_CALLS,
                environment={"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
            )
        )
        with spool.buffers.open("wb") as file:
            for number, data in enumerate(self.buffers):
                file.seek(number * BUFFER_BYTES)
                file.write(data)
            file.truncate((len(self.buffers) + 1) * BUFFER_BYTES)
        if not killed:
            values: dict[str, Any] = {
                "started_ns": UTC_NS,
                "stopped_ns": UTC_NS + 1000,
                "dropped": 0,
                "callbacks": 2,
                "callback_ns": 5_000,
                "was_started": True,
                "texts": {address: text for text, address in self.texts.items()},
                "threads": {TID: "python"},
            }
            spool.write_end(End(**values | end))
