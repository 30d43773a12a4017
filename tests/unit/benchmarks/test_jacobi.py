"""The stencil on a device made of NumPy, whose copies happen as late as they may."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gpuscope.benchmarks import jacobi
from gpuscope.benchmarks._harness import Session, add_common_arguments
from gpuscope.benchmarks._harness.stencil import StencilKernels, reference_step
from gpuscope.benchmarks.jacobi import BENCHMARK, _Grid
from gpuscope.errors import ProgramError, UsageError

SIZE = 12


class DeviceArray(np.ndarray[Any, Any]):
    """An array whose address is found where CuPy has it."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> Any:
        return np.array(self)

    def set(self, host: Any) -> None:
        self[...] = host


class NumpyDevice:
    """Steps run when they are issued, copies to the host only when something waits for them."""

    def __init__(self) -> None:
        self.late: list[tuple[object, int, Callable[[], object]]] = []
        """Of each copy its stream, the address it reads, and what it does."""

        class Stream:
            def __init__(self, non_blocking: bool) -> None:
                self.ptr = self

            def wait_event(stream, event: Event) -> None:
                self.catch_up(event.stream)

        class Event:
            stream: object = None

            def __init__(self, disable_timing: bool) -> None:
                pass

            def record(self, stream: object) -> None:
                self.stream = stream

        self.cuda = SimpleNamespace(
            Stream=Stream,
            Event=Event,
            alloc_pinned_memory=bytearray,
            runtime=SimpleNamespace(
                memcpyAsync=self._copy,
                memcpyDeviceToHost="d2h",
                deviceSynchronize=self.catch_up,
            ),
        )
        Stream.null = None  # type: ignore[attr-defined]

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.full(shape, np.nan, dtype).view(DeviceArray)

    def zeros(self, shape: Any, dtype: Any) -> Any:
        return np.zeros(shape, dtype).view(DeviceArray)

    def empty_like(self, array: Any) -> Any:
        return self.empty(array.shape, array.dtype)

    def _copy(self, target: int, source: int, size_bytes: int, kind: str, stream: object) -> None:
        self.late.append((stream, source, lambda: ctypes.memmove(target, source, size_bytes)))

    def catch_up(self, stream: object = None) -> None:
        """Do the copies of a stream, or all."""
        for where, _, copy in self.late:
            if stream in (None, where):
                copy()
        self.late = [entry for entry in self.late if stream not in (None, entry[0])]


class NumpyKernels:
    """The kernels, as NumPy has them. No step may write what is still to be copied."""

    def __init__(self, device: NumpyDevice) -> None:
        self.device = device

    def start(self, grid: Any) -> None:
        grid[...] = start_values(grid.shape)

    def step(self, source: Any, target: Any, region: Any, norm: int, stream: Any) -> None:
        assert region.slices == (slice(0, SIZE), slice(1, SIZE - 1))
        assert target.data.ptr not in {address for _, address, _ in self.device.late}
        after, change = reference_step(source)
        target[:, 1:-1] = after[:, 1:-1]
        ctypes.c_double.from_address(norm).value += change

    def differing(self, a: Any, b: Any) -> int:
        return int(np.count_nonzero(np.asarray(a) != np.asarray(b)))


def start_values(shape: tuple[int, int]) -> Any:
    return np.random.default_rng(1).random(shape, np.float32)


def after(steps: int) -> tuple[Any, list[float]]:
    grid, norms = start_values((SIZE, SIZE)), []
    for _ in range(steps):
        grid, norm = reference_step(grid)
        norms.append(norm)
    return grid, norms


@pytest.fixture
def device() -> NumpyDevice:
    return NumpyDevice()


def make_grid(device: NumpyDevice, steps: int, every: int) -> _Grid:
    kernels = cast("StencilKernels", NumpyKernels(device))
    return _Grid(device, kernels, SIZE, steps, every, pinned=True)


@pytest.mark.parametrize(("steps", "every"), [(8, 4), (9, 4), (7, 2), (5, 5), (4, 9)])
def test_no_step_writes_the_grid_that_is_being_copied(
    device: NumpyDevice, steps: int, every: int
) -> None:
    grid = make_grid(device, steps, every)
    for _ in range(3):
        grid.prepare()
        grid.overlapped()
    last_snapshot = 2 * steps + (steps - 1) // every * every + 1
    assert grid.snapshot_step == last_snapshot
    device.catch_up()
    expected, norms = after(3 * steps)
    assert np.array_equal(grid.now, expected)
    assert grid.host_norms.tolist() == pytest.approx(norms[-steps:], rel=1e-12)
    assert np.array_equal(grid.snapshot.reshape(SIZE, SIZE), after(last_snapshot)[0])


def test_the_check_repeats_the_steps_and_sees_one_wrong_point(device: NumpyDevice) -> None:
    grid = make_grid(device, 6, 3)
    check = jacobi._Check(grid)
    for _ in range(2):
        grid.prepare()
        grid.overlapped()
        device.catch_up()
        check()
    grid.prepare()
    grid.overlapped()
    device.catch_up()
    grid.snapshot[-1:] += 1
    with pytest.raises(ProgramError, match=r"^wrong data: 1 of 144 points of the snapshot"):
        check()


def test_the_check_sees_a_wrong_grid_and_a_wrong_norm(device: NumpyDevice) -> None:
    def point(grid: _Grid) -> None:
        grid.now[3, 4] = 0

    def norm(grid: _Grid) -> None:
        grid.host_norms[-1] = 0

    for spoil, message in (
        (point, "1 of 144 points of the grid"),
        (norm, "the norm of a step"),
    ):
        grid = make_grid(device, 6, 3)
        check = jacobi._Check(grid)
        grid.prepare()
        grid.overlapped()
        device.catch_up()
        spoil(grid)
        with pytest.raises(ProgramError, match=message):
            check()


def test_snapshots_are_so_far_apart_that_the_copy_hides() -> None:
    assert jacobi._choose_every(100_000, 4_000_000) == 51
    assert jacobi._choose_every(100_000, 10_000) == 2


def test_the_twin_does_the_work_that_hides_a_pinned_copy(
    device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage_times(_: object, probe: _Grid) -> tuple[int, int]:
        return 100_000, 4_000_000 if probe.pinned else 40_000_000

    monkeypatch.setattr(jacobi, "_stage_times", stage_times)
    session = cast("Session", SimpleNamespace(cp=device))
    kernels = cast("StencilKernels", NumpyKernels(device))

    def choose(steps: int | None, every: int | None) -> tuple[int, int]:
        return jacobi._choose_steps(session, kernels, SIZE, jacobi._Options(SIZE, steps, every))

    assert choose(None, None) == (204, 51)
    assert choose(None, 10) == (40, 10)
    assert choose(30, None) == (30, 51)


def test_the_bound_hides_each_copy_under_the_steps_up_to_the_next() -> None:
    # Copies hide wholly: only steps remain. They do not: each period lasts one step and its copy.
    assert jacobi._bound_ns(100, 50, 100_000, 4_000_000) == 10_000_000
    assert jacobi._bound_ns(100, 50, 100_000, 6_000_000) == 2 * 6_100_000
    # The last period is a single step: nothing hides its copy.
    assert jacobi._bound_ns(51, 50, 100_000, 4_000_000) == 5_000_000 + 4_100_000


def test_small_grids_are_not_held_against_the_memory() -> None:
    assert jacobi._grids_fit_cache(2048, 60 << 20)
    assert not jacobi._grids_fit_cache(8192, 60 << 20)


def test_figures_count_the_points_that_a_step_writes() -> None:
    found = jacobi._figures(1000, 100, 50, 100_000, 2_000_000, 14_000_000, 10_000_000)
    assert found["step_updates_per_s"] == 998_000 / 100e-6
    assert found["updates_per_s"] == 998_000 * 100 / 10e-3
    assert found["speedup"] == 1.4
    assert found["speedup_max"] == 1.4
    assert found["kernel_copy_ratio"] == 2.5
    assert found["d2h_rate_bytes_per_s"] == 4_000_000 / 2e-3


def test_the_expected_overlap_is_what_the_steps_can_cover() -> None:
    blocking, overlapped = jacobi._expected(100, 50, 100_000, 4_000_000, overlapping=True)
    assert (blocking.verdict, overlapped.verdict) == ("serialized", "overlapped")
    assert overlapped.ratio_limit == 1.0
    # A copy of 9.8 ms under 49 steps of 0.1 ms: half of it can hide.
    _, half = jacobi._expected(100, 50, 100_000, 9_800_000, overlapping=True)
    assert half.ratio_limit == pytest.approx(9.8 / 10)  # of the steps, which are the shorter
    _, twin = jacobi._expected(100, 50, 100_000, 4_000_000, overlapping=False)
    assert (twin.verdict, twin.ratio_limit) == ("serialized", 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--size", "2"], "two columns"), (["--every", "1"], "leaves no step")],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    BENCHMARK.add_arguments(parser)
    add_common_arguments(parser, BENCHMARK)
    with pytest.raises(UsageError, match=message):
        BENCHMARK.run(parser.parse_args(arguments))
