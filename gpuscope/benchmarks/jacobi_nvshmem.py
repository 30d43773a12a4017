"""``jacobi-nvshmem``: the edges of a slab first, and put into the neighbours' memory.

The grid is cut into slabs of rows, one a rank. What a neighbour needs is computed on a stream of
high priority and put straight into the neighbour's halo, with a signal behind it; the inner rows
are computed on a stream of low priority. ::

    high    [reset][edges][put ↑][put ↓][wait for both signals] [reset][edges][put ↑] …
    low     [inner rows =======================================][inner rows ========= …

Nobody is asked before a row is put: a neighbour's halo is written for the next step only after its
signal of this step came, which it sends when it has read that halo.

With ``--in-kernel`` the kernel that computes an edge puts it itself. Each block puts its part; the
last one of the row to be done signals, once all parts are there. ::

    high    [reset][edge ↑, put][edge ↓, put][wait for both signals] …

Such puts leave no rows in a trace: whether they hid is told by the time alone.
"""

from __future__ import annotations

import argparse
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    Benchmark,
    Heap,
    Ranks,
    Result,
    Twin,
    heap_limit_bytes,
    open_heap,
    open_ranks,
)
from gpuscope.benchmarks._harness.decomposition import OPPOSITE, Side, cut
from gpuscope.benchmarks._harness.jacobi_ranks import (
    OPTIONS,
    add_arguments,
    choose_options,
    measure,
    slab_bytes,
)
from gpuscope.benchmarks._harness.queued import CHAINED, OVERLAPPED, Queued, address
from gpuscope.benchmarks._harness.sizing import DEVICE_MEMORY_RATIO
from gpuscope.benchmarks._harness.stencil import StencilKernels

_BARRIER = Twin(
    "barrier",
    "the inner rows wait for a barrier of all ranks behind the exchange",
    "overlapped: puts and kernels serialized",
)
_HEAP_BYTES = 4 << 30
"""Room for all slabs that are tried, as none is freed before the end: on H200s that which
calibration comes to takes 0.3 GB. The heap is taken whole at the start; it is larger only where the
grid that is asked for needs it."""
_PROOF_BYTES = 16 << 20
"""Room for the slabs that are compared with NumPy before, 2 MB on one rank, and their signals."""
_BLOCK = 256
_EDGE_BLOCKS = 128
"""Blocks at most that compute an edge and put it. Each stands until what it put is there; so few
leave the multiprocessors to the inner rows meanwhile."""

_DEVICE_CODE = r"""
#include <device/nvshmem_defines.h>
#include <device/nvshmemx_defines.h>
// Puts a block's part of a row; the last block of the row to be done signals.
__device__ void put_part(float* halo, const float* row, unsigned part, unsigned columns, int peer,
                         unsigned long long* signal, unsigned long long value, unsigned* done) {
    unsigned first = blockIdx.x * part;
    __syncthreads();
    nvshmemx_float_put_nbi_block(halo + first, row + first, min(part, columns - first), peer);
    nvshmem_quiet();  // each thread: what it wrote is there before it says so
    __syncthreads();
    if (threadIdx.x == 0) {
        // An atomicAdd orders nothing around it. One fence puts what the block's threads wrote
        // before its count, the other all the counts that this block has seen before the signal.
        __threadfence_system();
        if (atomicAdd(done, 1u) == gridDim.x - 1) {
            __threadfence_system();
            *done = 0;
            nvshmemx_signal_op((uint64_t*)signal, value, NVSHMEM_SIGNAL_SET, peer);
        }
    }
}
// One step on columns [column, end_column) of a row, as jacobi_step does it, and the whole row to
// the neighbour's halo, `part` columns a block.
extern "C" __global__ void jacobi_edge_put(const float* __restrict__ from, float* to,
                                           unsigned columns, unsigned row, unsigned column,
                                           unsigned end_column, double* norm, float* halo,
                                           unsigned part, int peer, unsigned long long* signal,
                                           unsigned long long value, unsigned* done) {
    size_t begin = (size_t)row * columns;
    unsigned end = min((blockIdx.x + 1) * part, columns);
    double sum = 0.0;
    for (unsigned x = blockIdx.x * part + threadIdx.x; x < end; x += blockDim.x) {
        if (x < column || x >= end_column) continue;
        size_t at = begin + x;
        float above = from[at - columns], here = from[at], below = from[at + columns];
        float mean = 0.25f * (((above + below) + from[at - 1]) + from[at + 1]);
        to[at] = mean;
        double change = (double)mean - (double)here;
        sum += change * change;
    }
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    __shared__ double sums[32];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) sum += sums[warp];
        atomicAdd(norm, sum);
    }
    put_part(halo, to + begin, part, columns, peer, signal, value, done);
}
// The row as it is to the neighbour's halo.
extern "C" __global__ void jacobi_put(const float* row, unsigned columns, float* halo,
                                      unsigned part, int peer, unsigned long long* signal,
                                      unsigned long long value, unsigned* done) {
    put_part(halo, row, part, columns, peer, signal, value, done);
}
"""


class _Target:
    """Where the row of one side goes: the neighbour's halo on the opposite side, and its signal."""

    def __init__(self, side: Side, block: Any, signals: Any, arrived: list[str]) -> None:
        neighbour = cut(block.grid, block.split, side.neighbour, periodic=block.periodic)
        opposite = OPPOSITE[side.name]
        self.side = side
        self.halo = next(each.receives for each in neighbour.sides if each.name == opposite)
        self.signal = signals.data.ptr + 8 * arrived.index(opposite)
        """Its address there: heaps are alike."""
        self.mine = signals.data.ptr + 8 * arrived.index(side.name)
        """The address of the signal that the neighbour sends back."""


class _Puts(Queued):
    """The rows are put on the stream: a copy and a signal each."""

    def __init__(self, *arguments: Any, heap: Heap, barrier: bool, **options: Any) -> None:
        self.heap = heap
        super().__init__(*arguments, **options)
        self.barrier = barrier
        sides = ["up", "down"]
        signals = heap.signals(len(sides))
        self.targets = [_Target(side, self.block, signals, sides) for side in self.block.sides]
        self.value = 0
        """What the signals were set to last: all ranks count alike."""
        self.cp.cuda.runtime.deviceSynchronize()
        self.ranks.barrier()  # nobody signals before all signals are 0

    def allocate(self, shape: tuple[int, int]) -> Any:
        """Return an array of the heap: as large on every rank as on the one with most rows."""
        rows, columns = shape
        most = max(self.ranks.gather(rows))
        return self.heap.array((most, columns))[:rows]

    def carry(self, array: Any, stream: Any) -> None:
        self.value += 1
        for target in self.targets:
            self.heap.put_signal(
                address(array, target.halo),
                address(array, target.side.sends),
                4 * target.side.sends.points,
                target.signal,
                self.value,
                target.side.neighbour,
                stream,
            )
        self.wait(stream)

    def wait(self, stream: Any) -> None:
        """Issue the wait for what the neighbours put."""
        for target in self.targets:
            self.heap.wait(target.mine, self.value, stream)

    def after_exchange(self, stream: Any) -> None:
        if self.barrier:
            self.heap.barrier(stream)


class _InKernel(_Puts):
    """The kernel that computes an edge puts it."""

    def __init__(self, *arguments: Any, kernels: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.edge_put, self.put = kernels
        self.done = self.cp.zeros(1, "uint32")
        """Blocks of a row that are through; the kernels of a stream do not overlap."""

    def boundary(self, stream: Any) -> None:
        import numpy as np

        self.value += 1
        now, other = self.tile.now, self.tile.other
        columns = np.uint32(now.shape[1])
        for target in self.targets:
            region = self.block.edges[target.side.name]
            place = np.uint32(region.row), np.uint32(region.column), np.uint32(region.end_column)
            arguments = now, other, columns, *place, self.tile.norm.address
            self._launch(self.edge_put, arguments, target, other, stream)
        self.edges_done.record(stream)
        self.wait(stream)

    def carry(self, array: Any, stream: Any) -> None:
        import numpy as np

        self.value += 1
        columns = np.uint32(array.shape[1])
        for target in self.targets:
            arguments = address(array, target.side.sends), columns
            self._launch(self.put, arguments, target, array, stream)
        self.wait(stream)

    def _launch(
        self, kernel: Any, arguments: tuple[Any, ...], target: _Target, array: Any, stream: Any
    ) -> None:
        """Issue a kernel that puts a row of an array: `arguments`, then where it goes."""
        import numpy as np

        columns = array.shape[1]
        part = -(-columns // (_EDGE_BLOCKS * _BLOCK)) * _BLOCK
        halo, peer = address(array, target.halo), np.int32(target.side.neighbour)
        signal = target.signal, np.uint64(self.value), self.done
        with stream:
            kernel(
                (-(-columns // part),),
                (_BLOCK,),
                (*arguments, halo, np.uint32(part), peer, *signal),
            )


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    barrier = twin == _BARRIER.name
    least = 2 if barrier else 1  # behind a barrier a copy to oneself is too short to judge
    with open_ranks(BENCHMARK.name, least=least, oversubscribe=arguments.oversubscribe) as ranks:
        cp = ranks.session.cp
        kernels = StencilKernels(cp)
        with open_heap(ranks, _heap_bytes(ranks, arguments)) as heap:
            options: dict[str, Any] = {
                "order": CHAINED if barrier else OVERLAPPED,
                "heap": heap,
                "barrier": barrier,
                "skew_us": arguments.skew_us or 0,
            }
            variant: type[_Puts] = _Puts
            if arguments.in_kernel:
                variant = _InKernel
                options["kernels"] = heap.load(cp, _DEVICE_CODE, ("jacobi_edge_put", "jacobi_put"))
            return measure(
                ranks,
                arguments,
                benchmark=BENCHMARK.name,
                pass_name="overlapped",
                make=lambda *block: variant(ranks, kernels, *block, **options),
                cut_columns=False,
                overlapping=not barrier,
                pairs=(("kernel", "p2p" if ranks.size > 1 else "d2d"),),
                observable=not arguments.in_kernel,
                heap=heap,
            )


def _heap_bytes(ranks: Ranks, arguments: argparse.Namespace) -> int:
    """Return what the heap is to hold: a slab as large as asked for, or what a calibration tries.

    It is no more than the share of the free memory that a benchmark may take, and than the user's
    environment sets: a grid that needs more is refused by what is left in the heap.
    """
    free_bytes = min(ranks.gather(int(ranks.session.cp.cuda.runtime.memGetInfo()[0])))
    options = choose_options(arguments, BENCHMARK.name)
    asked_bytes = 0
    if options.rows is not None and options.columns is not None:
        rows, columns = options.grid((ranks.size, 1))
        asked_bytes = slab_bytes(-(-rows // ranks.size), columns) + _PROOF_BYTES
    wanted_bytes = max(_HEAP_BYTES, asked_bytes)
    return min(wanted_bytes, int(DEVICE_MEMORY_RATIO * free_bytes), heap_limit_bytes(ranks))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_arguments(parser)
    parser.add_argument(
        "--in-kernel", action="store_true", help="the kernel that computes an edge puts it itself"
    )


BENCHMARK = Benchmark(
    name="jacobi-nvshmem",
    summary="a stencil on several GPUs whose edges are put into the neighbours' memory",
    options=f"{OPTIONS}  --in-kernel",
    needs="2 GPUs, MPI, NVSHMEM",
    twins=(_BARRIER, CORRUPT),
    add_arguments=_add_arguments,
    run=_run,
    ranks=True,
    own_gpus=True,
)
