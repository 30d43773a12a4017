"""The Jacobi variants on a simulated GPU: right in any order, wrong without a wait.

One rank, which is its own neighbour above and below.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope.benchmarks._harness import Expected, ExpectedHidden, jacobi_ranks
from gpuscope.benchmarks._harness.decomposition import cut
from gpuscope.benchmarks._harness.jacobi_ranks import Variant, step_figures
from gpuscope.benchmarks._harness.stencil import prove_tile
from gpuscope.benchmarks.jacobi_2d import _Blocks
from gpuscope.benchmarks.jacobi_mpi import _Serialized
from gpuscope.benchmarks.jacobi_mpi_overlap import _Overlapped
from gpuscope.errors import ProgramError
from tests.simulated_gpu import SimulatedGpu, SimulatedKernels, session

STEPS = 7
SEEDS = range(40)
"""So many orders are tried; a missing wait shows in several of them."""

Make = Callable[..., Variant]


class Self:
    """A communicator of one rank: what is sent comes back with the tag that it was sent with."""

    PROC_NULL = -1

    def __init__(self) -> None:
        self.sent: dict[int, Any] = {}
        self.Request = SimpleNamespace(Waitall=lambda requests: [each() for each in requests])

    def Irecv(self, buffer: Any, source: int, tag: int) -> Callable[[], None]:
        buffer[...] = np.nan  # what is received into must not be needed any more
        return lambda: np.copyto(buffer, self.sent.pop(tag))

    def Isend(self, buffer: Any, dest: int, tag: int) -> Callable[[], None]:
        self.sent[tag] = buffer.copy()
        return lambda: None

    def Sendrecv(
        self, sent: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int
    ) -> None:
        assert sendtag == recvtag
        recvbuf[...] = sent

    def Iallreduce(self, mine: Any, total: Any) -> Any:
        value = mine.copy()
        return SimpleNamespace(Wait=lambda: np.copyto(total, value))


def serialized(*arguments: Any) -> Variant:
    return _Serialized(*arguments)


def overlapped(*arguments: Any) -> Variant:
    return _Overlapped(*arguments, twin=None, skew_us=0)


def blocking(*arguments: Any) -> Variant:
    return _Overlapped(*arguments, twin="blocking", skew_us=0)


def without_reset_event(*arguments: Any) -> Variant:
    return _Overlapped(*arguments, twin="no-reset-event", skew_us=0)


def blocks(*arguments: Any) -> Variant:
    return _Blocks(*arguments, twin=None)


def packed_on_compute(*arguments: Any) -> Variant:
    return _Blocks(*arguments, twin="pack-on-compute-stream")


def do_steps(make: Make, seed: int, left_out: tuple[tuple[int, int], ...] = ()) -> Variant:
    """Do steps in an order given by `seed`, and compare with NumPy."""
    gpu = SimulatedGpu(seed, left_out)
    mpi = Self()
    ranks = SimpleNamespace(
        session=session(gpu), comm=mpi, mpi=mpi, rank=0, size=1, gather=lambda value: [value]
    )
    block = cut((9, 7), (1, 1), 0)
    variant = make(ranks, SimulatedKernels(gpu), block, 2)
    for _ in range(2):  # a pass begins where the one before ended
        variant.run(STEPS)
        norms = {**variant.totals, STEPS - 1: variant.total_norm()}
        before = variant.tile.steps_done - STEPS
        prove_tile(variant.tile, {before + step: norm for step, norm in norms.items()})
        assert sorted(variant.totals) == [0, 2, 4]
    return variant


def is_right(make: Make, seed: int, left_out: tuple[tuple[int, int], ...] = ()) -> bool:
    try:
        do_steps(make, seed, left_out)
    except ProgramError:
        return False
    return True


@pytest.mark.parametrize("make", [serialized, overlapped, blocking, blocks, packed_on_compute])
def test_any_order_that_the_events_allow_gives_the_grid_and_norms_of_one_gpu(make: Make) -> None:
    for seed in SEEDS:
        do_steps(make, seed)


def test_without_the_wait_for_the_norms_reset_the_race_is_caught() -> None:
    caught = [seed for seed in SEEDS if not is_right(without_reset_event, seed)]
    assert len(caught) > len(SEEDS) / 4


# Streams and events by number, as they are made. Event 0 is the reset of the norm. Of the slab
# events 1 and 3 are the edges, 5 the interior; streams 0 and 1 the edges, 2 the interior. Of the
# blocks event 1 is the edges, 2 the interior, 4 the unpacking; stream 0 the edges, 1 the interior.
RESET, INNER_OF_SLAB, INNER_OF_BLOCK, UNPACKED = 0, 5, 2, 4


@pytest.mark.parametrize(
    ("make", "implied"),
    [
        # The reset is behind the interior on one stream, so the wait for it says both; and the host
        # issues a step only after it has seen the copies of the edges before, which the interior
        # then need not wait for.
        (overlapped, {(0, INNER_OF_SLAB), (1, INNER_OF_SLAB), (2, 1), (2, 3)}),
        # Alike; and what is on one stream anyway.
        (blocks, {(0, INNER_OF_BLOCK), (1, 1), (0, 1), (0, UNPACKED)}),
        (packed_on_compute, {(0, INNER_OF_BLOCK), (0, UNPACKED)}),
    ],
)
def test_a_wait_left_out_is_caught_if_no_other_implies_it(
    make: Make, implied: set[tuple[int, int]]
) -> None:
    waits = sorted(do_steps(make, 0).cp.waits)
    needless = {pair for pair in waits if all(is_right(make, seed, (pair,)) for seed in SEEDS)}
    assert needless == implied


@pytest.mark.parametrize(
    ("make", "pairs"),
    [
        (overlapped, ((0, RESET), (0, INNER_OF_SLAB))),
        (blocks, ((0, RESET), (0, INNER_OF_BLOCK))),
        (packed_on_compute, ((0, RESET), (0, UNPACKED))),
    ],
)
def test_without_both_of_two_waits_the_grid_itself_goes_wrong(
    make: Make, pairs: tuple[tuple[int, int], ...]
) -> None:
    seen = set()
    for seed in SEEDS:
        try:
            do_steps(make, seed, pairs)
        except ProgramError as error:
            seen.add("rows" if "rows differ" in str(error) else "norm")
    assert seen == {"rows", "norm"}


def test_a_step_has_a_bound_and_the_overlap_that_the_times_tell() -> None:
    stages = {"inner_ns": 1000, "edge_ns": 50}
    found = step_figures((100, 52), 1100.0, 1040.0, 600.0, stages, overlapping=True)
    assert found["t_lb_ns"] == 1000
    assert found["omb_overlap_ratio"] == pytest.approx(0.9)
    assert found["speedup"] == pytest.approx(1640 / 1100)
    assert found["speedup_max"] == pytest.approx(1.64)
    assert found["updates_per_s"] == pytest.approx(5000 / 1100e-9)
    # The exchange is longer than the interior; no overlap is left to see.
    found = step_figures((100, 52), 2900.0, 1040.0, 1800.0, stages, overlapping=True)
    assert (found["t_lb_ns"], found["omb_overlap_ratio"]) == (1850, 0)
    found = step_figures((100, 52), 1000.0, 1040.0, 600.0, stages, overlapping=False)
    assert (found["t_lb_ns"], found["omb_overlap_ratio"]) == (1640, 1)


def test_copies_must_overlap_or_must_not_or_are_not_judged() -> None:
    assert [
        (row.a, row.b, row.verdict, row.ratio_limit)
        for judged, overlapping in ((True, True), (True, False), (False, True))
        for row in jacobi_ranks._expected(
            "steps", [("comm", "kernel")], overlapping, judged=judged, observable=True
        )
        if isinstance(row, Expected)
    ] == [
        ("comm", "kernel", "overlapped", 1.0),
        ("comm", "kernel", "serialized", 1.0),
        ("comm", "kernel", "not judged", None),
    ]


def test_copies_through_the_host_must_be_hidden_or_must_not() -> None:
    assert [
        (row.least, row.most)
        for judged, overlapping in ((True, True), (True, False), (False, True))
        for row in jacobi_ranks._expected("steps", (), overlapping, judged=judged, observable=True)
        if isinstance(row, ExpectedHidden)
    ] == [(0.8, 1.0), (0.0, 0.1)]
