"""Kernels shorter than their launches leave the GPU idle; one kernel that does more does not."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import US, Gpu, phase, record

KERNELS = 200


def main() -> None:
    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    stream = cp.cuda.Stream(non_blocking=True)

    def mistake() -> None:
        with phase("launch_bound"):
            for _ in range(KERNELS):
                gpu.kernel(stream, 2 * US)

    def repaired() -> None:
        with phase("repaired"):
            for _ in range(KERNELS // 20):
                gpu.kernel(stream, 40 * US)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
