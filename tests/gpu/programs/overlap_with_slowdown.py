"""Two kernels that both need all of the memory's bandwidth gain nothing from running together."""

from __future__ import annotations

from typing import Any

import cupy as cp

from tests.gpu.programs._parts import phase, record

_SOURCE = r"""
extern "C" __global__ void NAME(float4* to, const float4* from, size_t count) {
    size_t step = (size_t) gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t) blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = from[i];
}
"""
STEPS = 6
COUNT = 64 << 20
NAMES = ("gather", "scatter")


def main() -> None:
    sms = cp.cuda.Device().attributes["MultiProcessorCount"]
    streams = [cp.cuda.Stream(non_blocking=True) for _ in NAMES]
    kernels = [cp.RawKernel(_SOURCE.replace("NAME", name), name) for name in NAMES]
    buffers = [[cp.cuda.alloc(16 * COUNT) for _ in range(2)] for _ in NAMES]

    def launch(number: int, stream: cp.cuda.Stream) -> None:
        to, source = (buffer.ptr for buffer in buffers[number])
        arguments: tuple[Any, ...] = (to, source, cp.uint64(COUNT))
        with stream:
            kernels[number]((sms,), (1024,), arguments)

    def alone() -> None:
        with phase("repaired"):
            for _ in range(STEPS):
                launch(0, streams[0])
                launch(1, streams[0])

    def together() -> None:
        with phase("overlap_with_slowdown"):
            for _ in range(STEPS):
                launch(0, streams[0])
                launch(1, streams[1])

    record(alone, together)


if __name__ == "__main__":
    main()
