"""A small kernel in the null stream between chunks orders all blocking streams."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MS, US, Gpu, phase, record

CHUNKS = 8


def chunks(gpu: Gpu, streams: list[cp.cuda.Stream]) -> None:
    for chunk in range(CHUNKS):
        stream = streams[chunk % len(streams)]
        gpu.copy_in(chunk, stream)
        gpu.kernel(stream, MS)
        gpu.copy_out(chunk, stream)
        gpu.kernel(cp.cuda.Stream.null, 20 * US)  # such as a counter's update


def main() -> None:
    gpu = Gpu()
    blocking = [cp.cuda.Stream(non_blocking=False) for _ in range(4)]
    free = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]

    def mistake() -> None:
        with phase("null_stream_work"):
            chunks(gpu, blocking)

    def repaired() -> None:
        with phase("repaired"):
            chunks(gpu, free)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
