"""Results wait behind one that is not done yet: run with CUDA_DEVICE_MAX_CONNECTIONS=1.

Of each pair of kernels the first is long and the second short, and both results are copied out.
With one hardware queue the copies out go in the order of their calls, so the result of the short
kernel waits for the long one, and so does what comes next in its stream. Issued the other way round
nothing waits.
"""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MS, US, Gpu, phase, record

PAIRS = 4


def main() -> None:
    gpu = Gpu(size_bytes=96 << 20, chunks=2)
    long, short = (cp.cuda.Stream(non_blocking=True) for _ in range(2))

    def pairs(order: tuple[tuple[cp.cuda.Stream, int], ...]) -> None:
        for _ in range(PAIRS):
            for stream, ns in order:
                gpu.kernel(stream, ns)
                gpu.copy_out(0 if stream is long else 1, stream)

    def mistake() -> None:
        with phase("issue_order"):
            pairs(((long, 3 * MS), (short, 200 * US)))

    def repaired() -> None:
        with phase("repaired"):
            pairs(((short, 200 * US), (long, 3 * MS)))

    record(mistake, repaired)


if __name__ == "__main__":
    main()
