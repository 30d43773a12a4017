"""The five-point stencil of the Jacobi benchmarks: its kernels, a rank's block, norm and checks.

Every variant runs the same kernel on its part of the grid, so that each point comes out the same
to the last bit, however the grid is cut.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuscope.benchmarks._harness.data import WRONG_DATA
from gpuscope.benchmarks._harness.decomposition import Block, Region
from gpuscope.errors import ProgramError

BYTES_AN_UPDATE = 8
"""A point is read once and written once, if all else comes from the caches."""
NORM_TOLERANCE = 1e-9
"""Sums of doubles in another order differ by less; a lost edge of the grid changes more."""
PROOF_SIZE = 256
PROOF_STEPS = 50
_BLOCK = 256
_WARP = 32
_ROWS = 8
"""Rows that a thread walks down, with the values above and at the point kept in registers."""

_SOURCE = r"""
__device__ float start_value(unsigned long long position) {
    return (float)((unsigned)((position * 2654435761ull) & 0xffffffffu) >> 8) * 5.9604645e-8f;
}
// The values that a grid of ny × nx points begins with, in an array whose first point is at (y, x)
// of the grid; what lies beyond the grid gets what is on its other side.
extern "C" __global__ void jacobi_start(float* array, unsigned pitch, unsigned rows,
                                        unsigned columns, unsigned y, unsigned x, unsigned ny,
                                        unsigned nx) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i >= (unsigned long long)rows * columns) return;
    unsigned row = i / columns, column = i % columns;
    unsigned long long position = (y + row) % ny * (unsigned long long)nx + (x + column) % nx;
    array[(size_t)row * pitch + column] = start_value(position);
}
// One step on the points of an array of `height` rows that lie in [row, end_row) × [column,
// end_column). Row 0 lies below row height-1: only a whole grid comes to that. The sum of the
// squared changes is added to *norm.
extern "C" __global__ void jacobi_step(const float* __restrict__ from, float* __restrict__ to,
                                       unsigned pitch, unsigned height, unsigned row,
                                       unsigned end_row, unsigned column, unsigned end_column,
                                       double* norm) {
    unsigned x = column / 32 * 32 + blockIdx.x * blockDim.x + threadIdx.x;
    unsigned first = row + blockIdx.y * ROWS;
    unsigned last = min(first + ROWS, end_row);
    double sum = 0.0;
    if (x >= column && x < end_column) {
        size_t at = (size_t)first * pitch;
        float above = from[(size_t)(first ? first - 1 : height - 1) * pitch + x];
        float here = from[at + x];
        for (unsigned y = first; y < last; ++y, at += pitch) {
            size_t next = y + 1 < height ? at + pitch : 0;
            float below = from[next + x];
            float mean = 0.25f * (((above + below) + from[at + x - 1]) + from[at + x + 1]);
            to[at + x] = mean;
            double change = (double)mean - (double)here;
            sum += change * change;
            above = here;
            here = below;
        }
    }
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    __shared__ double sums[32];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) sum += sums[warp];
        atomicAdd(norm, sum);
    }
}
// Copies strips of an array one after the other into a buffer, or back. A strip is its first row
// and column, its columns, and where it begins in the buffer, which ends with the last of them.
extern "C" __global__ void jacobi_pack(float* array, unsigned pitch, float* buffer,
                                       unsigned count, const unsigned* strips, unsigned strip_count,
                                       int back) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const unsigned* strip = strips;
    while (--strip_count && i >= strip[4 + 3]) strip += 4;
    unsigned place = i - strip[3];
    size_t at = (size_t)(strip[0] + place / strip[2]) * pitch + strip[1] + place % strip[2];
    if (back) array[at] = buffer[i];
    else buffer[i] = array[at];
}
// Counts the points in which two arrays differ, bit by bit.
extern "C" __global__ void jacobi_compare(const unsigned* a, unsigned a_pitch, const unsigned* b,
                                          unsigned b_pitch, unsigned rows, unsigned columns,
                                          unsigned long long* wrong) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i >= (unsigned long long)rows * columns) return;
    size_t row = i / columns, column = i % columns;
    if (a[row * a_pitch + column] != b[row * b_pitch + column]) atomicAdd(wrong, 1ull);
}
// Holds a stream back for a while.
extern "C" __global__ void jacobi_wait(unsigned long long wait_ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < wait_ns);
}
""".replace("ROWS", str(_ROWS))


class StencilKernels:
    """The kernels, compiled. Arrays are two-dimensional, of float32, and may be parts of others."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        module = cp.RawModule(code=_SOURCE)
        names = ("start", "step", "pack", "compare", "wait")
        self._start, self._step, self._pack, self._compare, self._wait = (
            module.get_function(f"jacobi_{name}") for name in names
        )

    def start(self, array: Any, block: Block | None = None) -> None:
        """Write the values that a grid begins with, which depend on the position in it alone.

        `array` is the whole grid, or that of a block, halo included.
        """
        ny, nx = array.shape if block is None else block.grid
        y = x = 0
        if block is not None:  # the halo of the first row is the last row
            y, x = (block.first_row - 1) % ny, (block.first_column - block.margin) % nx
        self._launch(self._start, array.size, array, *_layout(array), *_uint(y, x, ny, nx))

    def step(self, source: Any, target: Any, region: Region, norm: int, stream: Any) -> None:
        """Issue one step on a region; the sum goes to the device address `norm`."""
        rows, columns = region.shape
        if not rows or not columns:
            return
        block = _BLOCK if columns > _WARP else _WARP
        across = region.end_column - region.column // _WARP * _WARP
        pitch, height = _pitch(source), source.shape[0]
        with stream:
            self._step(
                (-(-across // block), -(-rows // _ROWS)),
                (block,),
                (source, target, *_uint(pitch, height, *region), norm),
            )

    def pack(self, array: Any, strips: Strips, buffer: Any, stream: Any) -> None:
        """Issue the copy of strips of an array into a buffer, one after the other."""
        self._move(array, strips, buffer, stream, back=False)

    def unpack(self, array: Any, strips: Strips, buffer: Any, stream: Any) -> None:
        """Issue the copy of a buffer to strips of an array."""
        self._move(array, strips, buffer, stream, back=True)

    def _move(self, array: Any, strips: Strips, buffer: Any, stream: Any, *, back: bool) -> None:
        import numpy as np

        (count,) = _uint(strips.points)
        (pieces,) = _uint(len(strips.offsets))
        (pitch,) = _uint(_pitch(array))
        arguments = (array, pitch, buffer, count, strips.table, pieces, np.int32(back))
        with stream:
            self._launch(self._pack, strips.points, *arguments)

    def differing(self, a: Any, b: Any) -> int:
        """Return in how many points two arrays on the device differ."""
        wrong = self.cp.zeros(1, "uint64")
        (b_pitch,) = _uint(_pitch(b))
        pitch, rows, columns = _layout(a)
        self._launch(self._compare, a.size, a, pitch, b, b_pitch, rows, columns, wrong)
        return int(wrong.get()[0])

    def wait(self, wait_ns: int, stream: Any) -> None:
        """Issue a kernel that does nothing but last that long."""
        import numpy as np

        with stream:
            self._wait((1,), (1,), (np.uint64(wait_ns),))

    def _launch(self, kernel: Any, threads: int, *arguments: Any) -> None:
        kernel((-(-threads // _BLOCK),), (_BLOCK,), arguments)


def _uint(*values: int) -> tuple[Any, ...]:
    import numpy as np

    return tuple(np.uint32(value) for value in values)


def _pitch(array: Any) -> int:
    """Return the points from one row of an array to the next."""
    return int(array.strides[0]) // 4


def _layout(array: Any) -> tuple[Any, ...]:
    return _uint(_pitch(array), *array.shape)


class Strips:
    """Regions of an array that go into one buffer, one after the other.

    ``table`` is where the kernel reads them, ``offsets`` where each begins in the buffer.
    """

    def __init__(self, cp: Any, regions: Sequence[Region]) -> None:
        self.offsets: list[int] = []
        self.points = 0
        rows = []
        for region in regions:
            self.offsets.append(self.points)
            rows.append((region.row, region.column, region.shape[1], self.points))
            self.points += region.points
        self.table = cp.array(rows, dtype="uint32")

    def parts(self, buffer: Any) -> list[Any]:
        """Return the part of a buffer that each region has."""
        ends = [*self.offsets[1:], self.points]
        return [buffer[start:end] for start, end in zip(self.offsets, ends, strict=True)]


class Tile:
    """A rank's block on its GPU: two arrays that take turns, halo included, and the norm.

    Both begin with the values of the whole grid, those of the halo too: nothing need be exchanged
    before the first step.
    """

    def __init__(
        self,
        cp: Any,
        kernels: StencilKernels,
        block: Block,
        allocate: Callable[[tuple[int, int]], Any] | None = None,
    ) -> None:
        """Make them. `allocate` returns an array of float32 of a shape; by default CuPy does."""
        self.cp = cp
        self.kernels = kernels
        self.block = block
        make = allocate or partial(cp.empty, dtype="float32")
        self.now, self.other = make(block.shape), make(block.shape)
        for array in (self.now, self.other):
            kernels.start(array, block)
        self.norm = Norm(cp)
        self.steps_done = 0

    def step(self, region: Region, stream: Any) -> None:
        """Issue one step on a region, from `now` to `other`; its changes count in the norm."""
        self.kernels.step(self.now, self.other, region, self.norm.address, stream)

    def turn(self) -> None:
        """Let `now` and `other` change places: what was issued from here on is the next step."""
        self.now, self.other = self.other, self.now
        self.steps_done += 1


class Norm:
    """The sum of the squared changes of one step, reset before each, copied out when wanted.

    There is one sum on the device. So what adds to it in the next step, on whichever stream, must
    wait for ``was_reset``, and the reset for all that adds to it in this one.
    """

    def __init__(self, cp: Any) -> None:
        import numpy as np

        self.cp = cp
        self._sum = cp.zeros(1, np.float64)
        self.address: int = self._sum.data.ptr
        self.host = np.frombuffer(cp.cuda.alloc_pinned_memory(8), np.float64, 1)
        """What was copied out last; page-locked, so that the copy holds nobody up."""
        self.was_reset = cp.cuda.Event(disable_timing=True)

    def copy_out(self, stream: Any) -> None:
        """Issue the copy of the sum to the host."""
        runtime = self.cp.cuda.runtime
        runtime.memcpyAsync(
            self.host.ctypes.data, self.address, 8, runtime.memcpyDeviceToHost, stream.ptr
        )

    def reset(self, stream: Any) -> None:
        """Issue the reset of the sum, and record when it is done."""
        self.cp.cuda.runtime.memsetAsync(self.address, 0, 8, stream.ptr)
        self.was_reset.record(stream)


class Skew:
    """Holds streams back by chance, on each rank differently: a missing wait then shows."""

    def __init__(self, kernels: StencilKernels, longest_ns: int, rank: int) -> None:
        self._kernels = kernels
        self._longest_ns = longest_ns
        self._random = random.Random(rank)

    def delay(self, stream: Any) -> None:
        """Hold a stream back for up to the longest time; if that is 0, not at all."""
        if self._longest_ns:
            self._kernels.wait(self._random.randrange(self._longest_ns), stream)


class Reference:
    """The whole grid on one GPU, one step after the other on one stream."""

    def __init__(
        self, cp: Any, kernels: StencilKernels, shape: tuple[int, int], *, periodic: bool = True
    ) -> None:
        import numpy as np

        self.cp = cp
        self.kernels = kernels
        self.now, self.other = (cp.empty(shape, np.float32) for _ in range(2))
        for array in (self.now, self.other):  # both: no step writes the fixed points
            kernels.start(array)
        self._region = whole_grid(shape, periodic=periodic)
        self._norm = cp.zeros(1, np.float64)
        self.steps_done = 0

    def advance(self, steps: int) -> None:
        """Go on until `steps` have been done in all."""
        null = self.cp.cuda.Stream.null
        while self.steps_done < steps:
            self._norm.fill(0)
            address = self._norm.data.ptr
            self.kernels.step(self.now, self.other, self._region, address, null)
            self.now, self.other = self.other, self.now
            self.steps_done += 1

    def norm(self) -> float:
        """Return the sum of the squared changes of the last step."""
        return float(self._norm.get()[0])

    def differing(self, tile: Tile) -> int:
        """Return how many of the rank's own points are not those of this grid."""
        block = tile.block
        return self.kernels.differing(tile.now[block.own.slices], self.now[block.place.slices])


def whole_grid(shape: tuple[int, int], *, periodic: bool = True) -> Region:
    """Return what a step writes of a whole grid, which has no halo."""
    fixed = int(not periodic)
    return Region(fixed, shape[0] - fixed, 1, shape[1] - 1)


def check_tile(reference: Reference, tile: Tile, norm: float | None) -> None:
    """Repeat the steps of a tile on the whole grid, and compare.

    `norm` is the sum of the squared changes of all ranks in the last step; None leaves it out.

    Raises
    ------
    ProgramError
        They differ; the message begins with ``wrong data``.
    """
    reference.advance(tile.steps_done)
    count = reference.differing(tile)
    if count:
        raise ProgramError(
            f"{WRONG_DATA}: {count} of {tile.block.own.points} points of the block differ from "
            f"what {tile.steps_done} steps must leave. No figures are given."
        )
    if norm is not None:
        check_norm(norm, reference.norm())


def check_norm(found: float, expected: float) -> None:
    """Compare the norm of the last step with that of the repeated one.

    Raises
    ------
    ProgramError
        They differ; the message begins with ``wrong data``.
    """
    if not math.isclose(found, expected, rel_tol=NORM_TOLERANCE):
        raise ProgramError(
            f"{WRONG_DATA}: the norm of a step is {found!r}, and must be {expected!r}. "
            "No figures are given."
        )


def prove_tile(tile: Tile, norms: Mapping[int, float]) -> None:
    """Compare a tile after some steps with NumPy, every row of it bit by bit, and the norms.

    `norms` are those of all ranks, by step, counted from 0.

    Raises
    ------
    ProgramError
        They differ; the message begins with ``wrong data``.
    """
    import numpy as np

    block = tile.block
    whole = tile.cp.empty(block.grid, np.float32)
    tile.kernels.start(whole)
    expected, expected_norms = whole.get(), []
    for _ in range(tile.steps_done):
        expected, norm = reference_step(expected, periodic=block.periodic)
        expected_norms.append(norm)
    compare_rows(tile.now.get()[block.own.slices], expected[block.place.slices], tile.steps_done)
    for step, norm in norms.items():
        check_norm(norm, expected_norms[step])


def compare_rows(found: Any, expected: Any, steps: int) -> None:
    """Compare points on the host with NumPy's, row by row, bit by bit: -0 is not 0 here.

    Raises
    ------
    ProgramError
        They differ; the message begins with ``wrong data``.
    """
    wrong = int((found.view("u4") != expected.view("u4")).any(axis=1).sum())
    if wrong:
        raise ProgramError(
            f"{WRONG_DATA}: after {steps} steps {wrong} of {len(found)} rows differ from NumPy's. "
            "No figures are given."
        )


def reference_step(grid: Any, *, periodic: bool = True) -> tuple[Any, float]:
    """Return the grid after one step, and the norm of the change: what the kernel must give.

    In float32 and in the kernel's order of additions, so that every point agrees to the last bit.
    """
    import numpy as np

    above, below = np.roll(grid, 1, axis=0), np.roll(grid, -1, axis=0)
    after = grid.copy()
    region = whole_grid(grid.shape, periodic=periodic).slices
    mean = np.float32(0.25) * (((above + below)[:, 1:-1] + grid[:, :-2]) + grid[:, 2:])
    after[region] = mean[region[0]]
    change = after.astype(np.float64) - grid.astype(np.float64)
    return after, float(np.sum(change * change))
