"""The Jacobi variants on a simulated GPU: right in any order, wrong without a wait.

One rank, which is its own neighbour above and below.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope.benchmarks._harness import (
    Expected,
    ExpectedHidden,
    Statistics,
    add_common_arguments,
    jacobi_ranks,
)
from gpuscope.benchmarks._harness.decomposition import cut
from gpuscope.benchmarks._harness.jacobi_ranks import Variant, start_variant, step_figures
from gpuscope.benchmarks._harness.stencil import prove_tile, reference_step
from gpuscope.benchmarks.jacobi_2d import _Blocks
from gpuscope.benchmarks.jacobi_mpi import _Serialized
from gpuscope.benchmarks.jacobi_mpi_overlap import BENCHMARK, _Overlapped
from gpuscope.errors import ProgramError, UsageError
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
    return _Serialized(*arguments, skew_us=0, path="staged")


def overlapped(*arguments: Any) -> Variant:
    return _Overlapped(*arguments, twin=None, skew_us=0, path="staged")


def blocking(*arguments: Any) -> Variant:
    return _Overlapped(*arguments, twin="blocking", skew_us=0, path="staged")


def without_reset_event(*arguments: Any) -> Variant:
    return _Overlapped(*arguments, twin="no-reset-event", skew_us=0, path="staged")


def blocks(*arguments: Any) -> Variant:
    return _Blocks(*arguments, twin=None, skew_us=0, path="staged")


def packed_on_compute(*arguments: Any) -> Variant:
    return _Blocks(*arguments, twin="pack-on-compute-stream", skew_us=0, path="staged")


def serialized_on_device(*arguments: Any) -> Variant:
    return _Serialized(*arguments, skew_us=0, path="device")


def overlapped_on_device(*arguments: Any) -> Variant:
    return _Overlapped(*arguments, twin=None, skew_us=0, path="device")


def blocks_on_device(*arguments: Any) -> Variant:
    return _Blocks(*arguments, twin=None, skew_us=0, path="device")


ON_DEVICE = [serialized_on_device, overlapped_on_device, blocks_on_device]


def start(make: Make, seed: int, left_out: tuple[tuple[int, int], ...] = ()) -> Variant:
    """Make a variant whose streams go on in an order given by `seed`."""
    gpu = SimulatedGpu(seed, left_out)
    mpi = Self()
    ranks = SimpleNamespace(
        session=session(gpu),
        comm=mpi,
        mpi=mpi,
        rank=0,
        size=1,
        gather=lambda value: [value],
        barrier=lambda: None,
    )
    block = cut((9, 7), (1, 1), 0)
    return start_variant(partial(make, ranks, SimulatedKernels(gpu)), block, 3)


def do_steps(make: Make, seed: int, left_out: tuple[tuple[int, int], ...] = ()) -> Variant:
    """Do steps in an order given by `seed`, and compare with NumPy."""
    variant = start(make, seed, left_out)
    for _ in range(2):  # a pass begins where the one before ended
        variant.run(STEPS)
        norms = {**variant.totals, STEPS - 1: variant.total_norm()}
        before = variant.tile.steps_done - STEPS
        prove_tile(variant.tile, {before + step: norm for step, norm in norms.items()})
        assert sorted(variant.totals) == [0, 3]
    return variant


@pytest.mark.parametrize("make", [serialized, overlapped, blocks, *ON_DEVICE])
def test_only_copies_that_are_done_are_timed(make: Make) -> None:
    found = start(make, 0).stages()
    assert {"inner_ns", "edge_ns"} <= set(found)
    assert ({"d2h_ns", "h2d_ns"} <= set(found)) is (make not in ON_DEVICE)
    assert set(found).isdisjoint({"d2h_ns", "h2d_ns"}) is (make in ON_DEVICE)


def is_right(make: Make, seed: int, left_out: tuple[tuple[int, int], ...] = ()) -> bool:
    try:
        do_steps(make, seed, left_out)
    except ProgramError:
        return False
    return True


@pytest.mark.parametrize(
    "make", [serialized, overlapped, blocking, blocks, packed_on_compute, *ON_DEVICE]
)
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
        (serialized, set()),
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
    assert waits
    needless = {pair for pair in waits if all(is_right(make, seed, (pair,)) for seed in SEEDS)}
    assert needless == implied


@pytest.mark.parametrize("make", [serialized, overlapped, blocking, blocks, *ON_DEVICE])
def test_an_exchange_alone_fills_the_halo_of_the_grid_as_it_is(make: Make) -> None:
    for seed in SEEDS:
        variant = start(make, seed)
        now = variant.tile.now
        now += 1  # nothing has these points yet
        now[0] = now[-1] = np.nan
        variant.exchange()
        variant.cp.cuda.runtime.deviceSynchronize()
        assert np.array_equal(now[0], now[-2])
        assert np.array_equal(now[-1], now[1])


@pytest.mark.parametrize("make", [serialized, overlapped, blocks])
def test_the_kernels_of_a_step_alone_leave_its_points_and_its_norm_alone(make: Make) -> None:
    for seed in SEEDS:
        variant = start(make, seed)
        own = variant.block.own.slices
        before = variant.tile.now.get()[own]
        for _ in range(2):  # what is thrown away must not count the second time
            variant.compute()
        variant.cp.cuda.runtime.deviceSynchronize()
        variant.finish()
        expected, norm = reference_step(before)
        assert variant.total_norm() == pytest.approx(norm, rel=1e-12)
        assert np.array_equal(variant.tile.other.get()[own], expected)


@pytest.mark.parametrize("make", [serialized, overlapped, blocks, packed_on_compute, *ON_DEVICE])
def test_all_streams_are_held_back_by_the_gate(make: Make) -> None:
    variant = start(make, 0)
    variant.cp.issued.clear()
    variant.run(STEPS)
    variant.compute()
    variant.exchange()
    assert variant.cp.issued == set(variant.streams)


@pytest.mark.parametrize("make", [overlapped, blocks])
def test_edges_are_more_urgent_than_the_interior(make: Make) -> None:
    inner, *edges = start(make, 0).streams
    assert edges
    assert all(edge.priority < inner.priority for edge in edges)


@pytest.mark.parametrize(
    ("make", "streams"),
    [
        (_Serialized, [0]),
        (partial(_Overlapped, twin=None), [2, 0, 1]),
        (partial(_Blocks, twin=None), [1, 0]),
    ],
)
def test_skew_holds_back_each_stream_that_computes(make: Make, streams: list[int]) -> None:
    variant = start(partial(make, path="staged", skew_us=200), 0)
    held: list[int] = []
    kernels: Any = variant.tile.kernels
    kernels.wait = lambda wait_ns, stream: held.append(stream.number)
    variant.step(0)
    assert held == streams


def kernels_alone(make: Make, seed: int, left_out: tuple[tuple[int, int], ...] = ()) -> Any:
    """Return what steps without an exchange come to, for which the host waits nowhere."""
    variant = start(make, seed, left_out)
    for _ in range(STEPS):
        variant.compute()
        variant.tile.turn()
    variant.cp.cuda.runtime.deviceSynchronize()
    return variant.tile.now.get()[variant.block.own.slices]


@pytest.mark.parametrize(("make", "waits"), [(overlapped, {(2, 1), (2, 3)}), (blocks, {(1, 1)})])
def test_the_interior_waits_for_the_edges_where_the_host_does_not(
    make: Make, waits: set[tuple[int, int]]
) -> None:
    expected = kernels_alone(serialized, 0)
    assert all(np.array_equal(kernels_alone(make, seed), expected) for seed in SEEDS)
    for wait in waits:
        found = [kernels_alone(make, seed, (wait,)) for seed in SEEDS]
        assert not all(np.array_equal(each, expected) for each in found), wait


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
    found = step_figures(5000, 1100.0, 1040.0, 600.0, stages, overlapping=True)
    assert found["t_lb_ns"] == 1000
    assert found["omb_overlap_ratio"] == pytest.approx(0.9)
    assert found["speedup"] == pytest.approx(1640 / 1100)
    assert found["speedup_max"] == pytest.approx(1.64)
    assert found["updates_per_s"] == pytest.approx(5000 / 1100e-9)
    # The exchange is longer than the interior; no overlap is left to see.
    found = step_figures(5000, 2900.0, 1040.0, 1800.0, stages, overlapping=True)
    assert (found["t_lb_ns"], found["omb_overlap_ratio"]) == (1850, 0)
    found = step_figures(5000, 1000.0, 1040.0, 600.0, stages, overlapping=False)
    assert (found["t_lb_ns"], found["omb_overlap_ratio"]) == (1640, 1)


def test_an_interior_that_took_longer_apart_than_all_kernels_is_no_bound() -> None:
    stages = {"inner_ns": 1150, "edge_ns": 50}
    found = step_figures(5000, 1045.0, 1040.0, 600.0, stages, overlapping=True)
    assert found["t_lb_ns"] == 1040
    assert found["speedup_max"] == pytest.approx(1640 / 1040)


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
    ] == [(0.8, 1.0), (0.0, 0.1), (0.0, 1.0)]


# Sizes, and the whole of a measurement, on a session whose times are given.


class TimedSession:
    """Runs every pass once, checks, and says that all took the times of `TIMES_NS`."""

    pci_bus_id = "0000:01:00.0"

    def __init__(self, free_bytes: int = 1 << 40) -> None:
        self.cp = SimulatedGpu(3)
        self.cp.cuda.runtime.memGetInfo = lambda: (free_bytes, free_bytes)
        self.ranges = session(self.cp).ranges

    def property(self, name: str) -> int:
        return 1 << 20

    def check(self, check: Callable[[], None]) -> None:
        check()

    def measure(self, passes: Any, reps: int, *, check: Any, corrupt: Any) -> Any:
        for item in passes:
            assert item.waits  # else the host would wait behind a closed gate
            item.issue()
        check()
        if corrupt is not None:
            corrupt()[-1:] += 1
        check()
        times = {item.name: Statistics.of([TIMES_NS[item.name]]) for item in passes}
        return SimpleNamespace(passes=times)

    def conclude(self, measured: Any, **parts: Any) -> Any:
        return parts


TIMES_NS = {"compute": 20_000, "exchange": 8_000, "overlapped": 21_000}


def measured(
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
    size: int = 1,
    heap_bytes: int | None = None,
    **stages: int,
) -> Any:
    """Measure the overlapped variant; an interior lasts a nanosecond a point."""

    def times(variant: Variant) -> dict[str, int]:
        inner_ns = stages.get("inner_ns", variant.block.inner.points)
        return {"inner_ns": inner_ns, "edge_ns": 10, "issue_ns": 100}

    monkeypatch.setattr(jacobi_ranks, "_stage_times", times)
    monkeypatch.setattr(jacobi_ranks, "_host_ns", lambda variant, operation: 500)
    monkeypatch.setattr(jacobi_ranks, "_visible_columns", lambda ranks: 10)
    monkeypatch.setattr(jacobi_ranks, "_TRACING_NS", 200)
    monkeypatch.setattr(jacobi_ranks, "copy_rate_bytes_per_s", lambda session: 1e12)
    parser = argparse.ArgumentParser()
    jacobi_ranks.add_mpi_arguments(parser)
    add_common_arguments(parser, BENCHMARK)
    mpi = Self()
    timed = TimedSession(stages.get("free_bytes", 1 << 40))
    ranks = SimpleNamespace(
        session=timed,
        comm=mpi,
        mpi=mpi,
        rank=0,
        size=size,
        gather=lambda value: [value],
        largest=list,
        barrier=lambda: None,
    )
    kernels = SimulatedKernels(timed.cp)
    return jacobi_ranks.measure(
        ranks,  # type: ignore[arg-type]
        parser.parse_args(words),
        benchmark=BENCHMARK.name,
        pass_name="overlapped",
        make=lambda *block: overlapped(ranks, kernels, *block),
        cut_columns=False,
        overlapping=True,
        further={"path": "staged"},
        heap=None if heap_bytes is None else SimpleNamespace(left_bytes=heap_bytes),  # type: ignore[arg-type]
    )


def test_a_slab_is_as_high_as_hiding_the_exchange_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, "--steps", "4")
    # The 62 × 8 points of 64 rows last 496 ns, and 1.25 × (100 + 10 + 500), with the 200 that a
    # profiler adds, must be hidden: so many times 64 are 136 rows. 134 are inside, for 1072 ns.
    assert (found["options"]["rows"], found["options"]["columns"]) == (136, 10)
    assert found["notes"][0] == "sizes calibrated: --rows 136 --columns 10"
    assert found["options"]["path"] == "staged"


def test_a_measurement_states_the_step_its_bound_and_what_must_be_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("--rows", "30", "--columns", "12", "--steps", "4", "--tolerance", "3")
    found = measured(monkeypatch, *words, inner_ns=4_000)
    figures = found["figures"]
    assert (figures["t_step_ns"], figures["t_comp_ns"], figures["t_comm_ns"]) == (5250, 5000, 2000)
    assert figures["t_lb_ns"] == 4000
    assert figures["omb_overlap_ratio"] == pytest.approx(1 - 250 / 2000)
    assert figures["solve_steps"] > 3
    assert found["expected"] == (ExpectedHidden("overlapped", 0.8, 1.0),)
    assert "the norm came to 3 in" in " ".join(found["lines"])


def test_an_interior_too_short_to_hide_the_exchange_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = measured(monkeypatch, "--rows", "30", "--columns", "12", "--steps", "4", inner_ns=2_000)
    assert found["expected"] == (ExpectedHidden("overlapped", 0.0, 1.0),)
    assert "lasts longer than the interior" in found["notes"][0]


def test_an_interior_that_took_longer_apart_hides_no_more_than_all_kernels_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 1.1 × (100 + 10 + 4600) must be hidden: less than the 5200 of the interior alone, more than
    # the 5000 that all kernels of a step last.
    monkeypatch.setitem(TIMES_NS, "exchange", 4 * 4_600)
    found = measured(monkeypatch, "--rows", "30", "--columns", "12", "--steps", "4", inner_ns=5_200)
    assert found["figures"]["t_lb_ns"] == 5_000
    assert found["expected"] == (ExpectedHidden("overlapped", 0.0, 1.0),)


def test_a_changed_element_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--rows", "30", "--columns", "12", "--twin", "corrupt-element")
    with pytest.raises(ProgramError, match=r"^wrong data: 1 of 360 points of the block differ"):
        measured(monkeypatch, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "30"), "both --rows and --columns"),
        (("--ends", "open"), "one rank with open ends exchanges nothing"),
        # A quarter of 100 kB, 16 bytes a point: two arrays, and two to check them with.
        (("--rows", "3000", "--columns", "30"), "a grid of 3000 × 30 points .* use `--rows 52`"),
        (("--rows", "3000", "--columns", "3000"), "room for 1562 points: use fewer --columns"),
        (("--rows", "30", "--columns", "2"), "too few columns, 2: give 3 or more"),
    ],
)
def test_sizes_that_do_not_do(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=message):
        measured(monkeypatch, *words, free_bytes=100_000)


def test_a_grid_that_does_not_fit_stays_smaller_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 64 × 10 points take 16 bytes each with what they are checked with: a quarter of 45 kB.
    found = measured(monkeypatch, "--steps", "4", free_bytes=45_000)
    assert (found["options"]["rows"], found["options"]["columns"]) == (64, 10)
    assert "does not fit the memory" in found["notes"][0]


def test_a_slab_that_does_not_fit_the_heap_is_refused_with_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("--rows", "30", "--columns", "12", "--steps", "4")
    slab = 2 * 4 * (30 + 2) * 12
    assert measured(monkeypatch, *words, heap_bytes=slab)["options"]["rows"] == 30
    says = r"a rank needs 3.07 kB in the heap of NVSHMEM, and 3.07 kB are left there.*--rows 29`"
    with pytest.raises(UsageError, match=says):
        measured(monkeypatch, *words, heap_bytes=slab - 1)
    with pytest.raises(UsageError, match=r"room for 0 points: use fewer --columns"):
        measured(monkeypatch, *words, heap_bytes=100)


def test_a_slab_is_no_higher_than_fits_the_heap_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    slab = 2 * 4 * (136 + 2) * 10  # what a calibration comes to, tried and measured
    assert measured(monkeypatch, "--steps", "4", heap_bytes=2 * slab)["options"]["rows"] == 136
    found = measured(monkeypatch, "--steps", "4", heap_bytes=2 * slab - 1)
    assert found["options"]["rows"] == 64
    assert "does not fit the memory" in found["notes"][0]


@pytest.mark.parametrize(
    ("ranks", "cut_columns", "expected"),
    [(2, False, [(13, 11)]), (7, False, [(14, 11)]), (7, True, [(14, 11)]), (6, True, [(13, 11)])],
)
def test_the_proof_has_rows_and_columns_for_every_rank(
    ranks: int, cut_columns: bool, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jacobi_ranks, "_PROOFS", ((13, 11),))
    grids = set()

    def make(block: Any, norm_every: int) -> Any:
        grids.add(block.grid)
        raise StopIteration

    with pytest.raises(StopIteration):
        jacobi_ranks._prove(SimpleNamespace(size=ranks, rank=ranks - 1), make, cut_columns)  # type: ignore[arg-type]
    assert sorted(grids) == expected


@pytest.mark.parametrize(("size", "expected"), [(1, [True]), (2, [True, False])])
def test_the_proof_has_periodic_and_open_ends_where_something_is_exchanged(
    size: int, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    proved = []
    norms: dict[int, float] = {}

    def start(make: Any, block: Any, norm_every: int) -> Any:
        proved.append(block.periodic)
        return SimpleNamespace(
            run=lambda steps: None, totals=norms, total_norm=lambda: 0.0, tile=None
        )

    monkeypatch.setattr(jacobi_ranks, "_PROOFS", ((13, 11),))
    monkeypatch.setattr(jacobi_ranks, "start_variant", start)
    session = SimpleNamespace(check=lambda check: None)
    ranks: Any = SimpleNamespace(size=size, rank=0, session=session)
    jacobi_ranks._prove(ranks, overlapped, cut_columns=False)
    assert proved == expected


@pytest.mark.parametrize(
    ("waits", "on_stream_ns", "expected_ns"),
    [(True, 900, 500), (False, 900, 900), (False, 90, 500)],
)
def test_an_exchange_that_the_host_does_not_wait_for_lasts_as_long_as_on_its_stream(
    waits: bool, on_stream_ns: int, expected_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jacobi_ranks, "_host_ns", lambda variant, operation: 500)

    def time_operations(queues: Any) -> Any:
        return [[(0, on_stream_ns) for _ in operations] for _, operations in queues]

    session = SimpleNamespace(time_operations=time_operations)
    ranks = SimpleNamespace(session=session, largest=list)
    variant: Any = SimpleNamespace(waits=waits, ranks=ranks, streams=["high"], exchange=None)
    assert jacobi_ranks._exchange_ns(variant) == expected_ns


def test_streams_are_held_back_by_nothing_or_for_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rows", "30", "--columns", "12", "--steps", "1")
    assert measured(monkeypatch, *words, "--skew-us", "0")["title"].endswith(" blocks, 1 step")
    for text in ("-1", "1000001", "x"):
        with pytest.raises(SystemExit):
            measured(monkeypatch, *words, f"--skew-us={text}")
        assert f"'{text}' is not a whole number from 0 to 1000000" in capsys.readouterr().err
