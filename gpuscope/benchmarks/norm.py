"""``norm``: a sum over all ranks, as a solver takes one after each step; and how to hide it.

Each rank has a vector on its GPU, of one element (a norm) and of a million; all ranks get the sum.
Through the host (``mpi-host``: copy out, MPI_Allreduce), by NCCL, or by an MPI that takes device
buffers (``mpi-device``). A solver can go on while the last step's norm is on its way: ::

    blocking    [kernel 0][d2h][Allreduce][kernel 1][d2h][Allreduce] …

    delayed     [kernel 0][kernel 1       ][kernel 2       ] …
                          [d2h][Allreduce]  [d2h][Allreduce]

    nccl-delayed [kernel 0][kernel 1][kernel 2] …           NCCL's kernels beside the next step's
                           [nccl   ] [nccl   ]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    NOT_JUDGED,
    Benchmark,
    Expected,
    Pass,
    Quantity,
    Ranks,
    Result,
    Statistics,
    Twin,
    buffer_limit_bytes,
    calibrate_steps,
    chosen_options,
    device_mpi,
    format_size,
    link_between,
    open_ranks,
    positive_int,
    raise_if_wrong,
    rate_bytes_per_s,
)
from gpuscope.errors import UsageError
from gpuscope.units import format_ns, format_rate

MPI_HOST, NCCL, MPI_DEVICE = "mpi-host", "nccl", "mpi-device"
PATHS = (MPI_HOST, NCCL, MPI_DEVICE)
"""Each is measured with those before it, which it is compared with."""
BLOCKING, DELAYED = "blocking", "delayed"
ELEMENT_BYTES = 8
_COUNT = MIB
_SHORT_ROUNDS = 50
_STEPS = 6
"""Steps of a pass with kernels, and sums of the long vector in a pass without."""
_COVER_FACTOR = 1.25
"""A step's kernel lasts this many times what it is to hide: all of it, with some to spare."""
_MAX_KERNEL_STEPS = 1 << 22
_REPEATS = 10
_BLOCK = 256
_DEFAULTS = MappingProxyType(
    {
        "path": NCCL,
        "count": _COUNT,
        "kernel_steps": None,
        "nccl_kernel_steps": None,
        "probed": False,
    }
)

_SOURCE = r"""
// What a rank has at a position: whole numbers, whose sum over the ranks is exact.
__device__ double value_at(unsigned long long position, unsigned rank, unsigned serial) {
    unsigned pattern = (unsigned)((position * 2654435761ull) & 0xffffffffu) >> 10;
    return (double)pattern + (double)(serial * 37u % 61u) + (double)rank;
}
extern "C" __global__ void norm_fill(double* data, unsigned long long count, unsigned rank,
                                     unsigned serial) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < count) data[i] = value_at(i, rank, serial);
}
// The same for `count` elements from `first` on, after `steps` steps of a sum that stays below 2.
extern "C" __global__ void norm_interior(double* data, unsigned long long first, unsigned count,
                                         unsigned rank, unsigned serial, unsigned steps) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = (float)(i & 1023u) * 0.0009765625f;
    for (unsigned step = 0; step < steps; ++step) sum = fmaf(sum, 0.5f, 0.5f);
    if (i < count) data[first + i] = value_at(first + i, rank, serial) + (sum > 2.0f ? 1.0 : 0.0);
}
// Counts the elements that are not the sum over all ranks.
extern "C" __global__ void norm_check(const double* data, unsigned long long count, unsigned ranks,
                                      unsigned serial, unsigned long long* wrong) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    double expected = value_at(i, 0, serial) * ranks + (double)ranks * (ranks - 1) / 2;
    if (!(data[i] == expected)) atomicAdd(wrong, 1ull);
}
"""


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run: kernel steps of None are found by calibration.

    ``probed`` says that an earlier run found the MPI to take device buffers.
    """

    path: str
    count: int
    kernel_steps: int | None
    nccl_kernel_steps: int | None
    probed: bool


@dataclass(frozen=True, slots=True)
class _Costs:
    """Times of the parts alone, in ns; of all ranks the longest."""

    copy_ns: int
    mpi_ns: int
    nccl_ns: int | None


def rounds_of(count: int) -> int:
    """Return how many vectors of `count` elements a pass sums."""
    return _SHORT_ROUNDS if count == 1 else _STEPS


def bus_rate_bytes_per_s(count: int, time_ns: float, ranks: int) -> float | None:
    """Return the bus bandwidth of an all-reduce: its bytes over time, times 2(n−1)/n.

    That is what each rank must send at least, whatever the algorithm; it is held against the link.
    """
    rate = rate_bytes_per_s(count * ELEMENT_BYTES, round(time_ns))
    return None if rate is None else rate * 2 * (ranks - 1) / ranks


def delayed_bound_ns(kernel_ns: int, sum_ns: int, steps: int) -> int:
    """Return the least time of `steps` kernels, each followed by a sum that the next one hides.

    Kernels follow each other, and sums do; the first kernel and the last sum stand alone.
    """
    return kernel_ns + sum_ns + (steps - 1) * max(kernel_ns, sum_ns)


class _Norm:
    """A rank's vectors and streams, and the passes."""

    def __init__(self, ranks: Ranks, count: int, *, with_nccl: bool) -> None:
        import numpy as np

        cp = self.cp = ranks.session.cp
        self.ranks, self.count = ranks, count
        length = max(each * rounds_of(each) for each in (1, count))
        self.local, self.summed = (cp.empty(length, np.float64) for _ in range(2))
        self.host_local, self.host_summed = (
            np.frombuffer(cp.cuda.alloc_pinned_memory(length * ELEMENT_BYTES), np.float64, length)
            for _ in range(2)
        )
        for each in (self.host_local, self.host_summed):
            each.fill(0)
        self.compute = cp.cuda.Stream(non_blocking=True)
        # What is short goes first: else NCCL's blocks wait until the step's have all begun.
        self.side = cp.cuda.Stream(non_blocking=True, priority=-1)
        self.stepped, self.done = (
            [cp.cuda.Event(disable_timing=True) for _ in range(_STEPS)] for _ in range(2)
        )
        module = cp.RawModule(code=_SOURCE)
        names = ("norm_fill", "norm_interior", "norm_check")
        self._fill, self._interior, self._check = (module.get_function(name) for name in names)
        self._wrong = cp.zeros(1, np.uint64)
        self._serial = self._compared = 0
        self._pending: tuple[int, bool] | None = None
        """Elements that the last pass summed, and whether the sums are on the host."""
        self.nccl = ranks.nccl() if with_nccl else None

    # ── the data ────────────────────────────────────────────────────────────────────────────────

    def prepare(self, elements: int, *, on_host: bool, filled: bool) -> None:
        """Compare what the last pass left, and make new data of `elements` elements.

        The sums are spoilt first. What kernels are to fill is spoilt too.
        """
        import numpy as np

        self._compare()
        self._serial += 1
        self.summed[:elements].fill(np.nan)
        self.host_summed[:elements] = np.nan
        if filled:
            arguments = (self.local, np.uint64(elements), np.uint32(self.ranks.rank))
            self._launch(self._fill, elements, (*arguments, np.uint32(self._serial)))
        else:
            self.local[:elements].fill(np.nan)
        self._pending = (elements, on_host)
        self.cp.cuda.runtime.deviceSynchronize()

    def _compare(self) -> None:
        import numpy as np

        if self._pending is None:
            return
        elements, on_host = self._pending
        if on_host:
            self.summed[:elements].set(self.host_summed[:elements])
            # `set` does not wait, and what it reads is spoilt next.
            self.cp.cuda.runtime.deviceSynchronize()
        arguments = (self.summed, np.uint64(elements), np.uint32(self.ranks.size))
        self._launch(self._check, elements, (*arguments, np.uint32(self._serial), self._wrong))
        self._compared += elements
        self._pending = None

    def check(self) -> None:
        """Compare all sums since the last check.

        Raises
        ------
        ProgramError
            Some differ; the message begins with ``wrong data``.
        """
        self._compare()
        raise_if_wrong(self._wrong.get().tolist(), self._compared, "buffer")

    def _launch(self, kernel: Any, elements: int, arguments: tuple[Any, ...]) -> None:
        kernel((-(-elements // _BLOCK),), (_BLOCK,), arguments)

    # ── the parts ───────────────────────────────────────────────────────────────────────────────

    def kernel(self, index: int, steps: int) -> None:
        """Issue the kernel of a step, which leaves the vector to be summed."""
        import numpy as np

        arguments = (
            self.local,
            np.uint64(index * self.count),
            np.uint32(self.count),
            np.uint32(self.ranks.rank),
            np.uint32(self._serial),
            np.uint32(steps),
        )
        with self.compute:
            self._launch(self._interior, self.count, arguments)

    def copy_out(self, index: int, count: int, stream: Any) -> None:
        """Issue the copy of vector `index` to the host."""
        runtime, start = self.cp.cuda.runtime, index * count * ELEMENT_BYTES
        runtime.memcpyAsync(
            self.host_local.ctypes.data + start,
            self.local.data.ptr + start,
            count * ELEMENT_BYTES,
            runtime.memcpyDeviceToHost,
            stream.ptr,
        )

    def sum_on_host(self, index: int, count: int) -> None:
        """Sum vector `index` over the ranks, on the host."""
        part = slice(index * count, (index + 1) * count)
        with self._named("gs:mpi:Allreduce", count):
            self.ranks.comm.Allreduce(self.host_local[part], self.host_summed[part])

    def sum_by_mpi(self, index: int, count: int) -> None:
        """Let MPI sum vector `index` over the ranks, on the GPUs."""
        mpi, start = self.ranks.mpi, index * count * ELEMENT_BYTES
        local, summed = (
            [mpi.buffer.fromaddress(each.data.ptr + start, count * ELEMENT_BYTES), mpi.DOUBLE]
            for each in (self.local, self.summed)
        )
        with self._named("gs:mpi:Allreduce", count):
            self.ranks.comm.Allreduce(local, summed)

    def sum_by_nccl(self, index: int, count: int) -> None:
        """Issue the sum of vector `index` over the ranks by NCCL."""
        from cupy.cuda import nccl

        start = index * count * ELEMENT_BYTES
        assert self.nccl is not None  # the path is measured
        with self._named("gs:nccl:AllReduce", count):
            self.nccl.allReduce(
                self.local.data.ptr + start,
                self.summed.data.ptr + start,
                count,
                nccl.NCCL_FLOAT64,
                nccl.NCCL_SUM,
                self.side.ptr,
            )

    def _named(self, name: str, count: int) -> Any:
        return self.ranks.session.ranges.prepare(name, count * ELEMENT_BYTES)

    # ── the passes ──────────────────────────────────────────────────────────────────────────────

    def mpi_host(self, count: int) -> None:
        """Copy out, wait, sum on the host; again and again."""
        for index in range(rounds_of(count)):
            self.copy_out(index, count, self.side)
            self.side.synchronize()
            self.sum_on_host(index, count)

    def mpi_device(self, count: int) -> None:
        """Let MPI sum; again and again."""
        for index in range(rounds_of(count)):
            self.sum_by_mpi(index, count)

    def by_nccl(self, count: int) -> None:
        """Issue the sums to one stream."""
        for index in range(rounds_of(count)):
            self.sum_by_nccl(index, count)

    def blocking(self, steps: int) -> None:
        """Wait for each step's sum before the next step is launched."""
        for index in range(_STEPS):
            self.kernel(index, steps)
            self.copy_out(index, self.count, self.compute)
            self.compute.synchronize()
            self.sum_on_host(index, self.count)

    def delayed(self, steps: int) -> None:
        """Launch a step, and sum the one before while it runs."""
        for index in range(_STEPS):
            self.kernel(index, steps)
            self.stepped[index].record(self.compute)
            self.side.wait_event(self.stepped[index])
            self.copy_out(index, self.count, self.side)
            self.done[index].record(self.side)
            if index:
                self._sum_copied(index - 1)
        self._sum_copied(_STEPS - 1)

    def _sum_copied(self, index: int) -> None:
        self.done[index].synchronize()
        self.sum_on_host(index, self.count)

    def nccl_blocking(self, steps: int) -> None:
        """Let each step wait for the sum of the one before, on the GPU."""
        for index in range(_STEPS):
            self.kernel(index, steps)
            self._sum_stepped(index)
            self.done[index].record(self.side)
            self.compute.wait_event(self.done[index])

    def nccl_delayed(self, steps: int) -> None:
        """Sum a step beside the next one."""
        for index in range(_STEPS):
            self.kernel(index, steps)
            self._sum_stepped(index)

    def nccl_blocking_copy(self, steps: int) -> None:
        """Fetch each sum with a copy that the host waits for, before the next step is launched."""
        for index in range(_STEPS):
            self.kernel(index, steps)
            self._sum_stepped(index)
            start = index * self.count
            self.summed[start : start + 1].get(
                stream=self.side, out=self.host_summed[start : start + 1]
            )

    def _sum_stepped(self, index: int) -> None:
        self.stepped[index].record(self.compute)
        self.side.wait_event(self.stepped[index])
        self.sum_by_nccl(index, self.count)


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    if options.count < 2:
        raise UsageError("--count must be 2 at least: a vector of one is measured in any case.")
    with open_ranks(BENCHMARK.name, oversubscribe=arguments.oversubscribe) as ranks:
        if options.path == MPI_DEVICE and not options.probed:
            device_mpi.require(ranks, device_mpi.ALLREDUCE, MPI_HOST)
        return _measure(ranks, options, twin, arguments)


def _paths(options: _Options) -> tuple[str, ...]:
    return PATHS[: PATHS.index(options.path) + 1]


def pass_name(path: str, count: int) -> str:
    """Return the name of the pass that sums vectors by a path: ``mpi-host 1M``."""
    return f"{path} {format_size(count)}"


def _passes(norm: _Norm, options: _Options, twin: str | None) -> list[Pass]:
    """Return the passes: the sums by themselves, then those with kernels."""
    passes = []
    both = [norm.compute, norm.side]
    ways: dict[str, Callable[[int], None]] = {
        MPI_HOST: norm.mpi_host,
        NCCL: norm.by_nccl,
        MPI_DEVICE: norm.mpi_device,
    }
    for count in (1, options.count):
        for path in _paths(options):
            passes.append(
                Pass(
                    pass_name(path, count),
                    both,
                    _with(ways[path], count),
                    waits=path != NCCL,
                    prepare=_prepare(norm, count, on_host=path == MPI_HOST, filled=True),
                )
            )
    blocks = twin == "blocking-copy"
    steps = options.kernel_steps
    assert steps is not None  # calibrated
    on_host = _prepare(norm, options.count, on_host=True, filled=False)
    delayed = norm.blocking if blocks else norm.delayed
    passes += [
        Pass(BLOCKING, both, _with(norm.blocking, steps), waits=True, prepare=on_host),
        Pass(DELAYED, both, _with(delayed, steps), waits=True, prepare=on_host),
    ]
    if norm.nccl is not None:
        steps = options.nccl_kernel_steps
        assert steps is not None  # calibrated
        on_device = _prepare(norm, options.count, on_host=False, filled=False)
        delayed = norm.nccl_blocking_copy if blocks else norm.nccl_delayed
        passes += [
            Pass(f"nccl-{BLOCKING}", both, _with(norm.nccl_blocking, steps), prepare=on_device),
            Pass(f"nccl-{DELAYED}", both, _with(delayed, steps), waits=blocks, prepare=on_device),
        ]
    return passes


def _with(way: Callable[[int], None], number: int) -> Callable[[], None]:
    return lambda: way(number)


def _prepare(norm: _Norm, count: int, *, on_host: bool, filled: bool) -> Callable[[], None]:
    elements = count * rounds_of(count)
    return lambda: norm.prepare(elements, on_host=on_host, filled=filled)


def _measure(
    ranks: Ranks, options: _Options, twin: str | None, arguments: argparse.Namespace
) -> Result:
    """Measure, and put the result together."""
    limit = buffer_limit_bytes(
        ranks.session, device_buffers=2 * _STEPS, host_buffers=2 * _STEPS * ranks.local_size
    )
    if options.count * ELEMENT_BYTES > limit:
        raise UsageError(
            f"vectors of {options.count} doubles do not fit: the buffers may take 25 % of the free "
            f"device memory and 12 % of the host's: use `--count {limit // ELEMENT_BYTES}`."
        )
    norm = _Norm(ranks, options.count, with_nccl=NCCL in _paths(options))
    costs = _costs(norm)
    options = _calibrated(norm, options, costs)
    passes = _passes(norm, options, twin)
    last = norm.summed if norm.nccl is not None else norm.host_summed
    measured = ranks.session.measure(
        passes,
        arguments.reps,
        check=norm.check,
        corrupt=last[: options.count * _STEPS] if twin == CORRUPT.name else None,
    )
    kernels = _kernel_times(norm, options)
    buses = ranks.gather(ranks.session.pci_bus_id)
    link = link_between(buses[0], buses[1])
    figures = _figures(measured.passes, options, costs, kernels, ranks.size)
    expected = _expected(options, twin)
    if arguments.oversubscribe:
        expected = [Expected(each.range, each.a, each.b, NOT_JUDGED, None) for each in expected]
    return ranks.session.conclude(
        measured,
        twin=twin,
        options={**asdict(options), "probed": options.path == MPI_DEVICE},
        stages={
            "copy_ns": costs.copy_ns,
            "mpi_ns": costs.mpi_ns,
            "nccl_ns": costs.nccl_ns,
            "kernel_ns": kernels[0],
            "nccl_kernel_ns": kernels[1],
        },
        figures=figures,
        quantities=_quantities(figures, options, link.limit_bytes_per_s, str(link)),
        expected=expected,
        title=f"{ranks.size} ranks, {link}, vectors of 1 and {format_size(options.count)} doubles",
        lines=_lines(figures, options),
        baselines={DELAYED: BLOCKING}
        | ({f"nccl-{DELAYED}": f"nccl-{BLOCKING}"} if norm.nccl is not None else {}),
    )


def _costs(norm: _Norm) -> _Costs:
    """Time the long vector's copy and its sums, alone."""
    session, count = norm.ranks.session, norm.count
    norm.prepare(count, on_host=True, filled=True)
    copy = [lambda: norm.copy_out(0, count, norm.side)] * (1 + _REPEATS)
    (copies,) = session.time_operations([(norm.side, copy)])
    taken = []
    for _ in range(1 + _REPEATS):
        norm.ranks.barrier()
        begin_ns = time.perf_counter_ns()
        norm.sum_on_host(0, count)
        taken.append(time.perf_counter_ns() - begin_ns)
    found = [_median_ns(copies), round(statistics.median(taken[1:]))]
    if norm.nccl is not None:
        for each in (1, count):
            norm.sum_by_nccl(0, each)  # loads its kernels and connects: not behind a closed gate
        norm.cp.cuda.runtime.deviceSynchronize()
        summing = [lambda: norm.sum_by_nccl(0, count)] * (1 + _REPEATS)
        (sums,) = session.time_operations([(norm.side, summing)])
        found.append(_median_ns(sums))
    longest = norm.ranks.largest(found)
    return _Costs(longest[0], longest[1], longest[2] if norm.nccl is not None else None)


def _median_ns(spans: Sequence[tuple[int, int]]) -> int:
    return Statistics.of([end - start for start, end in spans[1:]]).median_ns


def _kernel_ns(norm: _Norm, steps: int) -> int:
    kernels = [lambda: norm.kernel(0, steps)] * (1 + _REPEATS)
    (spans,) = norm.ranks.session.time_operations([(norm.compute, kernels)])
    return _median_ns(spans)


def _kernel_times(norm: _Norm, options: _Options) -> tuple[int, int | None]:
    """Return how long a step's kernel takes alone, beside MPI and beside NCCL."""
    steps = [options.kernel_steps]
    if norm.nccl is not None:
        steps.append(options.nccl_kernel_steps)
    found = norm.ranks.largest([_kernel_ns(norm, each) for each in steps if each is not None])
    return found[0], found[1] if len(found) > 1 else None


def _calibrated(norm: _Norm, options: _Options, costs: _Costs) -> _Options:
    """Find the steps of the kernels, equal on all ranks: each kernel hides its sum."""

    def steps_for(time_ns: int) -> int:
        wanted_ns = round(_COVER_FACTOR * time_ns)
        own = calibrate_steps(lambda steps: _kernel_ns(norm, steps), wanted_ns, _MAX_KERNEL_STEPS)
        return norm.ranks.agree(own)

    if options.kernel_steps is None:
        options = replace(options, kernel_steps=steps_for(costs.copy_ns + costs.mpi_ns))
    if costs.nccl_ns is not None and options.nccl_kernel_steps is None:
        options = replace(options, nccl_kernel_steps=steps_for(costs.nccl_ns))
    return options


def _figures(
    passes: Mapping[str, Statistics],
    options: _Options,
    costs: _Costs,
    kernels: tuple[int, int | None],
    ranks: int,
) -> dict[str, float | None]:
    """Return the time of a sum and its bus bandwidth by each path, and the bounds of the steps."""
    figures: dict[str, float | None] = {}
    for path in _paths(options):
        for count in (1, options.count):
            name = f"{path.replace('-', '_')}_{format_size(count)}"
            time_ns = passes[pass_name(path, count)].median_ns / rounds_of(count)
            figures[f"{name}_ns"] = time_ns
            figures[f"{name}_bus_rate_bytes_per_s"] = bus_rate_bytes_per_s(count, time_ns, ranks)
    sum_ns = costs.copy_ns + costs.mpi_ns
    figures["delayed_bound_ns"] = delayed_bound_ns(kernels[0], sum_ns, _STEPS)
    figures["speedup"] = passes[BLOCKING].median_ns / passes[DELAYED].median_ns
    if kernels[1] is not None and costs.nccl_ns is not None:
        figures["nccl_delayed_bound_ns"] = delayed_bound_ns(kernels[1], costs.nccl_ns, _STEPS)
        blocking, delayed = (passes[f"nccl-{each}"].median_ns for each in (BLOCKING, DELAYED))
        figures["nccl_speedup"] = blocking / delayed
        figures["nccl_delayed_ns"] = delayed
    figures["delayed_ns"] = passes[DELAYED].median_ns
    return figures


def _quantities(
    figures: Mapping[str, float | None], options: _Options, link_limit: float | None, link: str
) -> list[Quantity]:
    """Return the bus bandwidth beside the link, and the delayed steps beside their bound."""
    size = format_size(options.count)
    rows = [
        Quantity(
            f"{path}, {size} doubles",
            figures[f"{path.replace('-', '_')}_{size}_bus_rate_bytes_per_s"],
            "bytes/s",
            link_limit,
            link,
        )
        for path in _paths(options)
        if path != MPI_HOST
    ]
    parts = ((DELAYED, "copy and MPI_Allreduce"), (f"nccl-{DELAYED}", "NCCL's sum"))
    for name, part in parts:
        key = name.replace("-", "_")
        if f"{key}_ns" in figures:
            source = f"{_STEPS} kernels and one {part}, alone"
            rows.append(
                Quantity(name, figures[f"{key}_ns"], "ns", figures[f"{key}_bound_ns"], source)
            )
    return rows


def _expected(options: _Options, twin: str | None) -> list[Expected]:
    """Return what the trace must show of the passes with kernels."""
    pairs = [("", "kernel", "mpi")]
    if NCCL in _paths(options):
        pairs.append(("nccl-", "comm", "kernel"))
    rows = []
    for prefix, a, b in pairs:
        rows.append(Expected(f"{prefix}{BLOCKING}", a, b, "serialized", 1.0))
        rows.append(
            Expected(f"{prefix}{DELAYED}", a, b, "serialized", 1.0)
            if twin == "blocking-copy"
            # The last step's sum has no step to hide under.
            else Expected(f"{prefix}{DELAYED}", a, b, "overlapped", (_STEPS - 1) / _STEPS)
        )
    return rows


def _lines(figures: Mapping[str, float | None], options: _Options) -> list[str]:
    """Return the time of a sum and its bus bandwidth, by path and length."""
    lines = [f"{'a sum by':<12}{'doubles':>10}{'time':>12}{'bus bandwidth':>18}"]
    for path in _paths(options):
        for count in (1, options.count):
            name = f"{path.replace('-', '_')}_{format_size(count)}"
            rate = format_rate(figures[f"{name}_bus_rate_bytes_per_s"])
            lines.append(
                f"{path:<12}{format_size(count):>10}{format_ns(figures[f'{name}_ns']):>12}{rate:>18}"
            )
    return lines


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.set_defaults(probed=None)  # known from a plan alone
    parser.add_argument(
        "--path",
        choices=PATHS,
        help="measure this path, and those before it (default: nccl); mpi-device needs an MPI that "
        "takes device buffers",
    )
    parser.add_argument(
        "--count",
        type=positive_int,
        metavar="N",
        help="doubles of the long vector (default: 1048576)",
    )
    parser.add_argument(
        "--kernel-steps",
        type=positive_int,
        metavar="N",
        help="steps of the kernels beside MPI (default: as many as hide the sum)",
    )
    parser.add_argument(
        "--nccl-kernel-steps",
        type=positive_int,
        metavar="N",
        help="the same beside NCCL",
    )


BENCHMARK = Benchmark(
    name="norm",
    summary="a sum over all ranks by MPI and by NCCL, and hidden under the next step's kernel",
    options="--path PATH  --count N  --kernel-steps N  --nccl-kernel-steps N",
    needs="2 GPUs, MPI",
    twins=(
        Twin(
            "blocking-copy",
            "the host fetches each sum before it launches the next step",
            "delayed, nccl-delayed: kernels and sums serialized",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
    ranks=True,
)
