"""Copies by cudaMemcpy keep the thread from issuing to other streams until they are done."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

CHUNKS = 8


def main() -> None:
    gpu = Gpu()
    runtime = cp.cuda.runtime
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]

    def mistake() -> None:
        with phase("synchronous_copy"):
            for chunk in range(CHUNKS):
                stream = streams[chunk % len(streams)]
                buffer, host = gpu.buffers[chunk].ptr, gpu.hosts[chunk].ptr
                runtime.memcpy(buffer, host, gpu.size_bytes, runtime.memcpyHostToDevice)
                gpu.kernel(stream, MS)
                gpu.copy_out(chunk, stream)

    def repaired() -> None:
        with phase("repaired"):
            for chunk in range(CHUNKS):
                stream = streams[chunk % len(streams)]
                gpu.copy_in(chunk, stream)
                gpu.kernel(stream, MS)
                gpu.copy_out(chunk, stream)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
