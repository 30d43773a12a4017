"""Sizes: how options name them, how large a chunk is, what fits, how long a kernel runs. Pure."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

from gpuscope.errors import ProgramError, UsageError
from gpuscope.units import NS_PER_MS, NS_PER_S, format_bytes, format_ns

MIB = 1 << 20
TARGET_COPY_NS = 3 * NS_PER_MS
MIN_CHUNK_BYTES = 16 * MIB
MAX_CHUNK_BYTES = 256 * MIB
CHUNK_STEP_BYTES = 16 * MIB
DEVICE_MEMORY_RATIO = 0.25
HOST_MEMORY_RATIO = 0.12
KERNEL_TOLERANCE_RATIO = 0.10
_MAX_TRIALS = 8
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def positive_int(text: str) -> int:
    """Read a whole number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def positive_float(text: str) -> float:
    """Read a number above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def size_argument(text: str) -> int:
    """Read a size such as ``64M``, for argparse; K, M and G are powers of 1024."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or (unit and unit not in _SUFFIXES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write it like 64M")
    size_bytes = int(number) * _SUFFIXES.get(unit, 1)
    if size_bytes < 4 or size_bytes % 4:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 4-byte elements")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """Write a size as ``--size`` takes it: ``format_size(167772160) == '160M'``."""
    for suffix, unit in reversed(_SUFFIXES.items()):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{suffix}"
    return str(size_bytes)


def chunk_bytes(probe_bytes: int, probe_ns: int) -> int:
    """Return the chunk size whose copy takes about 3 ms, from one copy's size and time.

    In steps of 16 MiB, from 16 to 256 MiB.
    """
    wanted = probe_bytes * TARGET_COPY_NS / probe_ns
    steps = round(wanted / CHUNK_STEP_BYTES)
    return min(MAX_CHUNK_BYTES, max(MIN_CHUNK_BYTES, steps * CHUNK_STEP_BYTES))


def memory_limit_bytes(
    *, device_free: int, host_free: int, device_buffers: int, host_buffers: int
) -> int:
    """Return the largest chunk for which the buffers stay within their share of free memory.

    That is 25 % of the device's and 12 % of the host's.
    """
    return min(
        int(device_free * DEVICE_MEMORY_RATIO) // device_buffers,
        int(host_free * HOST_MEMORY_RATIO) // host_buffers,
    )


def fit_chunk(size_bytes: int, limit_bytes: int) -> int:
    """Halve a chunk size until it is within `limit_bytes`.

    Raises
    ------
    UsageError
        Not even 1 MiB fits.
    """
    while size_bytes > limit_bytes and size_bytes >= 2 * MIB:
        size_bytes //= 2
    if size_bytes > limit_bytes:
        raise UsageError(
            f"not enough free memory: a buffer may have {format_bytes(limit_bytes)} at most. "
            "Use fewer --chunks (or --cycles), or end what else holds memory."
        )
    return size_bytes


def check_chunk(size_bytes: int, limit_bytes: int) -> None:
    """Refuse a chunk size that the user chose and that does not fit, naming one that does."""
    if size_bytes > limit_bytes:
        fitting = format_size(fit_chunk(size_bytes, limit_bytes) // 4 * 4)
        raise UsageError(
            f"buffers of {format_bytes(size_bytes)} do not fit: they may take 25 % of the free "
            f"device memory and 12 % of the host's, {format_bytes(limit_bytes)} each: "
            f"use `--size {fitting}`."
        )


def shrink_to_fit(size_bytes: int, limit_bytes: int, notes: list[str]) -> int:
    """Return the size, halved until it fits; if it had to be, that is added to the `notes`."""
    fitting_bytes = fit_chunk(size_bytes, limit_bytes)
    if fitting_bytes < size_bytes:
        notes.append(
            f"buffers were shrunk from {format_size(size_bytes)} to {format_size(fitting_bytes)} "
            "to fit the memory"
        )
    return fitting_bytes


def chosen_bytes(asked: int | None, default: int, limit_bytes: int, notes: list[str]) -> int:
    """Return the size of a buffer: `asked` if that fits, else the default, halved until it does.

    If it had to be halved, that is added to the `notes`.
    """
    if asked is None:
        return shrink_to_fit(default, limit_bytes, notes)
    check_chunk(asked, limit_bytes)
    return asked


def calibrate_steps(measure_ns: Callable[[int], int], target_ns: int, max_steps: int) -> int:
    """Find the number of kernel steps that lasts `target_ns`, within 10 %.

    A kernel's time is taken as fixed cost plus a cost a step: each trial corrects that line by
    the last two measurements.

    Parameters
    ----------
    measure_ns
        Duration of the kernel with a number of steps.
    target_ns
        Wanted duration.
    max_steps
        Largest number of steps to try.

    Raises
    ------
    ProgramError
        No number of steps came within the tolerance (times too unsteady).
    """
    tried: dict[int, int] = {}
    steps = min(1024, max_steps)
    for _ in range(_MAX_TRIALS):
        tried[steps] = measure_ns(steps)
        if abs(tried[steps] - target_ns) <= KERNEL_TOLERANCE_RATIO / 3 * target_ns:
            return steps
        others = [known for known in tried if known != steps and tried[known] != tried[steps]]
        if others:
            slope_ns = (tried[steps] - tried[others[-1]]) / (steps - others[-1])
        else:
            slope_ns = tried[steps] / steps
        wanted = steps + (target_ns - tried[steps]) / slope_ns if slope_ns > 0 else 2 * steps
        wanted = min(max_steps, max(1, round(wanted)))
        if wanted in tried:
            break
        steps = wanted
    best = min(tried, key=lambda known: abs(tried[known] - target_ns))
    if abs(tried[best] - target_ns) > KERNEL_TOLERANCE_RATIO * target_ns and 1 < best < max_steps:
        raise ProgramError(
            f"the kernel's time would not settle near {target_ns / NS_PER_MS:.2f} ms: is another "
            "program using the GPU? `--kernel-steps N` skips the calibration."
        )
    return best


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a kernel was calibrated to: to last ``ratio`` times a copy that took ``copy_ns``."""

    ratio: float
    copy_ns: int

    @property
    def target_ns(self) -> int:
        """How long the kernel was to last."""
        return round(self.ratio * self.copy_ns)

    def remarks(self, kernel_ns: int, copy_ns: int) -> list[str]:
        """Say so if by the times at the end the kernel does not last as long as it was to."""
        reached = kernel_ns / copy_ns
        if abs(reached - self.ratio) <= KERNEL_TOLERANCE_RATIO * self.ratio:
            return []
        return [
            f"the kernel lasts {reached:.2f} times the copy, not {self.ratio:g} times: the copy "
            f"took {format_ns(self.copy_ns)} when the kernel was calibrated, "
            f"{format_ns(copy_ns)} at the end"
        ]


def rate_bytes_per_s(size_bytes: int, time_ns: int | None) -> float | None:
    """Return bytes over time; None where the time is unknown."""
    return size_bytes * NS_PER_S / time_ns if time_ns else None
