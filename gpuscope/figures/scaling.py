"""How a benchmark's work grows with its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RANKS = "ranks"
"""The number of ranks: no option of a benchmark, and yet to be swept."""


def scaling(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[float, float]] | None:
    """Return what each number of ranks does, against the first: the factor, and the efficiency.

    The factor is that of the updates per second. Per rank it is the efficiency: the same for a
    grid that stays (strong scaling) and one that grows with the ranks (weak scaling). None for a
    benchmark that counts no updates.
    """
    rates = [result["figures"].get("updates_per_s") for _, result in rows]
    if None in rates:
        return None
    factors = [rate / rates[0] for rate in rates]
    more = [int(value) / int(rows[0][0]) for value, _ in rows]
    return [(factor, factor / ranks) for factor, ranks in zip(factors, more, strict=True)]
