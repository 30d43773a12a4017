"""Streams that share a hardware queue: run with CUDA_DEVICE_MAX_CONNECTIONS=1, and without.

Each step copies a chunk for one stream's kernel and computes on what is there already in another.
With one queue the second kernel waits until the first could start, which waits for its copy.
"""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MS, US, Gpu, phase, record

STEPS = 6


def main() -> None:
    gpu = Gpu(size_bytes=96 << 20, chunks=STEPS)
    loading, computing = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    loaded, computed = (cp.cuda.Event(disable_timing=True) for _ in range(2))
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(STEPS)]

    def steps() -> None:
        with phase("steps"):
            for step in range(STEPS):
                gpu.copy_in(step, loading)
                gpu.kernel(loading, 200 * US)
                gpu.kernel(computing, 2 * MS)
                loaded.record(loading)
                computed.record(computing)
                loading.wait_event(computed)
                computing.wait_event(loaded)

    def chunks() -> None:
        with phase("chunks"):
            for step in range(STEPS):
                gpu.copy_in(step, streams[step])
                gpu.kernel(streams[step], MS)
                gpu.kernel(streams[step], MS)
                gpu.copy_out(step, streams[step])

    record(steps, chunks)


if __name__ == "__main__":
    main()
