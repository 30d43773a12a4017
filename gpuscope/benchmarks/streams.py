"""``streams``: chunks of data through copy in, kernel, copy out, on several streams.

The question is the oldest one about a GPU's copy engines: if work is cut into chunks and issued to
several streams, do the copies of one chunk hide under the kernel of another? ::

    sequential   [h2d 0][kernel 0][d2h 0][h2d 1][kernel 1][d2h 1] …     one stream

    streamed     [h2d 0 ][h2d 1   ][h2d 2   ][h2d 3   ] …               chunk i on stream i mod n
                         [kernel 0][kernel 1][kernel 2] …
                                   [d2h 0   ][d2h 1   ] …

Four things make the second picture come true: page-locked host memory, non-blocking streams, a
device buffer for each stream, and no wait on the host before everything is issued. Each twin below
takes one of them away.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    COLD_BASELINE_FACTOR,
    MIB,
    Benchmark,
    Expected,
    Pass,
    Pattern,
    Pipeline,
    Result,
    Session,
    StageTimes,
    Statistics,
    Twin,
    calibrate_steps,
    check_chunk,
    chunk_bytes,
    contended_median_ns,
    efficiency_ratio,
    fit_chunk,
    format_size,
    free_host_bytes,
    max_steps,
    memory_limit_bytes,
    open_session,
    pass_table,
    pass_term,
    pass_value,
    pinned_array,
    positive_int,
    rate_bytes_per_s,
    read_plan,
    say,
    size_argument,
)
from gpuscope.errors import UsageError
from gpuscope.units import format_ns, format_rate, format_ratio

_DEFAULTS = MappingProxyType({"chunks": 8, "streams": 4})
_PRESETS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {"seed": {"chunks": 4, "streams": 4, "size_bytes": 256 * MIB, "kernel_steps": 1024}}
)
_PROBE_BYTES = 64 * MIB
_STAGE_REPEATS = 10
_THREADS = 256
_COOL_DOWN_S = 2.0

_SOURCE = r"""
extern "C" __global__ void fma_steps(float* data, unsigned count, int steps, float factor,
                                     float term) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float x = data[i];
    #pragma unroll 16
    for (int step = 0; step < steps; ++step) x = fmaf(x, factor, term);
    data[i] = x;
}
"""


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run: a value of None is found by calibration."""

    preset: str | None
    chunks: int
    streams: int
    size_bytes: int | None
    kernel_steps: int | None


class _Workload:
    """Buffers, streams and the kernel: all that a pass needs, made before any of them."""

    def __init__(self, session: Session, options: _Options, size_bytes: int, twin: str | None):
        import numpy as np

        cp = self.cp = session.cp
        self.size_bytes = size_bytes
        self.elements = size_bytes // 4
        self.steps = options.kernel_steps or 1
        # The tiny kernel leaves most of the chunk alone: a step on all of it is not tiny where
        # the device's memory is slow.
        self.worked = self.elements // 4 if twin == "tiny-kernel" else self.elements
        self.kernel = cp.RawKernel(_SOURCE, "fma_steps")
        self.kernel.compile()
        self.passes_begun = 0

        if twin == "default-stream":
            self.streams = [cp.cuda.Stream.null] * options.streams
        elif twin == "one-stream":
            self.streams = [cp.cuda.Stream(non_blocking=True)] * options.streams
        else:
            self.streams = [cp.cuda.Stream(non_blocking=True) for _ in range(options.streams)]

        # A buffer that is poisoned with NaN keeps it until a chunk is really copied in.
        self.buffers = [cp.full(self.elements, np.nan, np.float32) for _ in self.streams]
        if twin == "shared-buffer":
            self.buffers = self.buffers[:1] * options.streams

        if twin == "pageable":
            self.hosts = [np.zeros(self.elements, np.float32) for _ in range(options.chunks)]
        else:
            self.hosts = [pinned_array(cp, self.elements) for _ in range(options.chunks)]
        self.done = [cp.cuda.Event(disable_timing=True) for _ in self.hosts]

    def copy_in(self, chunk: int, buffer: int, stream: Any) -> None:
        """Issue the copy of a chunk to the device buffer at address `buffer`."""
        runtime = self.cp.cuda.runtime
        source = self.hosts[chunk].ctypes.data
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(buffer, source, self.size_bytes, kind, stream.ptr)

    def work(self, buffer: int, stream: Any) -> None:
        """Issue the kernel: x ← 1·x + term, as often as there are steps, for each element."""
        import numpy as np

        term = pass_term(self.passes_begun)
        arguments = (
            buffer,
            np.uint32(self.worked),
            np.int32(self.steps),
            np.float32(1),
            np.float32(term),
        )
        with stream:
            self.kernel((-(-self.worked // _THREADS),), (_THREADS,), arguments)

    def copy_out(self, chunk: int, buffer: int, stream: Any) -> None:
        """Issue the copy of a device buffer back to the chunk it came from."""
        runtime = self.cp.cuda.runtime
        target = self.hosts[chunk].ctypes.data
        kind = runtime.memcpyDeviceToHost
        runtime.memcpyAsync(target, buffer, self.size_bytes, kind, stream.ptr)

    def issue_chunk(self, chunk: int, buffer: int, stream: Any) -> None:
        """Issue all three operations of a chunk to one stream."""
        self.copy_in(chunk, buffer, stream)
        self.work(buffer, stream)
        self.copy_out(chunk, buffer, stream)

    # The passes. Each issues everything and leaves the waiting to the caller.

    def sequential(self) -> None:
        """One chunk after another, on one stream."""
        self.passes_begun += 1
        for chunk in range(len(self.hosts)):
            self.issue_chunk(chunk, self.buffers[0].data.ptr, self.streams[0])

    def streamed(self) -> None:
        """Chunk i on stream i modulo n, with that stream's buffer."""
        self.passes_begun += 1
        for chunk in range(len(self.hosts)):
            turn = chunk % len(self.streams)
            self.issue_chunk(chunk, self.buffers[turn].data.ptr, self.streams[turn])

    def streamed_event_chain(self) -> None:
        """As streamed, but each chunk waits until the one before is done."""
        self.passes_begun += 1
        for chunk in range(len(self.hosts)):
            turn = chunk % len(self.streams)
            if chunk:
                self.streams[turn].wait_event(self.done[chunk - 1])
            self.issue_chunk(chunk, self.buffers[turn].data.ptr, self.streams[turn])
            self.done[chunk].record(self.streams[turn])

    def streamed_host_sync(self) -> None:
        """As streamed, but the host waits for each chunk before it issues the next."""
        self.passes_begun += 1
        for chunk in range(len(self.hosts)):
            turn = chunk % len(self.streams)
            self.issue_chunk(chunk, self.buffers[turn].data.ptr, self.streams[turn])
            self.streams[turn].synchronize()

    def streamed_alloc_free(self) -> None:
        """As streamed, but each chunk's buffer is allocated, and freed once all is issued to it.

        cudaFree waits until the device is idle, so nothing of the next chunk is issued before.
        """
        self.passes_begun += 1
        runtime = self.cp.cuda.runtime
        for chunk in range(len(self.hosts)):
            buffer = runtime.malloc(self.size_bytes)
            self.issue_chunk(chunk, buffer, self.streams[chunk % len(self.streams)])
            runtime.free(buffer)


_STREAMED: Mapping[str, Callable[[_Workload], None]] = MappingProxyType(
    {
        "event-chain": _Workload.streamed_event_chain,
        "host-sync": _Workload.streamed_host_sync,
        "alloc-free": _Workload.streamed_alloc_free,
    }
)
"""Twins that issue the streamed pass differently; the others change what it is issued to."""

_WAITING_TWINS = frozenset({"pageable", "host-sync", "alloc-free"})
"""Twins whose streamed pass waits for the GPU while it issues."""

_OVERLAPPING_TWINS = frozenset({None, "tiny-kernel", "cold-baseline"})
"""The benchmark itself, and the twins that must overlap as well."""


def _time_alone(
    session: Session, work: _Workload, issue: Callable[[int, Any], None], *, waits: bool = False
) -> int:
    """Return the time of one operation with nothing beside it, in ns."""
    stream, buffer = work.streams[0], work.buffers[0].data.ptr
    operations = [lambda: issue(buffer, stream)] * (1 + _STAGE_REPEATS)
    (spans,) = session.time_operations([(stream, operations)], waits=waits)
    return Statistics.of([end - start for start, end in spans[1:]]).median_ns


def _time_both_ways(session: Session, work: _Workload) -> tuple[int | None, int | None]:
    """Return the times of a copy in and a copy out while the other direction is busy, in ns."""
    ways = [session.cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    inward, outward = work.buffers[0].data.ptr, work.buffers[-1].data.ptr
    last = len(work.hosts) - 1
    spans_in, spans_out = session.time_operations(
        [
            (ways[0], [lambda: work.copy_in(0, inward, ways[0])] * _STAGE_REPEATS),
            (ways[1], [lambda: work.copy_out(last, outward, ways[1])] * _STAGE_REPEATS),
        ]
    )
    return contended_median_ns(spans_in, spans_out), contended_median_ns(spans_out, spans_in)


def _resolve(arguments: argparse.Namespace) -> _Options:
    """Combine plan, options, preset and defaults: the first that names a value wins."""
    chosen: dict[str, Any] = {}
    if arguments.plan is not None:
        chosen = read_plan(arguments.plan, BENCHMARK.name)
    preset = chosen.get("preset", arguments.preset)
    if preset is None and arguments.twin == "cold-baseline":
        preset = "seed"  # the published figure was taken with these sizes
    for name in ("chunks", "streams", "size_bytes", "kernel_steps"):
        if chosen.get(name) is None:
            chosen[name] = getattr(arguments, name)
        if chosen[name] is None:
            chosen[name] = _PRESETS.get(preset, _DEFAULTS).get(name)
    if arguments.twin == "tiny-kernel":
        chosen["kernel_steps"] = 1
    if (chosen["kernel_steps"] or 1) > max_steps():
        raise UsageError(
            f"--kernel-steps may be {max_steps()} at most: with more, the data that proves the "
            "copies right would not be exact."
        )
    streams = min(chosen["streams"], chosen["chunks"])
    if streams < 2 and arguments.twin in _OVERLAPPING_TWINS:
        raise UsageError(
            "one chunk or one stream cannot overlap: use at least 2 of both, or another --twin."
        )
    if arguments.twin == "cold-baseline" and arguments.reps != 1:
        say("cold-baseline is one repetition: a second would be warm")
    return _Options(
        preset=preset,
        chunks=chosen["chunks"],
        streams=streams,
        size_bytes=chosen["size_bytes"],
        kernel_steps=chosen["kernel_steps"],
    )


def _choose_size(session: Session, options: _Options, twin: str | None, notes: list[str]) -> int:
    """Return the chunk size: the one asked for if it fits, else about 3 ms of copying."""
    free_device, _ = session.cp.cuda.runtime.memGetInfo()
    limit_bytes = memory_limit_bytes(
        device_free=free_device,
        host_free=free_host_bytes(),
        device_buffers=options.streams + 1,  # one more to check the data in
        host_buffers=options.chunks,
    )
    if options.size_bytes is not None:
        check_chunk(options.size_bytes, limit_bytes)
        return options.size_bytes
    probe_bytes = fit_chunk(_PROBE_BYTES, limit_bytes)
    probe = _Workload(session, _Options(None, 1, 1, None, None), probe_bytes, twin)
    copy_ns = _time_alone(session, probe, partial(probe.copy_in, 0), waits=twin == "pageable")
    wanted_bytes = chunk_bytes(probe_bytes, copy_ns)
    size_bytes = fit_chunk(wanted_bytes, limit_bytes)
    if size_bytes < wanted_bytes:
        notes.append(
            f"chunks were shrunk from {format_size(wanted_bytes)} to {format_size(size_bytes)} "
            "to fit the memory"
        )
    return size_bytes


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _resolve(arguments)
    with open_session(BENCHMARK.name) as session:
        return _measure(session, options, twin, arguments.reps)


def _measure(session: Session, options: _Options, twin: str | None, reps: int) -> Result:
    """Calibrate, measure, and put the result together."""
    cold = twin == "cold-baseline"
    waits = twin == "pageable"
    notes: list[str] = []

    work = _Workload(session, options, _choose_size(session, options, twin, notes), twin)
    pattern = Pattern(session.cp, session.cp.empty(work.elements, "float32"))
    pattern.fill(work.hosts)
    if not cold:
        work.work(work.buffers[0].data.ptr, work.streams[0])  # loads it: not behind a closed gate
    session.cp.cuda.runtime.deviceSynchronize()

    def h2d_ns() -> int:
        return _time_alone(session, work, partial(work.copy_in, 0), waits=waits)

    def kernel_ns(steps: int) -> int:
        work.steps = steps
        return _time_alone(session, work, work.work)

    def d2h_ns() -> int:
        return _time_alone(session, work, partial(work.copy_out, 0), waits=waits)

    def check() -> None:
        pattern.check(work.hosts, work.steps * pass_value(work.passes_begun), work.worked)

    streamed = _STREAMED.get(twin or "", _Workload.streamed)
    passes = [
        Pass("sequential", work.streams, work.sequential, waits=waits or cold),
        Pass("streamed", work.streams, lambda: streamed(work), waits=twin in _WAITING_TWINS),
    ]
    if options.kernel_steps is None:
        say("calibrating the kernel")
        work.steps = calibrate_steps(kernel_ns, h2d_ns(), max_steps())
    if cold:
        time.sleep(_COOL_DOWN_S)
    measured = session.measure(passes, 1 if cold else reps, check=check, warm=not cold)

    # The stages are timed last: they are warm then, and a cold baseline stays cold.
    alone = StageTimes(h2d_ns(), kernel_ns(work.steps), d2h_ns())
    # Copies from pageable memory wait on the host: one thread cannot issue both ways at once.
    both_ways = (None, None) if waits else _time_both_ways(session, work)

    resolved = replace(options, size_bytes=work.size_bytes, kernel_steps=work.steps)
    pipeline = Pipeline(alone, options.chunks, options.streams, session.copy_engines)
    figures = _figures(pipeline, both_ways, measured.passes, work.size_bytes)
    faults = [] if cold else measured.readings.faults()
    notes += faults + measured.readings.notes() + _remarks(figures, session.copy_engines)
    machine = session.describe(measured.readings)
    return Result(
        benchmark=BENCHMARK.name,
        twin=twin,
        options=asdict(resolved),
        repetitions=measured.passes["streamed"].n,
        warmup=measured.warmup,
        passes=measured.passes,
        stages={
            "h2d_ns": alone.h2d,
            "kernel_ns": alone.kernel,
            "d2h_ns": alone.d2h,
            "h2d_contended_ns": both_ways[0],
            "d2h_contended_ns": both_ways[1],
        },
        figures=figures,
        expected=_expected(pipeline, twin),
        machine=machine,
        notes=tuple(notes),
        valid=not faults,
        table="\n".join(
            [
                f"{BENCHMARK.name}{f', twin {twin}' if twin else ''}, on {machine['gpu']}: "
                f"{options.chunks} chunks of {format_size(work.size_bytes)}, "
                f"{options.streams} streams, {work.steps} kernel steps",
                *pass_table(measured.passes),
                *_limits_table(pipeline, both_ways, figures),
                *(f"note: {note}" for note in notes),
            ]
        ),
    )


def _figures(
    pipeline: Pipeline,
    both_ways: tuple[int | None, int | None],
    passes: Mapping[str, Statistics],
    size_bytes: int,
) -> dict[str, float | None]:
    """Return what was reached, and the limits it is to be held against."""
    sequential_ns, streamed_ns = passes["sequential"].median_ns, passes["streamed"].median_ns
    h2d_ns, d2h_ns = both_ways
    contended_ns = None
    if h2d_ns is not None and d2h_ns is not None:
        contended_ns = pipeline.makespan_ns(StageTimes(h2d_ns, pipeline.stages.kernel, d2h_ns))
    return {
        "t_lb_ns": pipeline.bound_ns,
        "t_lb_contended_ns": contended_ns,
        "speedup": sequential_ns / streamed_ns,
        "speedup_max": pipeline.speedup_max,
        "pipeline_efficiency": efficiency_ratio(sequential_ns, streamed_ns, pipeline.bound_ns),
        "pipeline_efficiency_contended": None
        if contended_ns is None
        else efficiency_ratio(sequential_ns, streamed_ns, contended_ns),
        "h2d_rate_bytes_per_s": rate_bytes_per_s(size_bytes, pipeline.stages.h2d),
        "d2h_rate_bytes_per_s": rate_bytes_per_s(size_bytes, pipeline.stages.d2h),
        "h2d_contended_rate_bytes_per_s": rate_bytes_per_s(size_bytes, h2d_ns),
        "d2h_contended_rate_bytes_per_s": rate_bytes_per_s(size_bytes, d2h_ns),
    }


def _remarks(figures: Mapping[str, float | None], copy_engines: int) -> list[str]:
    """Return what a reader would otherwise conclude wrongly from the figures."""
    remarks = []
    speedup, limit = figures["speedup"], figures["speedup_max"]
    if speedup is not None and limit is not None and speedup > COLD_BASELINE_FACTOR * limit:
        remarks.append(
            f"a speed-up of {speedup:.2f}× is more than the {limit:.2f}× that is possible: the "
            "sequential pass was not warm"
        )
    if copy_engines == 1:
        remarks.append("the GPU has one copy engine: copies in and out cannot overlap")
    return remarks


def _expected(pipeline: Pipeline, twin: str | None) -> tuple[Expected, ...]:
    """Return the verdicts that the trace must show, for both passes."""
    return pipeline.expected("sequential", overlapping=False) + pipeline.expected(
        "streamed", overlapping=twin in _OVERLAPPING_TWINS
    )


def _limits_table(
    pipeline: Pipeline,
    both_ways: tuple[int | None, int | None],
    figures: Mapping[str, float | None],
) -> list[str]:
    """Return the stages and the limits as lines for people."""
    lines = [f"{'stage':<12}{'alone':>10}{'':>12}{'both ways':>12}"]
    alone = pipeline.stages
    for name, alone_ns, shared_ns in (
        ("h2d", alone.h2d, both_ways[0]),
        ("kernel", alone.kernel, None),
        ("d2h", alone.d2h, both_ways[1]),
    ):
        rate = format_rate(figures.get(f"{name}_rate_bytes_per_s"))
        shared_rate = format_rate(figures.get(f"{name}_contended_rate_bytes_per_s"))
        cells = f"{format_ns(alone_ns):>10}{rate:>12}{format_ns(shared_ns):>12}{shared_rate:>12}"
        lines.append(f"{name:<12}{cells}")
    for title, suffix in (("stages alone", ""), ("copies both ways", "_contended")):
        bound = format_ns(figures[f"t_lb{suffix}_ns"])
        reached = format_ratio(figures[f"pipeline_efficiency{suffix}"])
        lines.append(f"bound from {title}: {bound}, {reached} of that gain reached")
    lines.append(f"speed-up {figures['speedup']:.2f}× of {figures['speedup_max']:.2f}× possible")
    return lines


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--chunks", type=positive_int, metavar="N", help="pieces of the data (default: 8)"
    )
    parser.add_argument(
        "--streams", type=positive_int, metavar="N", help="streams they go to in turn (default: 4)"
    )
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=size_argument,
        metavar="SIZE",
        help="bytes a chunk, such as 64M (default: about 3 ms of copying, 16M to 256M)",
    )
    parser.add_argument(
        "--kernel-steps",
        type=positive_int,
        metavar="K",
        help="multiply-adds an element (default: as long as the copy in)",
    )
    parser.add_argument(
        "--preset",
        choices=sorted(_PRESETS),
        help="seed: 4 chunks of 256M, 4 streams, 1024 kernel steps, as first published",
    )


_SERIALIZED = "streamed: all three pairs serialized"

BENCHMARK = Benchmark(
    name="streams",
    summary="copy in, kernel, copy out in chunks: one stream against several",
    options="--chunks N  --streams N  --size SIZE  --kernel-steps K  --preset seed",
    needs="1 GPU",
    twins=(
        Twin("default-stream", "everything on the default stream", _SERIALIZED),
        Twin("one-stream", "everything on one non-blocking stream", _SERIALIZED),
        Twin("pageable", "host memory that is not page-locked", _SERIALIZED),
        Twin("event-chain", "each chunk waits for the event of the one before", _SERIALIZED),
        Twin("host-sync", "the host waits for each chunk", _SERIALIZED),
        Twin("alloc-free", "each chunk's buffer is allocated and freed on the way", _SERIALIZED),
        Twin(
            "tiny-kernel",
            "a kernel of one step on a quarter of each chunk",
            "streamed: copies overlapped, both pairs with the kernel immaterial",
        ),
        Twin(
            "shared-buffer",
            "all streams work in one device buffer, and race",
            "the data check ends the run with exit code 1 and no figures",
            wrong_data=True,
        ),
        Twin(
            "cold-baseline",
            "one repetition with nothing warmed up, the sequential pass first",
            "streamed: overlapped; a speed-up above the possible one is pointed out",
        ),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
