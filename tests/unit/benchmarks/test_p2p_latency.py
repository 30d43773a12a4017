"""Hops between GPUs: arithmetic, what is refused, and that data which did not arrive is seen."""

from __future__ import annotations

import argparse
import os
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.benchmarks import p2p_latency
from gpuscope.benchmarks._harness import (
    Expected,
    ExpectedPeak,
    ExpectedPingPong,
    add_common_arguments,
)
from gpuscope.benchmarks._harness.links import Link
from gpuscope.benchmarks._harness.stats import fit_messages
from gpuscope.benchmarks.p2p_latency import BENCHMARK, SIZES_BYTES, _Hop, _Options
from gpuscope.errors import ProgramError, UsageError

NVLINK = Link("NVLink", 18, 450e9)


def make_options(**changes: Any) -> _Options:
    return _Options(**{**p2p_latency._DEFAULTS, **changes})


def make_pair(*, same: bool = False, link: Link = NVLINK) -> Any:
    return SimpleNamespace(same=same, link=link, copy_class="d2d" if same else "p2p")


# ── what is run, and what is refused ─────────────────────────────────────────────────────────────


def test_sizes_double_from_8_bytes_to_64_kib() -> None:
    assert (SIZES_BYTES[0], SIZES_BYTES[1], SIZES_BYTES[-1], len(SIZES_BYTES)) == (8, 16, 65536, 14)
    assert make_options().sizes == SIZES_BYTES
    assert make_options(size_bytes=64).sizes == (64,)
    assert make_options(two_contexts=True).sizes == (8,)


def test_a_chain_has_50_hops_and_one_of_flags_a_thousand() -> None:
    assert make_options().hop_count == 50
    assert make_options(path="sm").hop_count == 1000
    assert make_options(path="sm", hops=10).hop_count == 10


@pytest.mark.parametrize(
    ("arguments", "connections"),
    [([], "1"), (["--twin", "unchained"], "8"), (["--connections", "4"], "4")],
)
def test_streams_share_a_queue_unless_they_must_not(
    arguments: list[str], connections: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "of the caller")

    def open_pair(name: str, **_: Any) -> Any:
        raise ProgramError(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])

    monkeypatch.setattr(p2p_latency, "open_pair", open_pair)
    parser = argparse.ArgumentParser()
    BENCHMARK.add_arguments(parser)
    add_common_arguments(parser, BENCHMARK)
    with pytest.raises(ProgramError, match=f"^{connections}$"):
        BENCHMARK.run(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("changes", "twin", "said"),
    [
        ({"hops": 3}, None, "must be even"),
        ({"hops": 992}, None, "990 at most"),
        ({"hops": 242, "path": "staged"}, None, "240 at most"),
        ({"hops": 324, "push": True}, None, "323 at most"),
        ({"push": True, "path": "staged"}, None, "--push"),
        ({"push": True, "path": "sm"}, None, "--push"),
        ({"push": True}, "unchained", "--push"),
        ({"path": "sm", "same_device": True}, None, "--path sm"),
        ({"path": "sm", "size_bytes": 8}, None, "--path sm"),
        ({"path": "sm", "two_contexts": True}, None, "--path sm"),
        ({"path": "driver", "two_contexts": True}, None, "a path of its own"),
        ({"path": "staged"}, "unchained", "p2p or driver"),
        ({"path": "sm"}, "unchained", "p2p or driver"),
        ({"two_contexts": True}, "unchained", "p2p or driver"),
    ],
)
def test_what_cannot_be_run_is_refused(
    changes: dict[str, Any], twin: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        p2p_latency._refuse(make_options(**changes), twin)


@pytest.mark.parametrize(
    ("changes", "twin"),
    [
        ({}, "unchained"),
        ({"path": "driver"}, "unchained"),
        ({"path": "staged", "hops": 240}, None),
        ({"path": "sm", "hops": 5000}, None),
        ({"two_contexts": True}, None),
    ],
)
def test_what_can_be_run_is_not(changes: dict[str, Any], twin: str | None) -> None:
    p2p_latency._refuse(make_options(**changes), twin)


def test_the_options_are_read() -> None:
    parser = argparse.ArgumentParser()
    BENCHMARK.add_arguments(parser)
    words = "--path sm --push --pair 2-3 --size 64K --hops 20 --same-device --two-contexts"
    found = parser.parse_args(words.split())
    assert (found.path, found.pair, found.size_bytes, found.hops) == ("sm", "2-3", 65536, 20)
    assert (found.push, found.same_device, found.two_contexts) == (True, True, True)
    assert BENCHMARK.default_reps == 200


# ── the figures ──────────────────────────────────────────────────────────────────────────────────


def test_a_hop_is_the_median_over_the_passes_with_their_standard_deviation() -> None:
    hop = _Hop.of([2000.0, 2300.0, 2200.0])
    assert hop.median_ns == 2200
    assert hop.deviation_ns == pytest.approx(124.7, abs=0.1)


def test_figures_of_hops() -> None:
    medians = {8: 2000.0, 64: 2100.0, 256: 2200.0, 1024: 2300.0, 65536: 4200.0}
    hops = {f"hops-{size}": _Hop(time, 10.0) for size, time in medians.items()}
    fit = fit_messages(medians)
    found = p2p_latency._figures(hops, medians, fit, {("push", 0, 1): 1500.0})
    assert found["hops_64_ns"] == 2100
    assert found["hops_64_deviation_ns"] == 10
    assert found["flatness_ratio"] == pytest.approx(1.1)
    assert found["growth_ratio"] == pytest.approx(2.1)
    assert found["small_to_large_ratio"] == pytest.approx(0.5)
    assert found["push_0_1_ns"] == 1500
    assert fit is not None
    assert found["alpha_ns"] == fit.alpha_ns
    text = "\n".join(p2p_latency._lines(found, hops, medians, fit, {("push", 0, 1): 1500.0}))
    assert "largest over smallest 1.10" in text
    assert "64 KiB take 2.10 times as long as 8 B" in text
    assert "the rule of a tenth does not hold" in text
    assert "to 0      to 1" in text


def test_one_size_has_neither_fit_nor_flatness() -> None:
    medians = {8: 2000.0}
    hops = {"hops-8": _Hop(2000.0, 10.0)}
    found = p2p_latency._figures(hops, medians, fit_messages(medians), {})
    for key in ("alpha_ns", "half_bytes", "flatness_ratio", "growth_ratio", "small_to_large_ratio"):
        assert found[key] is None
    (line,) = p2p_latency._lines(found, hops, medians, None, {})
    assert line == "standard deviation of a hop: 10 ns to 10 ns"


def test_the_link_limits_a_hop_where_its_bytes_take_a_nanosecond() -> None:
    hops = {"hops-8": _Hop(2000.0, 1.0), "hops-64K": _Hop(2200.0, 1.0)}
    small, large = p2p_latency._quantities(make_pair(), hops, {"hops-8": 8, "hops-64K": 65536})
    assert (small.name, small.limit) == ("hop of 8 B", None)
    assert (large.name, large.value) == ("hop of 64 KiB", 2200)
    assert large.limit == pytest.approx(145.6, abs=0.1)
    (flag,) = p2p_latency._quantities(make_pair(), {"flags": _Hop(900.0, 1.0)}, {})
    assert (flag.name, flag.value, flag.limit) == ("hop of a flag", 900, None)


def test_what_each_path_must_show() -> None:
    def expected(twin: str | None = None, *, same: bool = False, **changes: Any) -> Any:
        pair = make_pair(same=same)
        return p2p_latency._expected(["x"], pair, make_options(**changes), twin)

    assert expected() == [ExpectedPingPong("x", "p2p", 60, True)]
    assert expected("corrupt-element") == [ExpectedPingPong("x", "p2p", 60, True)]
    assert expected("unchained") == [ExpectedPingPong("x", "p2p", 60, False)]
    assert expected(path="driver") == [ExpectedPingPong("x", "p2p", 120, True)]
    assert expected(same=True, path="driver") == [ExpectedPingPong("x", "d2d", 60, True)]
    assert expected(same=True) == [ExpectedPingPong("x", "d2d", 60, True)]
    assert expected(path="staged") == [Expected("x", "d2h", "h2d", "serialized", 1.0)]
    assert expected(path="sm") == [ExpectedPeak("x", "kernel", 1, 1)]


def notes(
    medians: dict[int, float], matrix: Any = None, *, pair: Any = None, **changes: Any
) -> list[str]:
    hops = {f"hops-{size}": _Hop(time, 1.0) for size, time in medians.items()}
    figures = p2p_latency._figures(hops, medians, fit_messages(medians), matrix or {})
    return p2p_latency._notes(
        pair or make_pair(), make_options(**changes), figures, hops, matrix or {}
    )


def test_nothing_is_said_of_ordinary_hops() -> None:
    assert notes({8: 2200.0, 256: 2500.0, 65536: 4000.0}) == []
    assert notes({8: 17_000.0, 65536: 19_000.0}, path="driver") == []


def test_slow_uneven_and_unexpected_hops_are_pointed_out() -> None:
    assert "over 20.0 µs" in notes({8: 17_000.0, 65536: 21_000.0}, path="driver")[0]
    (short,) = notes({8: 500.0})
    assert "shortest hop takes 500 ns" in short
    (uneven,) = notes({8: 2000.0, 256: 2402.0})
    assert "a factor of 1.20, over 1.2" in uneven
    (flat,) = notes({8: 2000.0, 256: 2000.0, 65536: 2001.0})
    assert flat.startswith("β is more than the 450 GB/s of NVLink × 18")
    # No NVLink, nothing expected of it.
    assert notes({8: 9000.0}, pair=make_pair(link=Link("PCIe", 16, 63e9))) == []


def test_a_pair_of_gpus_far_slower_than_the_others_is_pointed_out() -> None:
    ways = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    matrix = {("push", *way): 2000.0 for way in ways} | {("push", 0, 2): 6001.0}
    (note,) = notes({8: 2200.0}, matrix)
    assert note.startswith("GPU 0 to 2 (push) takes 6.00 µs, over 3 times the median")
    assert notes({8: 2200.0}, {("push", *way): 2000.0 for way in ways}) == []


def test_what_is_no_link_is_called_so() -> None:
    same = make_pair(same=True, link=Link("same GPU"))
    (local,) = notes({8: 1800.0}, pair=same, same_device=True)
    assert "no link is measured" in local
    (turns,) = notes({8: 1_100_000.0}, pair=same, two_contexts=True)
    assert "take turns" in turns


def test_a_matrix_has_a_line_for_each_sender_and_gaps_where_none_can_reach() -> None:
    lines = p2p_latency._matrix_lines({("push", 0, 1): 2000.0, ("pull", 1, 0): 13_000.0})
    assert lines[2].split() == ["from", "0", "–", "2.00", "µs"]
    assert lines[-1].split() == ["from", "1", "13.0", "µs", "–"]
