import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from gpuscope.benchmarks._harness.result import (
    Expected,
    ExpectedPeak,
    Quantity,
    Result,
    chosen_options,
    pass_table,
    quantity_table,
    read_plan,
    write_result,
)
from gpuscope.benchmarks._harness.stats import Statistics
from gpuscope.errors import OutputError, UsageError


def make_result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "benchmark": "streams",
        "twin": None,
        "options": {"chunks": 8, "size_bytes": 1024},
        "repetitions": 2,
        "warmup": 5,
        "passes": {"streamed": Statistics.of([1_000_000, 3_000_000])},
        "baselines": {"streamed": "sequential"},
        "issued": {"streamed": Statistics.of([7_000, 9_000])},
        "stages": {"h2d_ns": 5, "h2d_contended_ns": None},
        "figures": {"speedup": 2.0},
        "quantities": (Quantity("copy in", 50e9, "bytes/s", 63e9, "the link"),),
        "expected": (
            Expected("streamed", "d2h", "h2d", "overlapped", 0.75),
            ExpectedPeak("streamed", "kernel", 29, 32),
        ),
        "machine": {"gpu": "a GPU"},
        "notes": ("said",),
        "valid": True,
        "table": "for people",
    }
    return Result(**{**values, **changes})


def test_the_file_holds_every_key_of_the_protocol(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_result(make_result(), str(file))
    found = json.loads(file.read_text())
    assert list(found) == [
        "benchmark", "twin", "options", "repetitions", "warmup", "passes", "baselines", "issued",
        "stages", "figures", "quantities", "expected", "machine", "notes", "valid",
    ]  # fmt: skip
    assert found["passes"]["streamed"] == {
        "times_ns": [1_000_000, 3_000_000],
        "median_ns": 2_000_000,
        "p10_ns": 1_200_000,
        "p90_ns": 2_800_000,
        "min_ns": 1_000_000,
        "max_ns": 3_000_000,
        "mad_ns": 1_000_000,
        "n": 2,
    }
    assert found["expected"] == [
        {
            "range": "streamed",
            "a": "d2h",
            "b": "h2d",
            "verdict": "overlapped",
            "ratio_limit": 0.75,
            "least_rho": None,
            "kind": "pair",
        },
        {"range": "streamed", "op_class": "kernel", "least": 29, "most": 32, "kind": "peak"},
    ]
    assert found["quantities"] == [
        {
            "name": "copy in",
            "value": 50e9,
            "unit": "bytes/s",
            "limit": 63e9,
            "limit_source": "the link",
        }
    ]


def test_a_result_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("older")
    write_result(make_result(), str(file))
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write the result to .*: No such file"):
        write_result(make_result(), str(tmp_path / "nowhere" / "result.json"))


def test_a_plan_gives_the_resolved_options(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_result(make_result(), str(file))
    assert read_plan(str(file), "streams") == {"chunks": 8, "size_bytes": 1024}


def test_a_plan_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_result(make_result(benchmark="hyperq"), str(file))
    with pytest.raises(UsageError, match="a result of 'hyperq', not of 'streams'"):
        read_plan(str(file), "streams")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmark": "streams", "options": 3}'])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="not the result of a benchmark"):
        read_plan(str(file), "streams")


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the plan"):
        read_plan(str(tmp_path / "none.json"), "streams")


def test_the_table_of_passes() -> None:
    title, row = pass_table({"streamed": Statistics.of([1_000_000, 3_000_000])})
    assert title.split() == ["pass", "median", "p10", "p90", "min", "max", "mad", "n"]
    assert row == "streamed       2.00 ms   1.20 ms   2.80 ms   1.00 ms   3.00 ms   1.00 ms     2"


def test_what_was_reached_of_a_limit() -> None:
    def reached(unit: Any, value: float | None, limit: float | None) -> float | None:
        return Quantity("x", value, unit, limit, "").reached_ratio

    assert reached("bytes/s", 50e9, 100e9) == 0.5
    assert reached("kernels", 31, 32) == 31 / 32
    assert reached("ns", 40_000, 10_000) == 0.25  # a time is better when it is shorter
    assert reached("bytes/s", None, 100e9) is None
    assert reached("bytes/s", 50e9, None) is None


def test_the_table_of_quantities() -> None:
    rows = [
        Quantity("copy in", 55.5e9, "bytes/s", 63e9, "the link"),
        Quantity("updates", 4.2e11, "updates/s", None, "a copy"),
        Quantity("pipeline", 32_000_000, "ns", 30_000_000, "its stages"),
        Quantity("kernels at once", 32, "kernels", 32, "streams"),
    ]
    assert [line.split() for line in quantity_table(rows)] == [
        ["quantity", "value", "limit", "reached", "limit", "from"],
        ["copy", "in", "55.5", "GB/s", "63.0", "GB/s", "88.1", "%", "the", "link"],
        ["updates", "420.0", "Gupdates/s", "–", "–", "a", "copy"],
        ["pipeline", "32.0", "ms", "30.0", "ms", "93.8", "%", "its", "stages"],
        ["kernels", "at", "once", "32", "32", "100.0", "%", "streams"],
    ]
    assert quantity_table([]) == []


def test_options_come_from_the_plan_then_the_command_line_then_the_default(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"benchmark": "x", "options": {"a": 1, "b": None}}))
    given = argparse.Namespace(plan=str(plan), a=2, b=3, c=None)
    assert chosen_options(given, "x", {"a": 7, "b": 8, "c": 9}) == {"a": 1, "b": 3, "c": 9}
    given.plan = None
    assert chosen_options(given, "x", {"a": 7, "b": 8, "c": None}) == {"a": 2, "b": 3, "c": None}
