"""An event that takes the time after every second short kernel, and the same without its time."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import US, Gpu, phase, record

KERNELS = 40


def main() -> None:
    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    stream = cp.cuda.Stream(non_blocking=True)
    timed = [cp.cuda.Event() for _ in range(KERNELS // 2)]
    plain = [cp.cuda.Event(disable_timing=True) for _ in range(KERNELS // 2)]

    def kernels(events: list[cp.cuda.Event]) -> None:
        gpu.kernel(stream, 400 * US)  # long enough for all launches to be in the queue
        for number in range(KERNELS):
            gpu.kernel(stream, 10 * US)
            if number % 2:
                events[number // 2].record(stream)

    def mistake() -> None:
        with phase("timing_events"):
            kernels(timed)
        cp.cuda.get_elapsed_time(timed[0], timed[-1])

    def repaired() -> None:
        with phase("repaired"):
            kernels(plain)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
