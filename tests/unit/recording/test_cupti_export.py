"""CUPTI's records become a trace that says what was recorded: all times known by hand."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpuscope import __version__, api, samples
from gpuscope.errors import CannotJudgeError, OutputError, ProgramError, TraceError
from gpuscope.model.classes import CODE
from gpuscope.model.trace import Trace
from gpuscope.readers import nsys_schema, open_trace
from gpuscope.readers.anonymize import anonymize
from gpuscope.recording import machine
from gpuscope.recording.cupti import export, layout, library, schema
from gpuscope.recording.cupti.collector import DEFAULT_DOMAIN, ENVIRONMENT
from gpuscope.recording.cupti.spool import Spool
from gpuscope.report.text import render_analysis
from tests.make_cupti import PID, SIZES_12_1, SIZES_13, SIZES_13_5, TID, UTC_NS, Recording

TEMPLATE = "_Z4axpyIfEvPT_S1_"
NONE_ID = 0xFFFFFFFF


def pipeline(sizes: Mapping[int, int] = SIZES_13) -> Recording:
    """Return a copy, a kernel beside it on another stream, a wait, a memset: 100 to 400 ns."""
    made = Recording(sizes)
    made.add(
        layout.DEVICE, id=0, name="NVIDIA H200", numMemcpyEngines=3, numMultiprocessors=132,
        uuid=bytes(range(16)),
    )  # fmt: skip
    made.add(layout.CONTEXT, nullStreamId=7)
    made.add(layout.STREAM, streamId=13, priority=2**32 - 5, flag=2)
    made.api("cudaMemcpyAsync_v3020", 90, 110, 1)
    made.api("cuLaunchKernel", 120, 130, 2)
    made.api("cudaStreamWaitEvent_v3020", 140, 145, 3)
    made.next_buffer()
    made.add(
        layout.MEMCPY, start=100, end=300, bytes=4096, copyKind=1, srcKind=2, dstKind=3,
        streamId=7, correlationId=1, **({} if sizes is SIZES_12_1 else {"copyCount": 3}),
    )  # fmt: skip
    made.add(
        layout.CONCURRENT_KERNEL, start=200, end=400, name=TEMPLATE, streamId=13, correlationId=2,
        gridX=2, gridY=3, gridZ=1, blockX=32, blockY=1, blockZ=1, registersPerThread=24,
        staticSharedMemory=16, dynamicSharedMemory=8, graphNodeId=0,
    )  # fmt: skip
    made.add(
        layout.SYNCHRONIZATION, type=2, start=141, end=144, correlationId=3, streamId=13,
        cudaEventId=5, **({} if sizes is SIZES_12_1 else {"cudaEventSyncId": 9}),
    )  # fmt: skip
    made.add(layout.CUDA_EVENT, correlationId=3, streamId=13, eventId=5)
    made.add(
        layout.MEMSET, start=310, end=320, bytes=64, value=1, memoryKind=3, streamId=7,
        correlationId=4,
    )  # fmt: skip
    made.range("step", 80, 350, 1, domain="train")
    return made


def written(made: Recording, tmp_path: Path, **options: Any) -> tuple[Trace, export.Written]:
    within = options.pop("within", None)
    spool = Spool(tmp_path / "spool")
    made.write(spool, **options)
    done = export.write(spool, tmp_path / "trace.sqlite", within=within)
    return open_trace(tmp_path / "trace.sqlite"), done


def sql(tmp_path: Path, query: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "trace.sqlite") as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("sizes", [SIZES_13_5, SIZES_13, SIZES_12_1], ids=["13.5", "13.0", "12.1"])
def test_operations_are_what_was_recorded(tmp_path: Path, sizes: Mapping[int, int]) -> None:
    trace, done = written(pipeline(sizes), tmp_path)

    operations = trace.operations
    assert operations is not None
    assert operations.start_ns.tolist() == [100, 200, 310]
    assert operations.end_ns.tolist() == [300, 400, 320]
    assert operations.op_class.tolist() == [CODE["h2d"], CODE["kernel"], CODE["memset"]]
    assert operations.size_bytes.tolist() == [4096, 0, 64]
    assert [trace.strings[name] for name in operations.name] == ["H2D copy", "axpy", "memset"]
    assert (operations.src_kind[0], operations.dst_kind[0]) == (1, 2)  # pinned, device
    assert operations.launch.tolist() == [0, 1, -1]
    assert trace.lost_records == 0
    assert {check.name: check.state for check in trace.checks}["recording"] == "ok"
    assert trace.api is not None
    assert len(trace.api) == 3
    copies = sql(tmp_path, "SELECT copyCount FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    assert copies == [(None if sizes is SIZES_12_1 else 3,)]
    assert not done.was_killed


def test_names_are_demangled_and_short(tmp_path: Path) -> None:
    written(pipeline(), tmp_path)

    assert sql(
        tmp_path,
        "SELECT d.value, s.value, m.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds d ON d.id = demangledName JOIN StringIds s ON s.id = shortName "
        "JOIN StringIds m ON m.id = mangledName",
    ) == [("void axpy<float>(float*, float*)", "axpy", TEMPLATE)]


def test_threads_streams_devices_and_ranks(tmp_path: Path) -> None:
    trace, _ = written(pipeline(), tmp_path)

    assert [(process.pid, process.rank, process.name) for process in trace.processes] == [
        (PID, 3, "train.py")
    ]
    assert [(thread.tid, thread.name) for thread in trace.threads] == [(TID, "python")]
    device = trace.devices[0]
    assert (device.name, device.copy_engines, device.sm_count) == ("NVIDIA H200", 3, 132)
    assert device.hardware == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert {(stream.number, stream.priority, stream.kind) for stream in trace.streams} == {
        (7, None, "null"),
        (13, -5, "non-blocking"),
    }
    assert trace.start_utc_ns == UTC_NS
    assert sql(tmp_path, "SELECT utcTime FROM TARGET_INFO_SESSION_START_TIME") == [
        ("2026-11-30T07:50:00",)
    ]


def test_a_green_context_is_named_beside_the_one_it_was_made_in(tmp_path: Path) -> None:
    made = Recording()
    made.add(layout.CONTEXT, nullStreamId=7)
    made.add(
        layout.CONTEXT, contextId=2, nullStreamId=14, parentContextId=1, isGreenContext=1,
        numMultiprocessors=16,
    )  # fmt: skip
    made.add(layout.STREAM, streamId=15, flag=2)
    for context, stream in ((2, 15), (1, 7)):
        made.add(
            layout.CONCURRENT_KERNEL, start=200, end=400, name=TEMPLATE, contextId=context,
            streamId=stream, gridX=1, gridY=1, gridZ=1, blockX=1, blockY=1, blockZ=1,
        )  # fmt: skip
    made.add(layout.CUDA_EVENT, contextId=2, streamId=15, eventId=5)
    trace, _ = written(made, tmp_path)

    assert {(s.number, s.context, s.kind, s.part, s.part_sm_count) for s in trace.streams} == {
        (15, 1, "non-blocking", 2, 16),
        (7, 1, "null", None, None),
    }
    # As for nsys, or waits in the context they were made in would not find them.
    assert sql(tmp_path, "SELECT contextId FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT") == [(1,)]
    assert sql(
        tmp_path,
        "SELECT contextId, parentContextId, isGreenContext FROM TARGET_INFO_CUDA_CONTEXT_INFO",
    ) == [(1, 0, 0), (2, 1, 1)]


def test_waits_name_the_event_and_its_record(tmp_path: Path) -> None:
    trace, _ = written(pipeline(), tmp_path)

    assert trace.syncs is not None
    assert trace.event_records is not None
    assert (trace.syncs.sync_type.tolist(), trace.syncs.event.tolist()) == ([2], [5])
    assert trace.syncs.event_sync.tolist() == [9]
    assert trace.syncs.launch.tolist() == trace.event_records.launch.tolist() == [2]


def test_waits_and_events_are_on_the_device_of_their_context(tmp_path: Path) -> None:
    made = Recording()
    made.add(layout.CONTEXT, contextId=1, deviceId=0)
    made.add(layout.CONTEXT, contextId=2, deviceId=1)
    made.add(layout.CUDA_EVENT, contextId=2, streamId=13, eventId=5)
    made.add(layout.SYNCHRONIZATION, contextId=1, type=3, start=10, end=20, streamId=7)
    made.add(layout.SYNCHRONIZATION, contextId=2, type=3, start=30, end=40, streamId=13)
    written(made, tmp_path)

    assert sql(tmp_path, "SELECT deviceId FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT") == [(1,)]
    waits = sql(tmp_path, "SELECT deviceId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION ORDER BY start")
    assert waits == [(0,), (1,)]


def test_a_version_that_numbers_no_records_of_events(tmp_path: Path) -> None:
    trace, _ = written(pipeline(SIZES_12_1), tmp_path)

    assert trace.syncs is not None
    assert trace.syncs.event_sync.tolist() == [-1]


def test_ranges_of_all_kinds(tmp_path: Path) -> None:
    made = pipeline()
    made.range("inner", 90, 120, 2, domain=DEFAULT_DOMAIN)
    made.range("plain", 95, 97, 3)
    made.range("open", 200, None, 4)
    made.add(layout.MARKER, flags=2, timestamp=60, id=5, name="handed over", threadId=TID)
    made.add(layout.MARKER, flags=4, timestamp=65, id=5, threadId=TID + 1)
    made.add(layout.MARKER, flags=1, timestamp=70, id=6, name="mark")
    trace, _ = written(made, tmp_path)

    ranges = trace.ranges
    assert ranges is not None
    names = [trace.strings[name] for name in ranges.name]
    domains = [trace.strings[index] if index >= 0 else None for index in ranges.domain]
    assert list(
        zip(names, ranges.start_ns.tolist(), ranges.end_ns.tolist(), domains, strict=True)
    ) == [
        ("handed over", 60, 65, None),
        ("step", 80, 350, "train"),
        ("inner", 90, 120, None),
        ("plain", 95, 97, None),
        ("open", 200, -1, None),
    ]
    assert ranges.kind.tolist() == [1, 0, 0, 0, 0]
    assert sql(tmp_path, "SELECT start, end FROM NVTX_EVENTS WHERE eventType = 34") == [(70, None)]


def test_a_device_is_described_as_nsys_describes_it(tmp_path: Path) -> None:
    """Of the row that nsys wrote of an H200 the record of CUPTI is made, and the row of that."""
    with sqlite3.connect(f"file:{samples.path('streams')}?mode=ro", uri=True) as connection:
        names = ", ".join(export.DEVICE_FACTS)
        (real,) = connection.execute(f"SELECT {names} FROM TARGET_INFO_GPU").fetchall()
    record: dict[str, int] = {}
    for value, (name, factor) in zip(real, export.DEVICE_FACTS.values(), strict=True):
        assert value % factor == 0
        assert record.setdefault(name, value // factor) == value // factor
    made = Recording()
    made.add(layout.DEVICE, name="NVIDIA H200", uuid=bytes(range(16)), **record)
    made.add(layout.CONTEXT, nullStreamId=7)
    written(made, tmp_path)

    assert sql(tmp_path, f"SELECT {names} FROM TARGET_INFO_GPU") == [real]


def test_a_device_holds_no_more_than_it_says(tmp_path: Path) -> None:
    made = Recording()
    limits = {"maxWarpsPerMultiprocessor": 48, "numThreadsPerWarp": 32}
    made.add(layout.DEVICE, name="NVIDIA L4", uuid=bytes(range(16)), **limits)
    made.add(layout.CONTEXT, nullStreamId=7)
    made.add(layout.MEMSET, start=10, end=20, bytes=8, streamId=7, correlationId=1)
    trace, _ = written(made, tmp_path)

    assert trace.devices[0].sm_limits.threads == 48 * 32


def test_a_cooperative_launch_is_one(tmp_path: Path) -> None:
    """CUPTI counts the types of launches from 0, nsys from 1."""
    made = Recording()
    made.add(layout.CONTEXT, nullStreamId=7)
    for number, launch_type in enumerate((0, 1, 2)):
        made.add(
            layout.CONCURRENT_KERNEL, start=10 + 20 * number, end=20 + 20 * number, name="k",
            streamId=7, correlationId=number, launchType=launch_type, gridX=1, blockX=1,
        )  # fmt: skip
    trace, _ = written(made, tmp_path)

    assert trace.kernel_configs is not None
    assert trace.kernel_configs.cooperative.tolist() == [0, 1, 1]
    assert sql(tmp_path, "SELECT launchType FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,), (2,), (3,)]


def test_categories_and_colours_of_ranges(tmp_path: Path) -> None:
    made = pipeline()
    made.range("plain", 95, 97, 3)
    made.range("coloured", 98, 99, 4)
    made.add(layout.MARKER_DATA, id=4, flags=2, color=0xFF0000FF, category=7)
    made.add(layout.MARKER_DATA, id=3, flags=1, color=0, category=0)
    trace, _ = written(made, tmp_path)

    found = sql(tmp_path, "SELECT start, category, color FROM NVTX_EVENTS WHERE eventType = 59")
    assert sorted(found) == [(80, None, None), (95, None, None), (98, 7, 255)]
    assert trace.ranges is not None
    assert trace.ranges.category.tolist()[-1] == 7


def test_calls_of_both_apis(tmp_path: Path) -> None:
    made = Recording()
    made.api("cudaLaunchKernel_v7000", 10, 20, 1)
    made.api("cuLaunchKernel", 30, 40, 2)
    made.add(layout.DRIVER, cbid=999, start=50, end=60, correlationId=3)
    trace, _ = written(made, tmp_path)

    assert trace.api is not None
    assert [trace.strings[name] for name in trace.api.name] == [
        "cudaLaunchKernel_v7000",
        "cuLaunchKernel",
        "call 999",
    ]
    classes = sql(tmp_path, "SELECT eventClass FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    assert classes == [(0,), (1,), (1,)]


def test_peer_copies_and_graph_nodes(tmp_path: Path) -> None:
    made = Recording()
    made.add(
        layout.MEMCPY_PEER, start=10, end=20, bytes=8, copyKind=10, srcKind=3, dstKind=3,
        srcDeviceId=0, dstDeviceId=1, streamId=7, correlationId=1,
    )  # fmt: skip
    made.add(
        layout.CONCURRENT_KERNEL, start=30, end=40, name="node", streamId=7, correlationId=2,
        graphNodeId=77,
    )  # fmt: skip
    made.add(layout.GRAPH_TRACE, start=50, end=60, graphId=3, streamId=7, correlationId=3)
    trace, _ = written(made, tmp_path)

    assert trace.operations is not None
    classes = [CODE["p2p"], CODE["kernel"], CODE["graph"]]
    assert trace.operations.op_class.tolist() == classes
    assert trace.operations.graph_node.tolist() == [-1, 77, -1]
    assert (trace.operations.src_device[0], trace.operations.dst_device[0]) == (0, 1)


def test_kinds_of_memory_are_numbered_as_nsys_does(tmp_path: Path) -> None:
    made = Recording()
    for kind in range(4):  # unknown, pageable, pinned, device
        made.add(
            layout.MEMCPY, start=10 + kind, end=20, bytes=8, copyKind=1, srcKind=kind, dstKind=3,
            streamId=7, correlationId=kind,
        )  # fmt: skip
    written(made, tmp_path)

    assert sql(
        tmp_path,
        "SELECT e.label FROM CUPTI_ACTIVITY_KIND_MEMCPY m JOIN ENUM_CUDA_MEM_KIND e "
        "ON e.id = srcKind ORDER BY start",
    ) == [("Unknown",), ("Pageable",), ("Pinned",), ("Device",)]


def test_what_the_recorder_cost_is_a_table_of_its_own(tmp_path: Path) -> None:
    made = Recording()
    for kind in (1, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 7 << 16):
        made.add(layout.OVERHEAD, overheadKind=kind, start=10 + kind, end=20 + kind)
    written(made, tmp_path)

    # The compiler and the loading of modules are the driver's own work.
    rows = sql(
        tmp_path,
        "SELECT start - 10 >> 16, end - start, value, globalTid & 0xFFFFFF FROM PROFILER_OVERHEAD "
        "JOIN StringIds s ON s.id = nameId",
    )
    assert rows == [
        (1, 10, "CUPTI Buffer flush", TID),
        (2, 10, "CUPTI Instrumentation", TID),
        (3, 10, "CUPTI Resource Management", TID),
        (7, 10, "CUPTI Buffer request", TID),
    ]


def test_facts_are_named_as_nsys_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "driver_cuda_version", lambda: 13000)
    monkeypatch.setattr(machine, "graphics", lambda: machine.Graphics("580.1", None, ()))
    written(pipeline(), tmp_path)
    real = sqlite3.connect(f"file:{samples.path('streams')}?mode=ro", uri=True)

    for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT"):
        query = f"SELECT name FROM {table}"
        names = sql(tmp_path, query)
        assert len(names) >= 3
        assert set(names) <= set(real.execute(query)), table
    real.close()


def test_dropped_records_are_told_by_the_reader(tmp_path: Path) -> None:
    trace, done = written(pipeline(), tmp_path, dropped=12)

    assert done.dropped == 12
    assert sql(tmp_path, "SELECT severity, timestamp FROM DIAGNOSTIC_EVENT") == [
        (1, 0),
        (3, 1000),
        (1, 1000),
    ]
    check = {check.name: check for check in trace.checks}["recording"]
    assert check.state == "warning"
    # Calls and kernels that are lost alike leave no launch without its kernel.
    assert trace.lost_records == 6
    anonymize(tmp_path / "trace.sqlite", tmp_path / "clean.sqlite")
    assert open_trace(tmp_path / "clean.sqlite").lost_records == 6


def test_work_that_never_ended_is_left_out_and_counted(tmp_path: Path) -> None:
    made = pipeline()
    made.add(layout.CONCURRENT_KERNEL, start=0, end=0, name="unfinished", streamId=7)
    made.add(layout.CONCURRENT_KERNEL, start=390, end=380, name="torn", streamId=7)
    made.add(layout.CONCURRENT_KERNEL, start=390, end=0, name="begun", streamId=7)
    made.add(layout.CONCURRENT_KERNEL, start=390, end=390, name="no time at all", streamId=7)
    trace, done = written(made, tmp_path)

    assert trace.operations is not None
    assert len(trace.operations) == 4
    assert any(note.startswith("3 records were left out") for note in done.notes)


def test_a_killed_program_leaves_its_operations_without_names(tmp_path: Path) -> None:
    trace, done = written(pipeline(), tmp_path, killed=True)

    assert done.was_killed
    assert trace.operations is not None
    # The clock begins with the first record.
    assert trace.operations.start_ns.tolist() == [20, 120, 230]
    assert trace.start_utc_ns == UTC_NS + 80
    assert export.UNNAMED in {trace.strings[name] for name in trace.operations.name}
    check = {check.name: check for check in trace.checks}["recording"]
    assert check.state == "warning"


@pytest.mark.parametrize("domain", ["train", None])
def test_one_range_alone(tmp_path: Path, domain: str | None) -> None:
    made = pipeline()
    made.range("part", 115, 150, 2, domain="train")
    made.range("part", 500, 600, 3, domain="train")
    for start in (100, 148, 151):  # the last one after the range
        made.add(layout.OVERHEAD, overheadKind=1 << 16, start=start, end=start + 20)
    trace, _ = written(made, tmp_path, within=("part", domain))

    assert trace.operations is not None
    assert trace.api is not None
    assert trace.ranges is not None
    assert trace.operations.start_ns.tolist() == [200]
    assert trace.api.start_ns.tolist() == [120, 140]
    assert trace.ranges.start_ns.tolist() == [115]
    assert sql(tmp_path, "SELECT start, end FROM PROFILER_OVERHEAD") == [(100, 120), (148, 168)]


@pytest.mark.parametrize(
    ("within", "said"),
    [
        (
            ("absent", None),
            r"absent \(CUPTI leaves out what C\+\+ .*: record those with --nsys\)\.",
        ),
        (("step", ""), r"step of the default domain \(CUPTI leaves out"),
        (("step", "other"), r"step of domain other\.$"),
    ],
)
def test_a_range_that_never_came(tmp_path: Path, within: tuple[str, str | None], said: str) -> None:
    with pytest.raises(CannotJudgeError, match=f"never ended an NVTX range {said}"):
        written(pipeline(), tmp_path, within=within)


def test_an_empty_recording_is_an_empty_trace(tmp_path: Path) -> None:
    trace, _ = written(Recording(), tmp_path)

    assert trace.operations is None
    assert trace.api is None


def test_the_trace_is_analyzed_like_any_other(tmp_path: Path) -> None:
    made = pipeline()
    spool = Spool(tmp_path / "spool")
    made.write(spool)
    export.write(spool, tmp_path / "trace.sqlite")

    analysis = api.analyze_trace(api.open_trace(tmp_path / "trace.sqlite"))

    assert analysis.trace.operations == 3
    assert analysis.trace.format == "cupti-sqlite"
    shown = io.StringIO()
    render_analysis(analysis, Console(file=shown, width=200))
    assert f"gpuscope through CUPTI {__version__}" in shown.getvalue()


def test_an_anonymized_copy_says_the_same(tmp_path: Path) -> None:
    trace, _ = written(pipeline(), tmp_path)
    anonymize(tmp_path / "trace.sqlite", tmp_path / "copy.sqlite")
    copy = open_trace(tmp_path / "copy.sqlite")

    assert copy.operations is not None
    assert trace.operations is not None
    assert (copy.format, copy.tool_version) == ("cupti-sqlite", __version__)
    assert copy.operations.start_ns.tolist() == trace.operations.start_ns.tolist()
    assert [s.priority for s in copy.streams] == [s.priority for s in trace.streams]


def test_records_that_cupti_has_not_completed_are_read(tmp_path: Path) -> None:
    made = pipeline()
    first = int.from_bytes(made.buffers[1][:4], "little")
    made.buffers[1][:4] = (first | 1 << 31).to_bytes(4, "little")
    trace, _ = written(made, tmp_path, killed=True)

    assert trace.operations is not None
    assert len(trace.operations) == 3


def test_work_without_calls_is_analyzed(tmp_path: Path) -> None:
    made = Recording()
    made.add(layout.CONCURRENT_KERNEL, start=10, end=20, name="k", streamId=7, correlationId=9)
    made.api("cudaMalloc_v3020", 30, 40, 10)
    trace, _ = written(made, tmp_path)

    assert api.analyze_trace(trace).trace.operations == 1


def test_unknown_records_end_in_a_sentence(tmp_path: Path) -> None:
    made = pipeline()
    made.buffers[0] += (99).to_bytes(8, "little")
    with pytest.raises(TraceError, match=r"no record of a known kind \(99\)"):
        written(made, tmp_path)


def test_a_recording_that_never_began(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(ProgramError, match="before anything could be recorded"):
        export.write(spool, tmp_path / "trace.sqlite")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    pipeline().write(spool)
    with pytest.raises(OutputError, match="cannot be written"):
        export.write(spool, tmp_path / "absent" / "trace.sqlite")
    assert not list(tmp_path.glob("*.part"))


def test_tables_and_columns_are_those_that_readers_know() -> None:
    for spec in (*nsys_schema.OPERATION_TABLES, nsys_schema.RUNTIME, nsys_schema.SYNCHRONIZATION,
                 nsys_schema.CUDA_EVENT, nsys_schema.NVTX, nsys_schema.PROFILER_OVERHEAD,
                 nsys_schema.STREAM_INFO, nsys_schema.DEVICE_INFO):  # fmt: skip
        have = set(schema.columns(spec.names[0]))
        needed = {c.names[0] for c in spec.columns.values() if c.default is None}
        assert needed <= have, spec.names[0]


@pytest.mark.parametrize("name", ["jacobi_nccl_r0", "streams", "graph_node"])
def test_columns_are_those_of_real_exports(name: str) -> None:
    with sqlite3.connect(f"file:{samples.path(name)}?mode=ro", uri=True) as connection:
        for table in schema.TABLES:
            real = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
            if real:
                own = [name for name in schema.columns(table) if (table, name) != schema.OWN]
                assert own == [row[1] for row in real], table


def test_the_variables_kept_are_those_that_readers_take() -> None:
    assert set(ENVIRONMENT) == set(nsys_schema.ENVIRONMENT_ALLOWED)


def test_no_field_reaches_beyond_its_record() -> None:
    assert all(
        field.end <= SIZES_13[kind]
        for kind, fields in layout.FIELDS.items()
        for field in fields.values()
    )
