"""``jacobi``: a stencil that goes on while a snapshot of its grid is copied to the host.

Each iteration replaces every inner point of a grid by the mean of its four neighbours, and sums up
the squares of the changes. The left and right column are fixed; top and bottom are neighbours. Now
and then the grid is copied to the host. ::

    blocking     [step][step][step][d2h ============][step][step] …      one stream

    overlapped   [step][step][step][step][step][step][step] …            the grid that is copied
                       [d2h ============]                                is not written meanwhile

Two grids take turns; a third takes the step whose result is to be copied. The steps go on between
the other two, and come back to it only when the copy is done.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CACHE_FACTOR,
    CORRUPT,
    WRONG_DATA,
    Benchmark,
    Expected,
    Pass,
    Quantity,
    Result,
    Session,
    Statistics,
    Twin,
    buffer_limit_bytes,
    chosen_options,
    copy_rate_bytes_per_s,
    format_size,
    host_array,
    open_session,
    positive_int,
    rate_bytes_per_s,
    say,
)
from gpuscope.benchmarks._harness.stencil import (
    BYTES_AN_UPDATE,
    PROOF_SIZE,
    PROOF_STEPS,
    Reference,
    StencilKernels,
    check_norm,
    compare_rows,
    reference_step,
    whole_grid,
)
from gpuscope.errors import ProgramError, UsageError
from gpuscope.units import NS_PER_S, format_ns

_SIZE = 8192
_SNAPSHOTS = 4
_COVER_FACTOR = 1.25
"""By default the steps between two snapshots last this many times the copy."""
_REPEATS = 10
_DEFAULTS = MappingProxyType({"size": None, "steps": None, "every": None})


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run: a value of None is found by calibration."""

    size: int | None
    steps: int | None
    every: int | None


class _Grid:
    """Grids that take turns, the norms of a pass, a snapshot on the host, and the passes."""

    def __init__(
        self, cp: Any, kernels: StencilKernels, size: int, steps: int, every: int, *, pinned: bool
    ) -> None:
        import numpy as np

        self.cp = cp
        self.kernels = kernels
        self.pinned = pinned
        self.steps, self.every = steps, every
        self.region = whole_grid((size, size))
        self.now, self.other, self.spare = (cp.empty((size, size), np.float32) for _ in range(3))
        for grid in (self.now, self.other, self.spare):
            kernels.start(grid)  # all of them: no step writes the fixed columns
        self.norms = cp.zeros(steps, np.float64)
        self.host_norms = np.frombuffer(cp.cuda.alloc_pinned_memory(8 * steps), np.float64, steps)
        self.snapshot = host_array(cp, size * size, pinned=pinned)
        self.snapshot.fill(np.nan)
        self.compute = cp.cuda.Stream(non_blocking=True)
        self.copies = cp.cuda.Stream(non_blocking=True)
        self.stepped = cp.cuda.Event(disable_timing=True)
        self.copied = cp.cuda.Event(disable_timing=True)
        self.steps_done = 0
        self.snapshot_step = 0
        """How many steps the grid had behind it that was copied last."""

    def prepare(self) -> None:
        """Set the norms of the coming steps to 0."""
        self.norms.fill(0)
        self.cp.cuda.runtime.deviceSynchronize()

    def _step(self, index: int) -> None:
        """Issue step `index` of a pass, from `now` to `other`, which then change places."""
        norm = self.norms.data.ptr + 8 * index
        self.kernels.step(self.now, self.other, self.region, norm, self.compute)
        self.now, self.other = self.other, self.now
        self.steps_done += 1

    def copy_out(self, grid: Any, stream: Any) -> None:
        """Issue the copy of a grid to the host."""
        runtime = self.cp.cuda.runtime
        runtime.memcpyAsync(
            self.snapshot.ctypes.data,
            grid.data.ptr,
            grid.nbytes,
            runtime.memcpyDeviceToHost,
            stream.ptr,
        )

    def _copy_norms(self) -> None:
        runtime = self.cp.cuda.runtime
        runtime.memcpyAsync(
            self.host_norms.ctypes.data,
            self.norms.data.ptr,
            self.norms.nbytes,
            runtime.memcpyDeviceToHost,
            self.compute.ptr,
        )

    def blocking(self) -> None:
        """All steps and copies on one stream."""
        for index in range(self.steps):
            self._step(index)
            if index % self.every == 0:
                self.snapshot_step = self.steps_done
                self.copy_out(self.now, self.compute)
        self._copy_norms()

    def overlapped(self) -> None:
        """Copy on a stream of its own, from a grid that no step writes meanwhile."""
        for index in range(self.steps):
            if index % self.every == 0:
                # This step goes to the third grid, once its last copy is done.
                self.other, self.spare = self.spare, self.other
                self.compute.wait_event(self.copied)
                self._step(index)
                self.stepped.record(self.compute)
                self.copies.wait_event(self.stepped)
                self.snapshot_step = self.steps_done
                self.copy_out(self.now, self.copies)
                self.copied.record(self.copies)
            elif index % self.every == 1:
                # From the third grid to one of the two; the third is then spare.
                self._step(index)
                self.other, self.spare = self.spare, self.other
            else:
                self._step(index)
        self._copy_norms()


class _Check:
    """Repeats all steps one after the other, and compares."""

    def __init__(self, grid: _Grid) -> None:
        self.grid = grid
        self.reference = Reference(grid.cp, grid.kernels, grid.now.shape)

    def __call__(self) -> None:
        """Compare the last snapshot, the grid and the last norm with the repeated steps.

        Raises
        ------
        ProgramError
            They differ; the message begins with ``wrong data``.
        """
        grid, reference = self.grid, self.reference
        reference.advance(grid.snapshot_step)
        # The copy of the snapshot back to the device has room in the grid written next.
        reference.other.set(grid.snapshot.reshape(reference.now.shape))
        wrong = {"the snapshot": grid.kernels.differing(reference.now, reference.other)}
        grid.kernels.start(reference.other)
        reference.advance(grid.steps_done)
        wrong["the grid"] = grid.kernels.differing(reference.now, grid.now)
        for name, count in wrong.items():
            if count:
                raise ProgramError(
                    f"{WRONG_DATA}: {count} of {grid.now.size} points of {name} differ from what "
                    f"{grid.steps_done} steps must leave. No figures are given."
                )
        check_norm(float(grid.host_norms[-1]), reference.norm())


def _prove(cp: Any, kernels: StencilKernels) -> None:
    """Compare the kernel with NumPy on a small grid, every row, bit by bit, and every norm.

    Raises
    ------
    ProgramError
        They differ; the message begins with ``wrong data``.
    """
    grid = _Grid(cp, kernels, PROOF_SIZE, PROOF_STEPS, 10, pinned=True)
    expected = grid.now.get()
    norms = []
    for _ in range(PROOF_STEPS):
        expected, norm = reference_step(expected)
        norms.append(norm)
    grid.overlapped()
    cp.cuda.runtime.deviceSynchronize()
    compare_rows(grid.now.get(), expected, PROOF_STEPS)
    for found, norm in zip(grid.host_norms.tolist(), norms, strict=True):
        check_norm(found, norm)


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    if options.size is not None and options.size < 3:
        raise UsageError("--size must be 3 at least: two columns of the grid are fixed.")
    if options.every == 1:
        raise UsageError("--every 1 leaves no step for a copy to hide under: use 2 or more.")
    with open_session(BENCHMARK.name) as session:
        return _measure(session, options, twin, arguments.reps)


def _choose_size(session: Session, options: _Options, notes: list[str]) -> int:
    """Return the edge of the grid: the one asked for if it fits, else one that does."""
    # Three grids, and two to check them with; a snapshot on the host, and the calibration's.
    limit_bytes = buffer_limit_bytes(session, device_buffers=5, host_buffers=2)
    largest = math.isqrt(limit_bytes // 4)
    if options.size is not None:
        if options.size > largest:
            raise UsageError(
                f"a grid of {options.size}² points does not fit: the buffers may take 25 % of the "
                f"free device memory and 12 % of the host's: use `--size {largest}`."
            )
        return options.size
    size = _SIZE
    while size > largest:
        size //= 2
    if size < _SIZE:
        notes.append(f"the grid was shrunk from {_SIZE}² to {size}² points to fit the memory")
    return size


def _stage_times(session: Session, grid: _Grid) -> tuple[int, int]:
    """Return the times of a step and of the copy of a snapshot, each alone, in ns."""

    def steps() -> None:
        for _ in range(_REPEATS):
            address = grid.norms.data.ptr
            grid.kernels.step(grid.now, grid.other, grid.region, address, grid.compute)

    def copy() -> None:
        grid.copy_out(grid.now, grid.compute)

    medians = []
    for operation, waits in ((steps, False), (copy, not grid.pinned)):
        (spans,) = session.time_operations(
            [(grid.compute, [operation] * (1 + _REPEATS))], waits=waits
        )
        medians.append(Statistics.of([end - start for start, end in spans[1:]]).median_ns)
    # An event between two steps would cost as much as a short step.
    return medians[0] // _REPEATS, medians[1]


def _measure(session: Session, options: _Options, twin: str | None, reps: int) -> Result:
    """Calibrate, measure, and put the result together."""
    cp = session.cp
    notes: list[str] = []
    kernels = StencilKernels(cp)
    say("comparing the kernel with NumPy")
    _prove(cp, kernels)
    size = _choose_size(session, options, notes)
    pageable = twin == "pageable-snapshot"
    steps, every = _choose_steps(session, kernels, size, options)
    grid = _Grid(cp, kernels, size, steps, every, pinned=not pageable)
    check = _Check(grid)
    streams = [grid.compute, grid.copies]
    measured = session.measure(
        [
            Pass("blocking", streams, grid.blocking, waits=pageable, prepare=grid.prepare),
            Pass("overlapped", streams, grid.overlapped, waits=pageable, prepare=grid.prepare),
        ],
        reps,
        check=check,
        corrupt=grid.snapshot if twin == CORRUPT.name else None,
    )
    step_ns, copy_ns = _stage_times(session, grid)
    overlapped_ns = measured.passes["overlapped"].median_ns
    blocking_ns = measured.passes["blocking"].median_ns
    copy_rate = copy_rate_bytes_per_s(session)
    figures = _figures(size, steps, every, step_ns, copy_ns, blocking_ns, overlapped_ns)
    figures["copy_rate_bytes_per_s"] = copy_rate
    pcie = session.pcie_limit_bytes_per_s(measured.readings)
    memory = "copy by a kernel over 4 × L2"
    updates_limit = None if copy_rate is None else copy_rate / BYTES_AN_UPDATE
    if _grids_fit_cache(size, session.property("l2CacheSize")):
        memory, updates_limit = "none: the grids may stay in the L2 cache", None
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(replace(options, size=size, steps=steps, every=every)),
        stages={"step_ns": step_ns, "d2h_ns": copy_ns},
        figures=figures,
        quantities=[
            Quantity(
                "updates, steps alone",
                figures["step_updates_per_s"],
                "updates/s",
                updates_limit,
                memory,
            ),
            Quantity(
                "updates, with snapshots",
                figures["updates_per_s"],
                "updates/s",
                updates_limit,
                memory,
            ),
            Quantity(
                "snapshot",
                figures["d2h_rate_bytes_per_s"],
                "bytes/s",
                pcie,
                "PCIe generation × width",
            ),
            Quantity(
                "overlapped", overlapped_ns, "ns", figures["t_lb_ns"], "its stages, timed alone"
            ),
        ],
        expected=_expected(steps, every, step_ns, copy_ns, overlapping=not pageable),
        title=f"{size} × {size} points ({format_size(4 * size * size)}), {steps} steps, "
        f"a snapshot every {every}",
        baselines={"overlapped": "blocking"},
        lines=[
            f"a step takes {format_ns(step_ns)}, a snapshot {format_ns(copy_ns)}",
            f"speed-up {figures['speedup']:.2f}× of {figures['speedup_max']:.2f}× possible; "
            f"norm of the last step {math.sqrt(grid.host_norms[-1]):.6g}",
        ],
        notes=notes,
        memory_bound=tuple(measured.passes),
    )


def _grids_fit_cache(size: int, l2_bytes: int) -> bool:
    """Say whether the two grids of a step are so small that the memory does not limit it."""
    return BYTES_AN_UPDATE * size * size <= CACHE_FACTOR * l2_bytes


def _choose_steps(
    session: Session, kernels: StencilKernels, size: int, options: _Options
) -> tuple[int, int]:
    """Return the steps of a pass, and those from one snapshot to the next.

    They are found with a copy to pinned memory for the twin, too: it does the same work. Under its
    own, slower copy a pass would last so long that the power cap takes the clock down.
    """
    probe = _Grid(session.cp, kernels, size, 1, 1, pinned=True)
    every = options.every or _choose_every(*_stage_times(session, probe))
    return options.steps or _SNAPSHOTS * every, every


def _choose_every(step_ns: int, copy_ns: int) -> int:
    """Return after how many steps the next snapshot is due, so that the copy can hide."""
    return max(2, 1 + math.ceil(_COVER_FACTOR * copy_ns / step_ns))


def _periods(steps: int, every: int) -> list[int]:
    """Return the steps from each snapshot of a pass to the next, the one it copies included."""
    return [min(every, steps - first) for first in range(0, steps, every)]


def _bound_ns(steps: int, every: int, step_ns: int, copy_ns: int) -> int:
    """Return the least time of the overlapped pass: a copy hides under the steps to the next."""
    periods = _periods(steps, every)
    # The step after a period's last one waits for the copy.
    return sum(step_ns + max(copy_ns, (period - 1) * step_ns) for period in periods)


def _figures(
    size: int,
    steps: int,
    every: int,
    step_ns: int,
    copy_ns: int,
    blocking_ns: int,
    overlapped_ns: int,
) -> dict[str, float | None]:
    """Return what was reached, and what limits it."""
    points = size * (size - 2)
    bound_ns = _bound_ns(steps, every, step_ns, copy_ns)
    sequential_ns = steps * step_ns + len(_periods(steps, every)) * copy_ns
    return {
        "t_lb_ns": bound_ns,
        "speedup": blocking_ns / overlapped_ns,
        "speedup_max": sequential_ns / bound_ns,
        "kernel_copy_ratio": every * step_ns / copy_ns,
        "step_updates_per_s": points * NS_PER_S / step_ns,
        "updates_per_s": points * steps * NS_PER_S / overlapped_ns,
        "d2h_rate_bytes_per_s": rate_bytes_per_s(4 * size * size, copy_ns),
    }


def _expected(
    steps: int, every: int, step_ns: int, copy_ns: int, *, overlapping: bool
) -> tuple[Expected, ...]:
    """Return the verdicts that the trace must show, for both passes."""
    periods = _periods(steps, every)
    hidden_ns = sum(min(copy_ns, (period - 1) * step_ns) for period in periods)
    busy_ns = min(steps * step_ns, len(periods) * copy_ns)
    limit = hidden_ns / busy_ns
    return (
        Expected("blocking", "d2h", "kernel", "serialized", 1.0),
        Expected("overlapped", "d2h", "kernel", "overlapped", limit)
        if overlapping
        else Expected("overlapped", "d2h", "kernel", "serialized", 1.0),
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--size", type=positive_int, metavar="N", help="the grid has N × N points (default: 8192)"
    )
    parser.add_argument(
        "--steps", type=positive_int, metavar="N", help="steps a pass (default: 4 snapshots)"
    )
    parser.add_argument(
        "--every",
        type=positive_int,
        metavar="N",
        help="a snapshot every N steps (default: as many as hide the copy)",
    )


BENCHMARK = Benchmark(
    name="jacobi",
    summary="a five-point stencil that goes on while its grid is copied out",
    options="--size N  --steps N  --every N",
    needs="1 GPU",
    twins=(
        Twin(
            "pageable-snapshot",
            "the snapshot goes to host memory that is not page-locked",
            "overlapped: copy and steps serialized",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
)
