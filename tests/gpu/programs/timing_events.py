"""Events that take the time between streams: record with --cuda-event-trace=true, and without."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

CHUNKS = 8


def main() -> None:
    gpu = Gpu()
    copying, computing, returning = (cp.cuda.Stream(non_blocking=True) for _ in range(3))

    def chunks(events: list[cp.cuda.Event]) -> None:
        for chunk in range(CHUNKS):
            gpu.copy_in(chunk, copying)
            events[2 * chunk].record(copying)
            computing.wait_event(events[2 * chunk])
            gpu.kernel(computing, MS)
            events[2 * chunk + 1].record(computing)
            returning.wait_event(events[2 * chunk + 1])
            gpu.copy_out(chunk, returning)

    timed = [cp.cuda.Event() for _ in range(2 * CHUNKS)]
    plain = [cp.cuda.Event(disable_timing=True) for _ in range(2 * CHUNKS)]

    def mistake() -> None:
        with phase("timing_events"):
            chunks(timed)

    def repaired() -> None:
        with phase("repaired"):
            chunks(plain)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
