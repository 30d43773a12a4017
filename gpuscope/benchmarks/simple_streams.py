"""``simple-streams``: a kernel and the copy of its result, as a whole and in slices.

The classic first example of streams: data on the device is worked on and copied out. Cut into
slices, the copy of one hides under the kernel of the next. ::

    sequential   [kernel ============][d2h ===============]           one stream

    streamed     [kernel 0][kernel 1][kernel 2][kernel 3]             slice i on stream i
                           [d2h 0   ][d2h 1   ][d2h 2   ][d2h 3   ]

With kernel K, copy D and n slices nothing is faster than max(K + D/n, D + K/n).
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    Benchmark,
    Calibration,
    Expected,
    FmaKernel,
    Pass,
    Pattern,
    Pipeline,
    Quantity,
    Result,
    Session,
    StageTimes,
    Statistics,
    Twin,
    buffer_limit_bytes,
    calibrate_steps,
    chosen_bytes,
    chosen_options,
    format_size,
    host_array,
    max_steps,
    open_session,
    pass_term,
    pass_value,
    positive_float,
    positive_int,
    rate_bytes_per_s,
    refuse_inexact,
    say,
    size_argument,
)
from gpuscope.errors import UsageError
from gpuscope.units import format_ns, format_rate

_SIZE_BYTES = 64 * MIB
_DEFAULTS = MappingProxyType(
    {"slices": 4, "size_bytes": None, "kernel_steps": None, "kernel_ratio": None}
)
_STAGE_REPEATS = 10


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run: a value of None is found by calibration."""

    slices: int
    size_bytes: int | None
    kernel_steps: int | None
    kernel_ratio: float | None


class _Workload:
    """The data on the device, a host buffer a pass, the streams and the kernel."""

    def __init__(self, session: Session, size_bytes: int, options: _Options, twin: str | None):
        import numpy as np

        cp = self.cp = session.cp
        self.session = session
        self.elements = size_bytes // 4
        self.steps = options.kernel_steps or 1
        self.kernel = FmaKernel(cp)
        self.data = cp.empty(self.elements, np.float32)
        self.slices = _slices(self.elements, options.slices)
        if twin == "null-stream":
            self.streams = [cp.cuda.Stream.null] * options.slices
        else:
            self.streams = [cp.cuda.Stream(non_blocking=True) for _ in self.slices]
        # A host buffer that is poisoned with NaN keeps it until the data is really copied out.
        self.hosts = [host_array(cp, self.elements) for _ in range(2)]
        for host in self.hosts:
            host.fill(np.nan)
        self.passes_begun = 0
        self.left_by = [0, 0]
        """The pass that wrote each host buffer."""

    def fill(self, pattern: Pattern) -> None:
        """Write the pattern to the data, and load the kernel: not behind a closed gate."""
        pattern.fill_device(self.data)
        self.work(0, self.elements, self.cp.cuda.Stream.null)  # the one that fills
        self.cp.cuda.runtime.deviceSynchronize()

    def work(self, first: int, count: int, stream: Any) -> None:
        """Issue the kernel on `count` elements from `first` on."""
        term = pass_term(self.passes_begun)
        self.kernel.launch(stream, self.data.data.ptr + 4 * first, count, self.steps, term)

    def copy_out(self, host: int, first: int, count: int, stream: Any) -> None:
        """Issue the copy of the same elements to one of the host buffers."""
        runtime = self.cp.cuda.runtime
        target, source = self.hosts[host].ctypes.data + 4 * first, self.data.data.ptr + 4 * first
        runtime.memcpyAsync(target, source, 4 * count, runtime.memcpyDeviceToHost, stream.ptr)

    def sequential(self) -> None:
        """All the data at once, on one stream."""
        self.passes_begun += 1
        self.left_by[0] = self.passes_begun
        self.work(0, self.elements, self.streams[0])
        self.copy_out(0, 0, self.elements, self.streams[0])

    def streamed(self) -> None:
        """Slice i on stream i: all kernels first, then all copies."""
        self.passes_begun += 1
        self.left_by[1] = self.passes_begun
        for (first, count), stream in zip(self.slices, self.streams, strict=True):
            self.work(first, count, stream)
        for (first, count), stream in zip(self.slices, self.streams, strict=True):
            self.copy_out(1, first, count, stream)

    def check(self, pattern: Pattern) -> None:
        """Compare what the last pass of each kind copied out with what it must be."""
        for host, index in zip(self.hosts, self.left_by, strict=True):
            pattern.check([host], self.steps * pass_value(index), self.elements)

    def kernel_ns(self, steps: int) -> int:
        """Return the time of the kernel on all data, alone, and keep the number of steps."""
        self.steps = steps
        return self._alone_ns(partial(self.work, 0, self.elements))

    def d2h_ns(self) -> int:
        """Return the time of the copy of all data, alone."""
        return self._alone_ns(partial(self.copy_out, 0, 0, self.elements))

    def _alone_ns(self, issue: Any) -> int:
        stream = self.cp.cuda.Stream(non_blocking=True)
        operations = [lambda: issue(stream)] * (1 + _STAGE_REPEATS)
        (spans,) = self.session.time_operations([(stream, operations)])
        return Statistics.of([end - start for start, end in spans[1:]]).median_ns


def _slices(elements: int, count: int) -> list[tuple[int, int]]:
    """Cut elements into `count` slices, (first, number) each, as equal as they can be."""
    edges = [elements * index // count for index in range(count + 1)]
    return [(first, end - first) for first, end in itertools.pairwise(edges)]


def _pipeline(kernel_ns: int, d2h_ns: int, slices: int) -> Pipeline:
    """Return the pipeline of slices: it has no copy in."""
    stages = StageTimes(0, max(1, kernel_ns // slices), max(1, d2h_ns // slices))
    return Pipeline(stages, slices, slices)


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    refuse_inexact(options.kernel_steps)
    if options.slices < 2 and twin != "null-stream":
        raise UsageError("one slice cannot overlap: use --slices 2 or more.")
    with open_session(BENCHMARK.name) as session:
        return _measure(session, options, twin, arguments.reps)


def _measure(session: Session, options: _Options, twin: str | None, reps: int) -> Result:
    """Calibrate, measure, and put the result together."""
    limit_bytes = buffer_limit_bytes(session, device_buffers=2, host_buffers=2)
    notes: list[str] = []
    size_bytes = chosen_bytes(options.size_bytes, _SIZE_BYTES, limit_bytes, notes)
    work = _Workload(session, size_bytes, options, twin)
    pattern = Pattern(session.cp, session.cp.empty(work.elements, "float32"))
    work.fill(pattern)
    calibration = None
    if options.kernel_steps is None:
        say("calibrating the kernel")
        calibration = Calibration(options.kernel_ratio or 1.0, work.d2h_ns())
        work.steps = calibrate_steps(work.kernel_ns, calibration.target_ns, max_steps())

    measured = session.measure(
        [
            Pass("sequential", work.streams, work.sequential),
            Pass("streamed", work.streams, work.streamed),
        ],
        reps,
        check=lambda: work.check(pattern),
        corrupt=work.hosts[1] if twin == CORRUPT.name else None,
    )
    kernel_ns, d2h_ns = work.kernel_ns(work.steps), work.d2h_ns()
    if calibration is not None:
        notes += calibration.remarks(kernel_ns, d2h_ns)
    pipeline = _pipeline(kernel_ns, d2h_ns, options.slices)
    sequential_ns, streamed_ns = (
        measured.passes[name].median_ns for name in ("sequential", "streamed")
    )
    rate = rate_bytes_per_s(size_bytes, d2h_ns)
    figures: dict[str, float | None] = {
        "t_lb_ns": pipeline.bound_ns,
        "speedup": sequential_ns / streamed_ns,
        "speedup_max": pipeline.speedup_max,
        "kernel_copy_ratio": kernel_ns / d2h_ns,
        "d2h_rate_bytes_per_s": rate,
    }
    pcie = session.pcie_limit_bytes_per_s(measured.readings)
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(replace(options, size_bytes=size_bytes, kernel_steps=work.steps)),
        stages={"kernel_ns": kernel_ns, "d2h_ns": d2h_ns},
        figures=figures,
        quantities=[
            Quantity("copy out", rate, "bytes/s", pcie, "PCIe generation × width"),
            Quantity("sliced", streamed_ns, "ns", pipeline.bound_ns, "max(K + D/n, D + K/n)"),
        ],
        expected=_expected(pipeline, twin),
        title=f"{format_size(size_bytes)} in {options.slices} slices, {work.steps} kernel steps",
        baselines={"streamed": "sequential"},
        lines=[
            f"kernel {format_ns(kernel_ns)}, copy out {format_ns(d2h_ns)} ({format_rate(rate)})",
            f"speed-up {figures['speedup']:.2f}× of {figures['speedup_max']:.2f}× possible",
        ],
        notes=notes,
    )


def _expected(pipeline: Pipeline, twin: str | None) -> tuple[Expected, ...]:
    """Return the verdicts that the trace must show, for both passes."""
    return pipeline.expected("sequential", overlapping=False) + pipeline.expected(
        "streamed", overlapping=twin != "null-stream"
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--slices", type=positive_int, metavar="N", help="slices, each on a stream (default: 4)"
    )
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=size_argument,
        metavar="SIZE",
        help="bytes in all (default: 64M)",
    )
    parser.add_argument(
        "--kernel-steps",
        type=positive_int,
        metavar="K",
        help="multiply-adds an element (default: as long as the copy)",
    )
    parser.add_argument(
        "--kernel-ratio",
        type=positive_float,
        metavar="R",
        help="calibrate the kernel to last this many times the copy (default: 1)",
    )


BENCHMARK = Benchmark(
    name="simple-streams",
    summary="a kernel and the copy of its result: as a whole against in slices",
    options="--slices N  --size SIZE  --kernel-steps K  --kernel-ratio R",
    needs="1 GPU",
    twins=(
        Twin(
            "null-stream",
            "all slices on the default stream",
            "streamed: kernel and copy serialized",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
)
