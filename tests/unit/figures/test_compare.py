"""Traces of different runs on one clock."""

from __future__ import annotations

import pytest

from gpuscope.app.layout import notes
from gpuscope.app.state import Session
from gpuscope.errors import CannotJudgeError
from gpuscope.figures.compare import align, labelled
from gpuscope.figures.timeline import Timeline
from gpuscope.model.trace import Trace
from tests.make_trace import make_trace


def run(begin: int, step: int) -> Trace:
    """A first kernel at `begin`, and one in the range step, so long after it."""
    at = begin + step
    return make_trace(
        kernels=[(begin, begin + 10, "s7"), (at, at + 50, "s7"), (at + 200, at + 251, "s7")],
        ranges=[("train", begin, at + 300), ("step", at, at + 60), ("step", at + 190, at + 260)],
    )


def starts(traces: list[Trace], shifts_ns: tuple[int, ...]) -> list[list[int]]:
    return [
        [time + shift for time in trace.operations.start_ns.tolist()]  # type: ignore[union-attr]
        for trace, shift in zip(traces, shifts_ns, strict=True)
    ]


def test_by_default_their_first_operations_begin_at_zero() -> None:
    traces = [run(1000, 100), run(5000, 700)]

    alignment = align(traces)

    assert starts(traces, alignment.shifts_ns) == [[0, 100, 300], [0, 700, 900]]
    assert alignment.note == "The traces are aligned at their first operations."


def test_the_first_instances_of_a_range_begin_at_one_time_and_nothing_before_zero() -> None:
    traces = [run(1000, 100), run(5000, 700)]

    alignment = align(traces, "train/step")

    assert starts(traces, alignment.shifts_ns) == [[600, 700, 900], [0, 700, 900]]
    assert "the first instance of train/step" in alignment.note
    assert align(traces, "*step") == align(traces, "*step")
    assert align(traces, "*/step").shifts_ns == alignment.shifts_ns


def test_a_range_that_one_lacks_is_said() -> None:
    with pytest.raises(CannotJudgeError, match=r"path 'step' in made\.sqlite .*: align at another"):
        align([run(0, 100), run(0, 200)], "step")


def test_the_page_takes_the_clock_and_says_so() -> None:
    traces = [
        labelled(run(1000, 100), "before", "a"),
        labelled(run(5000, 700), "after", "b"),
    ]
    alignment = align(traces, "train/step")

    session = Session(traces, alignment=alignment)

    assert [placed.shift_ns for placed in session.timeline.placed] == list(alignment.shifts_ns)
    assert session.timeline.end_ns == 951
    assert {"before: a", "after: b"} <= {
        row.label.partition(" · ")[0] for row in session.timeline.rows
    }
    assert "aligned at the first instance of train/step" in str(notes(session))
    assert Timeline(traces).placed[0].shift_ns == -1000  # no clock is given
