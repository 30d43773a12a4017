"""Communication is ready while a kernel of many waves fills the GPU; a priority lets it in."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import COMMUNICATION, MS, US, Gpu, phase, record

STEPS = 5
WAVES = 8


def main() -> None:
    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    compute = cp.cuda.Stream(non_blocking=True)
    equal = cp.cuda.Stream(non_blocking=True)
    urgent = cp.cuda.Stream(non_blocking=True, priority=-5)
    sms = cp.cuda.Device().attributes["MultiProcessorCount"]
    boundary = cp.cuda.Event(disable_timing=True)
    arrived = cp.cuda.Event(disable_timing=True)

    def steps(communication: cp.cuda.Stream) -> None:
        for _ in range(STEPS):
            gpu.kernel(compute, 100 * US, blocks=sms)  # the boundary, to be sent
            boundary.record(compute)
            communication.wait_event(boundary)
            gpu.kernel(compute, 250 * US, blocks=WAVES * 2 * sms, threads=1024)  # the interior
            gpu.kernel(communication, MS, blocks=16, threads=512, name=COMMUNICATION)
            arrived.record(communication)
            compute.wait_event(arrived)

    def mistake() -> None:
        with phase("gpu_full"):
            steps(equal)

    def repaired() -> None:
        with phase("repaired"):
            steps(urgent)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
