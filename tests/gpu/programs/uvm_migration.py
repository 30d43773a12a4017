"""Managed memory that a kernel touches comes page by page; asked for before, it comes at once."""

from __future__ import annotations

import ctypes

import cupy as cp

from tests.gpu.programs._parts import MIB, phase, record

SIZE = 8 * MIB
CHUNKS = 4
_SOURCE = r"""
extern "C" __global__ void touch(float* data, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] += 1.0f;
}
"""


def main() -> None:
    runtime = cp.cuda.runtime
    stream = cp.cuda.Stream(non_blocking=True)
    kernel = cp.RawKernel(_SOURCE, "touch")
    memory = [cp.cuda.malloc_managed(SIZE) for _ in range(CHUNKS)]
    device = cp.cuda.Device().id

    def fill() -> None:
        """Write on the host, where the pages are then."""
        runtime.deviceSynchronize()
        for chunk in memory:
            ctypes.memset(chunk.ptr, 0, SIZE)

    def chunks(ask: bool) -> None:
        for chunk in memory:
            if ask:
                runtime.memPrefetchAsync(chunk.ptr, SIZE, device, stream.ptr)
            with stream:
                kernel((SIZE // 4 // 256,), (256,), (chunk.ptr, cp.int32(SIZE // 4)))

    def mistake() -> None:
        fill()
        with phase("uvm_migration"):
            chunks(False)

    def repaired() -> None:
        fill()
        with phase("repaired"):
            chunks(True)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
