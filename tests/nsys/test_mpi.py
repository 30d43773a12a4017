"""What real Nsight Systems record of two MPI ranks reads as tests/nsys/ranks.py says it must."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope import api
from gpuscope.analyzers import ANALYZERS
from gpuscope.model.tables import PUSH_POP, START_END
from gpuscope.model.trace import Trace
from gpuscope.recording import nsys as nsight

RANKS = Path(__file__).with_name("ranks.py")
EXPORTS = Path(__file__).parents[1] / "data" / "exports"

RANGES = [
    ("across threads", "app", START_END, 0),
    ("step", "app", PUSH_POP, 0),
    ("exchange", "app", PUSH_POP, 0),
    ("halo", "app", PUSH_POP, 0),
    ("sum", "", PUSH_POP, 0),
    ("beside", "", PUSH_POP, 1),
]
"""Name, domain, kind, and which thread began it, in the order of their start."""
CALLS = [
    ("MPI_Init_thread", -1, 0),
    ("MPI_Sendrecv", 8000, -1),
    ("MPI_Irecv", 4000, -1),
    ("MPI_Isend", 4000, 1),
    ("MPI_Waitall", -1, 0),
    ("MPI_Allreduce", 800, 0),
    ("MPI_Barrier", -1, 0),
    ("MPI_Finalize", -1, 0),
]
"""Name, bytes (of a collective: a rank), which neighbour is the peer (0: none); as they start."""
INSIDE = {
    "exchange": ["MPI_Sendrecv"],
    "halo": ["MPI_Irecv", "MPI_Isend", "MPI_Waitall"],
    "sum": ["MPI_Allreduce"],
}
"""The MPI calls between start and end of a range."""


def check(trace: Trace, rank: int, *, has_sizes: bool, size: int = 2) -> None:
    """Hold a trace of a rank of `size` against what the program did."""
    assert [process.rank for process in trace.processes] == [rank]
    assert [thread.name for thread in trace.threads][:1] == [f"MPI Rank {rank}"]
    assert trace.environment["OMPI_COMM_WORLD_SIZE"] == str(size)
    assert trace.start_utc_ns is not None
    assert trace.operations is None
    assert not trace.damaged
    assert trace.ranges is not None
    assert trace.mpi is not None
    text = [*trace.strings, ""].__getitem__  # -1: the default domain
    columns = (trace.ranges.name, trace.ranges.domain, trace.ranges.kind, trace.ranges.thread)
    assert [
        (text(name), text(domain), kind, thread)
        for name, domain, kind, thread in zip(*(c.tolist() for c in columns), strict=True)
    ] == RANGES
    calls = (trace.mpi.name, trace.mpi.size_bytes, trace.mpi.peer, trace.mpi.thread)
    assert [
        (text(name), count, peer, thread)
        for name, count, peer, thread in zip(*(c.tolist() for c in calls), strict=True)
    ] == [
        (
            name,
            (size * count if name == "MPI_Allreduce" else count) if has_sizes else -1,
            (rank + side) % size if side and has_sizes else -1,
            0,
        )
        for name, count, side in CALLS
    ]
    spans = {
        text(name): (start, end)
        for name, start, end in zip(
            trace.ranges.name.tolist(),
            trace.ranges.start_ns.tolist(),
            trace.ranges.end_ns.tolist(),
            strict=True,
        )
    }
    for name, inside in INSIDE.items():
        start, end = spans[name]
        within = (trace.mpi.start_ns > start) & (trace.mpi.end_ns < end)
        assert [text(call) for call in trace.mpi.name[within].tolist()] == inside
        assert spans["step"][0] < start < end < spans["step"][1]
    begun, ended = spans["across threads"]
    assert begun < spans["step"][0]
    assert spans["beside"][0] < ended < spans["beside"][1]


@pytest.mark.parametrize(
    ("name", "rank", "version", "start_utc_ns", "spans"),
    [
        (
            "mpi_2022.4_r0",
            0,
            "2022.4.2.1",
            1796026202680368910,
            {"exchange": (318943217, 319257086), "MPI_Sendrecv": (319147652, 319248252)},
        ),
        (
            "mpi_2022.4_r1",
            1,
            "2022.4.2.1",
            1796026202688486765,
            {"exchange": (310018613, 311140928), "MPI_Sendrecv": (310090671, 311131093)},
        ),
        (
            "mpi_2023.4_r0",
            0,
            "2023.4.4.54",
            1796026204420360643,
            {"exchange": (296534168, 296684463), "MPI_Sendrecv": (296564654, 296677602)},
        ),
        (
            "mpi_2023.4_r1",
            1,
            "2023.4.4.54",
            1796026204372397224,
            {"exchange": (336654701, 344678083), "MPI_Sendrecv": (336684745, 344668078)},
        ),
    ],
)
def test_a_recorded_rank_reads_as_the_program_ran(
    name: str, rank: int, version: str, start_utc_ns: int, spans: dict[str, tuple[int, int]]
) -> None:
    trace = api.open_trace(EXPORTS / f"{name}.sqlite")
    check(trace, rank, has_sizes="2022" not in version)
    assert trace.tool_version == version
    assert trace.start_utc_ns == start_utc_ns
    found = {}
    for table in (trace.ranges, trace.mpi):
        assert table is not None
        rows = zip(table.name.tolist(), table.start_ns.tolist(), table.end_ns.tolist(), strict=True)
        found.update({trace.strings[name]: (start, end) for name, start, end in rows})
    assert found["exchange"] == spans["exchange"]
    assert found["MPI_Sendrecv"] == spans["MPI_Sendrecv"]


def test_mpi_calls_among_the_ranges_are_read_alone_too() -> None:
    path = EXPORTS / "mpi_2022.4_r0.sqlite"
    mpi_blocking = [one for one in ANALYZERS if one.name == "mpi-blocking"]
    trace = api.open_trace(path, analyzers=mpi_blocking)
    assert trace.mpi is not None
    assert len(trace.mpi) == len(CALLS)


@pytest.mark.nsys
@pytest.mark.mpi
def test_ranks_recorded_here_read_as_the_program_ran(nsys: Path, tmp_path: Path) -> None:
    tool = nsight.find()
    subprocess.run(
        [
            *("mpirun", "--oversubscribe", "-n", "2", str(nsys), "profile", "-t", "nvtx,mpi"),
            *("--mpi-impl=openmpi", "-s", "none", "--cpuctxsw=none", "-o"),
            *(str(tmp_path / "r%q{OMPI_COMM_WORLD_RANK}"), sys.executable, str(RANKS)),
        ],
        env={**os.environ, "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"},
        check=True,
        timeout=120,
    )
    for rank in (0, 1):
        target = tmp_path / f"r{rank}.sqlite"
        nsight.export(tmp_path / f"r{rank}.nsys-rep", target, nsys=tool)
        check(api.open_trace(target), rank, has_sizes=tool.version >= (2023,))
