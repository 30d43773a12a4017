"""Programs that do well: a pool, synchronous copies that cost nothing, several host threads."""

from __future__ import annotations

import threading

import cupy as cp
import nvtx

from tests.gpu.programs._parts import MIB, MS, Gpu, phase, record

CHUNKS = 8


def main() -> None:
    gpu = Gpu()
    runtime = cp.cuda.runtime
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]
    beside = cp.cuda.Stream(non_blocking=True)

    def pool() -> None:
        """Scratch memory from the stream-ordered pool, in the loop."""
        with phase("pool"):
            for chunk in range(CHUNKS):
                stream = streams[chunk % len(streams)]
                gpu.copy_in(chunk, stream)
                scratch = runtime.mallocAsync(32 * MIB, stream.ptr)
                gpu.kernel(stream, MS)
                runtime.freeAsync(scratch, stream.ptr)
                gpu.copy_out(chunk, stream)

    def synchronous_copies() -> None:
        """The next block arrives by cudaMemcpy while a long kernel runs: the GPU never waits."""
        with phase("synchronous_copies"):
            for chunk in range(CHUNKS):
                gpu.kernel(beside, 4 * MS)
                runtime.memcpy(
                    gpu.buffers[chunk].ptr,
                    gpu.hosts[chunk].ptr,
                    gpu.size_bytes,
                    runtime.memcpyHostToDevice,
                )

    def worker(number: int) -> None:
        with nvtx.annotate("threads"):
            for chunk in range(number, CHUNKS, 2):
                stream = streams[chunk % len(streams)]
                gpu.copy_in(chunk, stream)
                gpu.kernel(stream, MS)
                gpu.copy_out(chunk, stream)
            streams[number].synchronize()
            streams[number + 2].synchronize()

    def threads() -> None:
        """Two threads share the chunks; each waits for its own."""
        both = [threading.Thread(target=worker, args=(number,)) for number in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()

    record(pool, synchronous_copies, threads)


if __name__ == "__main__":
    main()
