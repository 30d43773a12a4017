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

_SOURCE = (
    rf"""
#define BITS {PATTERN_BITS}
"""
    + r"""
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
)
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
    """Fills buffers with the pattern, and compares them with it on the device."""

    def __init__(self, cp: Any, scratch: Any = None) -> None:
        """Use the device array `scratch`, as large as the largest host buffer, in between."""
        self._cp = cp
        self._scratch = scratch
        module = cp.RawModule(code=_SOURCE)
        self._fill, self._check = module.get_function("gs_fill"), module.get_function("gs_check")

    def fill_device(self, array: Any, first: int = 0) -> None:
        """Write the pattern from position `first` on to a device array."""
        import numpy as np

        arguments = (array, np.uint64(first), np.uint32(array.size))
        self._fill((-(-array.size // _THREADS),), (_THREADS,), arguments)

    def fill(self, hosts: Sequence[Any], first: int = 0) -> None:
        """Write the pattern to host buffers, one after another, positions running on."""
        for host in hosts:
            part = self._scratch[: host.size]
            self.fill_device(part, first)
            part.get(out=host)
            first += host.size

    def check(self, hosts: Sequence[Any], added: int, worked: int, first: int = 0) -> None:
        """Compare every element of the host buffers with what it must be by now.

        That is the pattern, plus `added` in the first `worked` elements of each buffer.

        Raises
        ------
        ProgramError
            Some differ; the message begins with :data:`WRONG_DATA`.
        """
        import numpy as np

        wrong = self._cp.zeros(len(hosts), np.uint64)
        total = 0
        for index, host in enumerate(hosts):
            part = self._scratch[: host.size]
            part.set(host)
            self.count(part, first + total, worked, added, wrong[index:])
            total += host.size
        raise_if_wrong(wrong.get().tolist(), total, "chunk")

    def check_device(self, array: Any, first: int = 0, added: int = 0) -> None:
        """Compare every element of a device array with the pattern from `first` on, plus `added`.

        Raises
        ------
        ProgramError
            Some differ; the message begins with :data:`WRONG_DATA`.
        """
        import numpy as np

        wrong = self._cp.zeros(1, np.uint64)
        self.count(array, first, array.size, added, wrong)
        raise_if_wrong(wrong.get().tolist(), array.size, "buffer")

    def count(self, array: Any, first: int, worked: int, added: int, wrong: Any) -> None:
        """Add to the device array `wrong` how many elements of `array` are not what they must be.

        That is the pattern from position `first` on, plus `added` in the first `worked` elements.
        """
        import numpy as np

        arguments = (
            array,
            np.uint64(first),
            np.uint32(array.size),
            np.uint32(worked),
            np.float32(added),
            wrong,
        )
        self._check((-(-array.size // _THREADS),), (_THREADS,), arguments)


def raise_if_wrong(counts: Sequence[int], total: int, part: str) -> None:
    """End the run if any of the `counts`, one a `part` of all `total` elements, is not 0.

    Raises
    ------
    ProgramError
        One is not; the message begins with :data:`WRONG_DATA`.
    """
    bad = [index for index, count in enumerate(counts) if count]
    if bad:
        raise ProgramError(
            f"{WRONG_DATA}: {sum(counts)} of {total} elements differ from what the passes "
            f"must leave, in {len(bad)} of {len(counts)} {part}s (first: {part} {bad[0]}). "
            "No figures are given."
        )
