"""A scalar read each step keeps the host from issuing the next; read late, it costs nothing."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import US, Gpu, phase, record

STEPS = 24


def main() -> None:
    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    stream = cp.cuda.Stream(non_blocking=True)
    losses = cp.zeros(STEPS, cp.float32)

    def mistake() -> None:
        with phase("host_read"), stream:
            for step in range(STEPS):
                gpu.kernel(stream, 150 * US)
                gpu.kernel(stream, 150 * US)
                sum(float(losses[step].get(stream=stream)) for _ in range(2))

    def repaired() -> None:
        with phase("repaired"), stream:
            for _ in range(STEPS):
                gpu.kernel(stream, 150 * US)
                gpu.kernel(stream, 150 * US)
            losses.get(stream=stream)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
