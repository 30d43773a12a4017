"""Kernels of one stream that start early and wait for the one before: dependent launch.

Programmatic, as CUDA calls it. It is healthy: the kernels seem to run beside each other, but they
are one chain.
"""

from __future__ import annotations

import ctypes

import cupy as cp

from tests.gpu.programs._parts import US, phase, record

KERNELS = 40
WORK_NS = 100 * US
_EARLY_NS = 60 * US
"""A kernel lets the next one start this long before its own end."""
_BLOCKS, _THREADS = 32, 128
_SOURCE = r"""
__device__ void spin(long long ns) {
    long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns);
}
extern "C" __global__ void link(long long before, long long after) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    spin(before);
    asm volatile("griddepcontrol.launch_dependents;");
    spin(after);
}
"""
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: which one, and a value of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def main() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    kernel = cp.RawKernel(_SOURCE, "link")
    stream = cp.cuda.Stream(non_blocking=True)
    times = (ctypes.c_longlong(WORK_NS - _EARLY_NS), ctypes.c_longlong(_EARLY_NS))
    arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(time) for time in times))
    early = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)

    def launch(dependent: bool) -> None:
        config = _Config(
            grid=(_BLOCKS, 1, 1),
            block=(_THREADS, 1, 1),
            stream=stream.ptr,
            attributes=ctypes.pointer(early),
            attribute_count=int(dependent),
        )
        function = ctypes.c_void_p(kernel.kernel.ptr)
        result = driver.cuLaunchKernelEx(ctypes.byref(config), function, arguments, None)
        assert result == 0, f"cuLaunchKernelEx: {result}"

    def alone() -> None:
        with phase("alone"):
            for _ in range(4):
                launch(False)

    def chained() -> None:
        with phase("chained"):
            for _ in range(KERNELS):
                launch(True)

    record(alone, chained)


if __name__ == "__main__":
    main()
