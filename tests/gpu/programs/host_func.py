"""A host function between a chunk's kernel and its copy out makes the stream wait for the CPU."""

from __future__ import annotations

import time

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

CHUNKS = 8


def main() -> None:
    gpu = Gpu()
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]

    def chunks(seconds: float) -> None:
        for chunk in range(CHUNKS):
            stream = streams[chunk % len(streams)]
            gpu.copy_in(chunk, stream)
            gpu.kernel(stream, MS)
            if seconds:
                stream.launch_host_func(lambda _: time.sleep(seconds), None)
            gpu.copy_out(chunk, stream)

    def mistake() -> None:
        with phase("host_func"):
            chunks(0.002)

    def repaired() -> None:
        with phase("repaired"):
            chunks(0)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
