"""One device buffer: each copy in waits for the copy out before it; with two, every other one."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

CHUNKS = 8


def main() -> None:
    gpu = Gpu()
    copying, computing, returning = (cp.cuda.Stream(non_blocking=True) for _ in range(3))
    events = [cp.cuda.Event(disable_timing=True) for _ in range(3 * CHUNKS)]

    def chunks(buffers: int) -> None:
        for chunk in range(CHUNKS):
            loaded, computed, free = events[3 * chunk : 3 * chunk + 3]
            if chunk >= buffers:
                copying.wait_event(events[3 * (chunk - buffers) + 2])
            gpu.copy_in(chunk % buffers, copying)
            loaded.record(copying)
            computing.wait_event(loaded)
            gpu.kernel(computing, MS)
            computed.record(computing)
            returning.wait_event(computed)
            gpu.copy_out(chunk % buffers, returning)
            free.record(returning)

    def mistake() -> None:
        with phase("event_dependency"):
            chunks(1)

    def repaired() -> None:
        with phase("repaired"):
            chunks(3)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
