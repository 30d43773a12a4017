"""Copies of narrow columns beside copies of whole blocks: slow, but not because of the link."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MIB, Gpu, phase, record

COPIES = 8
WIDTH_BYTES, PITCH_BYTES = 16, 256


def main() -> None:
    gpu = Gpu(size_bytes=128 * MIB, chunks=2)
    stream = cp.cuda.Stream(non_blocking=True)
    runtime = cp.cuda.runtime

    def blocks() -> None:
        with phase("blocks"):
            for chunk in range(COPIES):
                gpu.copy_in(chunk, stream)

    def columns() -> None:
        with phase("columns"):
            for chunk in range(COPIES):
                runtime.memcpy2DAsync(
                    gpu.buffers[chunk % 2].ptr,
                    WIDTH_BYTES,
                    gpu.hosts[chunk % 2].ptr,
                    PITCH_BYTES,
                    WIDTH_BYTES,
                    gpu.size_bytes // PITCH_BYTES,
                    runtime.memcpyHostToDevice,
                    stream.ptr,
                )

    record(blocks, columns)


if __name__ == "__main__":
    main()
