"""What an analyzer cannot look at, in words; findings that save the same time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpuscope import api, samples
from gpuscope.analysis import Analyzer, Options, missing_tables, run_all
from gpuscope.analyzers import ANALYZERS, overlap
from gpuscope.intervals import length, union
from gpuscope.model import codec
from gpuscope.model.result import Finding, Result
from tests.make_trace import make_trace

LAUNCHED = make_trace(kernels=[(0, 10, "s1")])


def test_a_program_that_was_killed_is_told_from_a_recording_without_cuda() -> None:
    no_work = dataclasses.replace(LAUNCHED, operations=None)
    nothing = dataclasses.replace(no_work, api=None)

    assert missing_tables(overlap.ANALYZER, LAUNCHED) is None
    assert "was killed before the profiler had it" in str(missing_tables(overlap.ANALYZER, no_work))
    assert "record with -t cuda" in str(missing_tables(overlap.ANALYZER, nothing))


def finding(
    id: str,
    saving_ns: int | None,
    range: str = "step",
    held: Sequence[tuple[int, int]] = (),
    **evidence: Any,
) -> Finding:
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
        held=(np.array([a for a, _ in held]), np.array([b for _, b in held])) if held else None,
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


def test_the_same_time_is_saved_once_however_far_the_limit_is() -> None:
    a = finding("a", 20, held=[(0, 10), (30, 40)], held_ns=20, limit_ns=100)
    b = finding("b", 15, held=[(5, 15), (35, 40)], held_ns=15, limit_ns=100)
    assert together(a, b)["a"] == {"with": ["b"], "at_most_ns": 25}
    # Another repair saves 7 in the same time, and 3 that lie in no time that it names.
    c = finding("c", 10, held=[(0, 7)], held_ns=7)
    assert together(a, c)["c"] == {"with": ["a"], "at_most_ns": 23}
    # Of one nothing is known but how much it saves.
    d = finding("d", 4, held_ns=4)
    assert together(a, b, d)["d"] == {"with": ["a", "b"], "at_most_ns": 29}
    assert together(a, d) == {}
    # Other times, and one that was held up for longer than its repair can save.
    assert together(a, finding("e", 15, held=[(10, 25)], held_ns=15, limit_ns=100)) == {}
    assert together(a, finding("f", 5, held=[(0, 40)], held_ns=40, limit_ns=100)) == {}


def test_the_time_that_a_finding_names_is_in_no_answer() -> None:
    found = Analyzer("made", "", (), lambda *_: Result(findings=(finding("a", 5, held=[(0, 5)]),)))
    (told,) = run_all(LAUNCHED, [found], Options()).findings
    assert told.held is None
    assert "held" not in codec.to_jsonable(told)


@pytest.mark.parametrize(
    "name",
    ["comm_after_compute", "connections_limit", "event_dependency", "gpu_full", "host_busy",
     "host_func", "host_read", "issue_order", "jacobi_mpi_blocking_r1", "malloc",
     "null_stream_work", "p2p_one_stream_run", "pageable", "sync", "synchronous_copy", "training"],
)  # fmt: skip
def test_what_was_held_up_is_as_long_as_is_told(name: str) -> None:
    trace = api.open_trace(samples.path(name))
    found = [
        each
        for analyzer in ANALYZERS
        if missing_tables(analyzer, trace) is None
        for each in analyzer.run(trace, Options()).findings
        if each.held is not None
    ]
    assert found
    for each in found:
        assert each.held is not None
        told_ns = each.evidence.get("held_ns", each.evidence.get("exposed_ns"))
        assert length(union(*each.held)) == told_ns, each.id


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
