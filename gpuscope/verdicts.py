"""Verdicts: from the sums of a pair in a scope to one word and its reason."""

from __future__ import annotations

from dataclasses import dataclass

OVERLAPPED_RHO = 0.60
"""From this rho on, a pair overlaps."""
OVERLAPPED_SHARE = 0.90
"""Share of the instances that must reach OVERLAPPED_RHO."""
SERIALIZED_RHO = 0.15
"""Below this rho, a pair is serialized."""
MATERIAL_SHARE = 0.05
"""A class busy for less than this share of the scope's busy time is immaterial."""
MIN_INSTANCE_BUSY_NS = 5_000
"""Both classes must be busy this long in an instance for it to count."""
MIN_BUSY_NS = 20_000
"""Both classes must be busy this long in all."""


@dataclass(frozen=True, slots=True)
class PairSums:
    """What a verdict is made from: a pair of classes or links in one scope, times in ns."""

    a: str
    b: str
    busy_a: int
    busy_b: int
    overlap: int
    scope_busy: int
    a_under: int
    """Time of the scope's a under any b of the device."""
    b_under: int
    limit: float | None
    """Largest ratio the schedule allows; None: not judged."""
    uncertainty: int
    counting: int
    """Instances in which both are busy long enough."""
    good: dict[int, int]
    """Of these, the ones that overlap, with the overlap as measured (0) and at the ends of its
    uncertainty (-1, 1)."""
    is_range: bool

    def rho(self, bias: int = 0) -> float | None:
        """Return min(1, ratio / limit), the overlap moved by `bias` times its uncertainty."""
        smaller = min(self.busy_a, self.busy_b)
        if not smaller or not self.limit:
            return None
        overlap = max(0, self.overlap + bias * self.uncertainty)
        return min(1.0, overlap / smaller / self.limit)

    def beyond(self) -> float:
        """Return the share of the smaller class that lies under any of the other class."""
        if self.busy_a <= self.busy_b:
            return self.a_under / self.busy_a
        return self.b_under / self.busy_b


def judge(sums: PairSums, trouble: str | None = None) -> tuple[str, str]:
    """Return the verdict on a pair and its reason in words; `trouble` makes it inconclusive."""
    if trouble is not None:
        return "inconclusive", trouble
    if sums.limit is None:
        return "inconclusive", "the schedule allows too little overlap of these to be judged"
    smaller = sums.a if sums.busy_a <= sums.busy_b else sums.b
    least = min(sums.busy_a, sums.busy_b)
    if least < MIN_BUSY_NS:
        return "inconclusive", (
            f"{smaller} is busy for only {least / 1000:.1f} µs, under the "
            f"{MIN_BUSY_NS / 1000:.0f} µs that a verdict takes"
        )
    if not sums.counting:
        return "inconclusive", (
            f"no instance has both busy for {MIN_INSTANCE_BUSY_NS / 1000:.0f} µs"
        )
    verdict, reason = _decide(sums, smaller, least, 0)
    if any(_decide(sums, smaller, least, bias)[0] != verdict for bias in (-1, 1)):
        return "inconclusive", (
            f"the clock's steps leave {sums.uncertainty} ns open, enough to change the verdict"
        )
    return verdict, reason


def _decide(sums: PairSums, smaller: str, least: int, bias: int) -> tuple[str, str]:
    other = sums.b if smaller == sums.a else sums.a
    if least < MATERIAL_SHARE * sums.scope_busy:
        share = 100 * least / sums.scope_busy
        return "immaterial", f"{smaller} is busy for only {share:.1f} % of the busy time"
    rho = sums.rho(bias) or 0.0
    of_limit = "" if sums.limit == 1 else f" of the {100 * (sums.limit or 0):.1f} % possible"
    ratio = 100 * sums.overlap / least
    runs = f"{ratio:.1f} %{of_limit} of {smaller} runs under {other}"
    share_good = sums.good[bias] / sums.counting
    if rho >= OVERLAPPED_RHO and share_good >= OVERLAPPED_SHARE:
        return "overlapped", runs
    beyond = sums.beyond()
    if sums.is_range and beyond >= OVERLAPPED_RHO:
        own = f"only {ratio:.1f} % in the same instance"
        if rho >= OVERLAPPED_RHO:
            own = f"but only {sums.good[bias]} of {sums.counting} instances overlap by themselves"
        return "pipelined", f"{100 * beyond:.1f} % of {smaller} runs under any {other}, {own}"
    if rho < SERIALIZED_RHO and beyond < SERIALIZED_RHO:
        return "serialized", runs if sums.overlap else f"no {smaller} runs under {other}"
    if rho >= OVERLAPPED_RHO:
        missing = f"only {sums.good[bias]} of {sums.counting} instances overlap"
        return "partial", f"{runs}, but {missing}"
    if rho < SERIALIZED_RHO:
        return "partial", f"{runs} in the same instance, {100 * beyond:.1f} % in any"
    return "partial", f"{runs}: less than {100 * OVERLAPPED_RHO:.0f} % of what is possible"
