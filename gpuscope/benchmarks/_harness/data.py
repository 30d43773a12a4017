"""The data that a benchmark moves, and the proof that all of it arrived.

Element p of the data begins as a whole number that depends on p alone. Each pass adds a whole
number of its own, the same to all elements, and no two passes in a row leave the same sum behind:
a copy or a kernel that was lost, came too early or hit another chunk's buffer leaves elements
that differ from what they must be, and every later pass carries the difference along. So one
comparison at the end covers all passes. Every value is a whole number below 2²⁴, exact in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscope.errors import ProgramError

WRONG_DATA = "wrong data"
"""How the message of a failed data check begins."""
PATTERN_BITS = 22
_ADDENDS = 61

_SOURCE = r"""
__device__ float pattern(unsigned long long position) {
    return (float)((unsigned)((position * 2654435761ull) & 0xffffffffu) >> (32 - BITS));
}
extern "C" __global__ void gs_fill(float* data, unsigned long long first, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] = pattern(first + i);
}
// Counts the elements that are not the pattern, plus `added` in the first `worked` of them. NaN
// counts: it equals nothing.
extern "C" __global__ void gs_check(const float* data, unsigned long long first, unsigned count,
                                    unsigned worked, float added, unsigned long long* wrong) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float expected = pattern(first + i) + (i < worked ? added : 0.0f);
    if (!(data[i] == expected)) atomicAdd(wrong, 1ull);
}
"""
_THREADS = 256


def pass_value(index: int) -> int:
    """Return the number that the elements have gained after pass `index`, in units of a step.

    0 before the first pass, then 1 to 61; never the same twice in a row.
    """
    return 0 if index == 0 else 1 + index * 37 % _ADDENDS


def pass_term(index: int) -> int:
    """Return what each step of pass `index` adds; never 0 from the first pass on."""
    return pass_value(index) - pass_value(max(0, index - 1))


def max_steps() -> int:
    """Return how many steps a kernel may have with all values staying exact."""
    return ((1 << 24) - (1 << PATTERN_BITS)) // _ADDENDS


class Pattern:
    """Fills host buffers with the pattern, and compares them with it on the device."""

    def __init__(self, cp: Any, scratch: Any) -> None:
        """Use the device array `scratch`, at least as large as any host buffer, in between."""
        self._cp = cp
        self._scratch = scratch
        source = _SOURCE.replace("BITS", str(PATTERN_BITS))
        module = cp.RawModule(code=source)
        self._fill, self._check = module.get_function("gs_fill"), module.get_function("gs_check")

    def fill(self, hosts: Sequence[Any]) -> None:
        """Write the pattern to host buffers, one after another, positions running on."""
        import numpy as np

        first = 0
        for host in hosts:
            arguments = (self._scratch, np.uint64(first), np.uint32(host.size))
            self._fill((-(-host.size // _THREADS),), (_THREADS,), arguments)
            self._scratch[: host.size].get(out=host)
            first += host.size

    def check(self, hosts: Sequence[Any], added: int, worked: int) -> None:
        """Compare every element of the host buffers with what it must be by now.

        That is the pattern, plus `added` in the first `worked` elements of each buffer.

        Raises
        ------
        ProgramError
            Some differ; the message begins with :data:`WRONG_DATA`.
        """
        import numpy as np

        wrong = self._cp.zeros(len(hosts), np.uint64)
        first = 0
        for index, host in enumerate(hosts):
            self._scratch[: host.size].set(host)
            arguments = (
                self._scratch,
                np.uint64(first),
                np.uint32(host.size),
                np.uint32(worked),
                np.float32(added),
                wrong[index:],
            )
            self._check((-(-host.size // _THREADS),), (_THREADS,), arguments)
            first += host.size
        counts = wrong.get().tolist()
        if any(counts):
            bad = [index for index, count in enumerate(counts) if count]
            raise ProgramError(
                f"{WRONG_DATA}: {sum(counts)} of {first} elements differ from what the passes "
                f"must leave, in {len(bad)} of {len(hosts)} chunks (first: chunk {bad[0]}). "
                "No figures are given."
            )
