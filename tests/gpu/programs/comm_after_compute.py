"""A message waits for all of a step's compute, though it needs the boundary only."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import COMMUNICATION, MS, US, Gpu, phase, record

STEPS = 5


def main() -> None:
    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    compute, communication = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    boundary, arrived = (cp.cuda.Event(disable_timing=True) for _ in range(2))

    def message(stream: cp.cuda.Stream) -> None:
        gpu.kernel(stream, MS, blocks=8, name=COMMUNICATION)

    def mistake() -> None:
        with phase("comm_after_compute"):
            for _ in range(STEPS):
                gpu.kernel(compute, 100 * US)
                gpu.kernel(compute, 2 * MS)
                message(compute)

    def repaired() -> None:
        with phase("repaired"):
            for _ in range(STEPS):
                gpu.kernel(compute, 100 * US)
                boundary.record(compute)
                communication.wait_event(boundary)
                gpu.kernel(compute, 2 * MS)
                message(communication)
                arrived.record(communication)
                compute.wait_event(arrived)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
