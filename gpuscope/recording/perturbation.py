"""How much a profiler changed the times of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuscope.recording.display import Display

PERTURBED_RATIO = 0.1
"""A pass whose median changes by more than this under the profiler is flagged."""


def find(untraced: Mapping[str, Any] | None, traced: Mapping[str, Any]) -> dict[str, float]:
    """Return the passes whose median changed too much under the profiler, and by what ratio.

    `untraced` and `traced` are results of the same benchmark; 0.25 is a quarter longer.
    """
    before = (untraced or {}).get("passes") or {}
    changes = {
        name: row["median_ns"] / before[name]["median_ns"] - 1
        for name, row in traced["passes"].items()
        if name in before and before[name]["median_ns"]
    }
    return {name: change for name, change in changes.items() if abs(change) > PERTURBED_RATIO}


def say(changes: Mapping[str, float], display: Display) -> None:
    """Tell the user."""
    for name, ratio in changes.items():
        display.say(
            f"perturbed: {name} took {abs(ratio):.0%} {'longer' if ratio > 0 else 'less'} "
            "under the profiler; the times shown are the untraced ones"
        )
