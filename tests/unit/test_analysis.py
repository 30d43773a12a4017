"""What an analyzer cannot look at, in words; findings that save the same time."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpuscope.analysis import Analyzer, Options, missing_tables, run_all
from gpuscope.analyzers import overlap
from gpuscope.model.result import Finding, Result
from tests.make_trace import make_trace

LAUNCHED = make_trace(kernels=[(0, 10, "s1")])


def test_a_program_that_was_killed_is_told_from_a_recording_without_cuda() -> None:
    no_work = dataclasses.replace(LAUNCHED, operations=None)
    nothing = dataclasses.replace(no_work, api=None)

    assert missing_tables(overlap.ANALYZER, LAUNCHED) is None
    assert "was killed before the profiler had it" in str(missing_tables(overlap.ANALYZER, no_work))
    assert "record with -t cuda" in str(missing_tables(overlap.ANALYZER, nothing))


def finding(id: str, saving_ns: int | None, range: str = "step", **evidence: Any) -> Finding:
    return Finding(
        id=id,
        severity="warning",
        process=1,
        device=0,
        range=range,
        claim="it waits",
        mechanism="seen",
        removable="unknown",
        evidence=evidence,
        advice="wait once",
        saving_ns=saving_ns,
    )


def together(*findings: Finding) -> dict[str, Any]:
    """Return what is said of the findings together, by cause."""
    found = Analyzer("made", "", (), lambda trace, options: Result(findings=findings))
    told = run_all(LAUNCHED, [found], Options()).findings
    return {each.id: each.evidence["together"] for each in told if "together" in each.evidence}


def test_savings_of_one_range_that_come_to_more_than_its_limit_are_told_together() -> None:
    a = finding("a", 8, limit_ns=10)
    b = finding("b", 3, held_ns=3)

    assert together(a, b) == {
        "a": {"with": ["b"], "at_most_ns": 10},
        "b": {"with": ["a"], "at_most_ns": 10},
    }
    c = finding("c", 12, held_ns=12, limit_ns=12)
    assert together(a, b, c)["b"] == {"with": ["a", "c"], "at_most_ns": 12}


def test_savings_that_add_up_are_told_apart() -> None:
    a = finding("a", 8, limit_ns=10)

    assert together(a, finding("b", 2, held_ns=2)) == {}
    assert together(a, finding("b", None, held_ns=5)) == {}
    assert together(a, finding("b", 3, range="other", held_ns=3)) == {}
    # The same name on another level of ranges.
    assert together(a, finding("b", 3, held_ns=3, window_ns=[0, 1])) == {}
    # What makes work itself shorter is no overlap, and without a limit nothing is known.
    assert together(a, finding("b", 3)) == {}
    assert together(finding("a", 8, held_ns=8), finding("b", 3, held_ns=3)) == {}
