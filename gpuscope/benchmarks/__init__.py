"""The benchmarks, as an explicit table.

One file a benchmark; its name (``-`` written ``_``) is the file's. Importing this table loads no
GPU library and no NumPy, so that the list can be printed on any machine. What all benchmarks share
is in ``_harness``; ``python -m gpuscope.benchmarks NAME`` runs one, and is what a profiler wraps.
"""

from __future__ import annotations

import difflib

from gpuscope.benchmarks._harness import (
    NOT_JUDGED,
    NOT_OBSERVABLE,
    WRONG_DATA,
    Benchmark,
    Twin,
    quantity_row,
)
from gpuscope.benchmarks.graph import BENCHMARK as _GRAPH
from gpuscope.benchmarks.host_bandwidth import BENCHMARK as _HOST_BANDWIDTH
from gpuscope.benchmarks.hyperq import BENCHMARK as _HYPERQ
from gpuscope.benchmarks.jacobi import BENCHMARK as _JACOBI
from gpuscope.benchmarks.jacobi_2d import BENCHMARK as _JACOBI_2D
from gpuscope.benchmarks.jacobi_mpi import BENCHMARK as _JACOBI_MPI
from gpuscope.benchmarks.jacobi_mpi_overlap import BENCHMARK as _JACOBI_MPI_OVERLAP
from gpuscope.benchmarks.jacobi_nccl import BENCHMARK as _JACOBI_NCCL
from gpuscope.benchmarks.jacobi_nccl_overlap import BENCHMARK as _JACOBI_NCCL_OVERLAP
from gpuscope.benchmarks.jacobi_nvshmem import BENCHMARK as _JACOBI_NVSHMEM
from gpuscope.benchmarks.mpi_pingpong import BENCHMARK as _MPI_PINGPONG
from gpuscope.benchmarks.multicopy import BENCHMARK as _MULTICOPY
from gpuscope.benchmarks.nccl import BENCHMARK as _NCCL
from gpuscope.benchmarks.nccl_group import BENCHMARK as _NCCL_GROUP
from gpuscope.benchmarks.norm import BENCHMARK as _NORM
from gpuscope.benchmarks.nvshmem import BENCHMARK as _NVSHMEM
from gpuscope.benchmarks.p2p_bandwidth import BENCHMARK as _P2P_BANDWIDTH
from gpuscope.benchmarks.p2p_latency import BENCHMARK as _P2P_LATENCY
from gpuscope.benchmarks.simple_streams import BENCHMARK as _SIMPLE_STREAMS
from gpuscope.benchmarks.streams import BENCHMARK as _STREAMS
from gpuscope.errors import UsageError

BENCHMARKS: tuple[Benchmark, ...] = (
    _STREAMS,
    _SIMPLE_STREAMS,
    _MULTICOPY,
    _HYPERQ,
    _HOST_BANDWIDTH,
    _GRAPH,
    _JACOBI,
    _P2P_LATENCY,
    _P2P_BANDWIDTH,
    _MPI_PINGPONG,
    _NORM,
    _NCCL,
    _NCCL_GROUP,
    _NVSHMEM,
    _JACOBI_MPI,
    _JACOBI_MPI_OVERLAP,
    _JACOBI_2D,
    _JACOBI_NCCL,
    _JACOBI_NCCL_OVERLAP,
    _JACOBI_NVSHMEM,
)
"""Every benchmark, in the order of the list."""


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark called `name`.

    Raises
    ------
    UsageError
        There is none; the message names the nearest, or all.
    """
    for benchmark in BENCHMARKS:
        if benchmark.name == name:
            return benchmark
    names = [benchmark.name for benchmark in BENCHMARKS]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}."
    raise UsageError(f"there is no benchmark {name!r}: {hint}")


__all__ = [
    "BENCHMARKS",
    "NOT_JUDGED",
    "NOT_OBSERVABLE",
    "WRONG_DATA",
    "Benchmark",
    "Twin",
    "find_benchmark",
    "quantity_row",
]
