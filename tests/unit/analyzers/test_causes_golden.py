"""The causes of every shipped trace are those of tests/golden/causes.toml, and no others."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpuscope import samples
from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.cases import Case
from gpuscope.communication import exchanges, measured
from gpuscope.model import codec
from gpuscope.model.result import Analysis, Finding
from gpuscope.readers import open_trace

TABLE: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[2] / "golden" / "causes.toml").read_text("utf-8")
)
CAUSES = tuple(analyzer for analyzer in ANALYZERS if analyzer.name != "overlap")


@functools.cache
def analysis(name: str) -> Analysis:
    return run_all(open_trace(samples.path(name)), CAUSES, Options())


def test_table_names_shipped_traces_and_their_ranges() -> None:
    for name, ranges in TABLE.items():
        trace = open_trace(samples.path(name))
        assert set(ranges) <= {"", *trace.strings}, name


@pytest.mark.parametrize("name", samples.names())
def test_shipped_trace_shows_its_causes_and_no_others(name: str) -> None:
    found: dict[str, set[str]] = {}
    for finding in analysis(name).findings:
        found.setdefault(finding.range or "", set()).add(finding.id)
    for label in {*found, *TABLE.get(name, {})}:
        entry = TABLE.get(name, {}).get(label, {})
        required, allowed = set(entry.get("required", ())), set(entry.get("allowed", ()))
        ids = found.get(label, set())
        assert ids >= required, f"{label!r} lacks {required - ids}"
        assert ids <= required | allowed, f"{label!r} has {ids - required - allowed} too many"


@pytest.mark.parametrize("name", samples.names())
def test_findings_are_evidence_that_can_be_looked_up(name: str) -> None:
    trace = open_trace(samples.path(name))
    assert trace.operations is not None
    for finding in analysis(name).findings:
        check(finding, trace.operations.start_ns.tolist())


def check(finding: Finding, starts: list[int]) -> None:
    assert finding.claim
    assert finding.mechanism
    assert finding.severity in ("warning", "info")
    assert finding.removable in ("yes", "if-independent", "unknown")
    for example in finding.evidence.get("examples", ()):
        if "operation" in example:
            assert starts[example["operation"]] == example["start_ns"]
    if finding.saving_ns is not None:
        assert finding.saving_ns >= finding.evidence["span_ns"] // 100


def test_a_training_loop_counted_by_process_has_nothing_to_repair() -> None:
    trace = open_trace(samples.path("training"))

    found = run_all(trace, CAUSES, Options(attribute="process")).findings

    assert [f.id for f in found if f.range == "training" and f.severity == "warning"] == []


def test_two_ranks_together_show_who_waits() -> None:
    traces = [open_trace(samples.path(f"jacobi_nccl_r{rank}")) for rank in (0, 1)]
    found = []
    for trace, exchange in zip(traces, exchanges(traces), strict=True):
        transfer_ns, late_rank = measured(exchange)
        options = Options(transfer_ns=transfer_ns, late_rank=late_rank)
        result = run_all(trace, CAUSES, options)
        found.append({f.range: f for f in result.findings if f.id == "comm-skew"})

    # Most of rank 0's messages are waiting, and nearly all of it under compute.
    waiting = found[0]["nccl_overlap"]
    assert waiting.severity == "info"
    assert waiting.evidence["wait_ns"] > 0.5 * waiting.evidence["transfer_ns"]
    assert "nccl_overlap" not in found[1]
    # The ranks wait for each other, so it is the other one that is late.
    assert list(waiting.evidence["waited_for_ns"]) == ["rank 1"]
    assert sum(waiting.evidence["waited_for_ns"].values()) == waiting.evidence["wait_ns"]
    assert waiting.claim.endswith("mostly for rank 1")


def test_ranks_out_of_step_are_told_with_what_balance_saves() -> None:
    traces = [open_trace(samples.path(f"comm_skew_r{rank}")) for rank in (0, 1)]
    found = []
    for trace, exchange in zip(traces, exchanges(traces), strict=True):
        transfer_ns, late_rank = measured(exchange)
        options = Options(exchange=exchange, transfer_ns=transfer_ns, late_rank=late_rank)
        result = run_all(trace, CAUSES, options)
        found.append({(f.range, f.id): f for f in result.findings if f.severity == "warning"})
        saturated = [f for f in result.findings if f.id == "engine-saturated"]
        # That rank 0's messages wait for rank 1 is no busy engine, and no reason to stop.
        assert all(f.evidence["engine"] == "kernel" for f in saturated)

    # Nothing else is to be said of either rank, in no range.
    assert [list(each) for each in found] == [[("comm_skew", "comm-skew")], []]
    finding = found[0]["comm_skew", "comm-skew"]
    assert list(finding.evidence["waited_for_ns"]) == ["rank 1"]
    measured_ns = span_ns("comm_skew_r0", "comm_skew") - span_ns("comm_skew_r0", "repaired")
    assert finding.saving_ns == pytest.approx(measured_ns, rel=0.25)


def test_pages_that_were_asked_for_are_no_migrations() -> None:
    trace = open_trace(samples.path("uvm_migration"))
    assert trace.ranges is not None
    found = {}
    for name, start_ns, end_ns in zip(
        trace.ranges.name, trace.ranges.start_ns.tolist(), trace.ranges.end_ns.tolist(), strict=True
    ):
        options = Options(window_ns=(start_ns, end_ns))
        ids = [finding.id for finding in run_all(trace, CAUSES, options).findings]
        found[trace.strings[name]] = "uvm-migration" in ids

    assert found == {"uvm_migration": True, "repaired": False}


def test_one_rank_alone_cannot_tell_who_waits() -> None:
    abstained = {a.analyzer for a in analysis("jacobi_nccl_r0").abstained}

    assert "comm-skew" in abstained


@pytest.mark.parametrize("name", ["malloc", "jacobi_nccl_r0"])
def test_the_same_trace_gives_the_same_bytes(name: str) -> None:
    again = run_all(open_trace(samples.path(name)), CAUSES, Options())

    assert codec.dumps(again) == codec.dumps(analysis(name))


@pytest.mark.parametrize(
    ("slow", "slow_range", "fast", "fast_range"),
    [
        ("default", "default", "pinned", "good"),
        ("pageable", "pageable", "pinned", "good"),
        ("sync", "sync", "pinned", "good"),
        ("malloc", "malloc", "pinned", "good"),
        ("streams", "sequential", "streams", "streamed"),
        ("null_stream_work", "null_stream_work", "null_stream_work", "repaired"),
        ("gpu_full", "gpu_full", "gpu_full", "repaired"),
        ("host_read", "host_read", "host_read", "repaired"),
        ("host_func", "host_func", "host_func", "repaired"),
        ("event_dependency", "event_dependency", "event_dependency", "repaired"),
        ("synchronous_copy", "synchronous_copy", "synchronous_copy", "repaired"),
        ("comm_after_compute", "comm_after_compute", "comm_after_compute", "repaired"),
        ("host_busy", "host_busy", "host_busy", "repaired"),
        ("launch_bound", "launch_bound", "launch_bound", "repaired"),
        ("green_context", "green_context", "green_context", "repaired"),
        ("issue_order", "issue_order", "issue_order", "repaired"),
        ("slow_link", "slow_link", "slow_link", "repaired"),
        ("timing_events", "timing_events", "timing_events", "repaired"),
        ("training", "no_prefetch", "training", "training"),
        ("training", "item_every_step", "training", "training"),
        ("connections_limit", "steps", "connections_default", "steps"),
    ],
)
def test_saving_is_near_what_the_repaired_twin_measured(
    slow: str, slow_range: str, fast: str, fast_range: str
) -> None:
    finding = max(
        (f for f in analysis(slow).findings if f.range == slow_range and f.saving_ns),
        key=lambda f: f.saving_ns or 0,
    )
    measured_ns = span_ns(slow, slow_range) - span_ns(fast, fast_range)

    assert finding.saving_ns == pytest.approx(measured_ns, rel=0.25)


def span_ns(name: str, label: str) -> int:
    regions = Case.of(open_trace(samples.path(name)), Options()).levels[0]
    return next(region.span_ns for region in regions if region.name == label)
