"""Steps issued ahead: right in any order of the streams, wrong without a wait; NCCL; NVSHMEM."""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope import api, samples
from gpuscope.benchmarks import jacobi_nccl_overlap, jacobi_nvshmem
from gpuscope.benchmarks._harness import Expected, add_common_arguments, jacobi_ranks
from gpuscope.benchmarks._harness.decomposition import Region, cut
from gpuscope.benchmarks._harness.queued import (
    CHAINED,
    OVERLAPPED,
    SAME_STREAM,
    SERIALIZED,
    NcclSteps,
    Queued,
)
from gpuscope.benchmarks._harness.stencil import prove_tile, reference_step
from gpuscope.benchmarks.jacobi_nvshmem import _InKernel, _Puts
from gpuscope.errors import ProgramError, UsageError
from tests.simulated_gpu import HOST, NULL, SimulatedGpu, SimulatedKernels, Stream, session

GRID = (11, 9)
STEPS = 7
SEEDS = range(15)
ORDERS = (SERIALIZED, OVERLAPPED, SAME_STREAM, CHAINED)


class Heap:
    """Arrays of all ranks, each at one address: puts are done when their stream comes to them."""

    def __init__(self, gpu: SimulatedGpu, rank: int, heaps: list[Heap]) -> None:
        self.gpu, self.rank, self.heaps = gpu, rank, heaps
        self.arrays: list[Any] = []

    def array(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        made = self.gpu.zeros(shape, dtype)
        self.arrays.append(made)
        return made

    def signals(self, count: int) -> Any:
        return self.array((count,), "uint64")

    def flat(self, address: int, peer: int) -> Any:
        """Return what lies from an address on at another rank, which has an array alike."""
        for mine, theirs in zip(self.arrays, self.heaps[peer].arrays, strict=False):
            offset = (address - mine.ctypes.data) // mine.itemsize
            if 0 <= offset < mine.size:
                return theirs.reshape(-1)[offset:]
        raise AssertionError("no array of the heap")

    def put_signal(
        self, target: int, source: int, size: int, signal: int, value: int, peer: int, stream: Any
    ) -> None:
        points = size // 4
        stream.issue(
            lambda: np.copyto(
                self.flat(target, peer)[:points], self.flat(source, self.rank)[:points]
            )
        )
        stream.issue(lambda: self.flat(signal, peer).__setitem__(0, value))

    def wait(self, signal: int, value: int, stream: Any) -> None:
        stream.issue(lambda: None, lambda: bool(self.flat(signal, self.rank)[0] >= value))

    def barrier(self, stream: Any) -> None:
        """Let the stream wait for ever: what may go on without is what is looked at."""
        stream.issue(lambda: None, lambda: False)


class PuttingKernels:
    """The kernels of ``--in-kernel`` on the streams of a simulated GPU."""

    def __init__(self, heap: Heap, kernels: SimulatedKernels) -> None:
        self.heap, self.kernels = heap, kernels

    def edge_put(self, grid: Any, block: Any, arguments: Any) -> None:
        now, other, columns, row, column, end_column, norm, *where = arguments
        region = Region(int(row), int(row) + 1, int(column), int(end_column))
        self.kernels.step(now, other, region, norm, self.heap.gpu.current)
        self.put(grid, block, (other[int(row)].ctypes.data, columns, *where))

    def put(self, grid: Any, block: Any, arguments: Any) -> None:
        source, columns, halo, part, peer, signal, value, done = arguments
        assert part * (grid[0] - 1) < columns <= part * grid[0]  # each block has some
        assert part % block[0] == 0
        assert (done.shape, done.dtype) == ((1,), np.uint32)
        size_bytes = 4 * int(columns)
        self.heap.put_signal(halo, source, size_bytes, signal, value, peer, self.heap.gpu.current)


class Alike:
    """A communicator of ranks that all have the same sum, of which one is asked for the total."""

    def Iallreduce(self, mine: Any, total: Any) -> Any:
        value = mine.copy()
        return SimpleNamespace(Wait=lambda: np.copyto(total, value))


def make(
    size: int,
    order: str,
    seed: int,
    left_out: Any = (),
    *,
    periodic: bool = True,
    norm_every: int = 2,
    skew_us: int = 0,
    barrier: bool = False,
    in_kernel: bool = False,
) -> list[_Puts]:
    """Return all ranks, on GPUs whose streams go on by one chance."""
    gpu = SimulatedGpu(seed, left_out)
    heaps: list[Heap] = []
    heaps += [Heap(gpu, rank, heaps) for rank in range(size)]
    blocks = [cut(GRID, (size, 1), rank, periodic=periodic) for rank in range(size)]
    heights = [block.shape[0] for block in blocks]
    everyone = []
    for rank, heap in enumerate(heaps):
        ranks: Any = SimpleNamespace(
            session=session(gpu),
            comm=Alike(),
            rank=rank,
            gather=lambda rows: heights,
            barrier=lambda: None,
        )
        kernels: Any = SimulatedKernels(gpu)
        fake: Any = heap
        options: Any = {"order": order, "heap": fake, "barrier": barrier, "skew_us": skew_us}
        variant: type[_Puts] = _Puts
        if in_kernel:
            putting = PuttingKernels(heap, kernels)
            variant, options["kernels"] = _InKernel, (putting.edge_put, putting.put)
        everyone.append(variant(ranks, kernels, blocks[rank], norm_every, **options))
    return everyone


def is_right(everyone: list[_Puts], *, periodic: bool = True) -> bool:
    """Do steps on all ranks, and say whether they come to what one GPU comes to."""
    for each in everyone:
        each.run(STEPS)
    everyone[0].cp.cuda.runtime.deviceSynchronize()
    norm = float(sum(each.tile.norm.host[0] for each in everyone))
    try:
        for each in everyone:
            prove_tile(each.tile, {STEPS - 1: norm})
    except ProgramError:
        return False
    return True


@pytest.mark.parametrize("in_kernel", [False, True])
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_any_order_of_the_streams_gives_what_one_gpu_gives(
    order: str, size: int, periodic: bool, in_kernel: bool
) -> None:
    for seed in SEEDS:
        everyone = make(
            size, order, seed, periodic=periodic, skew_us=seed % 2 * 200, in_kernel=in_kernel
        )
        assert is_right(everyone, periodic=periodic)


@pytest.mark.parametrize("order", ORDERS)
def test_all_streams_are_held_back_by_the_gate_and_an_exchange_is_on_the_first(order: str) -> None:
    (alone,) = make(1, order, 0)
    gpu = alone.cp
    works: list[tuple[Callable[[], None], Any]] = [
        (lambda: alone.run(STEPS), alone.streams),
        (alone.compute, alone.streams),
        (alone.exchange, alone.streams[:1]),  # which it is timed on
    ]
    for work, streams in works:
        gpu.issued.clear()
        work()
        assert gpu.issued <= set(streams)
    assert alone.high.priority < alone.low.priority


@pytest.mark.parametrize("in_kernel", [False, True])
def test_an_exchange_alone_fills_the_halo_of_the_grid_as_it_is(in_kernel: bool) -> None:
    for seed in SEEDS:
        (alone,) = make(1, OVERLAPPED, seed, in_kernel=in_kernel)
        alone.run(1)  # the other grid has other points then
        alone.cp.cuda.runtime.deviceSynchronize()
        now = alone.tile.now
        now[0] = now[-1] = np.nan
        alone.exchange()
        alone.cp.cuda.runtime.deviceSynchronize()
        assert np.array_equal(now[0], now[-2])
        assert np.array_equal(now[-1], now[1])


@pytest.mark.parametrize("order", ORDERS)
def test_skew_holds_the_streams_back_that_a_step_is_issued_to(order: str) -> None:
    held: list[Any] = []
    (alone,) = make(1, order, 0, skew_us=200)
    kernels: Any = alone.tile.kernels
    kernels.wait = lambda wait_ns, stream: held.append(stream)
    alone.step(0)
    expected = {SERIALIZED: [alone.high], SAME_STREAM: [alone.high] * 2}
    assert held == expected.get(order, [alone.high, alone.low])


@pytest.mark.parametrize("in_kernel", [False, True])
def test_each_stream_waits_for_the_other_once_a_step_and_needs_to(in_kernel: bool) -> None:
    everyone = make(2, OVERLAPPED, 0, in_kernel=in_kernel)
    assert is_right(everyone)
    waits = sorted(everyone[0].cp.waits)
    high, low = (0, 2), (1, 3)
    assert {stream for stream, _ in waits} == {*high, *low}
    assert len(waits) == 2 * 2  # ranks, streams
    for wait in waits:
        orders = (make(2, OVERLAPPED, seed, (wait,), in_kernel=in_kernel) for seed in range(60))
        assert not all(is_right(each) for each in orders), wait


@pytest.mark.parametrize(
    ("order", "gets_on"), [(OVERLAPPED, True), (SAME_STREAM, False), (CHAINED, False)]
)
def test_inner_rows_beside_an_exchange_that_hangs(order: str, gets_on: bool) -> None:
    """Rank 1 issues nothing: rank 0 waits for it for ever."""
    alone, _ = make(2, order, 0)
    targets = alone.tile.other, alone.tile.now
    before = [target.copy() for target in targets]
    for index in range(2):
        alone.step(index)
    with pytest.raises(AssertionError, match="can never come"):
        alone.cp.cuda.runtime.deviceSynchronize()

    def changed(step: int, where: Any) -> bool:
        return not np.array_equal(targets[step][where.slices], before[step][where.slices])

    edge, inner = alone.block.edges["up"], alone.block.inner
    assert (changed(0, edge), changed(1, edge)) == (True, False)
    assert (changed(0, inner), changed(1, inner)) == (gets_on, gets_on)


@pytest.mark.parametrize("barrier", [False, True])
def test_inner_rows_of_the_twin_wait_for_the_barrier_behind_the_exchange(barrier: bool) -> None:
    (alone,) = make(1, CHAINED, 0, barrier=barrier)
    target = alone.tile.other
    before = target.copy()
    alone.step(0)
    with pytest.raises(AssertionError, match="can never come") if barrier else nullcontext():
        alone.cp.cuda.runtime.deviceSynchronize()
    halo, inner = target[0], alone.block.inner.slices
    assert np.array_equal(halo, target[alone.block.own.end_row - 1])  # exchanged
    assert np.array_equal(target[inner], before[inner]) is barrier


@pytest.mark.parametrize("order", ORDERS)
def test_the_kernels_of_a_step_alone_leave_its_points_and_its_norm_alone(order: str) -> None:
    for seed in SEEDS:
        (alone,) = make(1, order, seed)
        own = alone.block.own.slices
        before = alone.tile.now.get()[own]
        for _ in range(2):  # what is thrown away must not count the second time
            alone.compute()
        alone.finish()
        alone.cp.cuda.runtime.deviceSynchronize()
        expected, norm = reference_step(before)
        assert np.array_equal(alone.tile.other.get()[own], expected)
        assert alone.tile.norm.host[0] == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_the_host_waits_for_nothing_that_is_issued_behind_a_closed_gate(order: str) -> None:
    (alone,) = make(1, order, 0)
    alone.run(STEPS)
    assert not alone.waits
    assert HOST not in {who for who, _ in alone.cp.waits}


# The norms on the way.


class Alone(Queued):
    """One rank that exchanges nothing; `totals` is what all ranks find, look by look."""

    def __init__(self, totals: list[float], norm_every: int) -> None:
        gpu = SimulatedGpu(0)
        ranks: Any = SimpleNamespace(session=session(gpu), comm=self, rank=0)
        kernels: Any = SimulatedKernels(gpu)
        block = cut(GRID, (1, 1), 0)
        super().__init__(ranks, kernels, block, norm_every, order=OVERLAPPED, skew_us=0)
        self.found = totals
        self.log: list[str] = []
        self.looked_at = SimpleNamespace(
            record=lambda stream: self.log.append(f"copied behind step {self.tile.steps_done - 1}"),
            synchronize=lambda: self.log.append(f"{self.tile.steps_done} steps issued: look"),
        )

    def carry(self, array: Any, stream: Any) -> None:
        pass

    def Iallreduce(self, mine: Any, total: Any) -> Any:
        value = self.found.pop(0)

        def wait() -> None:
            self.log.append(f"{self.tile.steps_done} steps issued: take up")
            total[0] = value

        return SimpleNamespace(Wait=wait)


def test_the_host_looks_at_a_norm_when_more_steps_are_issued_behind_it() -> None:
    steps = Alone([9.0, 4.0, 1.0], 3)
    assert steps.solve(1.5) == 12
    assert steps.log == [
        "copied behind step 0",
        "4 steps issued: look",
        "copied behind step 3",
        "5 steps issued: take up",
        "7 steps issued: look",
        "copied behind step 6",
        "8 steps issued: take up",
        "10 steps issued: look",
        "copied behind step 9",
        "11 steps issued: take up",
    ]
    assert steps.totals == {0: 9, 3: 4, 6: 1}
    # That of step 6 was small enough.
    assert 12 - 1 - steps.norm_lag == 6
    steps.log.clear()
    steps.run(8)
    assert not any("look" in line for line in steps.log)


def norms_are_right(norm_every: int, seed: int, left_out: Any = ()) -> bool:
    """Solve on one rank, its own neighbour, and say whether the host saw the norms of NumPy."""
    (alone,) = make(1, OVERLAPPED, seed, left_out, norm_every=norm_every)
    alone.solve(0.6)
    alone.cp.cuda.runtime.deviceSynchronize()
    try:
        prove_tile(alone.tile, alone.totals)
    except ProgramError:
        return False
    return len(alone.totals) > 1


@pytest.mark.parametrize("norm_every", [1, 2, 3])
def test_the_norms_that_the_host_sees_are_those_of_their_steps(norm_every: int) -> None:
    for seed in SEEDS:
        assert norms_are_right(norm_every, seed)
    (alone,) = make(1, OVERLAPPED, 0)
    host = [(HOST, alone.cp.events.index(alone.looked_at))]
    assert not all(norms_are_right(norm_every, seed, host) for seed in SEEDS)


@pytest.mark.parametrize("wrong_by", [0, 1])
def test_the_proof_compares_the_norms_that_the_host_comes_to_know(
    wrong_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jacobi_ranks, "_PROOFS", (GRID,))
    monkeypatch.setattr(jacobi_ranks, "PROOF_STEPS", 9)
    (alone,) = make(1, OVERLAPPED, 0, norm_every=4)
    ranks: Any = alone.ranks
    ranks.size, ranks.gather = 1, lambda mine: [mine]
    ranks.session.check = lambda check: check()
    start = alone.norm_sum.start
    monkeypatch.setattr(alone.norm_sum, "start", lambda mine: start(mine + wrong_by))
    if wrong_by:
        with pytest.raises(ProgramError, match="wrong data: the norm of a step"):
            jacobi_ranks._prove(ranks, lambda *block: alone, cut_columns=False)
    else:
        jacobi_ranks._prove(ranks, lambda *block: alone, cut_columns=False)
        assert list(alone.totals) == [0]


# NCCL.


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a NCCL that writes down its groups in ``log``."""
    log: list[tuple[str, int, int]] = []
    fake = SimpleNamespace(
        NCCL_FLOAT32=7,
        groupStart=lambda: log.append(("start", 0, 0)),
        groupEnd=lambda: log.append(("end", 0, 0)),
        log=log,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nccl=fake))
    return fake


def nccl_steps(make: Callable[..., NcclSteps], log: Any, size: int, rank: int) -> NcclSteps:
    """Return a rank whose sends and receives are written down, with address and peer."""
    gpu = SimulatedGpu(0)
    ranks: Any = SimpleNamespace(session=session(gpu), comm=None, rank=rank)
    kernels: Any = SimulatedKernels(gpu)

    def note(word: str, at: int, count: int, peer: int) -> None:
        assert count == GRID[1]
        log.append((word, at, peer))

    communicator = SimpleNamespace(
        send=lambda at, count, kind, peer, stream: note("send", at, count, peer),
        recv=lambda at, count, kind, peer, stream: note("recv", at, count, peer),
    )
    block = cut(GRID, (size, 1), rank)
    options = {"order": OVERLAPPED, "communicator": communicator, "skew_us": 0}
    return make(ranks, kernels, block, 1, **options)


@pytest.mark.parametrize(
    ("size", "rank", "expected"),
    [
        # Two ranks send each other two rows: what goes up first comes from below first.
        (2, 0, ["send 1 1", "send 6 1", "recv 7 1", "recv 0 1"]),
        (3, 1, ["send 1 0", "send 4 2", "recv 5 2", "recv 0 0"]),
    ],
)
def test_nccl_receives_in_the_order_in_which_neighbours_send(
    nccl: Any, size: int, rank: int, expected: list[str]
) -> None:
    steps = nccl_steps(NcclSteps, nccl.log, size, rank)
    array = steps.tile.now
    steps.carry(array, steps.high)
    (start, _, _), *rows, (end, _, _) = nccl.log
    assert (start, end) == ("start", "end")
    assert [
        f"{word} {(at - array.ctypes.data) // array.strides[0]} {peer}" for word, at, peer in rows
    ] == expected


def test_a_graph_of_two_steps_is_launched_half_as_often(
    nccl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    def end_capture(stream: int) -> int:
        log.append("end")
        return 7

    class Gpu(SimulatedGpu):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            runtime = self.cuda.runtime
            runtime.deviceSynchronize = lambda: nccl.log.append(("wait", 0, 0))
            runtime.streamBeginCapture = lambda stream: log.append("begin")
            runtime.streamEndCapture = end_capture
            runtime.graphUpload = lambda graph, stream: log.append("upload")
            runtime.graphLaunch = lambda graph, stream: log.append("launch")
            runtime.graphDestroy = lambda graph: log.append(f"destroy {graph}")
            runtime.graphExecDestroy = lambda graph: log.append(f"destroy ready {graph}")

    monkeypatch.setattr(sys.modules[__name__], "SimulatedGpu", Gpu)
    monkeypatch.setattr(jacobi_nccl_overlap, "keep_priorities", lambda graph: 8)
    monkeypatch.setattr(
        Stream, "issue", lambda self, *work: None if self.number == NULL else log.append("work")
    )
    graphs = ExitStack()
    make = partial(jacobi_nccl_overlap._Graphed, graphs=graphs)
    steps = nccl_steps(make, nccl.log, 2, 0)
    words = [word for word, _, _ in nccl.log]
    assert words[0] == "wait"  # until the rows are filled
    assert words.count("start") == 3  # once to connect, and two steps
    assert log[0] == "begin"
    assert log[-3:] == ["end", "destroy 7", "upload"]
    log.clear()
    array = steps.tile.now
    steps.run(6)
    assert log[:3] == ["launch"] * 3
    assert (steps.tile.steps_done, steps.tile.now is array) == (6, True)
    log.clear()
    graphs.close()  # while a graph is left, NCCL never ends the communicator
    assert log == ["destroy ready 8"]


class Graphs:
    """Graphs of a simulated GPU, on which one rank exchanges with itself by NCCL.

    A launch does again what was issued while the graph was captured, in any order that the events
    among it allow; what follows on the stream waits for all of it.
    """

    def __init__(self, gpu: SimulatedGpu, nccl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = gpu
        self.works: list[tuple[Stream, Callable[[], bool], Callable[[], object]]] = []
        self.launches = 0
        self._rows: list[tuple[int, int, Stream]] = []
        runtime, issue = gpu.cuda.runtime, Stream.issue
        runtime.graphUpload = runtime.graphExecDestroy = runtime.graphDestroy = lambda *_: None
        runtime.streamEndCapture = lambda stream: monkeypatch.setattr(Stream, "issue", issue)
        runtime.streamBeginCapture = lambda stream: monkeypatch.setattr(
            Stream,
            "issue",
            lambda stream, work, ready=lambda: True: self.works.append((stream, ready, work)),
        )
        runtime.graphLaunch = lambda graph, stream: self._launch(stream)
        monkeypatch.setattr(jacobi_nccl_overlap, "keep_priorities", lambda graph: 8)
        nccl.groupEnd = self._exchange

    def send(self, row: int, points: int, kind: int, peer: int, stream: Stream) -> None:
        self._rows.append((row, 4 * points, stream))

    recv = send

    def _exchange(self) -> None:
        """Issue the copies: what is sent first is received first."""
        half = len(self._rows) // 2
        for (source, size_bytes, stream), (target, _, _) in zip(
            self._rows[:half], self._rows[half:], strict=True
        ):
            stream.issue(partial(ctypes.memmove, target, source, size_bytes))
        self._rows.clear()

    def _launch(self, stream: Stream) -> None:
        self.launches += 1
        lanes = {each: Stream(self.gpu, each.number) for each, _, _ in self.works}
        self.gpu.streams += lanes.values()

        def begin() -> None:
            for event in self.gpu.events:
                event.reached = 0
            for each, ready, work in self.works:
                lanes[each].queue.append((ready, work))

        stream.issue(begin)
        stream.issue(lambda: None, lambda: not any(lane.queue for lane in lanes.values()))


def graphed(
    nccl: Any, monkeypatch: pytest.MonkeyPatch, norm_every: int, seed: int, left_out: Any = ()
) -> tuple[Any, Graphs]:
    """Return a rank alone whose steps are a graph, and the graphs of its GPU."""
    gpu = SimulatedGpu(seed, left_out)
    graphs = Graphs(gpu, nccl, monkeypatch)
    ranks: Any = SimpleNamespace(
        session=session(gpu), comm=None, rank=0, gather=lambda mine: [mine]
    )
    kernels: Any = SimulatedKernels(gpu)
    options: Any = {"order": OVERLAPPED, "communicator": graphs, "skew_us": 0}
    steps = jacobi_nccl_overlap._Graphed(
        ranks, kernels, cut(GRID, (1, 1), 0), norm_every, **options, graphs=ExitStack()
    )
    steps.looking = True
    return steps, graphs


@pytest.mark.parametrize(
    ("norm_every", "launches", "known"),
    [(1, 15, range(0, 30, 2)), (2, 15, range(0, 30, 2)), (5, 3, (5, 15, 25)), (15, 1, (15,))],
)
def test_a_graph_comes_to_the_grid_and_the_norms_of_one_gpu(
    norm_every: int, launches: int, known: Any, nccl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in SEEDS:
        steps, graphs = graphed(nccl, monkeypatch, norm_every, seed)
        steps.run(30)
        assert graphs.launches == launches
        assert list(steps.totals) == list(known)
        prove_tile(steps.tile, {**steps.totals, 29: steps.total_norm()})
        steps.looking = False  # as in a timed pass: the host waits for no launch
        steps.run(30)
        prove_tile(steps.tile, {59: steps.total_norm()})


def test_a_graph_needs_the_wait_of_the_edges_for_the_inner_rows(
    nccl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that of the inner rows for the edges the other stream would not be captured."""

    def is_right(seed: int) -> bool:
        steps, _ = graphed(nccl, monkeypatch, 5, seed, left_out)
        steps.run(30)
        try:
            prove_tile(steps.tile, {29: steps.total_norm()})
        except ProgramError:
            return False
        return True

    steps, _ = graphed(nccl, monkeypatch, 5, 0)
    left_out = [(steps.high.number, steps.cp.events.index(steps.inner_done))]
    assert not all(is_right(seed) for seed in range(60))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--steps", "7"), "launches 10 steps at once: give a multiple of 10 as --steps"),
        (("--norm-every", "3"), "--norm-every 3 launches 6 steps at once: give a multiple of 6"),
        (("--tolerance", "1e-3"), "no norm on its way"),
    ],
)
def test_what_a_graph_of_some_steps_cannot_do_is_refused(words: tuple[str, ...], says: str) -> None:
    benchmark = jacobi_nccl_overlap.BENCHMARK
    for right in ((), ("--steps", "10"), ("--norm-every", "9", "--steps", "18")):
        jacobi_nccl_overlap.refuse_what_no_graph_does(
            jacobi_ranks.choose_options(parsed(*right), benchmark.name)
        )
    with pytest.raises(UsageError, match=says):
        jacobi_nccl_overlap._run(parsed("--graph", *words))


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    jacobi_nccl_overlap._add_arguments(parser)
    add_common_arguments(parser, jacobi_nccl_overlap.BENCHMARK)
    return parser.parse_args(words)


# NVSHMEM from a kernel.


def test_an_edge_goes_to_the_opposite_halo_of_the_neighbour_with_its_signal() -> None:
    """The three ranks of 11 rows have 4, 4 and 3: halos lie at rows 0 and 5, or 4."""
    everyone = make(3, OVERLAPPED, 0)
    found = [
        (target.side.name, target.side.neighbour, target.halo.row) for target in everyone[1].targets
    ]
    assert found == [("up", 0, 5), ("down", 2, 0)]
    assert [target.halo.row for target in everyone[0].targets] == [4, 0]
    up, down = everyone[1].targets
    assert (up.signal, down.signal) == (down.mine, up.mine)


@pytest.mark.parametrize("name", ["overlap", "same_stream"])
def test_the_shipped_pairs_show_on_both_ranks_what_they_must_and_not_the_other(name: str) -> None:
    traces = api.analyze([samples.path(f"jacobi_{name}_r{rank}") for rank in (0, 1)])
    for overlapping in (True, False):
        rows = jacobi_ranks._expected(
            "overlapped", (("comm", "kernel"),), overlapping, judged=True, observable=True
        )
        judgement = api.judge({"expected": [asdict(row) for row in rows]}, traces)
        assert judgement.met is (overlapping == (name == "overlap"))
        assert not judgement.cannot_judge


def test_what_a_kernel_puts_is_not_observable() -> None:
    row, *others = jacobi_ranks._expected(
        "overlapped", (("kernel", "p2p"),), True, judged=True, observable=False
    )
    assert isinstance(row, Expected)
    assert (row.verdict, row.ratio_limit, others) == ("inconclusive (not observable)", None, [])


@pytest.mark.parametrize(("twin", "least"), [(None, 1), ("barrier", 2), ("corrupt-element", 1)])
def test_one_rank_exchanges_with_itself_but_not_behind_a_barrier(
    twin: str | None, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, *, least: int, oversubscribe: bool) -> Any:
        raise UsageError(f"{name}: {least}")

    monkeypatch.setattr(jacobi_nvshmem, "open_ranks", refuse)
    with pytest.raises(UsageError, match=f"^jacobi-nvshmem: {least}$"):
        jacobi_nvshmem._run(argparse.Namespace(twin=twin, oversubscribe=False))


PROOFS = 16 << 20


@pytest.mark.parametrize(
    ("words", "free_bytes", "setting", "heap_bytes"),
    [
        ((), 64 << 30, None, 4 << 30),
        ((), 8 << 30, None, 2 << 30),
        ((), 64 << 30, "1G", (1 << 30) - (64 << 20)),
        (("--rows", "1000", "--columns", "1000"), 64 << 30, None, 4 << 30),
        # Two arrays, with two rows of halo, of the rank with more rows; and what is proved before.
        (("--rows", "50001", "--columns", "30000"), 64 << 30, None, 8 * 25_003 * 30_000 + PROOFS),
        (
            ("--rows", "25001", "--columns", "30000", "--weak"),
            64 << 30,
            None,
            8 * 25_003 * 30_000 + PROOFS,
        ),
        (("--rows", "50001", "--columns", "30000"), 20 << 30, None, 5 << 30),
    ],
)
def test_the_heap_has_room_for_the_slab_that_is_asked_for_as_far_as_it_may(
    words: tuple[str, ...],
    free_bytes: int,
    setting: str | None,
    heap_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NVSHMEM_SYMMETRIC_SIZE", raising=False)
    if setting is not None:
        monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", setting)
    parser = argparse.ArgumentParser()
    add_common_arguments(parser, jacobi_nvshmem.BENCHMARK)
    jacobi_nvshmem.BENCHMARK.add_arguments(parser)
    runtime = SimpleNamespace(memGetInfo=lambda: (free_bytes, free_bytes))
    cp = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    ranks: Any = SimpleNamespace(
        session=SimpleNamespace(cp=cp), size=2, gather=lambda value: [value, value]
    )
    assert jacobi_nvshmem._heap_bytes(ranks, parser.parse_args(words)) == heap_bytes


DEVICE_LIBRARY = r"""
typedef unsigned long long uint64_t;
enum { NVSHMEM_SIGNAL_SET };
__device__ void nvshmemx_float_put_nbi_block(float*, const float*, size_t, int);
__device__ void nvshmem_quiet();
__device__ void nvshmemx_signal_op(uint64_t*, uint64_t, int, int);
"""


def test_a_block_counts_and_signals_behind_a_fence() -> None:
    before, _, after = jacobi_nvshmem._DEVICE_CODE.partition("atomicAdd(done, 1u)")
    for code in (
        before.rpartition("__syncthreads();")[2],
        after.partition("nvshmemx_signal_op")[0],
    ):
        assert "__threadfence_system();" in code


def test_the_kernels_that_put_compile_against_the_functions_they_call() -> None:
    from tests.unit.benchmarks.test_kernels import LIBRARY, compile_log

    if LIBRARY is None:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    includes, _, kernels = jacobi_nvshmem._DEVICE_CODE.partition("\n// Puts")
    assert includes.split() == [
        "#include",
        "<device/nvshmem_defines.h>",
        "#include",
        "<device/nvshmemx_defines.h>",
    ]
    log = compile_log(f"{DEVICE_LIBRARY}// Puts{kernels}", 90)
    assert log is None or "error" not in log
