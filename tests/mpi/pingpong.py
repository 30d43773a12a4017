"""A rank of mpi-pingpong without a GPU: all paths and sizes; `pingpong.py lost|OPTION ...`.

Each rank's end is told by rank 0: the bytes that were right, or what the benchmark said. With
`lost`, a chunk is not copied out, which must be noticed.
"""

import sys
from typing import Any

import numpy as np

from gpuscope.benchmarks import mpi_pingpong as benchmark
from gpuscope.benchmarks._harness import device_mpi
from gpuscope.errors import GpuscopeError
from tests.mpi import host_cupy


def bytes_at(first: int, count: int) -> Any:
    positions = np.arange(first, first + count, dtype=np.uint64)
    return ((positions * np.uint64(2654435761)) >> np.uint64(13)).astype(np.uint8)


def fill(data: Any, first: Any, count: Any, flip: Any) -> None:
    data[:count] = bytes_at(int(first), int(count)) ^ flip


def check(data: Any, first: Any, count: Any, wrong: Any) -> None:
    wrong[0] += np.count_nonzero(data[:count] != bytes_at(int(first), int(count)))
    counted.append(int(count))


class Losing(benchmark._Side):
    """Leaves the last of four chunks of 256 KiB out."""

    def copy_out(self, address: int, start: int, size: int) -> None:
        if start != 3 << 18:
            super().copy_out(address, start, size)


counted: list[int] = []
ranks = host_cupy.put_in_place(
    benchmark, host_cupy.make({"pingpong_fill": fill, "pingpong_check": check})
)
options = sys.argv[1:]
if options == ["lost"]:
    benchmark._Side = Losing  # type: ignore[misc]
    options = []
arguments = host_cupy.parse(benchmark.BENCHMARK, ["--path", "device", "--max-size", "1M", *options])
device_mpi.require = lambda *_: None
try:
    result: Any = benchmark._run(arguments)
    said = f"right: {sum(counted)} of {len(result.measured.passes)} passes"
    assert result.options["probed"]
    assert len(result.lines) == 2 + 11
except GpuscopeError as error:
    said = str(error)
for line in ranks.gather(said):
    if ranks.rank == 0:
        print(line, flush=True)
