"""Opening, analyzing together, and judging benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuscope import api, samples
from gpuscope.errors import MissingError, TraceError


@pytest.fixture(scope="module")
def streams() -> api.Analyses:
    return api.analyze([samples.path("streams")])


def expectation(**changes: Any) -> dict[str, Any]:
    row = {"range": "streamed", "a": "h2d", "b": "kernel", "verdict": "overlapped"}
    return {"expected": [{**row, "ratio_limit": 0.75, **changes}]}


def test_a_met_expectation(streams: api.Analyses) -> None:
    judgement = api.judge(expectation(), streams)
    assert (judgement.met, judgement.cannot_judge) == (True, False)


def test_an_expectation_that_is_not_met(streams: api.Analyses) -> None:
    judgement = api.judge(expectation(verdict="serialized"), streams)
    assert (judgement.met, judgement.cannot_judge) == (False, False)
    assert judgement.rows[0].found == "overlapped"


@pytest.mark.parametrize("change", [{"range": "nowhere"}, {"a": "comm"}])
def test_what_is_absent_cannot_be_judged(change: dict[str, str], streams: api.Analyses) -> None:
    judgement = api.judge(expectation(**change), streams)
    assert (judgement.met, judgement.cannot_judge) == (False, True)


def test_what_a_benchmark_does_not_judge_is_met_by_anything(streams: api.Analyses) -> None:
    judgement = api.judge(expectation(verdict="not judged", ratio_limit=None), streams)
    assert judgement.met


def test_limits_of_a_run_folder_reach_its_analysis(tmp_path: Path) -> None:
    (tmp_path / "traced.json").write_text(json.dumps(expectation(ratio_limit=0.8)))
    (tmp_path / "trace.sqlite").write_bytes(samples.path("streams").read_bytes())
    limits = api.run_limits(tmp_path)
    assert limits == {("streamed", "h2d", "kernel"): 0.8}
    (analysis,) = api.analyze([tmp_path], ratio_limits=limits).traces
    pair = analysis.ranges_named("streamed")[0].scope.pair("h2d", "kernel")
    assert pair is not None
    assert pair.ratio_limit == 0.8
    assert pair.rho == pytest.approx(0.75 / 0.8, abs=0.001)
    assert api.run_limits(samples.path("streams")) == {}


def test_one_trace_is_an_object_and_several_are_an_array(streams: api.Analyses) -> None:
    assert streams.to_json()["schema_version"] == 1
    two = api.analyze([samples.path("streams"), samples.path("pinned")])
    assert [each["trace"]["operations"] for each in two.to_json()] == [75, 72]


def test_the_contract_s_keys(streams: api.Analyses) -> None:
    found = streams.to_json()
    assert set(found) == {
        "schema_version", "trace", "devices", "ranges", "links", "link_pairs", "findings",
        "abstained",
    }  # fmt: skip
    assert {"path", "format", "tool_version", "duration_ns", "operations", "damaged"} <= set(
        found["trace"]
    )
    scope = found["devices"][0]["scope"]
    assert {
        "span_ns", "busy_ns", "idle_ns", "serial_ns", "bound_ns", "schedule_bound_ns",
        "overlap_efficiency", "efficiency_note", "classes", "pairs", "partition", "concurrency",
    } <= set(scope)  # fmt: skip
    assert {
        "a", "b", "overlap_ns", "overlap_ratio", "ratio_limit", "rho", "hidden_ratio_a",
        "hidden_ratio_b", "a_under_any_b_ns", "b_under_any_a_ns", "uncertainty_ns", "verdict",
        "reason",
    } <= set(scope["pairs"][0])  # fmt: skip
    assert {"name", "path", "instances", "instances_total", "unattributed_ratio"} <= set(
        found["ranges"][0]
    )
    json.dumps(found, allow_nan=False)


def test_a_folder_without_a_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"folder without trace\.sqlite"):
        api.open_trace(tmp_path)


def test_a_report_without_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuscope.recording import nsys

    def missing() -> None:
        text = "no nsys"
        raise MissingError(text)

    monkeypatch.setattr(nsys, "find", missing)
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"report")
    with pytest.raises(MissingError):
        api.open_trace(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nsys-rep"]
