"""Results wait behind one that is not done yet: run with CUDA_DEVICE_MAX_CONNECTIONS=1.

Kernels of four lengths run side by side, and the results are copied out. With one hardware queue
the copies out go in the order of their calls: where the longest kernel is issued first, the results
of all others wait for it, with the link idle. Issued the other way round nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

ROUNDS = 3
LENGTHS_NS = (4 * MS, 3 * MS, 2 * MS, MS)


def main() -> None:
    gpu = Gpu(size_bytes=96 << 20, chunks=len(LENGTHS_NS))
    streams = [cp.cuda.Stream(non_blocking=True) for _ in LENGTHS_NS]

    def rounds(name: str, lengths_ns: Sequence[int]) -> None:
        for _ in range(ROUNDS):
            with phase(name):
                for chunk, (stream, length_ns) in enumerate(zip(streams, lengths_ns, strict=True)):
                    gpu.kernel(stream, length_ns)
                    gpu.copy_out(chunk, stream)

    record(lambda: rounds("issue_order", LENGTHS_NS), lambda: rounds("repaired", LENGTHS_NS[::-1]))


if __name__ == "__main__":
    main()
