"""The host waits for every chunk before it issues the next; one wait at the end is enough."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

CHUNKS = 8


def main() -> None:
    gpu = Gpu()
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]

    def chunks(wait: bool) -> None:
        for chunk in range(CHUNKS):
            stream = streams[chunk % len(streams)]
            gpu.copy_in(chunk, stream)
            gpu.kernel(stream, MS)
            gpu.copy_out(chunk, stream)
            if wait:
                stream.synchronize()

    def mistake() -> None:
        with phase("host_sync"):
            chunks(True)

    def repaired() -> None:
        with phase("repaired"):
            chunks(False)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
