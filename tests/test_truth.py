"""The shipped traces against figures that an independent plain-loop program computed."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.model.result import Analysis, RangeResult, Scope

TRUTH: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden" / "truth.json").read_text("utf-8")
)


@functools.cache
def analysis(name: str) -> Analysis:
    trace = api.open_trace(samples.path(name.removesuffix(".sqlite")))
    return api.analyze_trace(trace, Options())


def check(scope: Scope, expected: dict[str, Any]) -> None:
    assert (scope.span_ns, scope.busy_ns) == (expected["span_ns"], expected["busy_ns"])
    found = {
        name: {"busy_ns": f.busy_ns, "count": f.count, "work_ns": f.work_ns}
        for name, f in scope.classes.items()
        if name != "mpi"  # the reference has no host side
    }
    assert found == expected["classes"]
    for names, overlap_ns in expected["overlap_ns"].items():
        pair = scope.pair(*names.split(","))
        assert pair is not None
        assert pair.overlap_ns == overlap_ns, names
    assert sum(part.ns for part in scope.partition) == scope.span_ns


def test_every_trace_of_the_reference_is_shipped() -> None:
    assert set(TRUTH) <= {f"{name}.sqlite" for name in samples.names()}


@pytest.mark.parametrize("file", TRUTH)
def test_devices(file: str) -> None:
    found = {f"pid{entry.process}/gpu{entry.device}": entry for entry in analysis(file).devices}
    assert set(found) == set(TRUTH[file]["devices"])
    for device, expected in TRUTH[file]["devices"].items():
        check(found[device].scope, expected)


@pytest.mark.parametrize("file", TRUTH)
def test_ranges(file: str) -> None:
    found = {
        (entry.name, f"pid{entry.process}/gpu{entry.device}"): entry
        for entry in analysis(file).ranges
    }
    for name, devices in TRUTH[file]["ranges"].items():
        for device, expected in devices.items():
            entry = found[name, device]
            assert entry.instances == expected["instances"]
            check(entry.scope, expected)
            for names, under_ns in expected["under_ns"].items():
                a, b = names.split("|")
                pair = entry.scope.pair(a, b)
                if pair is not None:  # the reference also lists classes that the range lacks
                    assert under_ns == (
                        pair.a_under_any_b_ns if pair.a == a else pair.b_under_any_a_ns
                    )


# What the traces must show


def entry(file: str, name: str, device: int = 0) -> RangeResult:
    (found,) = [e for e in analysis(file).ranges if e.name == name and e.device == device]
    return found


def verdicts(file: str, name: str, device: int = 0) -> dict[str, str]:
    pairs = entry(file, name, device).scope.pairs
    return {f"{pair.a},{pair.b}": pair.verdict for pair in pairs if "mpi" not in (pair.a, pair.b)}


def every_pair(verdict: str) -> dict[str, str]:
    return dict.fromkeys(("d2h,h2d", "d2h,kernel", "h2d,kernel"), verdict)


def test_streams_overlap_only_in_the_streamed_pass() -> None:
    assert verdicts("streams.sqlite", "sequential") == every_pair("serialized")
    assert verdicts("streams.sqlite", "streamed") == every_pair("overlapped")


def test_pinned_memory_overlaps() -> None:
    assert verdicts("pinned.sqlite", "good") == every_pair("overlapped")


@pytest.mark.parametrize("name", ["default", "sync", "malloc"])
def test_broken_pipelines_are_serialized(name: str) -> None:
    assert verdicts(f"{name}.sqlite", name) == every_pair("serialized")


def test_pageable_copies_overlap_nothing() -> None:
    scope = entry("pageable.sqlite", "pageable").scope
    assert {pair.overlap_ns for pair in scope.pairs} == {0}
    assert verdicts("pageable.sqlite", "pageable")["d2h,h2d"] == "serialized"
    assert scope.efficiency_note is not None
    assert "pageable" in scope.efficiency_note


def test_a_tiny_kernel_is_immaterial() -> None:
    assert verdicts("tiny.sqlite", "tiny") == {
        "d2h,h2d": "overlapped",
        "d2h,kernel": "immaterial",
        "h2d,kernel": "immaterial",
    }


def test_a_long_kernel_hides_the_copies_and_is_the_bound() -> None:
    scope = entry("kbound.sqlite", "kbound").scope
    found = verdicts("kbound.sqlite", "kbound")
    assert (found["d2h,kernel"], found["h2d,kernel"]) == ("overlapped", "overlapped")
    assert scope.bound_ns == scope.classes["kernel"].busy_ns


@pytest.mark.parametrize(("name", "peak"), [("concurrent", 32), ("serial", 1), ("full_gpu", 2)])
def test_hyperq_concurrency(name: str, peak: int) -> None:
    kernels = entry("hyperq.sqlite", name).scope.concurrency.classes["kernel"]
    assert kernels.peak == peak
    if name != "concurrent":
        assert kernels.mean == pytest.approx(1.0, abs=0.01)


def test_graph_nodes_share_their_launch() -> None:
    operations = api.open_trace(samples.path("graph_node")).operations
    assert operations is not None
    nodes = operations.take(operations.graph_node >= 0)
    assert len(nodes) == 180
    assert len(set(nodes.correlation.tolist())) == 15
    assert verdicts("graph_node.sqlite", "graph_launch") == every_pair("overlapped")


def test_both_directions_of_the_host_link_overlap() -> None:
    assert verdicts("bidir.sqlite", "both") == {"d2h,h2d": "overlapped"}


def test_both_directions_of_a_peer_link_overlap_and_compute_too() -> None:
    (pair,) = entry("p2p.sqlite", "bidir").link_pairs
    assert (pair.a, pair.b, pair.verdict) == ("0>1", "1>0", "overlapped")
    assert verdicts("p2p.sqlite", "p2p_compute") == {"kernel,p2p": "overlapped"}
    assert entry("p2p.sqlite", "uni").link_pairs == ()


def test_a_ping_pong_is_a_chain() -> None:
    (pair,) = analysis("p2p_pingpong.sqlite").link_pairs
    assert (pair.overlap_ns, pair.verdict) == (0, "serialized")


def test_nccl_is_hidden_on_rank_0_and_immaterial_elsewhere() -> None:
    assert verdicts("jacobi_nccl_r0.sqlite", "nccl_overlap") == {"comm,kernel": "overlapped"}
    assert verdicts("jacobi_nccl_r1.sqlite", "nccl_overlap", 1) == {"comm,kernel": "immaterial"}
    for rank in (0, 1):
        for name in ("nccl", "mpi_staged"):
            found = verdicts(f"jacobi_nccl_r{rank}.sqlite", name, rank)
            assert set(found.values()) == {"immaterial"}
        (device,) = analysis(f"jacobi_nccl_r{rank}.sqlite").devices
        assert device.rank == rank
        assert device.scope.classes["mpi"].count == 12


def test_most_of_rank_0_s_communication_is_waiting_for_its_peer() -> None:
    paths = [samples.path(f"jacobi_nccl_r{rank}") for rank in (0, 1)]
    ranks = api.analyze(paths)
    comm = [rank.ranges_named("nccl_overlap")[0].scope.classes["comm"] for rank in ranks]
    for figures in comm:
        assert figures.transfer_ns is not None
        assert figures.wait_ns is not None
        assert figures.transfer_ns + figures.wait_ns == figures.work_ns
    assert comm[0].transfer_ns == comm[1].transfer_ns
    assert comm[0].wait_ns is not None
    assert comm[0].wait_ns > 0.8 * comm[0].work_ns
    assert comm[0].wait_exposed_ns == comm[0].transfer_exposed_ns == 0
    # One rank alone cannot tell.
    alone = entry("jacobi_nccl_r0.sqlite", "nccl_overlap").scope.classes["comm"]
    assert alone.transfer_ns is None
