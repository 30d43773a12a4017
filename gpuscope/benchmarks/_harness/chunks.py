"""A pipeline of chunks: its buffers and kernel, and the times of its stages.

What `streams`, `multicopy` and `graph` have in common. They differ in how they issue the stages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpuscope.benchmarks._harness.data import Pattern, max_steps, pass_term, pass_value
from gpuscope.benchmarks._harness.gpu import Measured, Session, host_array, say
from gpuscope.benchmarks._harness.machine import free_host_bytes
from gpuscope.benchmarks._harness.pipeline import (
    BothWays,
    Pipeline,
    PipelineReport,
    StageTimes,
    report_pipeline,
)
from gpuscope.benchmarks._harness.sizing import (
    DEVICE_MEMORY_RATIO,
    MIB,
    Calibration,
    calibrate_steps,
    check_chunk,
    chunk_bytes,
    fit_chunk,
    memory_limit_bytes,
    positive_int,
    shrink_to_fit,
    size_argument,
)
from gpuscope.benchmarks._harness.stats import Statistics, contended_median_ns
from gpuscope.errors import UsageError
from gpuscope.units import format_bytes

_PROBE_BYTES = 64 * MIB
_STAGE_REPEATS = 10
_THREADS = 256

_SOURCE = r"""
__device__ void fma_element(float* data, unsigned count, int steps, float factor, float term) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float x = data[i];
    #pragma unroll 16
    for (int step = 0; step < steps; ++step) x = fmaf(x, factor, term);
    data[i] = x;
}
extern "C" __global__ void fma_steps(float* data, unsigned count, int steps, float factor,
                                     float term) {
    fma_element(data, count, steps, factor, term);
}
// The term is read from memory: a graph keeps the arguments it was captured with.
extern "C" __global__ void fma_steps_from(float* data, unsigned count, int steps, float factor,
                                          const float* term) {
    fma_element(data, count, steps, factor, *term);
}
"""


class FmaKernel:
    """x ← 1·x + term, as often as there are steps, for each element."""

    def __init__(self, cp: Any, *, term_from: Any = None) -> None:
        """Compile it. `term_from` is a device array to read the term from, instead of arguments."""
        self._term_from = term_from
        self._kernel = cp.RawKernel(_SOURCE, "fma_steps" if term_from is None else "fma_steps_from")
        self._kernel.compile()

    def launch(self, stream: Any, buffer: int, count: int, steps: int, term: float) -> None:
        """Issue it on `count` elements from the device address `buffer` on."""
        import numpy as np

        arguments = (
            buffer,
            np.uint32(count),
            np.int32(steps),
            np.float32(1),
            np.float32(term) if self._term_from is None else self._term_from,
        )
        with stream:
            self._kernel((-(-count // _THREADS),), (_THREADS,), arguments)


class Chunks:
    """Host buffers, device buffers and the kernel: all that a pass needs, made before any of them.

    Attributes
    ----------
    hosts
        A buffer a chunk.
    buffers
        Device buffers, poisoned with NaN: they keep it until a chunk is really copied in.
    steps
        Steps of the kernel.
    worked
        The kernel works on this many elements of each chunk.
    passes_begun
        How many passes were issued; each adds a number of its own to the data.
    calibration
        What the kernel was calibrated to, if it was.
    """

    def __init__(
        self,
        session: Session,
        *,
        chunks: int,
        buffers: int,
        size_bytes: int,
        steps: int = 1,
        pinned: bool = True,
        term_from: Any = None,
    ) -> None:
        import numpy as np

        cp = self.cp = session.cp
        self.session = session
        self.pinned = pinned
        self.size_bytes = size_bytes
        self.elements = self.worked = size_bytes // 4
        self.steps = steps
        self.passes_begun = 0
        self.calibration: Calibration | None = None
        self.kernel = FmaKernel(cp, term_from=term_from)
        self.buffers = [cp.full(self.elements, np.nan, np.float32) for _ in range(buffers)]
        self.hosts = [host_array(cp, self.elements, pinned=pinned) for _ in range(chunks)]

    def fill(self, pattern: Pattern) -> None:
        """Write the pattern to the host buffers, and load the kernel: not behind a closed gate."""
        pattern.fill(self.hosts)
        self.work(self.buffers[0].data.ptr, self.cp.cuda.Stream.null)
        self.cp.cuda.runtime.deviceSynchronize()

    def copy_in(self, chunk: int, buffer: int, stream: Any) -> None:
        """Issue the copy of a chunk to the device buffer at address `buffer`."""
        runtime = self.cp.cuda.runtime
        source = self.hosts[chunk].ctypes.data
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(buffer, source, self.size_bytes, kind, stream.ptr)

    def work(self, buffer: int, stream: Any) -> None:
        """Issue the kernel of the pass that was begun last."""
        self.kernel.launch(stream, buffer, self.worked, self.steps, pass_term(self.passes_begun))

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

    def issue_all(self, streams: Sequence[Any]) -> None:
        """Issue chunk i to stream i modulo n, with that stream's buffer, chunk by chunk."""
        for chunk in range(len(self.hosts)):
            turn = chunk % len(streams)
            self.issue_chunk(chunk, self.buffers[turn].data.ptr, streams[turn])

    def check(self, pattern: Pattern) -> None:
        """Compare all host buffers with what the passes so far must leave."""
        added = self.steps * pass_value(self.passes_begun)
        pattern.check(self.hosts, added, self.worked)

    # Times of the stages, on a stream and buffers that nothing else uses meanwhile.

    def _alone_ns(self, issue: Callable[[int, Any], None], *, waits: bool = False) -> int:
        """Return the time of one operation with nothing beside it, in ns."""
        stream, buffer = self.cp.cuda.Stream(non_blocking=True), self.buffers[0].data.ptr
        operations = [lambda: issue(buffer, stream)] * (1 + _STAGE_REPEATS)
        (spans,) = self.session.time_operations([(stream, operations)], waits=waits)
        return Statistics.of([end - start for start, end in spans[1:]]).median_ns

    def h2d_ns(self) -> int:
        """Return the time of one copy in, in ns."""
        return self._alone_ns(partial(self.copy_in, 0), waits=not self.pinned)

    def kernel_ns(self, steps: int) -> int:
        """Return the time of one kernel with this many steps, in ns, and keep the number."""
        self.steps = steps
        return self._alone_ns(self.work)

    def d2h_ns(self) -> int:
        """Return the time of one copy out, in ns."""
        return self._alone_ns(partial(self.copy_out, 0), waits=not self.pinned)

    def calibrate(self, ratio: float = 1.0) -> None:
        """Choose the steps with which the kernel lasts `ratio` times the copy in."""
        say("calibrating the kernel")
        self.calibration = Calibration(ratio, self.h2d_ns())
        target_ns = self.calibration.target_ns
        self.steps = calibrate_steps(self.kernel_ns, target_ns, max_steps())

    def stage_times(self) -> StageTimes:
        """Return the times of all stages, each with nothing beside it. It spoils the data."""
        return StageTimes(self.h2d_ns(), self.kernel_ns(self.steps), self.d2h_ns())

    def both_ways_ns(self) -> BothWays:
        """Return the times of a copy in and a copy out while the other direction is busy, in ns.

        Copies of pageable memory wait on the host: one thread cannot issue both ways at once.
        """
        if not self.pinned:
            return None, None
        ways = [self.cp.cuda.Stream(non_blocking=True) for _ in range(2)]
        inward, outward = self.buffers[0].data.ptr, self.buffers[-1].data.ptr
        last = len(self.hosts) - 1
        spans_in, spans_out = self.session.time_operations(
            [
                (ways[0], [lambda: self.copy_in(0, inward, ways[0])] * _STAGE_REPEATS),
                (ways[1], [lambda: self.copy_out(last, outward, ways[1])] * _STAGE_REPEATS),
            ]
        )
        return contended_median_ns(spans_in, spans_out), contended_median_ns(spans_out, spans_in)

    def pipeline(self, streams: int) -> Pipeline:
        """Return the pipeline of all chunks on this many streams, by the stages' times now."""
        return Pipeline(self.stage_times(), len(self.hosts), streams, self.session.copy_engines)

    def report(
        self, pipeline: Pipeline, measured: Measured, sequential: str, streamed: str
    ) -> PipelineReport:
        """Say what the pass `streamed` reached of the `pipeline`, against the pass `sequential`."""
        report = report_pipeline(
            pipeline,
            self.both_ways_ns(),
            measured.passes[sequential],
            measured.passes[streamed],
            size_bytes=self.size_bytes,
            pcie_bytes_per_s=self.session.pcie_limit_bytes_per_s(measured.readings),
        )
        if self.calibration is None:
            return report
        stages = pipeline.stages
        remarks = self.calibration.remarks(stages.kernel, stages.h2d)
        return replace(report, notes=(*report.notes, *remarks))


def add_chunk_arguments(parser: argparse.ArgumentParser, *, size_default: str) -> None:
    """Add the options of how chunks are cut and worked on."""
    parser.add_argument(
        "--streams", type=positive_int, metavar="N", help="streams they go to in turn (default: 4)"
    )
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=size_argument,
        metavar="SIZE",
        help=f"bytes a chunk, such as 64M (default: {size_default})",
    )
    parser.add_argument(
        "--kernel-steps",
        type=positive_int,
        metavar="K",
        help="multiply-adds an element (default: as long as the copy in)",
    )


def buffer_limit_bytes(session: Session, *, device_buffers: int, host_buffers: int) -> int:
    """Return the largest buffer for which all stay within their share of the free memory."""
    free_device, _ = session.cp.cuda.runtime.memGetInfo()
    return memory_limit_bytes(
        device_free=free_device,
        host_free=free_host_bytes(),
        device_buffers=device_buffers,
        host_buffers=host_buffers,
    )


def check_device_bytes(session: Session, wanted_bytes: int) -> None:
    """Refuse buffers that together take more than their share of the free device memory.

    Raises
    ------
    UsageError
        They do.
    """
    free_bytes, _ = session.cp.cuda.runtime.memGetInfo()
    limit_bytes = int(free_bytes * DEVICE_MEMORY_RATIO)
    if wanted_bytes > limit_bytes:
        raise UsageError(
            f"buffers of {format_bytes(wanted_bytes)} do not fit: they may take "
            f"{DEVICE_MEMORY_RATIO:.0%} of the free device memory, {format_bytes(limit_bytes)}: "
            "ask for smaller sizes."
        )


def choose_chunk_bytes(
    session: Session,
    size_bytes: int | None,
    *,
    chunks: int,
    buffers: int,
    notes: list[str],
    pinned: bool = True,
) -> int:
    """Return the chunk size: the one asked for if it fits, else about 3 ms of copying."""
    limit_bytes = buffer_limit_bytes(
        session,
        device_buffers=buffers + 1,  # one more to check the data in
        host_buffers=chunks,
    )
    if size_bytes is not None:
        check_chunk(size_bytes, limit_bytes)
        return size_bytes
    probe_bytes = fit_chunk(_PROBE_BYTES, limit_bytes)
    probe = Chunks(session, chunks=1, buffers=1, size_bytes=probe_bytes, pinned=pinned)
    wanted_bytes = chunk_bytes(probe_bytes, probe.h2d_ns())
    return shrink_to_fit(wanted_bytes, limit_bytes, notes)


def refuse_inexact(steps: int | None) -> None:
    """Raise UsageError for so many kernel steps that the data would not stay exact."""
    if (steps or 1) > max_steps():
        raise UsageError(
            f"--kernel-steps may be {max_steps()} at most: with more, the data that proves the "
            "copies right would not be exact."
        )
