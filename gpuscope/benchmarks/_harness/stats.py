"""Statistics of repeated times, and the rules about warm-up and drift. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscope.units import NS_PER_MS, NS_PER_S

Interval = tuple[int, int]
"""Start and end, in ns."""

MIN_WARM_UPS = 5
WARM_AGREEMENT = 0.02
MIN_WARM_UP_NS = 500 * NS_PER_MS
MAX_WARM_UP_NS = 2 * NS_PER_S
MAX_CLOCK_DRIFT = 0.02
_WINDOW = 3


@dataclass(frozen=True, slots=True)
class Statistics:
    """Times of one pass, one a repetition, and their summary, all in integer ns."""

    times_ns: tuple[int, ...]
    median_ns: int
    p10_ns: int
    p90_ns: int
    min_ns: int
    max_ns: int
    mad_ns: int
    n: int

    @classmethod
    def of(cls, times_ns: Sequence[int]) -> Statistics:
        """Summarise at least one time; quantiles are interpolated between neighbours."""
        median = statistics.median(times_ns)
        return cls(
            times_ns=tuple(times_ns),
            median_ns=round(median),
            p10_ns=round(quantile(times_ns, 0.1)),
            p90_ns=round(quantile(times_ns, 0.9)),
            min_ns=min(times_ns),
            max_ns=max(times_ns),
            mad_ns=round(statistics.median(abs(time - median) for time in times_ns)),
            n=len(times_ns),
        )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the sorted `values` lies."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def relative_spread(values: Sequence[float]) -> float:
    """Return (max − min) / median, 0 for equal values."""
    return (max(values) - min(values)) / statistics.median(values)


def is_warm(times_ns: Sequence[int], elapsed_ns: int) -> bool:
    """Say whether the warm-up may end after these iterations.

    It takes at least five iterations and half a second of load, and ends when the last three
    medians, each over three iterations, agree within 2 %; or after two seconds in any case.

    Parameters
    ----------
    times_ns
        Duration of each iteration so far.
    elapsed_ns
        Time since the first one began.
    """
    if len(times_ns) < MIN_WARM_UPS:
        return False
    if elapsed_ns >= MAX_WARM_UP_NS:
        return True
    ends = range(len(times_ns) - 2, len(times_ns) + 1)
    medians = [statistics.median(times_ns[end - _WINDOW : end]) for end in ends]
    return elapsed_ns >= MIN_WARM_UP_NS and relative_spread(medians) <= WARM_AGREEMENT


def is_steady(times: Statistics) -> bool:
    """Say whether the times of a pass lie so close together that no clock can have changed them.

    Those of its first and of its last half must be alike as well: a clock that moves steadily
    leaves most times close to the median. Of three times or fewer that cannot be told.
    """
    half = max(_WINDOW, (times.n + 1) // 2)
    halves = [statistics.median(part) for part in (times.times_ns[:half], times.times_ns[-half:])]
    close = times.mad_ns <= WARM_AGREEMENT * times.median_ns
    return close and relative_spread(halves) <= WARM_AGREEMENT


def contended_median_ns(own: Sequence[Interval], other: Sequence[Interval]) -> int | None:
    """Return the median duration of those of `own` that ran wholly while `other` was at work.

    ::

        own    [--A--][--B--][--C--][--D--]
        other     [---][---][---][---]           B and C count

    None where none did.
    """
    start = min(begin for begin, _ in other)
    end = max(stop for _, stop in other)
    inside = [stop - begin for begin, stop in own if start <= begin and stop <= end]
    return round(statistics.median(inside)) if inside else None


@dataclass(frozen=True, slots=True)
class MessageFit:
    """The time of a message as T = α + n/β, n its bytes.

    ``beta_bytes_per_s`` is None where time does not grow with size. ``worst_ratio`` is the
    largest distance of a measured time from the fitted one, over the fitted one.
    """

    alpha_ns: float
    beta_bytes_per_s: float | None
    worst_ratio: float

    @property
    def half_bytes(self) -> float | None:
        """The size at which half of β is reached: α·β."""
        beta = self.beta_bytes_per_s
        return None if beta is None else self.alpha_ns * beta / NS_PER_S


def fit_messages(times_ns: Mapping[int, float]) -> MessageFit | None:
    """Fit T = α + n/β to times by size in bytes, by least squares; None for fewer than 3 sizes."""
    if len(times_ns) < 3:
        return None
    mean_bytes = statistics.fmean(times_ns)
    mean_ns = statistics.fmean(times_ns.values())
    spread = sum((size - mean_bytes) ** 2 for size in times_ns)
    together = sum((size - mean_bytes) * (time - mean_ns) for size, time in times_ns.items())
    slope_ns = together / spread
    alpha_ns = mean_ns - slope_ns * mean_bytes
    fitted = {size: alpha_ns + slope_ns * size for size in times_ns}
    return MessageFit(
        alpha_ns=alpha_ns,
        beta_bytes_per_s=NS_PER_S / slope_ns if slope_ns > 0 else None,
        worst_ratio=max(abs(times_ns[size] / fit - 1) for size, fit in fitted.items()),
    )
