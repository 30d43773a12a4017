"""Communication whose blocks must all be on the GPU at once finds no room beside half of a GPU."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import COMMUNICATION, US, Gpu, phase, record

STEPS = 5


def main() -> None:
    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    gpu.kernels[COMMUNICATION] = gpu.compile(COMMUNICATION, cooperative=True)
    compute = cp.cuda.Stream(non_blocking=True)
    communication = cp.cuda.Stream(non_blocking=True)
    sms = cp.cuda.Device().attributes["MultiProcessorCount"]
    boundary = cp.cuda.Event(disable_timing=True)
    arrived = cp.cuda.Event(disable_timing=True)

    def steps(blocks: int) -> None:
        for _ in range(STEPS):
            gpu.kernel(compute, 100 * US, blocks=sms)  # the boundary, to be sent
            boundary.record(compute)
            communication.wait_event(boundary)
            gpu.kernel(compute, 500 * US, blocks=sms, threads=1024)  # the interior
            gpu.kernel(communication, 300 * US, blocks=blocks, threads=512, name=COMMUNICATION)
            arrived.record(communication)
            compute.wait_event(arrived)

    def mistake() -> None:
        with phase("cooperative_launch"):
            steps(3 * sms)

    def repaired() -> None:
        with phase("repaired"):
            steps(sms)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
