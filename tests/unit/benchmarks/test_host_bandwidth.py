from typing import Any

import pytest

from gpuscope.benchmarks import host_bandwidth
from gpuscope.benchmarks._harness import Statistics


def figures(shared_ns: int | None = None) -> dict[str, float | None]:
    passes = {"h2d": 20, "d2h": 25, "both": 40}
    if shared_ns:
        passes["h2d-shared"] = shared_ns
    times = {name: Statistics.of([1_000_000 * ms]) for name, ms in passes.items()}
    return host_bandwidth._figures(times, 30_000_000, 32_000_000, 1_000_000_000)


def test_the_sum_is_all_bytes_over_all_time_and_each_direction_its_own() -> None:
    found = figures()
    assert found["h2d_rate_bytes_per_s"] == 50e9
    assert found["d2h_rate_bytes_per_s"] == 40e9
    assert found["sum_rate_bytes_per_s"] == 50e9
    # nvbandwidth's bidirectional figures: the rate of the measured direction, not the sum.
    assert found["h2d_both_rate_bytes_per_s"] == pytest.approx(1e9 / 0.030)
    assert found["d2h_both_rate_bytes_per_s"] == pytest.approx(1e9 / 0.032)


def test_every_rate_has_the_link_as_its_limit_and_the_sum_twice_that() -> None:
    rows = {row.name: row for row in host_bandwidth._quantities(figures(25), 62.5e9)}
    assert rows["copy in"].reached_ratio == 0.8
    assert rows["copy in, several streams"].value == 40e9
    assert rows["both ways together"].limit == 125e9
    assert "copy in, pageable" not in rows


def test_without_nvml_there_is_no_limit() -> None:
    rows = host_bandwidth._quantities(figures(), None)
    assert {row.limit for row in rows} == {None}


def test_the_copies_of_both_directions_are_issued_in_turn(cupy: Any) -> None:
    work = object.__new__(host_bandwidth._Workload)
    work.cp, work.copies, work.marks = cupy, 2, []
    work.inward, work.outward = (
        [cupy.cuda.Stream(non_blocking=True)],
        [cupy.cuda.Stream(non_blocking=True)],
    )
    work.copy_in = lambda stream: cupy.log.append(f"in {stream.name}")  # type: ignore[method-assign]
    work.copy_out = lambda stream: cupy.log.append(f"out {stream.name}")  # type: ignore[method-assign]
    work.both()
    assert cupy.log == [
        "e1 in s1", "e3 in s2", "in s1", "out s2", "in s1", "out s2", "e2 in s1", "e4 in s2",
    ]  # fmt: skip
    assert work.own_ns(1) == (2_000_000, 2_000_000)


def test_pageable_copies_open_the_gate_and_nothing_leads_them(cupy: Any) -> None:
    work = object.__new__(host_bandwidth._Workload)
    work.inward, work.outward = ([cupy.cuda.Stream(non_blocking=True)] for _ in range(2))
    issued: list[str] = []
    work.copy_in = lambda stream: issued.append(f"in {stream.name}")  # type: ignore[method-assign]
    work.copy_out = lambda stream: issued.append(f"out {stream.name}")  # type: ignore[method-assign]
    pinned = host_bandwidth._passes(work, shared=True, pageable=False)
    for each in pinned:
        assert each.lead is not None
        each.lead()
    assert issued == ["in s1", "out s2", "in s1", "out s2", "in s1", "out s2"]
    assert {each.waits for each in pinned} == {False}
    pageable = host_bandwidth._passes(work, shared=False, pageable=True)
    assert [(each.name, each.waits, each.lead) for each in pageable] == [
        ("h2d", True, None), ("d2h", True, None), ("both", True, None),
    ]  # fmt: skip


def test_both_directions_must_share_four_fifths_of_their_time() -> None:
    good, twin = (host_bandwidth._expected(pageable=pageable) for pageable in (False, True))
    assert (good.verdict, good.ratio_limit, good.least_rho) == ("overlapped", 1.0, 0.8)
    assert (twin.verdict, twin.ratio_limit, twin.least_rho) == ("serialized", 1.0, None)
