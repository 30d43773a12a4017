"""Communication is ready while a kernel fills the part of the GPU that both may use.

Compute has a green context of a few multiprocessors. Communication in the same one has to wait for
the kernels there, though most of the GPU is idle; in a green context of the others it does not.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy as cp

from tests.gpu.programs._parts import COMMUNICATION, MS, US, Gpu, phase, record

STEPS = 5
WAVES = 8
MULTIPROCESSORS = 16
_SM_RESOURCE, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1


class _Resource(ctypes.Structure):
    """CUdevResource: its kind, padding, and how many multiprocessors it is."""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("padding", ctypes.c_ubyte * 92),
        ("multiprocessors", ctypes.c_uint),
        ("more", ctypes.c_ubyte * 44),
    )


def parts_of_the_gpu() -> list[tuple[int, list[Any]]]:
    """Split the GPU in two; return of each part its multiprocessors, and two streams in it."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with {code}")

    whole, part, rest = _Resource(), _Resource(), _Resource()
    groups = ctypes.c_uint(1)
    call("cuDeviceGetDevResource", 0, ctypes.byref(whole), _SM_RESOURCE)
    call(
        "cuDevSmResourceSplitByCount",
        ctypes.byref(part),
        ctypes.byref(groups),
        ctypes.byref(whole),
        ctypes.byref(rest),
        0,
        MULTIPROCESSORS,
    )
    parts = []
    for resource in (part, rest):
        description, context = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(resource), 1)
        call("cuGreenCtxCreate", ctypes.byref(context), description, 0, _DEFAULT_STREAM)
        streams = []
        for _ in range(2):
            stream = ctypes.c_void_p()
            call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _NON_BLOCKING, 0)
            streams.append(cp.cuda.ExternalStream(stream.value))
        parts.append((resource.multiprocessors, streams))
    return parts


def main() -> None:
    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    (sms, (compute, beside)), (others, (elsewhere, _)) = parts_of_the_gpu()
    print(f"parts of {sms} and {others} multiprocessors")
    boundary = cp.cuda.Event(disable_timing=True)
    arrived = cp.cuda.Event(disable_timing=True)

    def steps(communication: Any) -> None:
        for _ in range(STEPS):
            gpu.kernel(compute, 100 * US, blocks=sms)  # the boundary, to be sent
            boundary.record(compute)
            communication.wait_event(boundary)
            gpu.kernel(compute, 250 * US, blocks=WAVES * 2 * sms, threads=1024)  # the interior
            gpu.kernel(communication, MS, blocks=8, threads=512, name=COMMUNICATION)
            arrived.record(communication)
            compute.wait_event(arrived)

    def mistake() -> None:
        with phase("green_context"):
            steps(beside)

    def repaired() -> None:
        with phase("repaired"):
            steps(elsewhere)

    record(mistake, repaired)


if __name__ == "__main__":
    main()
