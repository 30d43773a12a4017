"""What the link to the host carries, measured as nvbandwidth 0.8 does it. Prints JSON, in bytes/s.

Its method, for the four tests of copies between the host and one GPU by copy engine: a kernel holds
the streams back; behind it each stream has 4 copies that do not count, then 16 that do, between two
events of the measured stream, of 512 MiB each. Where the other direction is to interfere, its
copies are twice as large, so that it is at work all the while; only the measured stream's rate is
taken.
"""

from __future__ import annotations

import json
from typing import Any

import cupy as cp
import numpy as np

SIZE_BYTES = 512 << 20
COPIES = 16
WARM_UPS = 4
REPETITIONS = 5

_HOLD = cp.RawKernel(
    r"""
extern "C" __global__ void hold(volatile int* released) {
    long long start = clock64();
    while (!*released && clock64() - start < 20000000000ll) {}
}
""",
    "hold",
)


class Way:
    """A stream, and copies of `size_bytes` on it in one direction."""

    def __init__(self, kind: int, size_bytes: int) -> None:
        self.kind, self.size_bytes = kind, size_bytes
        self.memory = cp.cuda.alloc_pinned_memory(size_bytes)
        self.buffer = cp.zeros(size_bytes, np.uint8)
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.start, self.end = cp.cuda.Event(), cp.cuda.Event()

    def copy(self, times: int) -> None:
        target, source = self.buffer.data.ptr, self.memory.ptr
        if self.kind == cp.cuda.runtime.memcpyDeviceToHost:
            target, source = source, target
        for _ in range(times):
            cp.cuda.runtime.memcpyAsync(target, source, self.size_bytes, self.kind, self.stream.ptr)


def rates(ways: list[Way]) -> list[float]:
    """Return the rate of the first of `ways` beside the others, in bytes/s, in each repetition."""
    state: Any = np.frombuffer(cp.cuda.alloc_pinned_memory(4), np.int32, 1)
    found = []
    for _ in range(REPETITIONS):
        state[0] = 0
        for way in ways:
            with way.stream:
                _HOLD((1,), (1,), (state.ctypes.data,))
            way.copy(WARM_UPS)
        first = ways[0]
        first.start.record(first.stream)
        for way in ways[1:]:
            way.stream.wait_event(first.start)
        for way in ways:
            way.copy(COPIES)
            way.end.record(way.stream)
        state[0] = 1
        cp.cuda.runtime.deviceSynchronize()
        time_s = cp.cuda.get_elapsed_time(first.start, first.end) / 1e3
        found.append(first.size_bytes * COPIES / time_s)
    return found


def main() -> None:
    """Measure all four."""
    inward, outward = cp.cuda.runtime.memcpyHostToDevice, cp.cuda.runtime.memcpyDeviceToHost
    _HOLD.compile()
    ways = {kind: Way(kind, SIZE_BYTES) for kind in (inward, outward)}
    large = {kind: Way(kind, 2 * SIZE_BYTES) for kind in (inward, outward)}
    found = {
        "h2d_rate_bytes_per_s": rates([ways[inward]]),
        "d2h_rate_bytes_per_s": rates([ways[outward]]),
        "h2d_both_rate_bytes_per_s": rates([ways[inward], large[outward]]),
        "d2h_both_rate_bytes_per_s": rates([ways[outward], large[inward]]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
