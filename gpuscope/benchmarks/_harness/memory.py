"""The rate of the device's memory, as its multiprocessors reach it."""

from __future__ import annotations

from typing import Any

from gpuscope.benchmarks._harness.gpu import Session
from gpuscope.benchmarks._harness.sizing import MIB, rate_bytes_per_s
from gpuscope.benchmarks._harness.stats import Statistics

CACHE_FACTOR = 4
"""The copied buffer is larger than the L2 cache by more than this: the cache cannot help."""
_MIN_BYTES = 256 * MIB
_REPEATS = 10
_THREADS = 256

_SOURCE = r"""
extern "C" __global__ void gs_copy(const float4* source, float4* target, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) target[i] = source[i];
}
"""


def copied_bytes(l2_bytes: int) -> int:
    """Return the size of the buffer to copy: over four times the cache, in whole MiB."""
    return max(_MIN_BYTES, (CACHE_FACTOR * l2_bytes // MIB + 1) * MIB)


def copy_rate_bytes_per_s(session: Session) -> float | None:
    """Measure a copy within the device, done by a kernel; bytes read and written both count.

    The runtime's own copy within a device may go through a copy engine, which is slower.
    """
    import numpy as np

    cp = session.cp
    size_bytes = copied_bytes(session.property("l2CacheSize"))
    source, target = (cp.zeros(size_bytes // 4, np.float32) for _ in range(2))
    kernel = cp.RawKernel(_SOURCE, "gs_copy")
    stream = cp.cuda.Stream(non_blocking=True)
    count = size_bytes // 16

    def copy() -> None:
        arguments: tuple[Any, ...] = (source, target, np.uint32(count))
        with stream:
            kernel((-(-count // _THREADS),), (_THREADS,), arguments)

    copy()  # loads it: not behind a closed gate
    cp.cuda.runtime.deviceSynchronize()
    (spans,) = session.time_operations([(stream, [copy] * (1 + _REPEATS))])
    times = Statistics.of([end - start for start, end in spans[1:]])
    return rate_bytes_per_s(2 * size_bytes, times.median_ns)
