"""Hops between GPUs: arithmetic, what is refused, and that data which did not arrive is seen."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope.benchmarks import p2p_latency
from gpuscope.benchmarks._harness import Expected, ExpectedPeak, ExpectedPingPong
from gpuscope.benchmarks._harness.links import Link
from gpuscope.benchmarks._harness.stats import fit_messages
from gpuscope.benchmarks.p2p_latency import BENCHMARK, SIZES_BYTES, _Copies, _Flags, _Hop, _Options
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
    ("changes", "twin", "said"),
    [
        ({"hops": 3}, None, "must be even"),
        ({"hops": 992}, None, "990 at most"),
        ({"hops": 242, "path": "staged"}, None, "240 at most"),
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
    words = "--path sm --pair 2,3 --size 64K --hops 20 --same-device --two-contexts"
    found = parser.parse_args(words.split())
    assert (found.path, found.pair, found.size_bytes, found.hops) == ("sm", "2,3", 65536, 20)
    assert (found.same_device, found.two_contexts) == (True, True)
    assert BENCHMARK.default_reps == 200


# ── the data ─────────────────────────────────────────────────────────────────────────────────────


class Memory:
    """Buffers by address, and copies between them that may be lost."""

    def __init__(self) -> None:
        self.buffers: dict[int, Any] = {}
        self.done: list[tuple[int, int]] = []
        self.lost: set[int] = set()

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        self.done.append((source, target))
        if len(self.done) - 1 not in self.lost:
            count = size_bytes // 4
            self.buffers[target][:count] = self.buffers[source][:count]


class End:
    """As a real end, on the host."""

    def __init__(self, memory: Memory, address: int) -> None:
        self.address = address
        self.memory = memory
        self.bad = 0
        memory.buffers[address] = np.zeros(16, np.float32)

    def pattern(self, size_bytes: int, first: int) -> Any:
        return np.arange(first, first + size_bytes // 4, dtype=np.float32)

    def fill(self, size_bytes: int, first: int) -> None:
        self.memory.buffers[self.address][: size_bytes // 4] = self.pattern(size_bytes, first)

    def poison(self, size_bytes: int) -> None:
        self.memory.buffers[self.address][: size_bytes // 4] = np.nan

    def compare(self, size_bytes: int, first: int) -> None:
        found = self.memory.buffers[self.address][: size_bytes // 4]
        self.bad += int(np.sum(found != self.pattern(size_bytes, first)))

    def wrong(self) -> int:
        return self.bad


class Events:
    """Events and streams that write down when they meet, in copies issued before."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.log: list[tuple[str, int]] = []

    def stream(self, name: str) -> Any:
        return SimpleNamespace(name=name, wait_event=lambda event: self.note(f"{name} waits"))

    def note(self, what: str) -> None:
        self.log.append((what, len(self.memory.done)))

    def make(self, cp: Any, stream: Any, *, timing: bool = False) -> Any:
        word = "timed" if timing else "mark"
        return SimpleNamespace(record=lambda stream: self.note(f"{word} {stream.name}"))


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def events(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Events:
    made = Events(memory)
    monkeypatch.setattr(p2p_latency, "event_for", made.make)
    return made


def make_copies(events: Events, *, chained: bool = True, hops: int = 4) -> _Copies:
    memory = events.memory
    work = object.__new__(_Copies)
    cuda = SimpleNamespace(get_elapsed_time=lambda start, end: 0.008)
    work.pair = SimpleNamespace(  # type: ignore[assignment]
        synchronize=lambda: None, cp=SimpleNamespace(cuda=cuda)
    )
    work.options = make_options(hops=hops)
    work.chained = chained
    ends: Any = [End(memory, 10 * number) for number in range(2 if chained else 4)]
    work.ends = ends
    work.ways = [
        SimpleNamespace(copy=memory.copy, streams=[events.stream(f"s{side}")]) for side in (0, 1)
    ]
    work.origin = work.first = work.size_bytes = work.compared = 0
    work.marks = {size: [] for size in SIZES_BYTES}
    return work


def run_passes(work: _Copies, *sizes: int) -> None:
    for size in sizes:
        work.begin(size)
        work.hop_all(size)


def test_hops_go_there_and_back_in_the_same_two_buffers(memory: Memory, events: Events) -> None:
    work = make_copies(events)
    run_passes(work, 8, 16, 8)
    there, back = (0, 10), (10, 0)
    # Of each size, passes begin on either side in turn.
    assert memory.done == [there, back] * 14 + [back, there] * 7
    work.check()
    assert work.compared == 2 * 2 + 2 * 4 + 2 * 2


def test_hops_are_timed_after_the_first_ten_on_the_side_where_the_data_is(events: Events) -> None:
    work = make_copies(events)
    run_passes(work, 8, 8)
    assert events.log == [("timed s0", 10), ("timed s0", 14), ("timed s1", 24), ("timed s1", 28)]
    assert work.hop_times_ns(1)["hops-8"] == [2000.0]  # 8 µs over 4
    assert len(work.hop_times_ns(2)["hops-8"]) == 2


def test_hops_without_order_have_buffers_of_their_own(memory: Memory, events: Events) -> None:
    work = make_copies(events, chained=False)
    run_passes(work, 8, 8)
    assert memory.done == [(0, 10), (20, 30)] * 14
    assert events.log[:4] == [("timed s0", 10), ("mark s1", 14), ("s0 waits", 14), ("timed s0", 14)]
    work.check()


FIRST, SECOND = range(14), range(14, 28)
"""The copies of two passes; of the second the even ones go back."""


@pytest.mark.parametrize(
    "lost",
    [
        {0},
        {14},
        set(SECOND),
        {*FIRST[0::2], *SECOND[1::2]},  # nothing arrives on the far side
        {*FIRST[1::2], *SECOND[0::2]},  # nothing comes back
    ],
)
def test_data_that_did_not_arrive_is_seen_whatever_comes_after(
    lost: set[int], memory: Memory, events: Events
) -> None:
    memory.lost = lost
    work = make_copies(events)
    run_passes(work, 8, 8, 8)
    with pytest.raises(ProgramError, match="wrong data"):
        work.check()


def make_flags(found: tuple[int, int], *, late: bool = False) -> _Flags:
    work = object.__new__(_Flags)
    work.pair = SimpleNamespace(synchronize=lambda: None)  # type: ignore[assignment]
    work.flags = [SimpleNamespace(get=lambda value=value: [value]) for value in found]
    work.late = [SimpleNamespace(get=lambda: [int(late)])]
    work.token = 3000
    return work


def test_hops_of_flags_are_timed_by_the_clock_of_the_gpu_that_leads() -> None:
    work = make_flags((3000, 2999))
    work.options = make_options(path="sm", hops=10)
    work.times_ns = [5.0]
    work.spans = [SimpleNamespace(get=lambda: np.array([100, 8100], np.uint64))]
    assert work.hop_times_ns(1) == {"flags": [800.0]}
    assert work.times_ns == [5.0, 800.0]


def test_flags_end_at_the_last_token_and_the_one_before() -> None:
    make_flags((3000, 2999)).check()
    with pytest.raises(ProgramError, match="wrong data: 1 of 2 elements"):
        make_flags((3001, 2999)).check()
    with pytest.raises(ProgramError, match="waited 10 s"):
        make_flags((3000, 2999), late=True).check()


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


def test_a_pair_that_cannot_reach_each_other_is_left_out_of_the_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enabled: list[tuple[int, int]] = []
    monkeypatch.setattr(p2p_latency, "enable_peer_access", lambda cp, a, b: enabled.append((a, b)))
    runtime = SimpleNamespace(deviceCanAccessPeer=lambda a, b: int((a, b) != (2, 1)))
    cp = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    assert p2p_latency._reach(cp, (0, 1), range(3)) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert enabled == [(0, 2), (2, 0)]  # 0 and 1 have it, 1 and 2 cannot
    lines = p2p_latency._matrix_lines({("push", 0, 1): 2000.0, ("pull", 1, 0): 13_000.0})
    assert lines[2].split() == ["from", "0", "–", "2.00", "µs"]
    assert lines[-1].split() == ["from", "1", "13.0", "µs", "–"]
