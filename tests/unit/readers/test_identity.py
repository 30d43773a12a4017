"""Who did what: processes, GPUs, streams, ranks and domains are told apart as recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuscope import api
from gpuscope.model.classes import CLASSES
from gpuscope.model.tables import (
    EVICTED,
    MEMORY_KINDS,
    PAGEABLE,
    PREFETCH,
    STAGED,
    TO_HOST,
    Operations,
)
from gpuscope.model.trace import SmLimits, Trace
from gpuscope.readers import open_trace
from tests.make_export import ACTIVITY, NONE_ID, VARIANTS, Export

LAUNCH = "cudaLaunchKernel_v7000"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.sqlite"


def operations(trace: Trace) -> Operations:
    assert trace.operations is not None
    return trace.operations


def classes(trace: Trace) -> list[str]:
    return [CLASSES[code] for code in operations(trace).op_class]


def test_equal_ids_of_two_processes_are_not_the_same(path: Path) -> None:
    with Export(path) as export:
        for pid, start, domain in ((100, 0, "MPI"), (200, 1000, "NCCL")):
            export.call(LAUNCH, start, start + 5, pid=pid, correlationId=1)
            export.operation(
                "KERNEL", start + 10, start + 20, pid=pid, correlationId=1, shortName="k"
            )
            export.null_stream(7, pid=pid)
            export.range(domain, 0, None, pid=pid, kind=75, domainId=1)
            export.range("exchange", start, start + 9, pid=pid, domainId=1)
    trace = open_trace(path)

    assert [process.pid for process in trace.processes] == [100, 200]
    assert operations(trace).process.tolist() == [0, 1]
    assert operations(trace).stream.tolist() == [0, 1]
    assert [(s.process, s.context, s.number, s.kind) for s in trace.streams] == [
        (0, 1, 7, "null"),
        (1, 1, 7, "null"),
    ]
    assert operations(trace).launch.tolist() == [0, 1]
    assert trace.api is not None
    assert trace.api.start_ns.tolist() == [0, 1000]
    assert trace.ranges is not None
    assert [trace.strings[index] for index in trace.ranges.domain] == ["MPI", "NCCL"]


def test_two_contexts_and_two_devices_have_streams_of_their_own(path: Path) -> None:
    with Export(path) as export:
        for start, device, context in ((0, 0, 1), (10, 0, 2), (20, 1, 1)):
            place = {"deviceId": device, "contextId": context}
            export.operation("KERNEL", start, start + 5, shortName="k", **place)
    trace = open_trace(path)
    assert operations(trace).stream.tolist() == [0, 1, 2]
    assert operations(trace).device.tolist() == [0, 0, 1]


def test_the_number_of_a_device_names_another_gpu_in_each_process(path: Path) -> None:
    with Export(path) as export:
        export.gpu(0, pid=200, cuda=0, name="NVIDIA A100", asyncEngines=5)
        export.gpu(1, pid=100, cuda=0)
        export.device(0, 0, pid=300)
        for pid in (100, 200, 300):
            export.operation("KERNEL", pid, pid + 5, pid=pid, shortName="k")
    trace = open_trace(path)
    assert [(d.process, d.number, d.name, d.copy_engines, d.hardware) for d in trace.devices] == [
        (0, 0, "NVIDIA H200", 3, "u1"),
        (1, 0, "NVIDIA A100", 5, "u0"),
        (2, 0, "NVIDIA A100", 5, "u0"),
    ]


def test_two_slices_of_a_gpu_are_two_devices(path: Path) -> None:
    slices = (("MIG-a", 100), ("MIG-b", 200))
    with Export(path) as export:
        for number, (uuid, pid) in enumerate(slices):
            export.gpu(number, pid=pid, cuda=0, uuid=uuid, name="NVIDIA A100 MIG 1g.5gb")
            export.operation("KERNEL", 0, 5, pid=pid, shortName="k")
    trace = open_trace(path)
    assert [device.hardware for device in trace.devices] == ["MIG-a", "MIG-b"]


def test_without_a_list_of_devices_the_ordinal_of_the_gpu_counts(path: Path) -> None:
    with Export(path) as export:
        for gpu, ordinal, name in ((0, 1, "NVIDIA A100"), (1, 0, "NVIDIA H200")):
            facts = {"id": gpu, "cuDevice": ordinal, "name": name, "asyncEngines": 3}
            export.add("TARGET_INFO_GPU", **facts)
        export.operation("KERNEL", 0, 5, shortName="k")
    assert [device.name for device in open_trace(path).devices] == ["NVIDIA H200"]


@pytest.mark.parametrize("engines", [None, 0, -1, "three"])
def test_a_number_of_copy_engines_that_says_nothing_is_unknown(engines: object, path: Path) -> None:
    with Export(path) as export:
        export.gpu(asyncEngines=None)
        export.execute("UPDATE TARGET_INFO_GPU SET asyncEngines = ?", engines)
        export.operation("KERNEL", 0, 5, shortName="k")
    assert open_trace(path).devices[0].copy_engines is None


def test_what_a_multiprocessor_holds(path: Path) -> None:
    with Export(path) as export:
        export.gpu(maxWarpsPerSm=48, threadsPerWarp=32, maxBlocksPerSm=24, maxRegistersPerSm=0)
        export.operation("KERNEL", 0, 5, shortName="k")

    # What is not recorded, or nought, is taken for the most that there is.
    assert open_trace(path).devices[0].sm_limits == SmLimits(threads=1536, blocks=24)


@pytest.mark.parametrize("stream", [NONE_ID, None])
def test_an_operation_without_stream_keeps_its_device(stream: int | None, path: Path) -> None:
    """Migrations of unified memory name neither stream nor call."""
    with Export(path) as export:
        export.operation("KERNEL", 0, 5, shortName="k", stream=7)
        export.operation("KERNEL", 6, 9, shortName="k", stream=8, deviceId=1)
        export.operation("MEMCPY", 2, 8, stream=NONE_ID, correlationId=None, copyKind=11, bytes=64)
        if stream is None:
            export.execute(f"CREATE TABLE old AS SELECT * FROM {ACTIVITY}MEMCPY")
            export.execute(f"DROP TABLE {ACTIVITY}MEMCPY")
            export.execute(f"ALTER TABLE old RENAME TO {ACTIVITY}MEMCPY")
            export.execute(f"UPDATE {ACTIVITY}MEMCPY SET streamId = NULL")
    trace = open_trace(path)
    assert classes(trace) == ["kernel", "uvm", "kernel"]
    assert operations(trace).device.tolist() == [0, 0, 1]
    assert operations(trace).stream.tolist()[1] == -1
    assert operations(trace).launch.tolist() == [-1, -1, -1]
    assert [stream.number for stream in trace.streams] == [7, 8]


def test_what_a_stream_is_may_be_unknown(path: Path) -> None:
    with Export(path, VARIANTS["no GPU info"]) as export:
        export.stream_info(8, flag=99)
        export.stream_info(9, priority=2)
        for number in (7, 8, 9):
            export.operation("KERNEL", number, 20, shortName="k", stream=number)
    trace = open_trace(path)
    assert [(s.number, s.kind, s.priority) for s in trace.streams] == [
        (7, None, None),
        (8, None, 0),
        (9, "non-blocking", 2),
    ]


def test_rows_that_name_no_process_belong_to_the_only_one(path: Path) -> None:
    with Export(path) as export:
        export.call(LAUNCH, 0, 5, correlationId=1)
        export.operation("KERNEL", 10, 20, correlationId=1, shortName="k", globalPid=None)
    trace = open_trace(path)
    assert [process.pid for process in trace.processes] == [100]
    assert operations(trace).launch.tolist() == [0]
    # The same where the calls need not be read.
    assert [p.pid for p in open_trace(path, tables={"operations"}).processes] == [100]
    assert not trace.notes


def test_rows_that_name_no_process_among_several_are_noted(path: Path) -> None:
    with Export(path) as export:
        export.call(LAUNCH, 0, 5, pid=100, correlationId=1)
        export.call(LAUNCH, 0, 5, pid=200, correlationId=1)
        export.operation("KERNEL", 10, 20, correlationId=1, shortName="k", globalPid=None)
    trace = open_trace(path)
    assert operations(trace).launch.tolist() == [-1]
    assert any("1 GPU record names no process" in note for note in trace.notes)


def test_the_nodes_of_a_graph_share_their_launch(path: Path) -> None:
    with Export(path) as export:
        export.call("cudaGraphLaunch_v10000", 0, 5, correlationId=9)
        for node, start in ((1001, 10), (1002, 30)):
            export.operation(
                "KERNEL", start, start + 10, correlationId=9, graphNodeId=node, shortName="k"
            )
    trace = open_trace(path)
    assert operations(trace).launch.tolist() == [0, 0]
    assert operations(trace).graph_node.tolist() == [1001, 1002]
    assert trace.lost_records == 0


def test_a_graph_traced_whole_is_one_operation(path: Path) -> None:
    with Export(path) as export:
        export.call("cudaGraphLaunch_v10000", 0, 5, correlationId=9)
        export.operation("GRAPH_TRACE", 10, 50, correlationId=9, graphId=3)
    trace = open_trace(path)
    assert classes(trace) == ["graph"]
    assert operations(trace).launch.tolist() == [0]


def test_a_staged_peer_copy_counts_its_bytes_once(path: Path) -> None:
    with Export(path) as export:
        legs = {"srcKind": 2, "dstKind": 2, "bytes": 4096, "srcDeviceId": 0, "dstDeviceId": 1}
        export.operation("MEMCPY", 0, 10, copyKind=2, **legs)
        export.operation("MEMCPY", 5, 15, copyKind=1, deviceId=1, **legs)
        export.operation("MEMCPY", 20, 30, copyKind=8, **legs)
        export.operation("MEMCPY", 40, 50, copyKind=8, **{**legs, "dstDeviceId": 0})
        export.operation("MEMCPY", 60, 70, copyKind=10, **legs)
        export.operation("MEMCPY", 80, 90, copyKind=9, srcKind=1, dstKind=0, bytes=7)
    trace = open_trace(path)
    assert classes(trace) == ["p2p", "p2p", "p2p", "d2d", "p2p", "h2h"]
    assert operations(trace).size_bytes.tolist() == [0, 4096, 4096, 4096, 4096, 7]
    assert operations(trace).flags.tolist() == [STAGED, STAGED, 0, 0, 0, 0]


def test_the_legs_of_one_staged_copy_say_between_which_devices_it_went(path: Path) -> None:
    with Export(path) as export:
        legs: dict[str, Any] = {"srcKind": 2, "dstKind": 2, "bytes": 8}
        legs |= {"srcDeviceId": None, "dstDeviceId": None}
        export.operation("MEMCPY", 0, 10, copyKind=2, correlationId=5, **legs)
        export.operation("MEMCPY", 15, 20, copyKind=1, correlationId=5, deviceId=1, **legs)
        export.operation("MEMCPY", 30, 40, copyKind=2, correlationId=6, deviceId=1, **legs)
        export.operation("MEMCPY", 45, 50, copyKind=1, correlationId=6, **legs)
        export.operation("MEMCPY", 60, 70, copyKind=2, correlationId=7, **legs)
    found = operations(open_trace(path))
    assert found.src_device.tolist() == [0, 0, 1, 1, 0]
    assert found.dst_device.tolist() == [1, 1, 0, 0, -1]


def test_a_prefetch_is_a_copy_and_another_migration_is_not(path: Path) -> None:
    with Export(path) as export:
        moved = ((11, 1), (12, 1), (11, 2), (12, None), (12, 4), (13, 1))
        for number, (kind, cause) in enumerate(moved):
            start = 10 * number
            export.operation("MEMCPY", start, start + 5, copyKind=kind, migrationCause=cause)
        export.operation("MEMCPY", 60, 65, copyKind=2, migrationCause=None, stream=7)
    trace = open_trace(path)
    assert classes(trace) == ["h2d", "d2h", "uvm", "uvm", "uvm", "uvm", "d2h"]
    left = [TO_HOST, TO_HOST | EVICTED]
    assert operations(trace).flags.tolist() == [PREFETCH, PREFETCH | TO_HOST, 0, *left, 0, 0]
    assert operations(trace).stream.tolist() == [-1] * 6 + [0]


def test_a_copy_of_an_unknown_kind_is_left_out_and_said(path: Path) -> None:
    with Export(path) as export:
        export.operation("MEMCPY", 0, 5, copyKind=1, bytes=1)
        export.operation("MEMCPY", 6, 9, copyKind=77, bytes=1)
    trace = open_trace(path)
    assert classes(trace) == ["h2d"]
    assert trace.notes == ("1 copy is of a kind unknown here: left out",)


def mpi_calls(trace: Trace) -> list[tuple[str, int, int]]:
    assert trace.mpi is not None
    return [
        (trace.strings[name], start, end)
        for name, start, end in zip(
            trace.mpi.name.tolist(),
            trace.mpi.start_ns.tolist(),
            trace.mpi.end_ns.tolist(),
            strict=True,
        )
    ]


def test_a_sendrecv_counts_what_it_receives(path: Path) -> None:
    with Export(path) as export:
        # As nsys writes two of unequal messages, and one that sends as much as it gets.
        export.mpi("P2P", "MPI_Sendrecv", 10, 10, remoteRank=1, size=8000)
        export.mpi("P2P", "MPI_Sendrecv", 10, 30, remoteRank=2, size=9600)
        export.mpi("P2P", "MPI_Sendrecv", 40, 60, remoteRank=2, size=500)
        export.mpi("P2P", "MPI_Sendrecv", 40, 40, remoteRank=1, size=8000)
        export.mpi("P2P", "MPI_Sendrecv", 70, 80, remoteRank=1, size=8000)
    trace = open_trace(path)
    assert mpi_calls(trace) == [("MPI_Sendrecv", *span) for span in ((10, 30), (40, 60), (70, 80))]
    assert trace.mpi is not None
    assert trace.mpi.size_bytes.tolist() == [9600, 500, 8000]
    assert trace.mpi.peer.tolist() == [2, 2, 1]


def test_mpi_calls_of_every_table_are_one_list(path: Path) -> None:
    with Export(path) as export:
        export.mpi("COLLECTIVES", "MPI_Allreduce", 50, 60, rootRank=3, size=8)
        export.mpi("P2P", "MPI_Isend", 10, 12, remoteRank=1, size=4096)
        for _ in range(3):  # once a request
            export.mpi("START_WAIT", "MPI_Waitall", 20, 30)
        export.mpi("OTHER", "MPI_Init", 0, 5)
        export.mpi("P2P", "MPI_Recv", 70, None, remoteRank=1)
    trace = open_trace(path)
    assert mpi_calls(trace) == [
        ("MPI_Init", 0, 5),
        ("MPI_Isend", 10, 12),
        ("MPI_Waitall", 20, 30),
        ("MPI_Allreduce", 50, 60),
    ]
    assert trace.mpi is not None
    assert trace.mpi.peer.tolist() == [-1, 1, -1, 3]
    assert trace.mpi.size_bytes.tolist() == [-1, 4096, -1, 8]
    assert trace.damaged == {"MPI calls: never ended": 1}
    assert trace.operations is None


def test_until_2022_every_mpi_call_was_an_other_one(path: Path) -> None:
    with Export(path, VARIANTS["2022.1"]) as export:
        export.mpi("OTHER", "MPI_Sendrecv", 10, 12)
        export.mpi("OTHER", "MPI_Barrier", 20, 22)
    assert mpi_calls(open_trace(path)) == [("MPI_Sendrecv", 10, 12), ("MPI_Barrier", 20, 22)]


@pytest.mark.parametrize("by", ["table", "thread", "environment", "file name"])
def test_the_rank_comes_from_the_data(by: str, tmp_path: Path) -> None:
    path = tmp_path / "rank5.3.sqlite"
    with Export(path) as export:
        export.call(LAUNCH, 0, 5, correlationId=1)
        export.operation("KERNEL", 10, 20, correlationId=1, shortName="k")
        if by == "table":
            export.add("MPI_RANKS", globalTid=100 << 24 | 100, rank=3)
            export.add("MPI_RANKS", globalTid=None, rank=None)
        elif by == "thread":
            export.add("ThreadNames", nameId="MPI Rank 3", globalTid=100 << 24 | 100)
        elif by == "environment":
            variables = "HOME=/home/me PMI_RANK=3 OMPI_COMM_WORLD_RANKS=9"
            export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT", value=variables)
    rank = open_trace(path).processes[0].rank
    assert rank == (None if by == "file name" else 3)


def test_of_the_environment_only_numbers_and_algorithms_are_taken(path: Path) -> None:
    own = "PROCESS_0:ENVIRONMENT_VARIABLE"
    machine = (
        "HOME=/home/me;CUDA_LAUNCH_BLOCKING=0;NCCL_PROTO=LL,LL128;MY_RANK=4;RANK=my token;"
        "NOTE=x WORLD_SIZE=many;SLURM_PROCID=2"
    )
    with Export(path) as export:
        for value in (
            'CUDA_LAUNCH_BLOCKING="1"',
            'TOKEN="secret"',
            'CUDA_MODULE_LOADING="LAZY"',
            'CUDA_DEVICE_MAX_CONNECTIONS="secret"',
            'NCCL_ALGO="allreduce:tree,ring;broadcast:ring"',
        ):
            export.add("META_DATA_CAPTURE", name=own, value=value)
        export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=machine)
    assert open_trace(path).environment == {
        "CUDA_LAUNCH_BLOCKING": "1",
        "CUDA_MODULE_LOADING": "LAZY",
        "NCCL_ALGO": "allreduce:tree,ring;broadcast:ring",
        "NCCL_PROTO": "LL,LL128",
        "SLURM_PROCID": "2",
    }


def test_the_version_that_captured_counts(path: Path) -> None:
    with Export(path) as export:
        export.add("META_DATA_CAPTURE", name="CAPTURE_PRODUCT_VERSION", value="2021.3.2.4")
        export.operation("KERNEL", 0, 5, shortName="k")
    trace = open_trace(path)
    assert (trace.tool_version, trace.schema_version) == ("2021.3.2.4", "3.99.1")


def test_event_records_and_waits_meet(path: Path) -> None:
    with Export(path) as export:
        export.call("cudaEventRecord_v3020", 0, 2, correlationId=1)
        export.call("cudaStreamWaitEvent_v3020", 4, 6, correlationId=2)
        ids = {"eventId": 5, "eventSyncId": 77}
        export.add(
            f"{ACTIVITY}CUDA_EVENT",
            **{"deviceId": 0, "contextId": 1, "streamId": 13, "globalPid": 100 << 24},
            **{"correlationId": 1, **ids},
        )
        export.operation("SYNCHRONIZATION", 4, 6, stream=14, correlationId=2, syncType=2, **ids)
        none = {"eventId": NONE_ID, "eventSyncId": NONE_ID}
        export.operation("SYNCHRONIZATION", 8, 9, stream=14, syncType=3, **none)
        export.operation("KERNEL", 10, 20, shortName="k")
    trace = open_trace(path)
    assert trace.event_records is not None
    assert trace.syncs is not None
    assert trace.event_records.event.tolist() == [5]
    assert trace.event_records.launch.tolist() == [0]
    assert trace.syncs.event_sync.tolist() == [77, -1]
    assert trace.syncs.launch.tolist() == [1, -1]


def test_what_other_tools_added_changes_nothing(path: Path) -> None:
    def write(export: Export) -> None:
        export.call(LAUNCH, 0, 5, correlationId=1)
        export.operation("KERNEL", 30, 40, correlationId=1, shortName="second")
        export.operation("KERNEL", 10, 20, correlationId=2, shortName="first")
        export.operation("MEMCPY", 12, 22, copyKind=1, bytes=64)
        export.range("r", 0, 50)

    plain = path.with_name("plain.sqlite")
    with Export(plain) as export:
        write(export)
    kernel = f"{ACTIVITY}KERNEL"
    with Export(path) as export:
        write(export)
        export.execute(f"CREATE INDEX fast ON {kernel} (end DESC, start, streamId)")
        export.execute(f"ALTER TABLE {kernel} ADD COLUMN note TEXT DEFAULT 'mine'")
        export.execute(f"CREATE VIEW kernels AS SELECT * FROM {kernel}")
        export.execute(
            "CREATE TABLE OTHER_TOOL (id INTEGER REFERENCES StringIds(id), start TEXT, blob BLOB)"
        )
        export.execute("INSERT INTO OTHER_TOOL VALUES (99999, 'never', x'00')")
        # One table became a view, another lost its rowids.
        export.execute(f"ALTER TABLE {ACTIVITY}MEMCPY RENAME TO copies")
        export.execute(f"CREATE VIEW {ACTIVITY}MEMCPY AS SELECT * FROM copies")
        declared = "start INTEGER PRIMARY KEY, end, eventType, globalTid, textId, text, domainId"
        export.execute("ALTER TABLE NVTX_EVENTS RENAME TO ranges")
        export.execute(f"CREATE TABLE NVTX_EVENTS ({declared}) WITHOUT ROWID")
        export.execute(
            "INSERT INTO NVTX_EVENTS SELECT start, end, eventType, globalTid, textId, text, "
            "domainId FROM ranges"
        )
    trace, expected = open_trace(path), open_trace(plain)
    for name, column in operations(expected).columns().items():
        assert column.tolist() == operations(trace).columns()[name].tolist(), name
    assert trace.strings == expected.strings
    assert trace.ranges is not None
    assert trace.ranges.start_ns.tolist() == [0]
    assert not trace.damaged


def test_a_damaged_range_takes_no_name_from_one_that_starts_with_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    with Export(path, VARIANTS["2020"]) as export:
        export.operation("KERNEL", 20, 30, shortName="k")
        export.range("damaged", 10, 5)
        export.range("nameless", 10, 50)
        export.execute("UPDATE NVTX_EVENTS SET text = NULL WHERE text = 'nameless'")
        export.range("outer", 10, 40)
        export.range("inner", 10, 30)
    trace = open_trace(path)
    assert trace.ranges is not None
    names = [trace.strings[row] for row in trace.ranges.name.tolist()]
    ends = trace.ranges.end_ns.tolist()
    assert dict(zip(ends, names, strict=True)) == {50: "", 40: "outer", 30: "inner"}


def test_ranges_that_carry_their_texts_keep_them_apart(path: Path) -> None:
    with Export(path, VARIANTS["2020"]) as export:
        export.range("outer", 0, 100)
        export.range("inner", 0, 50)
        export.range(None, 10, 20)
        export.range("elsewhere", 0, 30, tid=101)
    trace = open_trace(path)
    assert trace.ranges is not None
    named = zip(trace.ranges.name.tolist(), trace.ranges.end_ns.tolist(), strict=True)
    assert {(trace.strings[name], end) for name, end in named} == {
        ("outer", 100),
        ("inner", 50),
        ("", 20),
        ("elsewhere", 30),
    }


def test_equal_pids_of_two_machines_are_not_the_same(path: Path) -> None:
    with Export(path) as export:
        for hardware, flag in ((0, 1), (1, 2)):
            owner = hardware << 56 | 1 << 48 | 100 << 24
            export.operation("KERNEL", 10, 20, globalPid=owner, shortName="k", stream=9)
            export.add(
                "TARGET_INFO_CUDA_STREAM",
                **{"streamId": 9, "hwId": hardware, "vmId": 1, "processId": 100, "contextId": 1},
                flag=flag,
            )
    trace = open_trace(path)

    assert [process.pid for process in trace.processes] == [100, 100]
    assert [stream.kind for stream in trace.streams] == ["blocking", "non-blocking"]


def test_codes_mean_what_the_export_says_they_mean(path: Path) -> None:
    with Export(path) as export:
        for code, name in ((2, "HTOD"), (1, "DTOH"), (8, "DTOD")):
            export.add("ENUM_CUDA_MEMCPY_OPER", id=code, name=f"CUDA_MEMCPY_KIND_{name}", label="")
        export.add("ENUM_CUDA_MEM_KIND", id=1, name="CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", label="")
        export.add("ENUM_CUDA_MEM_KIND", id=3, name="CUDA_MEMOPR_MEMORY_KIND_DEVICE", label="")
        stream_type = "ENUM_CUPTI_STREAM_TYPE"
        export.add(stream_type, id=7, name="CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL", label="")
        for start, kind in ((0, 2), (10, 1), (20, 8)):
            export.operation(
                "MEMCPY", start, start + 5, copyKind=kind, bytes=8, srcKind=1, dstKind=3
            )
        export.stream_info(7, flag=7)
    trace = open_trace(path)

    assert classes(trace) == ["h2d", "d2h", "d2d"]
    assert operations(trace).src_kind.tolist() == [PAGEABLE] * 3
    assert operations(trace).dst_kind.tolist() == [MEMORY_KINDS.index("device")] * 3
    assert trace.streams[0].kind == "null"


def test_operations_without_a_stream_are_measured(path: Path) -> None:
    with Export(path) as export:
        export.call(LAUNCH, 0, 5, correlationId=1)
        export.operation("KERNEL", 10, 20, stream=NONE_ID, correlationId=1, shortName="k")
        export.operation("MEMCPY", 15, 25, stream=NONE_ID, copyKind=1, bytes=8)
    (device,) = api.analyze([path])[0].devices

    assert device.scope.busy_ns == 15
    pair = device.scope.pair("h2d", "kernel")
    assert pair is not None
    assert pair.overlap_ns == 5
