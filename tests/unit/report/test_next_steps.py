"""What is proposed after a verdict."""

from __future__ import annotations

import pytest

from gpuscope import api, samples
from gpuscope.report.next_steps import next_steps
from tests.make_trace import make_trace

MS = 1_000_000


def commands(*names: str) -> list[str]:
    analyses = api.analyze([samples.path(name) for name in names])
    return [command for command, _ in next_steps(analyses, [f"{name}.sqlite" for name in names])]


@pytest.mark.parametrize(
    ("names", "proposed"),
    [
        (["pageable"], ["explain pageable.sqlite --range pageable", "view pageable.sqlite"]),
        # No pair was lost there, but the launches are late.
        (
            ["launch_bound"],
            ["explain launch_bound.sqlite --range launch_bound", "view launch_bound.sqlite"],
        ),
        (
            ["healthy"],
            ["view healthy.sqlite", "verify --record healthy.sqlite -o budget.toml"],
        ),
        (
            ["jacobi_same_stream_r0", "jacobi_same_stream_r1"],
            [
                "explain jacobi_same_stream_r0.sqlite jacobi_same_stream_r1.sqlite "
                "--range overlapped",
                "view jacobi_same_stream_r0.sqlite jacobi_same_stream_r1.sqlite",
            ],
        ),
    ],
)
def test_what_was_lost_is_explained_and_what_was_had_is_held(
    names: list[str], proposed: list[str]
) -> None:
    assert commands(*names) == [f"gpuscope {each}" for each in proposed]


def test_names_are_quoted_and_those_that_nobody_can_type_are_left_out() -> None:
    def of(name: str) -> str:
        trace = make_trace(
            kernels=[(0, 10 * MS, "s1"), (20 * MS, 30 * MS, "s1")],
            h2d=[(10 * MS, 20 * MS, "s2"), (30 * MS, 40 * MS, "s2")],
            ranges=[(name, 0, 40 * MS)],
        )
        return next_steps([api.analyze_trace(trace)], ["my trace.sqlite"])[0][0]

    assert of("a step") == "gpuscope explain 'my trace.sqlite' --range 'a step'"
    assert of("\x1b[31m") == "gpuscope explain 'my trace.sqlite'"
    assert next_steps([api.analyze_trace(make_trace())], ["empty.sqlite"]) == []
