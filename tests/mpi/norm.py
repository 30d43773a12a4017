"""A rank of norm without a GPU, NCCL's sums made by MPI: `norm.py OPTION ...`.

Each rank's end is told by rank 0: how many sums were right, or what the benchmark said.
"""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuscope.benchmarks import norm as benchmark
from gpuscope.benchmarks._harness import device_mpi
from gpuscope.errors import GpuscopeError
from tests.mpi import host_cupy


def values(first: int, count: int, rank: int, serial: int) -> Any:
    positions = np.arange(first, first + count, dtype=np.uint64)
    pattern = ((positions * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) >> np.uint64(10)
    return pattern.astype(np.float64) + serial * 37 % 61 + rank


def fill(data: Any, count: Any, rank: Any, serial: Any) -> None:
    data[:count] = values(0, int(count), int(rank), int(serial))


def interior(data: Any, first: Any, count: Any, rank: Any, serial: Any, steps: Any) -> None:
    place = slice(int(first), int(first) + int(count))
    data[place] = values(int(first), int(count), int(rank), int(serial))


def check(data: Any, count: Any, size: Any, serial: Any, wrong: Any) -> None:
    n = int(size)
    expected = values(0, int(count), 0, int(serial)) * n + n * (n - 1) / 2
    wrong[0] += np.count_nonzero(data[:count] != expected)
    counted.append(int(count))


class Nccl:
    """Sums as NCCL would, but by MPI and at once."""

    def allReduce(self, local: int, summed: int, count: int, *_: object) -> None:
        mpi = ranks.mpi
        parts = [[mpi.buffer.fromaddress(each, 8 * count), mpi.DOUBLE] for each in (local, summed)]
        ranks.comm.Allreduce(*parts)


counted: list[int] = []
ranks = host_cupy.put_in_place(
    benchmark,
    host_cupy.make({"norm_fill": fill, "norm_interior": interior, "norm_check": check}),
)
numbers = SimpleNamespace(NCCL_FLOAT64=8, NCCL_SUM=0)
sys.modules["cupy"] = sys.modules["cupy.cuda"] = SimpleNamespace(nccl=numbers)  # type: ignore[assignment]
ranks.nccl = lambda comm=None: Nccl()  # type: ignore[method-assign]
device_mpi.require = lambda *_: None
given = ["--count", "5000", "--kernel-steps", "10", "--nccl-kernel-steps", "10", *sys.argv[1:]]
try:
    result: Any = benchmark._run(host_cupy.parse(benchmark.BENCHMARK, given))
    said = f"right: {sum(counted)} of {len(result.measured.passes)} passes"
except GpuscopeError as error:
    said = str(error)
for line in ranks.gather(said):
    if ranks.rank == 0:
        print(line, flush=True)
