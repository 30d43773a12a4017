"""The host prepares each batch before it issues it; another thread could have done so before."""

from __future__ import annotations

import time

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

BATCHES = 6


def main() -> None:
    gpu = Gpu(size_bytes=16 << 20)
    stream = cp.cuda.Stream(non_blocking=True)

    def batches(seconds: float) -> None:
        for batch in range(BATCHES):
            time.sleep(seconds)
            gpu.copy_in(batch, stream)
            gpu.kernel(stream, MS)

    def mistake() -> None:
        with phase("host_busy"):
            batches(0.003)

    def repaired() -> None:
        with phase("repaired"):
            batches(0)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
