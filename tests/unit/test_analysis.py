"""What an analyzer cannot look at, in words."""

from __future__ import annotations

import dataclasses

from gpuscope.analysis import missing_tables
from gpuscope.analyzers import overlap
from tests.make_trace import make_trace

LAUNCHED = make_trace(kernels=[(0, 10, "s1")])


def test_a_program_that_was_killed_is_told_from_a_recording_without_cuda() -> None:
    no_work = dataclasses.replace(LAUNCHED, operations=None)
    nothing = dataclasses.replace(no_work, api=None)

    assert missing_tables(overlap.ANALYZER, LAUNCHED) is None
    assert "was killed before the profiler had it" in str(missing_tables(overlap.ANALYZER, no_work))
    assert "record with -t cuda" in str(missing_tables(overlap.ANALYZER, nothing))
