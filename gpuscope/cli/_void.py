"""What a command ends with when the times of a benchmark must not be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuscope.errors import CannotJudgeError

MARK = "void"
"""Stands beside every time that must not be used."""


def find_void(results: Mapping[str, Mapping[str, Any]]) -> CannotJudgeError | None:
    """Return the error that void times are; None where all may be used.

    `results` are results of benchmarks, by what tells the runs apart.
    """
    void = {name: result["notes"] for name, result in results.items() if not result["valid"]}
    if not void:
        return None
    reasons = "; ".join(dict.fromkeys(note for notes in void.values() for note in notes))
    return CannotJudgeError(
        f"the times of {', '.join(void)} are {MARK} and must not be used: {reasons}. Run it again "
        "when nothing else uses the GPU, or with less work; verdicts on a trace stand."
    )
