"""Exports of every version give the same trace, known by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.model.classes import CLASSES
from gpuscope.model.tables import PUSH_POP, START_END
from gpuscope.model.trace import Trace
from gpuscope.readers import open_trace
from tests.make_export import VARIANTS, Export, Variant

LAUNCH = "cudaLaunchKernel_v7000"
COPY = "cudaMemcpyAsync_v3020"


def write_scene(export: Export) -> None:
    """One process with a null stream and two others: copy in, compute, reduce, copy out, set."""
    export.gpu()
    export.null_stream(7)
    export.stream_info(7, flag=3)
    export.stream_info(13, priority=-5)
    export.stream_info(14, flag=1)
    export.add("PROCESSES", globalPid=100 << 24, pid=100, name="train")
    for correlation, name in enumerate((COPY, LAUNCH, LAUNCH, COPY, "cudaMemsetAsync_v3020"), 1):
        export.call(name, 10 * correlation, 10 * correlation + 5, correlationId=correlation)
    # Not in order, as in real exports.
    export.operation(
        "KERNEL",
        210,
        300,
        stream=13,
        correlationId=3,
        shortName="ncclDevKernel_AllReduce_Sum",
        demangledName="ncclDevKernel_AllReduce_Sum(ncclDevComm*)",
    )
    export.operation(
        "KERNEL",
        150,
        260,
        stream=14,
        correlationId=2,
        shortName="gemm",
        demangledName="void lib::gemm<float>(float*)",
    )
    export.operation(
        "MEMCPY", 300, 400, correlationId=4, copyKind=2, srcKind=2, dstKind=1, bytes=2048
    )
    export.operation(
        "MEMCPY", 100, 200, stream=13, correlationId=1, copyKind=1, srcKind=0, dstKind=2, bytes=4096
    )
    export.operation("MEMSET", 400, 410, stream=14, correlationId=5, bytes=64)
    export.range("MPI", 0, None, kind=75, domainId=1)
    export.range("step", 5, 60)
    export.range("inner", 20, 30)
    export.range("send", 25, 500, kind=60, domainId=1)
    export.range("mark", 26, None, kind=34)


def operations(trace: Trace) -> list[tuple[int, int, str, str, str, int]]:
    table = trace.operations
    assert table is not None
    return [
        (
            int(table.start_ns[row]),
            int(table.end_ns[row]),
            CLASSES[table.op_class[row]],
            trace.streams[table.stream[row]].label if table.stream[row] >= 0 else "none",
            trace.strings[table.name[row]],
            int(table.size_bytes[row]),
        )
        for row in range(len(table))
    ]


def ranges(trace: Trace) -> list[tuple[str, int, int, int, str]]:
    table = trace.ranges
    assert table is not None
    return [
        (
            trace.strings[table.name[row]],
            int(table.start_ns[row]),
            int(table.end_ns[row]),
            int(table.kind[row]),
            trace.strings[table.domain[row]] if table.domain[row] >= 0 else "",
        )
        for row in range(len(table))
    ]


def launches(trace: Trace) -> list[int | None]:
    """The start of the call that launched each operation."""
    assert trace.operations is not None
    assert trace.api is not None
    return [
        int(trace.api.start_ns[row]) if row >= 0 else None
        for row in trace.operations.launch.tolist()
    ]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_version_reads_alike(variant: Variant, tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    with Export(path, variant) as export:
        write_scene(export)
    trace = open_trace(path)

    assert operations(trace) == [
        (100, 200, "h2d", "stream 13", "H2D copy", 4096),
        (150, 260, "kernel", "stream 14", "gemm", 0),
        (210, 300, "comm", "stream 13", "ncclDevKernel_AllReduce_Sum", 0),
        (300, 400, "d2h", "null stream 7", "D2H copy", 2048),
        (400, 410, "memset", "stream 14", "memset", 64),
    ]
    assert launches(trace) == [10, 20, 30, 40, 50]
    assert ranges(trace) == [
        ("step", 5, 60, PUSH_POP, ""),
        ("inner", 20, 30, PUSH_POP, ""),
        ("send", 25, 500, START_END, "MPI"),
    ]
    assert {(s.number, s.priority, s.kind) for s in trace.streams} == {
        (7, 0, "null"),
        (13, -5, "non-blocking"),
        (14, 0, "blocking"),
    }
    assert [(p.pid, p.name, p.rank) for p in trace.processes] == [(100, "train", None)]
    assert trace.lost_records == 0
    assert not trace.damaged
    (device,) = trace.devices
    if variant.gpu:
        assert (device.name, device.copy_engines, device.sm_count) == ("NVIDIA H200", 3, 132)
    else:
        assert (device.name, device.copy_engines, device.sm_count) == (None, None, None)
