"""What the passes issue, in which order, and what is made of the times; no NVSHMEM is needed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.benchmarks import nvshmem
from gpuscope.benchmarks._harness import Link, Measured, Statistics, symmetric
from gpuscope.benchmarks._harness.symmetric import Heap, heap_limit_bytes
from gpuscope.benchmarks.nvshmem import neighbours
from gpuscope.errors import UsageError

SIZE_BYTES = 16
VARIABLE = "NVSHMEM_SYMMETRIC_SIZE"
SPARE_BYTES = 64 << 20


class FakeHeap:
    """Writes down what is issued, in the log of the fake CuPy."""

    rank, size = 0, 2

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.log = cupy, cupy.log

    def array(self, shape: tuple[int, ...]) -> Any:
        return self.cupy.empty(*shape, "float32")

    def signals(self, count: int) -> Any:
        return self.array((count,))

    def put(self, target: int, source: int, size_bytes: int, peer: int, stream: Any) -> None:
        self.log.append(f"put {target} {source} {size_bytes} to {peer} {stream.name}")

    def get(self, target: int, source: int, size_bytes: int, peer: int, stream: Any) -> None:
        self.log.append(f"get {target} {source} {size_bytes} from {peer} {stream.name}")

    def put_signal(
        self,
        target: int,
        source: int,
        size_bytes: int,
        signal: int,
        value: int,
        peer: int,
        stream: Any,
    ) -> None:
        self.log.append(f"put {target} {source}, signal {value} to {peer} {stream.name}")

    def wait(self, signal: int, value: int, stream: Any) -> None:
        self.log.append(f"{stream.name} waits for signal {value}")

    def barrier(self, stream: Any) -> None:
        self.log.append(f"barrier {stream.name}")


class FakePattern:
    def __init__(self, cp: Any) -> None:
        self.log = cp.log

    def fill_device(self, array: Any, first: int = 0) -> None:
        self.log.append(f"fill {array.data.ptr} {first}")

    def count(self, array: Any, first: int, worked: int, added: int, wrong: Any) -> None:
        self.log.append(f"look {array.data.ptr} {first}")


@pytest.fixture
def make(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes the work of rank 0 of 2, with an empty log."""
    monkeypatch.setattr(nvshmem, "Pattern", FakePattern)

    def made(*, barrier_first: bool = False) -> Any:
        ranks: Any = SimpleNamespace(
            session=SimpleNamespace(cp=cupy), barrier=lambda: cupy.log.append("all ranks")
        )
        heap: Any = FakeHeap(cupy)
        work = nvshmem._Work(ranks, heap, SIZE_BYTES, 2, barrier_first=barrier_first)
        cupy.log.clear()
        return work

    return made


def test_a_ring_of_ranks() -> None:
    assert [neighbours(rank, 3) for rank in range(3)] == [(1, 2), (2, 0), (0, 1)]
    assert neighbours(0, 2) == (1, 1)


def test_transfers_and_kernel_go_to_streams_of_their_own(make: Any, cupy: Any) -> None:
    work = make()
    work.beside("put")
    inbox, outbox = work.inboxes["put"].data.ptr, work.outbox.data.ptr
    assert cupy.log == [
        f"put {inbox} {outbox} 16 to 1 s1",
        f"put {inbox + 16} {outbox + 16} 16 to 1 s1",
        f"fma_steps {work.data.data.ptr} s2",
    ]
    cupy.log.clear()
    work.beside("get")
    assert [line.split()[0] for line in cupy.log] == ["get", "get", "fma_steps"]


def test_each_put_signals_and_the_last_signal_of_the_neighbour_is_waited_for(
    make: Any, cupy: Any
) -> None:
    work = make()
    for last in (2, 4):
        cupy.log.clear()
        work.beside("put-signal")
        assert [line.rpartition(", ")[2] for line in cupy.log[:3]] == [
            f"signal {last - 1} to 1 s1",
            f"signal {last} to 1 s1",
            f"s1 waits for signal {last}",
        ]


@pytest.mark.parametrize(("barrier_first", "between"), [(True, ["barrier s1"]), (False, [])])
def test_the_twin_and_the_baseline_let_the_kernel_wait(
    make: Any, cupy: Any, barrier_first: bool, between: list[str]
) -> None:
    work = make(barrier_first=barrier_first)
    if barrier_first:
        work.beside("put")
    else:
        work.sequential()
    assert cupy.log[2:] == [
        *between,
        "e1 in s1",
        "s2 waits for e1",
        f"fma_steps {work.data.data.ptr} s2",
    ]


def test_every_pass_sends_something_new_and_is_looked_at_before_it_runs_again(
    make: Any, cupy: Any
) -> None:
    work = make()
    outbox, put, get = (
        each.data.ptr for each in (work.outbox, *map(work.inboxes.get, ("put", "get")))
    )
    for name in ("put", "get", "put"):
        work.prepare(name)
    # 8 elements a buffer: the pattern of rank 0 begins at 9 × (2 × number), of rank 1 9 further on.
    assert cupy.log == [
        "all ranks",
        f"fill {outbox} 18",
        "deviceSynchronize",
        "all ranks",
        f"fill {outbox} 36",
        "deviceSynchronize",
        "all ranks",
        f"look {put} 27",
        f"fill {outbox} 54",
        "deviceSynchronize",
    ]
    cupy.log.clear()
    work.look("get")
    assert cupy.log == [f"look {get} 45"]


def test_figures_and_limits() -> None:
    times = {"sequential": 5_000_000, "put": 2_500_000, "get": 2_500_000, "put-signal": 4_000_000}
    measured = Measured(
        {name: Statistics.of([time]) for name, time in times.items()},
        {},
        5,
        SimpleNamespace(),  # type: ignore[arg-type]
    )
    stages = {"put": 200_000, "get": 250_000, "put-signal": 400_000}
    found = nvshmem._figures(measured, 80_000_000, 8, stages, 2_000_000)
    assert found["put_rate_bytes_per_s"] == 400e9
    assert found["put_t_lb_ns"] == 2_000_000
    assert found["put_signal_t_lb_ns"] == 3_200_000
    assert found["put_speedup"] == 2.0

    rows = nvshmem._quantities(measured, found, Link("NVLink", 18, 450e9))
    shares = {row.name: row.reached_ratio for row in rows}
    assert shares["put"] == pytest.approx(400 / 450)
    assert shares["put, beside the kernel"] == pytest.approx(2 / 2.5)
    assert shares["put-signal, beside the kernel"] == pytest.approx(3.2 / 4)


def test_what_must_be_seen() -> None:
    assert [each.verdict for each in nvshmem._expected(serialized=False)] == [
        "serialized",
        *["overlapped"] * 3,
    ]
    twin = nvshmem._expected(serialized=True)
    assert {(each.a, each.b, each.verdict) for each in twin} == {("kernel", "p2p", "serialized")}


class Library:
    """As much of nvshmem4py as a heap uses."""

    SignalOp = SimpleNamespace(SIGNAL_SET=9)
    ComparisonType = SimpleNamespace(CMP_GE=3)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **_: self.calls.append((name, *arguments))

    def my_pe(self) -> int:
        return 1

    def n_pes(self) -> int:
        return 2


def test_a_heap_calls_nvshmem_with_addresses_peer_and_stream() -> None:
    library = Library()
    heap = Heap(library, library, 100)
    stream = SimpleNamespace(ptr=77)
    heap.put(1, 2, 3, 0, stream)
    heap.get(1, 2, 3, 0, stream)
    heap.put_signal(1, 2, 3, 4, 5, 0, stream)
    heap.wait(4, 5, stream)
    heap.barrier(stream)
    heap.array((8,))
    heap.close()
    assert (heap.rank, heap.size, heap.left_bytes) == (1, 2, 100 - 4 * 8)
    assert library.calls == [
        ("putmem_on_stream", 1, 2, 3, 0, 77),
        ("getmem_on_stream", 1, 2, 3, 0, 77),
        ("putmem_signal_on_stream", 1, 2, 3, 4, 5, 9, 0, 77),
        ("signal_wait_until_on_stream", 4, 3, 5, 77),
        ("barrier_all_on_stream", 77),
        ("array", (8,)),
        ("free_array", None),
        ("finalize",),
    ]


def of_two(*answers: Any) -> Any:
    """Return ranks of which the other one gives these answers, in turn, and then rank 0's own."""
    left = list(answers)
    return SimpleNamespace(place=None, gather=lambda value: [value, left.pop(0) if left else value])


@pytest.mark.parametrize(
    ("text", "limit_bytes"),
    [
        (None, sys.maxsize),
        ("", sys.maxsize),
        ("4G", (4 << 30) - SPARE_BYTES),
        ("1.5g", (3 << 29) - SPARE_BYTES),
        (".5t", (1 << 39) - SPARE_BYTES),
        ("268435456", (256 << 20) - SPARE_BYTES),
        ("1024k", 0),
    ],
)
def test_the_environment_sets_the_heap(
    text: str | None, limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    assert heap_limit_bytes(of_two()) == limit_bytes
    assert heap_limit_bytes(of_two(False, 7)) == min(7, limit_bytes)  # the other rank has less


def test_a_heap_that_is_no_size_or_too_small_is_refused_before_nvshmem_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "plenty")
    with pytest.raises(UsageError, match=f"^{VARIABLE} of rank 0 is no size: write it like 4G"):
        heap_limit_bytes(of_two(False))
    monkeypatch.setenv(VARIABLE, "1G")
    monkeypatch.setattr(symmetric, "import_nvshmem", lambda: (None, None))
    monkeypatch.setattr(symmetric, "refuse_shared_gpus", lambda name, places: None)
    with (
        pytest.raises(UsageError, match=f"set it to {(1 << 30) + SPARE_BYTES} or more"),
        symmetric.open_heap(of_two(), 1 << 30),
    ):
        raise AssertionError
