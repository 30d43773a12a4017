"""How the process gets its memory from the system."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""Numbers of mallopt(3)'s parameters, from glibc's malloc.h."""

_STEP_BYTES = 1 << 27
"""Memory asked for at once."""


def keep_freed() -> None:
    """Have memory that is freed stay in the process, to be used again; with glibc only.

    Arrays come and go by the hundred in an analysis. glibc gives each large one back to the system
    at once, and asks for fresh pages for the next: that took as long as half of the computing. A
    process that lives on with little to do should not call it.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_TOP_PAD, _STEP_BYTES)
        mallopt(_ARENA_MAX, 1)
