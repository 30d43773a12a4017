"""A ring of ranks whose transfers are done by a simulated GPU: what arrives, and what is caught."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope.benchmarks import nvshmem
from gpuscope.benchmarks._harness.data import raise_if_wrong
from gpuscope.errors import ProgramError
from tests.simulated_gpu import SimulatedGpu, Stream
from tests.unit.benchmarks.test_queued import Heap

SIZE_BYTES, TRANSFERS, KERNEL_ELEMENTS = 16, 3, 8
SEEDS = range(10)
NAMES = ("sequential", "put", "get", "put-signal")


class RingHeap(Heap):
    """The heap of a rank; what is in ``lost`` never arrives."""

    def __init__(self, gpu: SimulatedGpu, rank: int, heaps: list[Heap], size: int) -> None:
        super().__init__(gpu, rank, heaps)
        self.size = size
        self.lost: set[str] = set()

    def put(self, target: int, source: int, size: int, peer: int, stream: Any) -> None:
        if "put" not in self.lost:
            self._copy((target, peer), (source, self.rank), size, stream)

    def get(self, target: int, source: int, size: int, peer: int, stream: Any) -> None:
        if "get" not in self.lost:
            self._copy((target, self.rank), (source, peer), size, stream)

    def put_signal(self, *arguments: Any) -> None:
        if "put-signal" in self.lost:
            arguments = (*arguments[:2], 0, *arguments[3:])
        super().put_signal(*arguments)

    def _copy(self, to: tuple[int, int], of: tuple[int, int], size: int, stream: Any) -> None:
        points = size // 4
        stream.issue(lambda: np.copyto(self.flat(*to)[:points], self.flat(*of)[:points]))


class RingPattern:
    """Whole numbers, one after the other from the position that is asked for."""

    def __init__(self, cp: SimulatedGpu) -> None:
        self.null = cp.null

    def fill_device(self, array: Any, first: int = 0) -> None:
        self.null.issue(lambda: np.copyto(array, first + np.arange(array.size)))

    def count(self, array: Any, first: int, worked: int, added: int, wrong: Any) -> None:
        def work() -> None:
            expected = first + np.arange(array.size) + added * (np.arange(array.size) < worked)
            wrong[0] += np.count_nonzero(array != expected)

        self.null.issue(work)

    def check_device(self, array: Any, first: int, added: int) -> None:
        wrong = np.zeros(1, int)
        self.count(array, first, array.size, added, wrong)
        self.null.synchronize()
        raise_if_wrong(wrong.tolist(), array.size, "buffer")


class RingKernel:
    def __init__(self, cp: SimulatedGpu) -> None:
        pass

    def launch(self, stream: Stream, data: int, elements: int, steps: int, term: int) -> None:
        memory: Any = (ctypes.c_float * elements).from_address(data)
        array = np.frombuffer(memory, np.float32)
        stream.issue(lambda: np.add(array, steps * term, out=array))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvshmem, "Pattern", RingPattern)
    monkeypatch.setattr(nvshmem, "FmaKernel", RingKernel)
    monkeypatch.setattr(nvshmem, "_KERNEL_ELEMENTS", KERNEL_ELEMENTS)


def ring(size: int, seed: int) -> list[Any]:
    """Return the work of all ranks, on GPUs whose streams go on by one chance."""
    gpu = SimulatedGpu(seed)
    heaps: list[Heap] = []
    heaps += [RingHeap(gpu, rank, heaps, size) for rank in range(size)]
    ranks: Any = SimpleNamespace(session=SimpleNamespace(cp=gpu), barrier=lambda: None)
    works = []
    for heap in heaps:
        fake: Any = heap
        works.append(nvshmem._Work(ranks, fake, SIZE_BYTES, TRANSFERS, barrier_first=False))
    return works


def turn(works: list[Any]) -> None:
    """Do each pass once, on all ranks."""
    for passes in zip(*(work.passes() for work in works), strict=True):
        for one in passes:
            one.prepare()
        for one in passes:
            one.issue()
        works[0].session.cp.cuda.runtime.deviceSynchronize()


@pytest.mark.parametrize("size", [2, 3])
def test_what_each_rank_sends_arrives_at_the_right_one(size: int) -> None:
    for seed in SEEDS:
        works = ring(size, seed)
        for _ in range(3):
            turn(works)
        for work in works:
            work.check()
        assert {name for work in works for name in work.inboxes} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_one_changed_element_of_any_pass_is_seen(name: str) -> None:
    works = ring(2, 0)
    turn(works)
    works[1].inboxes[name][-1] += 1
    works[0].check()
    with pytest.raises(ProgramError, match=r"^wrong data: 1 of"):
        works[1].check()


@pytest.mark.parametrize("way", ["put", "get", "put-signal"])
def test_what_does_not_arrive_the_second_time_is_seen(way: str) -> None:
    works = ring(2, 0)
    turn(works)
    works[0].heap.lost.add(way)
    turn(works)
    loser = works[0 if way == "get" else 1]
    with pytest.raises(ProgramError, match=r"^wrong data"):
        loser.check()


def test_what_went_wrong_in_an_earlier_pass_is_seen_at_the_end() -> None:
    works = ring(2, 0)
    turn(works)
    works[1].inboxes["get"][0] += 1
    turn(works)
    with pytest.raises(ProgramError, match=r"^wrong data: 1 of"):
        works[1].check()


def test_one_changed_element_of_what_the_kernels_work_on_is_seen() -> None:
    works = ring(2, 0)
    turn(works)
    works[0].data[0] += 1
    with pytest.raises(ProgramError, match=r"^wrong data: 1 of 8"):
        works[0].check()
