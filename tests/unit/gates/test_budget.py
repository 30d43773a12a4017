"""Budgets: read with errors that say where, and proposed so that twins fail them."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.errors import CannotJudgeError, UsageError
from gpuscope.gates.budget import propose, quoted, read_budget
from gpuscope.gates.grammar import Bound, parse
from gpuscope.gates.verify import CAUSES, verify
from gpuscope.model.trace import Trace
from tests.make_trace import make_trace


def shipped(name: str) -> Trace:
    return api.open_trace(samples.path(name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expect = [", r"b\.toml is no TOML"),
        ('schema_version = 1\nexpct = ["span < 1s"]', "unknown key 'expct'"),
        ('expect = ["span < 1s"]', "needs the line schema_version = 1"),
        ('schema_version = 2\nexpect = ["span < 1s"]', "needs the line schema_version = 1"),
        ("schema_version = 1", "at least one expectation"),
        ("schema_version = 1\nexpect = []", "at least one expectation"),
        ("schema_version = 1\nexpect = [1]", "at least one expectation"),
        ('schema_version = 1\nexpect = "span < 1s"', "at least one expectation"),
        ('schema_version = 1\nattribute = "all"\nexpect = ["span < 1s"]', "'thread' or 'process'"),
        ('schema_version = 1\nexpect = ["span < 1"]', r"b\.toml: span is a time.*\(column 9\)"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_budget(text, "b.toml")


def test_what_a_budget_says() -> None:
    budget = read_budget(
        'schema_version = 1\nattribute = "process"\nexpect = ["span < 1s", "no host-sync"]',
        "b.toml",
    )

    assert budget.attribute == "process"
    assert [each.text for each in budget.expectations] == ["span < 1s", "no host-sync"]
    assert {each.source for each in budget.expectations} == {"b.toml"}


def test_the_good_run_of_streams_gives_the_budget_that_it_meets() -> None:
    trace = shipped("streams_run")
    text = propose([trace], [Options()], times=True)

    expect = tomllib.loads(text)["expect"]
    assert expect[:9] == [
        "streamed: overlap(d2h, h2d) >= 71.1 %",  # 76.2 % measured
        "streamed: verdict(d2h, h2d) != immaterial",
        "streamed: overlap(d2h, kernel) >= 82.2 %",  # 87.3 %
        "streamed: verdict(d2h, kernel) != immaterial",
        "streamed: overlap(h2d, kernel) >= 82.4 %",  # 87.5 %
        "streamed: verdict(h2d, kernel) != immaterial",
        "streamed: span <= 35624 us",  # 32.39 ms
        "streamed: rate(h2d) >= 46.59 GB/s",  # 51.8 GB/s
        "streamed: rate(d2h) >= 46.11 GB/s",  # 51.2 GB/s
    ]
    assert "|same-stream|" in expect[9]
    assert expect[9].endswith(" in streamed")
    assert "mpi-blocking" not in expect[9]  # it could not look
    budget = read_budget(text, "b.toml")
    assert verify([trace], budget.expectations, [Options()]).exit_code == 0


@pytest.mark.parametrize("twin", ["pageable", "default", "sync", "malloc", "tiny"])
def test_what_breaks_the_pipeline_fails_the_budget_of_the_good_one(twin: str) -> None:
    good = shipped("pinned")
    name = "good"
    budget = read_budget(propose([good], [Options()]), "b.toml")
    # The recordings name their outermost range after the variant.
    trace = renamed(shipped(twin), twin, name)

    assert verify([good], budget.expectations, [Options()]).exit_code == 0
    done = verify([trace], budget.expectations, [Options()])
    assert done.exit_code == 4
    assert False in {row.met for row in done.rows if "in good" not in row.expectation}


def renamed(trace: Trace, old: str, new: str) -> Trace:
    assert old in trace.strings
    return dataclasses.replace(
        trace, strings=tuple(new if text == old else text for text in trace.strings)
    )


def test_of_several_repetitions_the_worst_counts() -> None:
    runs = [pipeline(80), pipeline(70)]

    (line,) = [line for line in expectations(runs) if "overlap(" in line]

    assert line == "a: overlap(h2d, kernel) >= 65 %"


def test_instances_that_scatter_widen_the_margin() -> None:
    (line,) = [line for line in expectations([pipeline(80, 90, 65)]) if "overlap(" in line]
    bound = parse(line, CAUSES)

    assert isinstance(bound, Bound)
    # 78.3 % less 5 × 1.4826 × 10 points; 5 points would leave 73.3 %
    assert bound.limit == 0.042


def test_work_that_hides_under_other_instances_is_bounded_as_such() -> None:
    kernels = [(1000 * i, 1000 * i + 900, "s7", {"launch": 1000 * i}) for i in range(60)]
    h2d = [(1000 * i + 1000, 1000 * i + 1801, "s8", {"launch": 1000 * i + 1}) for i in range(59)]
    ranges = [("a", 1000 * i, 1000 * i + 999) for i in range(60)]
    ten = 10
    trace = make_trace(
        kernels=[(a * ten, b * ten, s, {"launch": e["launch"] * ten}) for a, b, s, e in kernels],
        h2d=[(a * ten, b * ten, s, {"launch": e["launch"] * ten}) for a, b, s, e in h2d],
        ranges=[(n, a * ten, b * ten) for n, a, b in ranges],
    )

    assert "a: hidden_any(h2d, kernel) >= 95 %" in expectations([trace])


def pipeline(*hidden_us: int) -> Trace:
    """Instances of `a` in which so many of 100 µs of h2d lie under a kernel of 200 µs."""
    us = 1000
    starts = [1000 * us * number for number in range(len(hidden_us))]
    return make_trace(
        kernels=[(at, at + 200 * us, "s7") for at in starts] + [(90_000_001, 90_000_002, "s7")],
        h2d=[
            (at + (200 - hidden) * us, at + (300 - hidden) * us, "s8", {"launch": at})
            for at, hidden in zip(starts, hidden_us, strict=True)
        ],
        ranges=[("a", at, at + 500 * us) for at in starts],
    )


def expectations(runs: list[Trace]) -> list[str]:
    expect: list[str] = tomllib.loads(propose(runs, [Options()] * len(runs)))["expect"]
    return expect


def test_a_run_without_overlap_gives_no_budget() -> None:
    with pytest.raises(CannotJudgeError, match="no range gives a budget"):
        propose([pipeline(0)], [Options()])
    with pytest.raises(CannotJudgeError, match="no NVTX ranges"):
        propose([dataclasses.replace(pipeline(80), ranges=None)], [Options()])


def test_ranges_nested_in_one_that_is_bounded_are_left_to_it() -> None:
    expect = expectations([shipped("pinned")])

    assert {line.partition(":")[0] for line in expect[:-1]} == {"good"}


def test_a_range_that_cannot_be_judged_is_left_out_and_named() -> None:
    trace = shipped("healthy")

    text = propose([trace], [Options()])

    assert "# Left out: threads: other threads launched 47.8 % of the work" in text
    assert not any(line.startswith("threads:") for line in tomllib.loads(text)["expect"])


def test_a_doubtful_run_gives_no_budget() -> None:
    with pytest.raises(CannotJudgeError, match="damaged"):
        propose([dataclasses.replace(pipeline(80), damaged={"kernels": 9})], [Options()])


@pytest.mark.parametrize(
    "name", ["step", "a b", "gs:iter", 'say "hi"', "back\\slash", "a[0]", "a*", "50 %", "x?", "é µ"]
)
def test_proposed_names_mean_just_that_range(name: str) -> None:
    from gpuscope.scopes import matches

    parsed = parse(f"{quoted(name)}: span < 1s", CAUSES)

    assert parsed.scope.pattern is not None
    assert matches(name, [parsed.scope.pattern])
    assert not matches(name + "0", [parsed.scope.pattern])


def test_names_with_control_characters_stay_inside_their_string(tmp_path: Path) -> None:
    trace = renamed(pipeline(80), "a", "a\n]'\x1b[31m")

    expect = tomllib.loads(propose([trace], [Options()]))["expect"]

    assert "a\n]'\x1b[[]31m" in expect[0]
    assert "\x1b" not in propose([trace], [Options()])
