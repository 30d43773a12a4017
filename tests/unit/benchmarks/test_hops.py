"""Hops: their order, when they are timed, and that data which did not arrive is seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope.benchmarks._harness import hops
from gpuscope.benchmarks._harness.hops import CopyHops, FlagHops
from gpuscope.errors import ProgramError


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
    monkeypatch.setattr(hops, "event_for", made.make)
    return made


def make_copies(events: Events, *, chained: bool = True) -> CopyHops:
    memory = events.memory
    work = object.__new__(CopyHops)
    cuda = SimpleNamespace(get_elapsed_time=lambda start, end: 0.008)
    work.pair = SimpleNamespace(  # type: ignore[assignment]
        synchronize=lambda: None, cp=SimpleNamespace(cuda=cuda)
    )
    work.hops = 4
    work.chained, work.push = chained, False
    ends: Any = [End(memory, 10 * number) for number in range(2 if chained else 4)]
    work.ends = ends
    work.ways = [
        SimpleNamespace(copy=memory.copy, streams=[events.stream(f"s{side}")]) for side in (0, 1)
    ]
    work.origin = work.first = work.size_bytes = work.compared = 0
    work.marks = {8: [], 16: []}
    return work


def run_passes(work: CopyHops, *sizes: int) -> None:
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


def test_hops_that_either_side_issues_are_timed_when_the_last_has_arrived(events: Events) -> None:
    work = make_copies(events)
    work.push = True
    run_passes(work, 8)
    assert events.log == [
        ("mark s1", 10), ("s0 waits", 10), ("timed s0", 10),
        ("mark s1", 14), ("s0 waits", 14), ("timed s0", 14),
    ]  # fmt: skip


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


def make_flags(found: tuple[int, int], *, late: bool = False) -> FlagHops:
    work = object.__new__(FlagHops)
    work.pair = SimpleNamespace(synchronize=lambda: None)  # type: ignore[assignment]
    work.flags = [SimpleNamespace(get=lambda value=value: [value]) for value in found]
    work.late = [SimpleNamespace(get=lambda: [int(late)])]
    work.token = 3000
    return work


def test_hops_of_flags_are_timed_by_the_clock_of_the_gpu_that_leads() -> None:
    work = make_flags((3000, 2999))
    work.hops = 10
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


def test_a_pair_that_cannot_reach_each_other_is_left_out_of_the_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enabled: list[tuple[int, int]] = []
    monkeypatch.setattr(hops, "enable_peer_access", lambda cp, a, b: enabled.append((a, b)))
    runtime = SimpleNamespace(deviceCanAccessPeer=lambda a, b: int((a, b) != (2, 1)))
    cp = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    assert hops._reach(cp, (0, 1), range(3)) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert enabled == [(0, 2), (2, 0)]  # 0 and 1 have it, 1 and 2 cannot
