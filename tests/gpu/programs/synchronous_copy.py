"""Copies by cudaMemcpy, in and out in turn, keep the thread from issuing one beside the other."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import US, Gpu, phase, record

CHUNKS = 8


def main() -> None:
    gpu = Gpu()
    runtime = cp.cuda.runtime
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]

    def mistake() -> None:
        with phase("synchronous_copy"):
            for chunk in range(CHUNKS):
                # The kernel of the chunk before is done: it is shorter than this copy.
                buffer, host = gpu.buffers[chunk].ptr, gpu.hosts[chunk].ptr
                runtime.memcpy(buffer, host, gpu.size_bytes, runtime.memcpyHostToDevice)
                gpu.kernel(streams[chunk % len(streams)], 500 * US)
                if chunk:
                    buffer, host = gpu.buffers[chunk - 1].ptr, gpu.hosts[chunk - 1].ptr
                    runtime.memcpy(host, buffer, gpu.size_bytes, runtime.memcpyDeviceToHost)
            gpu.copy_out(CHUNKS - 1, streams[(CHUNKS - 1) % len(streams)])

    def repaired() -> None:
        with phase("repaired"):
            for chunk in range(CHUNKS):
                stream = streams[chunk % len(streams)]
                gpu.copy_in(chunk, stream)
                gpu.kernel(stream, 500 * US)
                gpu.copy_out(chunk, stream)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
