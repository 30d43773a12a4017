"""Opening, analyzing together, and judging benchmarks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import gpuscope
from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.app.state import Session
from gpuscope.errors import MissingError, TraceError
from gpuscope.model import codec
from gpuscope.model.result import Analysis, JudgedHidden, JudgedPair, JudgedPingPong
from gpuscope.report import text
from tests.make_trace import make_trace


@pytest.fixture(scope="module")
def streams() -> Sequence[Analysis]:
    return api.analyze([samples.path("streams")])


def expectation(**changes: Any) -> dict[str, Any]:
    row = {"range": "streamed", "a": "h2d", "b": "kernel", "verdict": "overlapped"}
    return {"expected": [{**row, "ratio_limit": 0.75, **changes}]}


def test_a_met_expectation(streams: Sequence[Analysis]) -> None:
    judgement = api.judge(expectation(), streams)
    assert (judgement.met, judgement.cannot_judge) == (True, False)


def test_an_expectation_that_is_not_met(streams: Sequence[Analysis]) -> None:
    judgement = api.judge(expectation(verdict="serialized"), streams)
    assert (judgement.met, judgement.cannot_judge) == (False, False)
    assert judgement.rows[0].found == "overlapped"


@pytest.mark.parametrize("change", [{"range": "nowhere"}, {"a": "comm"}])
def test_what_is_absent_cannot_be_judged(
    change: dict[str, str], streams: Sequence[Analysis]
) -> None:
    judgement = api.judge(expectation(**change), streams)
    assert (judgement.met, judgement.cannot_judge) == (False, True)


def test_what_a_benchmark_does_not_judge_is_met_by_anything(streams: Sequence[Analysis]) -> None:
    judgement = api.judge(expectation(verdict="not judged", ratio_limit=None), streams)
    assert judgement.met


def test_what_leaves_no_rows_is_met_by_a_range_without_them(streams: Sequence[Analysis]) -> None:
    wanted = {"verdict": "inconclusive (not observable)", "ratio_limit": None}
    unseen = api.judge(expectation(a="comm", **wanted), streams)
    assert unseen.met
    assert unseen.rows[0].found == wanted["verdict"]
    seen = api.judge(expectation(**wanted), streams)
    assert (seen.met, seen.cannot_judge) == (False, False)
    nowhere = api.judge(expectation(range="nowhere", a="comm", **wanted), streams)
    assert (nowhere.met, nowhere.cannot_judge) == (False, True)


def test_more_than_the_verdict_may_be_asked_for() -> None:
    bidir = api.analyze([samples.path("bidir")])
    rho = bidir[0].ranges_named("both")[0].scope.pair("d2h", "h2d").rho  # type: ignore[union-attr]
    assert rho is not None
    for least, met in ((rho, True), (min(1.0, rho * 1.0001), rho == 1)):
        wanted = {"range": "both", "a": "d2h", "b": "h2d", "ratio_limit": 1.0, "least_rho": least}
        judgement = api.judge(expectation(**wanted), bidir)
        assert judgement.met is met
        assert judgement.cannot_judge is False


def peak(name: str, least: int, most: int, op_class: str = "kernel") -> dict[str, Any]:
    row = {"kind": "peak", "range": name, "op_class": op_class, "least": least, "most": most}
    return {"expected": [row]}


def test_a_peak_of_operations_at_once() -> None:
    analyses = api.analyze([samples.path("hyperq")])
    for name, least, most, met in (
        ("concurrent", 29, 32, True),
        ("concurrent", 1, 31, False),
        ("serial", 1, 1, True),
        ("serial", 2, 2, False),
    ):
        judgement = api.judge(peak(name, least, most), analyses)
        assert judgement.met is met
        assert judgement.rows[0].found == (32 if name == "concurrent" else 1)
    for absent in (peak("nowhere", 1, 1), peak("serial", 1, 1, "p2p")):
        judgement = api.judge(absent, analyses)
        assert (judgement.met, judgement.cannot_judge) == (False, True)
        assert judgement.rows[0].reason.startswith("the trace has no such")
    # Where none must run, a range without any is as it must be; without the range nothing is known.
    assert api.judge(peak("serial", 0, 0, "p2p"), analyses).met
    assert api.judge(peak("nowhere", 0, 0, "p2p"), analyses).cannot_judge
    assert not api.judge(peak("serial", 0, 0), analyses).met


def links(verdict: str, least_rho: float | None = None, **changes: Any) -> dict[str, Any]:
    row = {"kind": "links", "range": "bidir", "a": "1>0", "b": "0>1", "verdict": verdict}
    return {"expected": [{**row, "least_rho": least_rho, **changes}]}


def test_both_directions_of_a_link() -> None:
    analyses = api.analyze([samples.path("p2p")])
    (pair,) = analyses[0].ranges_named("bidir")[0].link_pairs
    ratio = pair.overlap_ratio
    assert ratio is not None
    for wanted, met in (
        (links("overlapped"), True),
        (links("overlapped", ratio), True),
        (links("overlapped", min(1.0, ratio * 1.0001)), ratio == 1),
        (links("serialized"), False),
    ):
        judgement = api.judge(wanted, analyses)
        (row,) = judgement.rows
        assert judgement.met is met
        assert isinstance(row, JudgedPair)
        assert (row.found, row.rho, row.ratio_limit) == ("overlapped", ratio, 1.0)
    for absent in (links("overlapped", range="nowhere"), links("overlapped", b="0>2")):
        judgement = api.judge(absent, analyses)
        assert (judgement.met, judgement.cannot_judge) == (False, True)


def ping_pong(wanted: bool = True, op_class: str = "p2p") -> dict[str, Any]:
    row = {"kind": "ping-pong", "range": "r", "op_class": op_class, "copies": 2}
    return {"expected": [{**row, "wanted": wanted}]}


THERE, BACK = {"src": 0, "dst": 1}, {"src": 1, "dst": 0, "device": 1}
TWICE = [("r", 0, 25), ("r", 100, 125)]
CHAIN = [(0, 9, "s7", THERE), (10, 19, "s8", BACK), (100, 109, "s7", THERE), (110, 119, "s8", BACK)]


@pytest.mark.parametrize(
    ("p2p", "found", "reason"),
    [
        (CHAIN, "a ping-pong", "4 copies, each after the one before"),
        (CHAIN[:3], "not a ping-pong", "3 copies are there, not 4"),
        (
            [*CHAIN[:3], (108, 119, "s8", BACK)],
            "not a ping-pong", "5.6 % of one direction runs under the other",
        ),
        (
            [(0, 9, "s7", THERE), (8, 19, "s8", THERE), *CHAIN[2:]],
            "not a ping-pong", "2 copies of one GPU ran at once",
        ),
        (
            [(0, 9, "s7", THERE), (10, 19, "s7", THERE), *CHAIN[2:]],
            "not a ping-pong", "the direction changed 1 time, not 2",
        ),
    ],
)  # fmt: skip
def test_a_ping_pong_is_one_copy_after_the_other_there_and_back(
    p2p: list[Any], found: str, reason: str
) -> None:
    trace = make_trace(p2p=p2p, ranges=TWICE, devices=2)
    analyses = (api.analyze_trace(trace),)
    for wanted in (True, False):
        judgement = api.judge(ping_pong(wanted), analyses)
        (row,) = judgement.rows
        assert isinstance(row, JudgedPingPong)
        assert (row.found, row.reason) == (found, reason)
        assert judgement.met is (wanted == (found == "a ping-pong"))


def test_a_ping_pong_that_is_not_in_the_trace_cannot_be_judged() -> None:
    trace = make_trace(p2p=[(0, 9, "s7", THERE)], ranges=[("r", 0, 25)], devices=2)
    analyses = (api.analyze_trace(trace),)
    for absent in (
        ping_pong(op_class="d2d"),
        {"expected": [{**ping_pong()["expected"][0], "range": "q"}]},
    ):
        judgement = api.judge(absent, analyses)
        assert (judgement.met, judgement.cannot_judge) == (False, True)


@pytest.mark.parametrize(
    ("name", "row", "found"),
    [
        ("p2p_latency_run", {"range": "hops-64K", "copies": 60}, "a ping-pong"),
        ("p2p_unchained_run", {"range": "hops-64K", "copies": 60}, "not a ping-pong"),
        ("p2p_driver_run", {"range": "hops-64", "copies": 120}, "a ping-pong"),
        ("p2p_pingpong", {"range": "p2p 64", "copies": 60}, "a ping-pong"),
        ("p2p", {"range": "bidir", "copies": 8}, "not a ping-pong"),
    ],
)
def test_copies_of_real_programs_are_a_ping_pong_or_not(
    name: str, row: dict[str, Any], found: str
) -> None:
    wanted = [{**ping_pong()["expected"][0], **row}]
    (judged,) = api.judge({"expected": wanted}, api.analyze([samples.path(name)])).rows
    assert judged.found == found


@pytest.mark.parametrize(
    ("name", "verdict", "least"),
    [("p2p_bandwidth_run", "overlapped", 0.8), ("p2p_one_stream_run", "serialized", None)],
)
def test_directions_and_kernels_of_the_benchmark_and_its_twin(
    name: str, verdict: str, least: float | None
) -> None:
    analyses = api.analyze([samples.path(name)])
    rows = [
        *links(verdict, least, range="both")["expected"],
        *expectation(range="beside", a="kernel", b="p2p", verdict=verdict, ratio_limit=1.0)[
            "expected"
        ],
    ]
    assert api.judge({"expected": rows}, analyses).met


def test_only_pairs_of_classes_limit_a_ratio() -> None:
    for expected in (peak("concurrent", 29, 32), links("overlapped", 0.8), ping_pong()):
        assert api.ratio_limits(expected) == {}


def count(name: str, least: int, most: int, op_class: str = "kernel") -> dict[str, Any]:
    row = {"kind": "count", "range": name, "op_class": op_class, "least": least, "most": most}
    return {"expected": [row]}


def test_a_count_of_operations_in_each_instance() -> None:
    """Two instances have one and three kernels: two on average. The worse of two GPUs counts."""
    trace = make_trace(
        kernels=[(0, 1, "s1"), (10, 11, "s1"), (12, 13, "s1"), (14, 15, "s1")],
        comm=[(2, 3, "s1"), (16, 17, "s1"), (18, 19, "s2", {"device": 1})],
        ranges=[("step", 0, 5), ("step", 10, 20)],
        devices=2,
    )
    analyses = (api.analyze_trace(trace),)
    for least, most, met in ((2, 2, True), (1, 3, True), (3, 3, False), (1, 1, False)):
        (row,) = api.judge(count("step", least, most), analyses).rows
        assert (row.met, row.found) == (met, 2)
    (row,) = api.judge(count("step", 2, 2, "comm"), analyses).rows
    assert (row.met, row.reason) == (False, "1 in each instance")
    for absent in (count("nowhere", 1, 1), count("step", 1, 1, "p2p")):
        assert api.judge(absent, analyses).cannot_judge
    assert api.ratio_limits(count("step", 1, 3)) == {}


def test_the_judgement_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    analyses = api.analyze([samples.path("hyperq")])
    rows = [
        *peak("concurrent", 29, 32)["expected"],
        *peak("serial", 2, 2)["expected"],
        *peak("nowhere", 1, 1)["expected"],
        *ping_pong()["expected"],
        *count("concurrent", 1, 1)["expected"],
        *expectation()["expected"],
    ]
    judgement = api.judge({"expected": rows}, analyses)
    text.render_run(None, analyses[0], judgement, Console(width=120))
    lines = capsys.readouterr().out.split("must be")[1].splitlines()
    found = [" ".join(line.split()) for line in lines if line.strip()]
    assert "concurrent kernel at once 29 to 32 32 met" in found
    assert "serial kernel at once 2 1 NOT MET" in found
    assert "concurrent kernel an instance 1 32 NOT MET" in found
    assert "nowhere kernel at once 1 the trace has no such range cannot judge" in found
    assert "r 2 × p2p a ping-pong the trace has no such range cannot judge" in found
    assert any(line.startswith("streamed h2d ∩ kernel overlapped") for line in found)


def test_limits_of_a_run_folder_reach_its_analysis(tmp_path: Path) -> None:
    (tmp_path / "traced.json").write_text(json.dumps(expectation(ratio_limit=0.8)))
    (tmp_path / "trace.sqlite").write_bytes(samples.path("streams").read_bytes())
    (analysis,) = api.analyze([tmp_path])
    pair = analysis.ranges_named("streamed")[0].scope.pair("h2d", "kernel")
    assert pair is not None
    assert pair.ratio_limit == 0.8
    assert pair.rho == pytest.approx(0.75 / 0.8, abs=0.001)
    assert api.told_beside(samples.path("streams")) == Options()


@pytest.mark.parametrize("of_rank", [False, True])
def test_what_the_profiler_changed_reaches_every_analysis_of_a_run(
    tmp_path: Path, of_rank: bool
) -> None:
    folder = tmp_path / "rank0" if of_rank else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "trace.sqlite").write_bytes(samples.path("pageable").read_bytes())
    (tmp_path / "run.json").write_text(json.dumps({"perturbed": {"pageable": 0.25}}))

    (analysis,) = api.analyze([folder], use_cache=False)
    found = [each.id for each in analysis.findings]
    assert found == ["pageable-copy", "perturbed"]
    assert analysis.findings[0].evidence["perturbed"]
    assert [each.id for each in gpuscope.load(folder).findings] == found
    session = Session([api.open_trace(folder)], [api.told_beside(folder)])
    assert [each.id for _, each in session.findings] == found


def test_one_trace_is_an_object_and_several_or_a_run_of_ranks_are_an_array(tmp_path: Path) -> None:
    one, two = samples.path("streams"), samples.path("pinned")
    assert api.answer([one], ["a"]) == "a"
    assert api.answer([one, two], ["a", "b"]) == ["a", "b"]
    (tmp_path / "rank0").mkdir()
    assert api.answer([tmp_path], ["a"]) == ["a"]
    assert api.answer([tmp_path / "rank0"], ["a"]) == "a"


def test_the_contract_s_keys(streams: Sequence[Analysis]) -> None:
    found = codec.to_jsonable(streams[0])
    assert set(found) == {
        "schema_version", "trace", "devices", "ranges", "links", "link_pairs", "findings",
        "abstained", "communication",
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
    report.write_bytes(b"NVIDIA Tegra Profiler Report 2025@3@2-1v0.")
    with pytest.raises(MissingError):
        api.open_trace(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nsys-rep"]


@pytest.mark.parametrize(
    ("least", "most", "found", "met"),
    # Of two ranks 60 % and all is hidden: the worse one counts.
    [
        (0.8, 1.0, 0.6, False),
        (0.5, 1.0, 0.6, True),
        (0.0, 0.1, 1.0, False),
        (0.0, 1.0, 0.6, True),  # not judged
        (0.7, 0.9, 0.6, False),
        (0.5, 0.9, 1.0, False),
        (0.0, 0.99, 1.0, False),
    ],
)
def test_what_share_of_the_transfers_must_be_hidden(
    least: float, most: float, found: float, met: bool
) -> None:
    analyses = [
        api.analyze_trace(
            make_trace(
                kernels=[(0, 100, "s1")],
                d2h=[(start, start + 50, "s2", {"launch": 5})],
                mpi=[("MPI_Waitall", 10, 20)],
                ranges=[("r", 0, 100)],
            )
        )
        for start in (70, 40)
    ]
    expected = [{"kind": "hidden", "range": "r", "least": least, "most": most}]
    (row,) = api.judge({"expected": expected}, analyses).rows
    assert isinstance(row, JudgedHidden)
    assert (row.found, row.met) == (found, met)
    expected = [{"kind": "hidden", "range": "s", "least": least, "most": most}]
    (row,) = api.judge({"expected": expected}, analyses).rows
    assert (row.found, row.met) == (None, None)


@pytest.mark.parametrize(
    ("name", "least", "most"), [("overlap", 0.99, 1.0), ("blocking", 0.0, 0.01)]
)
def test_the_shipped_ranks_hide_their_transfers_or_none_of_them(
    name: str, least: float, most: float
) -> None:
    """And the host is in MPI meanwhile, beside kernels in the one case and in the other not."""
    paths = [samples.path(f"jacobi_mpi_{name}_r{rank}") for rank in (0, 1)]
    analyses = api.analyze(paths)
    expected = [{"kind": "hidden", "range": "overlapped", "least": least, "most": most}]
    assert api.judge({"expected": expected}, analyses).met
    for analysis in analyses:
        (entry,) = analysis.ranges_named("overlapped")
        phases = entry.scope.phases
        assert phases is not None
        assert phases.pack_ns == 0
        assert phases.mpi_ns > 3 * phases.transfer_ns
        assert phases.mpi_hidden_ns == (phases.mpi_ns if name == "overlap" else 0)
