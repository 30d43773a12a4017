"""A program that is killed: its calls are recorded, the last of its GPU work is not.

With the argument `repaired` it ends as it should.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import cupy as cp

from tests.gpu.programs._parts import US, Gpu, phase

KERNELS = 48


def main() -> None:
    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    stream = cp.cuda.Stream(non_blocking=True)
    with phase("flushed"):
        gpu.kernel(stream, 200 * US)
    cp.cuda.runtime.profilerStart()
    with phase("work"):
        for _ in range(KERNELS):
            gpu.kernel(stream, 200 * US)
            gpu.copy_in(0, stream)
    time.sleep(1.0)  # for what is on its way to the profiler
    if sys.argv[1:] != ["repaired"]:
        os.kill(os.getpid(), signal.SIGKILL)
    cp.cuda.runtime.profilerStop()


if __name__ == "__main__":
    main()
