"""What the programs share: kernels that last as long as they are told, buffers, the recording.

Each program has one range for the mistake and one, `repaired`, for the same work without it; the
healthy ones have only the latter. They are recorded one by one, see README.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import cupy as cp
import nvtx

MIB = 1 << 20
US = 1_000
MS = 1_000_000

_SOURCE = r"""
extern "C" __global__ void NAME(long long ns) {
    long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns);
}
"""
COMPUTE = "compute"
COMMUNICATION = "ncclDevKernel_AllReduce_stand_in"
"""A kernel by this name is taken for communication: one GPU has nobody to talk to."""


class Gpu:
    """Kernels and buffers, made before anything is recorded."""

    def __init__(self, size_bytes: int = 64 * MIB, chunks: int = 8) -> None:
        self.size_bytes = size_bytes
        self.kernels = {name: self.compile(name) for name in (COMPUTE, COMMUNICATION)}
        self.hosts = [cp.cuda.alloc_pinned_memory(size_bytes) for _ in range(chunks)]
        self.buffers = [cp.cuda.alloc(size_bytes) for _ in range(chunks)]

    @staticmethod
    def compile(name: str, *, cooperative: bool = False) -> Any:
        source = _SOURCE.replace("NAME", name)
        return cp.RawKernel(source, name, enable_cooperative_groups=cooperative)

    def kernel(
        self, stream: Any, ns: int, *, blocks: int = 32, threads: int = 128, name: str = COMPUTE
    ) -> None:
        """Keep `blocks` blocks busy for `ns` each."""
        with stream:
            self.kernels[name]((blocks,), (threads,), (cp.int64(ns),))

    def copy_in(self, chunk: int, stream: Any, size_bytes: int | None = None) -> None:
        chunk %= len(self.hosts)
        cp.cuda.runtime.memcpyAsync(
            self.buffers[chunk].ptr,
            self.hosts[chunk].ptr,
            size_bytes or self.size_bytes,
            cp.cuda.runtime.memcpyHostToDevice,
            stream.ptr,
        )

    def copy_out(self, chunk: int, stream: Any, size_bytes: int | None = None) -> None:
        chunk %= len(self.hosts)
        cp.cuda.runtime.memcpyAsync(
            self.hosts[chunk].ptr,
            self.buffers[chunk].ptr,
            size_bytes or self.size_bytes,
            cp.cuda.runtime.memcpyDeviceToHost,
            stream.ptr,
        )


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Put a range round the issuing of work; the device is idle before and after."""
    cp.cuda.runtime.deviceSynchronize()
    with nvtx.annotate(name):
        yield
        cp.cuda.runtime.deviceSynchronize()


def record(*passes: Callable[[], None], warm: bool = True) -> None:
    """Run everything once to warm up, and once more while the profiler records."""
    if warm:
        for run in passes:
            run()
    cp.cuda.runtime.deviceSynchronize()
    cp.cuda.runtime.profilerStart()
    for run in passes:
        run()
    cp.cuda.runtime.deviceSynchronize()
    cp.cuda.runtime.profilerStop()
