"""How a benchmark's work grows with its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

RANKS = "ranks"
"""The number of ranks: no option of a benchmark, and yet to be swept."""

Rows: TypeAlias = Sequence[tuple[tuple[str, ...], Mapping[str, Any]]]
"""Of each run the value of every option that is swept, and the benchmark's result."""


def scaling(options: Sequence[str], rows: Rows) -> list[tuple[float, float]] | None:
    """Return what each number of ranks does, against the first: the factor, and the efficiency.

    Where another option is swept too, the first number of ranks is that with the same value of it.
    The factor is that of the updates per second. Per rank it is the efficiency: the same for a
    grid that stays (strong scaling) and one that grows with the ranks (weak scaling). None for a
    sweep of other options, and for a benchmark that counts no updates.
    """
    rates = [result["figures"].get("updates_per_s") for _, result in rows]
    if RANKS not in options or None in rates:
        return None
    at = options.index(RANKS)
    first: dict[tuple[str, ...], tuple[int, float]] = {}
    found = []
    for (values, _), rate in zip(rows, rates, strict=True):
        ranks = int(values[at])
        first_ranks, first_rate = first.setdefault(_others(values, at), (ranks, rate))
        factor = rate / first_rate
        found.append((factor, factor * first_ranks / ranks))
    return found


def scaling_void(options: Sequence[str], rows: Rows) -> list[bool]:
    """Return of each factor whether the run, or the first that it is held against, is void."""
    at = options.index(RANKS)
    valid = [bool(result["valid"]) for _, result in rows]
    first: dict[tuple[str, ...], bool] = {}
    for (values, _), own in zip(rows, valid, strict=True):
        first.setdefault(_others(values, at), own)
    return [
        not (own and first[_others(values, at)])
        for (values, _), own in zip(rows, valid, strict=True)
    ]


def scaling_kind(rows: Rows) -> str:
    """Name what happens to the grid as there are more ranks."""
    return "weak scaling" if rows[0][1]["options"].get("weak") else "strong scaling"


def bound_reached(result: Mapping[str, Any]) -> float | None:
    """Return the share of its bound that a step reaches; None for a benchmark without steps."""
    figures = result["figures"]
    if not figures.get("t_step_ns"):
        return None
    ratio: float = figures["t_lb_ns"] / figures["t_step_ns"]
    return ratio


def series_of(options: Sequence[str], rows: Rows, along: str) -> dict[str, list[int]]:
    """Return the rows, by place, that differ in the option `along` alone: a series for each rest.

    The name of a series has the values of the other options; it is empty where there is none.
    """
    at = options.index(along)
    others = _others(options, at)
    found: dict[str, list[int]] = {}
    for place, (values, _) in enumerate(rows):
        found.setdefault(label(others, _others(values, at)), []).append(place)
    return found


def label(options: Sequence[str], values: Sequence[str]) -> str:
    """Name a run by its values."""
    return ", ".join(f"{option} {value}" for option, value in zip(options, values, strict=True))


def _others(values: Sequence[str], at: int) -> tuple[str, ...]:
    return (*values[:at], *values[at + 1 :])
